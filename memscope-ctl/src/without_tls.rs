//! Stands in for TLS in a build without it: only daemons of this machine can be asked.

use crate::failure::Failure;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use tokio::net::TcpStream;

/// What connections over TLS are made with, which nobody can have.
#[derive(Clone)]
pub(crate) struct Tls(Infallible);

impl Tls {
    /// Refuses.
    pub(crate) fn load(_: &Path, _: &Path, _: &Path, _: Option<&str>) -> Result<Tls, Failure> {
        Err(Failure::left_out("TLS"))
    }

    /// Nobody can ask for it.
    pub(crate) async fn begin(
        &self,
        _: TcpStream,
        _: &str,
        _: Option<&str>,
    ) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
