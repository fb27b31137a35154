//! How to serve.

use crate::access::Access;
use crate::caller::{Identify, peer_credentials};
use crate::export::Exporter;

/// How to serve.
#[derive(Clone)]
pub struct ServeOptions {
    /// Who may see what.
    pub access: Access,
    /// Who asks.
    pub identify: Identify,
    /// Writes pickles in place of the writer that this format has. For tests.
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
