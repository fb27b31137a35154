//! Sends metrics and findings to a collector, by OTLP.
//!
//! Owns: the connection to the collector (`collector`), what waits for it and what became of it (`queue`), when something is sent again
//! (`lane`), which events become log records (`news`), and the tasks that do all that (`pusher`) until they are told to end (`stop`). Refuses: to hold up the daemon. What
//! finds no room is dropped and counted. What a number, a record or an answer is in OTLP is in `memscope-otlp`.

mod collector;
mod lane;
mod news;
mod pusher;
pub mod queue;
pub mod settings;
mod stop;

pub use pusher::Pusher;
