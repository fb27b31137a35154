//! Metrics for monitoring systems: what they are taken from, how often, and the HTTP server that hands them out.
//!
//! Owns: how often they are taken. Refuses: to know which metrics there are; that is in `memscope-metrics`.

mod http;
mod source;
mod take;

pub use http::{BindError, Endpoint, Reachable};
pub use source::{Moment, Source};
