//! The parts of `memscoped`: probes, the ring, the keeper with journal and ledger, the tracer, and the part that
//! answers the gRPC server.

mod addresses;
pub mod again;
pub mod clock;
pub mod config;
pub mod courses;
pub mod dump;
pub mod earlier;
mod ended;
mod frees;
mod holders;
pub mod import;
pub mod ingest;
pub mod keeper;
pub mod looks;
pub mod memory;
pub mod messages;
pub mod metrics;
pub mod native;
pub mod otlp;
mod owners;
pub mod panics;
pub mod policy;
pub mod probe;
pub mod python;
pub mod replay;
pub mod serve;
mod serve_triggers;
pub mod settings;
pub mod snapshots;
pub mod structures;
pub mod survive;
pub mod sync;
mod threads;
pub mod tracer;
pub mod triggers;
mod users;
pub mod watchdog;
pub mod works;

/// An error and all its causes, in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}
