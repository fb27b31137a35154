//! Options of the server.

use crate::access::Access;
use crate::audit::Audit;
use crate::caller::{Identify, peer_credentials};
use crate::export::Exporter;
use crate::share::Limits;
use std::time::Duration;

/// Options of the server.
#[derive(Clone)]
pub struct ServeOptions {
    /// Which processes a caller may see.
    pub access: Access,
    /// How the caller of a request is found.
    pub identify: Identify,
    /// Replaces the writer of the format `memory-viz` (PyTorch's pickle). For tests.
    pub exporter: Option<Exporter>,
    /// How long a client may leave a piece of an answer untaken before the answer ends. Streams of events do not end:
    /// their readers are told how many events they missed.
    pub patience: Duration,
    /// How long a client may take to send a request.
    pub sent_within: Duration,
    /// Where requests that change something are written down; `None`: nowhere.
    pub audit: Option<Audit>,
    /// How many connections there may be.
    pub connections: Limits,
    /// How many requests may be under way, over all connections.
    pub requests: Limits,
}

/// The usual patience with clients that take nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// The usual time for a request, which is small, to arrive.
const SENT_WITHIN: Duration = Duration::from_secs(30);

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            access: Access::Owner,
            identify: peer_credentials(),
            exporter: None,
            patience: PATIENCE,
            sent_within: SENT_WITHIN,
            audit: None,
            connections: Limits::CONNECTIONS,
            requests: Limits::REQUESTS,
        }
    }
}
