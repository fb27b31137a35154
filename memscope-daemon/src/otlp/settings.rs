//! What connections to the collector are made with.
//!
//! Owns: the file of headers, and the authorities that a collector's certificate may be from. A header's value is a secret: it is in no
//! message.

use super::options::{Endpoint, Options, Protocol};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, InvalidHeaderName};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;

/// Largest size of the file of headers, in bytes.
const LARGEST: u64 = 64 << 10;
/// Where systems keep the certificates of the authorities that everybody trusts.
const TRUSTED: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Headers that the request itself needs.
const OF_THE_REQUEST: &[&str] = &[
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
];

/// Why nothing can be sent to a collector.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// A file cannot be read.
    #[error("the file {path} of {option} cannot be read")]
    Unreadable {
        /// Which setting names it.
        option: &'static str,
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Others can read the secrets.
    #[error(
        "the file {path} of --otlp-headers-file can be read or changed by other users than the one that memscoped runs as — `chmod 600 {path}`, and let \
         it belong to that user"
    )]
    Open {
        /// Path of the file.
        path: PathBuf,
    },
    /// A line is no header.
    #[error("line {line} of {path}, which --otlp-headers-file names: {what}")]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it; its value is not told.
        what: String,
    },
    /// The file is larger than any list of headers.
    #[error(
        "the file {path} of --otlp-headers-file has more than {LARGEST} bytes — is it the right one?"
    )]
    Large {
        /// Path of the file.
        path: PathBuf,
    },
    /// No certificate can be used.
    #[error("{path} has no certificate of an authority that can be used (--otlp-ca)")]
    NoAuthority {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// There is no list of trusted authorities.
    #[error(
        "this machine has none of the usual files with the certificates of authorities — install ca-certificates, or name a file with --otlp-ca"
    )]
    NoneTrusted,
    /// A path makes no sense with gRPC.
    #[error(
        "--otlp-endpoint {endpoint} has a path, which gRPC has no use for — leave it out, or choose --otlp-protocol http/protobuf"
    )]
    Path {
        /// The URL.
        endpoint: String,
    },
    /// Certificates make no sense without TLS.
    #[error("--otlp-ca is for https:// only, and --otlp-endpoint is {endpoint}")]
    NoTls {
        /// The URL.
        endpoint: String,
    },
    /// TLS cannot be used.
    #[error("TLS cannot be set up")]
    Tls {
        /// What was wrong.
        source: rustls::Error,
    },
}

/// Everything that connections to a collector are made with.
pub struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) protocol: Protocol,
    pub(super) interval: Duration,
    pub(super) headers: HeaderMap,
    pub(super) tls: Option<TlsConnector>,
}

impl Settings {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// If one cannot be used, or the options contradict each other.
    pub fn load(options: Options) -> Result<Settings, OtlpError> {
        let Options {
            endpoint,
            protocol,
            interval,
            headers_file,
            ca,
        } = options;
        let has_path = !matches!(endpoint.uri.path(), "" | "/");
        if protocol == Protocol::Grpc && has_path {
            let endpoint = endpoint.to_string();
            return Err(OtlpError::Path { endpoint });
        }
        let headers = headers_file.as_deref().map(headers).transpose()?;
        let tls = match (endpoint.is_tls, ca) {
            (false, None) => None,
            (false, Some(_)) => {
                let endpoint = endpoint.to_string();
                return Err(OtlpError::NoTls { endpoint });
            }
            (true, Some(path)) => Some(connector(&path, protocol)?),
            (true, None) => {
                let mut usual = TRUSTED.iter().map(Path::new);
                let found = usual.find(|path| path.exists());
                Some(connector(found.ok_or(OtlpError::NoneTrusted)?, protocol)?)
            }
        };
        Ok(Settings {
            endpoint,
            protocol,
            interval,
            headers: headers.unwrap_or_default(),
            tls,
        })
    }

    /// Whether secrets would be sent so that others on the way can read them.
    pub(super) fn shows_secrets(&self) -> bool {
        let is_here = matches!(self.endpoint.host(), "localhost" | "127.0.0.1" | "::1");
        self.tls.is_none() && !self.headers.is_empty() && !is_here
    }

    /// Words of a collector without what is in our headers, in case it repeats them.
    pub(super) fn without_secrets(&self, words: &str) -> String {
        let values = self
            .headers
            .values()
            .filter_map(|value| value.to_str().ok());
        // Of `Bearer SECRET` it may repeat the second word alone.
        let parts = values.flat_map(|value| std::iter::once(value).chain(value.split(' ')));
        let mut words = words.to_owned();
        for part in parts.filter(|part| part.len() >= 8) {
            words = words.replace(part, "[header]");
        }
        words
    }
}

/// Reads the file of headers. Who else can read it is asked of the open file, not of its name.
fn headers(path: &Path) -> Result<HeaderMap, OtlpError> {
    let option = "--otlp-headers-file";
    let unreadable = |source| OtlpError::Unreadable {
        option,
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    let own = rustix::process::geteuid().as_raw();
    let is_ours = about.uid() == own || about.uid() == 0;
    if !is_ours || about.mode() & 0o066 != 0 {
        return Err(OtlpError::Open {
            path: path.to_owned(),
        });
    }
    let mut text = String::new();
    file.take(LARGEST + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > LARGEST {
        return Err(OtlpError::Large {
            path: path.to_owned(),
        });
    }
    let mut all = HeaderMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| OtlpError::Header {
            path: path.to_owned(),
            line: number + 1,
            what: what.to_owned(),
        };
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| wrong("write it as `name: value`"))?;
        let name: Result<HeaderName, InvalidHeaderName> = name.trim().parse();
        let name =
            name.map_err(|_| wrong("what stands before the colon is no name of a header"))?;
        if OF_THE_REQUEST.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
            return Err(wrong("memscoped sets this header itself"));
        }
        let value = HeaderValue::from_str(value.trim());
        let mut value =
            value.map_err(|_| wrong("the value has letters that no header may have"))?;
        value.set_sensitive(true);
        all.append(name, value);
    }
    Ok(all)
}

/// TLS to a server whose certificate is from one of the authorities in a file.
fn connector(path: &Path, protocol: Protocol) -> Result<TlsConnector, OtlpError> {
    let none = |source| OtlpError::NoAuthority {
        path: path.to_owned(),
        source,
    };
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<CertificateDer<'static>>, _>>);
    let certificates = read.map_err(|source| none(Some(Box::new(source))))?;
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(certificates);
    if usable == 0 {
        return Err(none(None));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| OtlpError::Tls { source })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let spoken: &[u8] = match protocol {
        Protocol::Grpc => b"h2",
        Protocol::HttpProtobuf => b"http/1.1",
    };
    config.alpn_protocols = vec![spoken.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn with_headers(text: &str, mode: u32) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let loaded = Settings::load(Options {
            endpoint: "http://127.0.0.1:1".parse().unwrap(),
            protocol: Protocol::HttpProtobuf,
            interval: Duration::from_secs(1),
            headers_file: Some(path),
            ca: None,
        });
        loaded.map_err(|error| crate::error_chain(&error))
    }

    fn wrong(text: &str, mode: u32) -> String {
        match with_headers(text, mode) {
            Ok(_) => panic!("{text:?} is accepted"),
            Err(why) => why,
        }
    }

    #[test]
    fn headers_are_read_from_a_file_that_nobody_else_can_read() {
        let text = "# The key.\n\nAuthorization: Bearer s3cr3t-of-ours\nx-scope: a:b\n";
        let settings = with_headers(text, 0o600).unwrap();
        assert_eq!(settings.headers["authorization"], "Bearer s3cr3t-of-ours");
        assert_eq!(settings.headers["x-scope"], "a:b");
        let said = settings.without_secrets("no such key: s3cr3t-of-ours");
        assert_eq!(said, "no such key: [header]");
        assert!(!format!("{:?}", settings.headers).contains("s3cr3t"));
        for mode in [0o604, 0o640, 0o644, 0o660, 0o602] {
            assert!(wrong(text, mode).contains("chmod 600"), "{mode:o}");
        }
        for (text, words) in [
            ("a: b\ns3cr3t", "line 2"),
            ("s3 cr3t: x", "no name of a header"),
            ("a: s3cr3t\u{1}", "letters"),
            ("Content-Type: s3cr3t", "itself"),
            ("grpc-timeout: s3cr3t", "itself"),
        ] {
            let said = wrong(text, 0o600);
            assert!(said.contains(words), "{said}");
            assert!(!said.contains("cr3t"), "{said}");
        }
        let large = "#".repeat(LARGEST as usize + 1);
        assert!(wrong(&large, 0o600).contains("right one"));
    }

    #[test]
    fn options_that_contradict_each_other() {
        let load = |endpoint: &str, protocol, ca: Option<&str>| {
            let loaded = Settings::load(Options {
                endpoint: endpoint.parse().unwrap(),
                protocol,
                interval: Duration::from_secs(1),
                headers_file: None,
                ca: ca.map(PathBuf::from),
            });
            loaded.err().map(|error| crate::error_chain(&error))
        };
        let said = load("http://x/otlp", Protocol::Grpc, None).unwrap();
        assert!(said.contains("http/protobuf"), "{said}");
        let said = load("http://x", Protocol::Grpc, Some("/dev/null")).unwrap();
        assert!(said.contains("https://"), "{said}");
        let said = load("https://x", Protocol::Grpc, Some("/dev/null")).unwrap();
        assert!(said.contains("--otlp-ca"), "{said}");
        assert_eq!(load("http://x/otlp", Protocol::HttpProtobuf, None), None);
    }
}
