//! memscope's gRPC server.
//!
//! Owns: the socket and the TCP ports, who may ask what, the audit log, the one way by which questions are asked, the streaming of large answers, and
//! the fan-out of events to readers. Refuses: to know how answers are computed; that is behind the trait [`Daemon`].

mod accept;
mod access;
mod asked;
mod audit;
mod authority;
mod caller;
mod condition;
mod daemon;
mod door;
mod event;
mod exact;
mod export;
mod fanout;
mod flow;
mod io;
mod item;
mod kinds;
mod leaks;
mod listen;
mod named;
mod options;
mod refusal;
#[cfg(not(feature = "fake"))]
mod rights;
#[cfg(feature = "fake")]
pub mod rights;
mod roles;
mod serve;
mod service;
mod service_triggers;
mod share;
mod stacks;
mod triggers;
mod turns;
mod under_way;
mod web;

#[cfg(feature = "fake")]
pub mod fake;

pub use access::Access;
pub use asked::attach_options;
pub use audit::{Audit, Tell};
pub use caller::{Account, Caller, Certified, Identify, LocalUser, peer_credentials};
pub use condition::{Condition, ConditionError, Metric};
pub use daemon::{
    AttachOptions, AttachRequest, AttachScope, Daemon, DetachScope, EventFilter, Moment,
    RecordingWriter, Share, StackKinds, Window,
};
pub use door::{Door, DoorError, Tls, TlsError, TlsFiles};
pub use export::Exporter;
pub use fanout::{EventHub, EventReader};
pub use item::EventItem;
pub use kinds::OUT_OF_MEMORY;
pub use listen::{ListenError, ListenOptions, Listener, Reach};
pub use options::ServeOptions;
pub use refusal::Refusal;
pub use roles::{NoSuchRole, Right, Roles};
pub use serve::{Doors, ServeError, serve};
pub use share::Limits;
pub use tonic::async_trait;
pub use triggers::{KeptSnapshot, KeptSnapshots, OpenKept, TriggerStatus, Triggers};
pub use under_way::Wanted;
