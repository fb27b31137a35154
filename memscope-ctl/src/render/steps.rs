//! Text about steps, for the answers that mention them.

use crate::units::{grouped, nanoseconds, plain};
use memscope_proto::v1;

/// `42 steps, 31 ms each: …`.
pub(crate) fn summary(summary: &v1::StepSummary) -> String {
    let evidence = plain(&summary.evidence);
    let Some(count) = summary.count else {
        return format!("Steps are not known: {evidence}.\n");
    };
    let each = summary
        .median_ns
        .map(|time| format!(", {} each", nanoseconds(time)))
        .unwrap_or_default();
    let steps = if count == 1 { "step" } else { "steps" };
    let quiet = summary
        .quiet_ns
        .map(|time| format!(" The last one ended {} ago.", nanoseconds(time)));
    let quiet = quiet.unwrap_or_default();
    format!("{} {steps}{each}: {evidence}.{quiet}\n", grouped(count))
}

/// `train.py:42 (forward)`.
pub(crate) fn line(line: &v1::CodeLine) -> String {
    format!(
        "{}:{} ({})",
        plain(&line.file),
        line.line,
        plain(&line.name)
    )
}
