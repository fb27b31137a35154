//! Answers that wait for readings.

use std::time::Instant;

use memscope_proto::v1::AttachResponse;
use memscope_rpc::Refusal;
use tokio::sync::oneshot;

/// An attach that was carried out or refused, and is not written down yet.
pub(super) struct Unsaved {
    pub(super) since: Instant,
    pub(super) outcome: Result<AttachResponse, Refusal>,
    pub(super) reply: oneshot::Sender<Result<AttachResponse, Refusal>>,
}

/// An attach whose probes are live and whose readings are under way.
pub(super) struct Attaching {
    pub(super) deadline: Instant,
    pub(super) outcome: AttachResponse,
    pub(super) reply: oneshot::Sender<Result<AttachResponse, Refusal>>,
}

/// A question that needs a new reading.
pub(super) struct Refreshing {
    pub(super) deadline: Instant,
    pub(super) pid: u32,
    pub(super) reply: oneshot::Sender<()>,
}
