//! Stands in for TLS in a build without it: no TCP port can be opened.

use super::Door;
use super::files::TlsFiles;
use crate::accept::Admission;
use crate::audit::Tell;
use crate::authority::Connection;
use crate::roles::Roles;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It was left out when the program was built.
    #[error(
        "this memscoped was built without TLS, and opens no TCP port — build it with its default features, of which one is `tls`"
    )]
    LeftOut,
}

/// The TLS configuration of ports, which nobody can have.
#[derive(Clone, Debug)]
pub struct Tls(Infallible);

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: TlsFiles, _: Roles, _: Tell) -> Result<Tls, TlsError> {
        Err(TlsError::LeftOut)
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn check(_: &TlsFiles, _: &Tell) -> Result<(), TlsError> {
        Err(TlsError::LeftOut)
    }
}

/// Accepts no connections: there is no port.
pub(crate) async fn accept(door: Door, _: Arc<Admission>, _: mpsc::Sender<io::Result<Connection>>) {
    match door.tls.0 {}
}
