//! Options of the server.

use crate::access::Access;
use crate::caller::{Identify, peer_credentials};
use crate::export::Exporter;

/// Options of the server.
#[derive(Clone)]
pub struct ServeOptions {
    /// Which processes a caller may see.
    pub access: Access,
    /// How the caller of a request is found.
    pub identify: Identify,
    /// Replaces the writer of the format `memory-viz` (PyTorch's pickle). For tests.
    pub exporter: Option<Exporter>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            access: Access::Owner,
            identify: peer_credentials(),
            exporter: None,
        }
    }
}
