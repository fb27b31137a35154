//! memscope's numbers and findings as OpenTelemetry's protocol (OTLP) has them.
//!
//! Owns: how metrics become data points (`metrics`) and findings become log records (`logs`), which attributes the labels are
//! (`attributes`), who is said to send them (`resource`), what a collector's answer means (`answer`), and how long to wait before a
//! request is sent again (`backoff`). Refuses: I/O, clocks, and to know of any number that is not in the metrics already.

mod answer;
mod attributes;
mod backoff;
mod logs;
mod metrics;
mod resource;

pub use answer::{Answer, of_grpc, of_http, partial_logs, partial_metrics};
pub use attributes::attributes;
pub use backoff::{Backoff, LONGEST_ASKED};
pub use logs::{FindingNews, OutOfMemory, finding, logs_request, out_of_memory};
pub use metrics::{LARGEST_REQUEST_BYTES, MetricsRequest, Moment, metrics_requests};
pub use resource::{Host, resource};

/// Name of the instrumentation scope: what made the numbers.
const SCOPE: &str = "memscope";

/// Whoever made the numbers, as each request names it.
fn scope() -> opentelemetry_proto::tonic::common::v1::InstrumentationScope {
    opentelemetry_proto::tonic::common::v1::InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    }
}
