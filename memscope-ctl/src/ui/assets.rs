//! The files of the page, which are part of this program. `cargo xtask ui` makes them of the sources in `ui/`.

use super::reply::{Reply, reply, whole};
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use tonic::codegen::{Bytes, http};

/// One file.
struct Asset {
    /// Path in the address.
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../ui/built/", $name))
    };
}

/// All files. Nothing else is ever read for an address, so none leads to a file of this machine.
const ASSETS: [Asset; 4] = [
    Asset {
        path: "/",
        kind: "text/html; charset=utf-8",
        content: built!("index.html"),
    },
    Asset {
        path: "/app.js",
        kind: "text/javascript; charset=utf-8",
        content: built!("app.js"),
    },
    Asset {
        path: "/app.css",
        kind: "text/css; charset=utf-8",
        content: built!("app.css"),
    },
    Asset {
        path: "/favicon.svg",
        kind: "image/svg+xml",
        content: built!("favicon.svg"),
    },
];

/// The file at this path, if there is one; only its headers if the browser has it already.
pub(crate) fn asset(path: &str, headers: &HeaderMap) -> Option<Reply> {
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let tag = tag(asset.content);
    let known = headers.get_all(IF_NONE_MATCH).iter();
    let mut known = known
        .filter_map(|tags| tags.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .map(|known| known.trim().trim_start_matches("W/"));
    let mut reply = match known.any(|known| known == tag) {
        true => reply(StatusCode::NOT_MODIFIED, asset.kind, whole(Bytes::new())),
        false => reply(
            StatusCode::OK,
            asset.kind,
            whole(Bytes::from_static(asset.content)),
        ),
    };
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // The tag is of hexadecimal digits, which a header can have.
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    Some(reply)
}

/// What changes whenever the content does.
fn tag(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_once() {
        let first = asset("/app.js", &HeaderMap::new()).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CACHE_CONTROL], "no-cache");
        let tag = first.headers()[ETAG].clone();
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, tag);
        let again = asset("/app.js", &headers).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("\"other\""));
        assert_eq!(asset("/app.js", &headers).unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn there_are_no_other_files() {
        for path in [
            "",
            "//",
            "/index.html",
            "/../Cargo.toml",
            "/app.js/",
            "/%2e%2e/app.js",
        ] {
            assert!(asset(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }
}
