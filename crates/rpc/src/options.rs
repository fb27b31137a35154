//! How to serve.

use crate::access::Access;
use crate::caller::{Identify, peer_credentials};
use crate::export::Export;

/// How to serve.
#[derive(Clone)]
pub struct ServeOptions {
    /// Who may see what.
    pub access: Access,
    /// Who asks.
    pub identify: Identify,
    /// File formats.
    pub export: Export,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            access: Access::Owner,
            identify: peer_credentials(),
            export: Export::default(),
        }
    }
}
