//! memscope's gRPC server.
//!
//! Owns: the socket, who may ask what, the one way by which questions are asked, the streaming of large answers, and
//! the fan-out of events to readers. Refuses: to know how answers are computed; that is behind the trait [`Daemon`].

mod accept;
mod access;
mod asked;
mod authority;
mod caller;
mod condition;
mod daemon;
mod event;
mod exact;
mod export;
mod fanout;
mod flow;
mod kinds;
mod listen;
mod named;
mod options;
mod refusal;
mod serve;
mod service;
mod service_triggers;
mod share;
mod stacks;
mod triggers;
mod turns;
mod under_way;

#[cfg(feature = "fake")]
pub mod fake;

pub use access::Access;
pub use caller::{Caller, Identify, peer_credentials};
pub use condition::{Condition, ConditionError, Metric};
pub use daemon::{
    AttachOptions, AttachRequest, AttachScope, Daemon, DetachScope, EventFilter, EventItem, Moment,
    RecordingWriter, StackKinds,
};
pub use export::Exporter;
pub use fanout::EventHub;
pub use listen::{ListenError, ListenOptions, Listener, Reach};
pub use options::ServeOptions;
pub use refusal::Refusal;
pub use serve::{ServeError, serve};
pub use share::Limits;
pub use tonic::async_trait;
pub use triggers::{KeptSnapshot, KeptSnapshots, OpenKept, TriggerStatus, Triggers};
pub use under_way::Wanted;
