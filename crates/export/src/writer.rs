//! Which function writes which format: the other half of the list in [`memscope_proto::formats`].

use crate::stacks::{self, View};
use crate::{ExportError, Progress, document, html, json, memory_viz_told, perfetto};
use memscope_ledger::report::{SnapshotReport, StackReport};
use memscope_proto::v1::ExportFormat;
use std::io::Write;

/// Writes a snapshot, and may say how far it is.
pub type SnapshotWriter =
    fn(&SnapshotReport, &mut dyn Write, Progress<'_>) -> Result<(), ExportError>;

/// Writes stacks; `true`: what lives, and what changed.
pub type StackWriter = fn(&StackReport, View, bool, &mut dyn Write) -> Result<(), ExportError>;

/// What writes a format.
#[derive(Clone, Copy)]
pub enum Writer {
    /// From a snapshot.
    Snapshot(SnapshotWriter),
    /// From stacks.
    Stacks(StackWriter),
}

/// What writes this format; `None` where none is said.
#[must_use]
pub fn writer(format: ExportFormat) -> Option<Writer> {
    use Writer::{Snapshot, Stacks};
    Some(match format {
        ExportFormat::Unspecified => return None,
        ExportFormat::MemoryViz => Snapshot(memory_viz_told),
        ExportFormat::MemoryVizJson => Snapshot(|report, out, _| json(report, out)),
        ExportFormat::Json => Snapshot(document),
        ExportFormat::Perfetto => Snapshot(|report, out, _| perfetto(report, out)),
        ExportFormat::Html => Snapshot(|report, out, _| html(report, out)),
        ExportFormat::Flamegraph => Stacks(|report, view, differential, out| match differential {
            true => stacks::flamegraph_diff(report, view.unit, out),
            false => stacks::flamegraph(report, view, out),
        }),
        ExportFormat::Folded => Stacks(|report, view, differential, out| match differential {
            true => stacks::folded_diff(report, view.unit, out),
            false => stacks::folded(report, view, out),
        }),
        ExportFormat::Pprof => Stacks(|report, view, _, out| stacks::pprof(report, view, out)),
        ExportFormat::Speedscope => {
            Stacks(|report, view, _, out| stacks::speedscope(report, view, out))
        }
    })
}
