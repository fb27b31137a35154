//! The settings of the command line: where the collector is, and how requests are sent to it.

use hyper::Uri;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// By which of OTLP's protocols requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// gRPC.
    #[value(name = "grpc")]
    Grpc,
    /// Messages in the body of HTTP requests.
    #[value(name = "http/protobuf")]
    HttpProtobuf,
}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) uri: Uri,
    host: String,
    port: u16,
    pub(super) is_tls: bool,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("{error}; give a URL such as http://127.0.0.1:4318"))?;
        let (is_tls, usual) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err("begin it with http:// or https://".to_owned()),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(
                "it has a name or a password in it, which others can read — put what the collector wants to see into --otlp-headers-file"
                    .to_owned(),
            );
        }
        if uri.query().is_some() {
            return Err("leave out what begins with `?`".to_owned());
        }
        let path = uri.path().trim_end_matches('/');
        if path.ends_with("/v1/metrics") || path.ends_with("/v1/logs") {
            return Err("leave out /v1/metrics and /v1/logs, which are added".to_owned());
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or("it names no host")?.to_owned();
        let port = match uri.port() {
            Some(port) => port.as_str().parse().ok(),
            // The library leaves out a port that is none.
            None if authority
                .trim_end_matches(|one: char| one.is_ascii_digit())
                .ends_with(':') =>
            {
                None
            }
            None => Some(usual),
        };
        let port = port.ok_or("its port is no number up to 65535")?;
        Ok(Endpoint {
            host: host.trim_matches(['[', ']']).to_owned(),
            uri,
            port,
            is_tls,
        })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.uri.fmt(out)
    }
}

#[cfg(feature = "otlp")]
impl Endpoint {
    /// Host, without brackets around an address.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The URL as it was given.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The path of a signal beneath the URL.
    pub(super) fn path_of(&self, signal: &str) -> String {
        format!("{}/v1/{signal}", self.uri.path().trim_end_matches('/'))
    }
}

/// The settings of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the collector is.
    pub endpoint: Endpoint,
    /// How requests are sent.
    pub protocol: Protocol,
    /// Time between two requests with metrics.
    pub interval: Duration,
    /// File with headers, which may be secrets.
    pub headers_file: Option<PathBuf>,
    /// Authorities that the collector's certificate may be from; `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
}

#[cfg(all(test, feature = "otlp"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Endpoint>().unwrap_err()
    }

    #[test]
    fn what_an_endpoint_may_be() {
        let port = 4318;
        let url = format!("https://collector.example:{port}/otlp/");
        let endpoint: Endpoint = url.parse().unwrap();
        assert_eq!(
            (endpoint.host(), endpoint.port()),
            ("collector.example", port)
        );
        assert!(endpoint.is_tls);
        assert_eq!(endpoint.path_of("metrics"), "/otlp/v1/metrics");
        let endpoint: Endpoint = "http://[::1]:4317".parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), ("::1", 4317));
        assert_eq!(endpoint.path_of("logs"), "/v1/logs");
        let usual = |text: &str| text.parse::<Endpoint>().unwrap().port();
        assert_eq!((usual("http://x"), usual("https://x")), (80, 443));
        for (text, words) in [
            ("collector:4317", "http://"),
            ("ftp://x", "https://"),
            ("/v1/metrics", "http://"),
            ("http://name:secret@x", "--otlp-headers-file"),
            ("http://x/v1/metrics", "/v1/metrics"),
            ("http://x/?key=secret", "`?`"),
            ("http://x:99999", "65535"),
            ("http://x:", "65535"),
            ("", "URL"),
        ] {
            let said = refused(text);
            assert!(said.contains(words), "{text}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
