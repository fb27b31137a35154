//! Sends metrics and findings to a collector, by OTLP.
//!
//! Owns: where the collector is (`options`), what is needed for a connection to it (`settings`) and the connection (`collector`), what waits
//! for it and what became of it (`queue`), when something is sent again (`lane`), which events become log records (`news`), and the tasks that
//! do all that (`pusher`) until they are told to end (`stop`). Refuses: to hold up the daemon. What finds no room is dropped and counted. What
//! a number, a record or an answer is in OTLP is in `memscope-otlp`.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod lane;
#[cfg(feature = "otlp")]
mod news;
pub mod options;
#[cfg(feature = "otlp")]
mod pusher;
#[cfg(feature = "otlp")]
mod queue;
#[cfg(feature = "otlp")]
mod settings;
#[cfg(feature = "otlp")]
mod stop;
#[cfg(not(feature = "otlp"))]
mod without;

#[cfg(feature = "otlp")]
pub use {
    pusher::Pusher,
    queue::Queues,
    settings::{OtlpError, Settings},
};

#[cfg(not(feature = "otlp"))]
pub use without::{OtlpError, Pusher, Queues, Settings};
