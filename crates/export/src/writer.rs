//! The function that writes each format. What is known of the formats otherwise is in [`memscope_proto::formats`].

use crate::stacks::{self, View};
use crate::{ExportError, Progress, document, html, json, memory_viz_told, perfetto};
use memscope_ledger::report::{SnapshotReport, StackReport};
use memscope_proto::v1::ExportFormat;
use std::io::Write;

/// Function that writes a snapshot, and may report its progress.
pub type SnapshotWriter =
    fn(&SnapshotReport, &mut dyn Write, Progress<'_>) -> Result<(), ExportError>;

/// Function that writes stacks. `true` asks for a differential picture, which shows what lives and what has changed;
/// pprof and speedscope ignore it.
pub type StackWriter = fn(&StackReport, View, bool, &mut dyn Write) -> Result<(), ExportError>;

/// Function that writes a format.
#[derive(Clone, Copy)]
pub enum Writer {
    /// The format shows a snapshot.
    Snapshot(SnapshotWriter),
    /// The format shows stacks.
    Stacks(StackWriter),
}

/// Returns the function that writes this format; `None` for `Unspecified`.
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
