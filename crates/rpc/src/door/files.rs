//! The files that the TCP ports need.

use std::path::PathBuf;

/// Files in PEM form for the TCP ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate, and after it those between it and its authority.
    pub certificate: PathBuf,
    /// The daemon's private key.
    pub key: PathBuf,
    /// The authorities whose certificates clients may have.
    pub client_ca: PathBuf,
    /// Revocation lists of these authorities.
    pub client_crl: Option<PathBuf>,
}
