//! Where a daemon is asked: a Unix socket, a host and port, or a recording that is replayed for it.

use std::fmt;
use std::path::PathBuf;

/// Address of one daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// A Unix socket of this machine.
    Unix(PathBuf),
    /// A host and port, asked over TLS.
    Host {
        /// Name or IP address, without brackets.
        host: String,
        port: u16,
        /// Name that the daemon's certificate must have, where it is another than `host`.
        verified_as: Option<String>,
    },
    /// A recording, for which a memscoped is started.
    Recording(PathBuf),
}

/// Why a text is no address; its message says what would be one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "\"{text}\" names no path — write unix:{}",
        memscope_proto::DEFAULT_SOCKET
    )]
    PathMissing { text: String },
    #[error("\"{text}\" is no address — write unix:PATH, HOST:PORT or recording:PATH")]
    Unknown { text: String },
    #[error("\"{text}\" has no port between 1 and 65535 — write HOST:PORT, as 10.0.0.7:9465")]
    PortMissing { text: String },
    #[error("\"{text}\" is an IPv6 address without brackets — write [::1]:9465")]
    BracketsMissing { text: String },
}

impl Address {
    /// Reads `unix:PATH`, `HOST:PORT`, `[IPV6]:PORT` or `recording:PATH`.
    pub(crate) fn parse(text: &str) -> Result<Address, AddressError> {
        let path = |path: &str| match path.is_empty() {
            true => Err(AddressError::PathMissing { text: text.into() }),
            false => Ok(PathBuf::from(path)),
        };
        if let Some(socket) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(path(socket)?));
        }
        if let Some(recording) = text.strip_prefix("recording:") {
            return Ok(Address::Recording(path(recording)?));
        }
        let no_address = || AddressError::Unknown { text: text.into() };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once("]:").ok_or_else(no_address)?;
                host.parse::<std::net::Ipv6Addr>()
                    .map_err(|_| no_address())?;
                (host, port)
            }
            None => text.rsplit_once(':').ok_or_else(no_address)?,
        };
        if host.contains(':') && !text.starts_with('[') {
            return Err(AddressError::BracketsMissing { text: text.into() });
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || !host.chars().all(is_name) {
            return Err(no_address());
        }
        let is_number = port.bytes().all(|digit| digit.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port > 0 && is_number);
        Ok(Address::Host {
            host: host.to_owned(),
            port: port.ok_or_else(|| AddressError::PortMissing { text: text.into() })?,
            verified_as: None,
        })
    }
}

impl Address {
    /// The address as a list of nodes has it.
    pub(crate) fn in_a_list(&self) -> String {
        match self {
            Address::Unix(_) => format!("unix:{self}"),
            Address::Host { .. } => self.to_string(),
            Address::Recording(_) => format!("recording:{self}"),
        }
    }
}

/// A socket is shown as its path alone, as it is given to `--socket`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Host { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Host { host, port, .. } => write!(f, "{host}:{port}"),
            Address::Recording(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(host: &str, port: u16) -> Address {
        Address::Host {
            host: host.into(),
            port,
            verified_as: None,
        }
    }

    #[test]
    fn every_kind_is_read() {
        let read = |text: &str| Address::parse(text).unwrap();
        assert_eq!(read("unix:/run/a b"), Address::Unix("/run/a b".into()));
        assert_eq!(read("recording:x"), Address::Recording("x".into()));
        assert_eq!(read("node-7.cluster:9465"), host("node-7.cluster", 9465));
        assert_eq!(read("10.0.0.7:1"), host("10.0.0.7", 1));
        assert_eq!(read("[::1]:9465"), host("::1", 9465));
        assert_eq!(read("[::1]:9465").to_string(), "[::1]:9465");
    }

    #[test]
    fn what_is_none_says_what_would_be_one() {
        for (text, words) in [
            ("", "no address"),
            ("node7", "write unix:PATH, HOST:PORT"),
            ("unix:", "names no path"),
            (":9465", "no address"),
            ("node7:", "no port"),
            ("node7:0", "no port"),
            ("node7:65536", "no port"),
            ("node7:+1", "no port"),
            ("::1:9465", "write [::1]:9465"),
            ("[::1]9465", "no address"),
            ("[node7]:1", "no address"),
            ("http://node7:1", "brackets"),
            ("no/de:1", "no address"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_alike(text in "(unix:|recording:|\\[)?[a-z0-9:.\\]\\[]{0,12}(:[0-9]{1,6})?") {
            if let Ok(address @ Address::Host { .. }) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(&address.to_string()), Ok(address));
            }
        }
    }
}
