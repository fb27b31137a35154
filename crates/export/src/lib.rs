//! Snapshots and stacks in the formats of other tools.
//!
//! Owns:
//!
//! * the mapping of [`SnapshotReport`] to the dictionary that PyTorch's `torch.cuda.memory._snapshot()` returns, and
//!   its two encodings: the pickle that <https://pytorch.org/memory_viz> opens ([`memory_viz`]), and JSON ([`json`]);
//! * a trace for Perfetto ([`perfetto`]) and a page with a viewer of our own ([`html`]);
//! * the difference between two snapshots ([`diff`](fn@diff)), and how the memory of one is divided
//!   ([`pool`](fn@pool));
//! * reports of stacks: compared, summed up, and as flame graphs, folded text, pprof and speedscope files
//!   ([`stacks`]).
//!
//! Refuses: questions (the ledger answers them), and repairs: segments, blocks and trace entries are written as the
//! report has them.
//!
//! Pickle and JSON are written while the report is walked and need no memory. Perfetto's trace and the page sort the
//! report's trace first and need a part of the report's own size.
//!
//! # What the dictionary says, and what it cannot
//!
//! * The keys are those of the newest format (PyTorch 2.15); older versions write fewer.
//! * `requested_size` of a block whose requested size is not known is its rounded size, because the viewer
//!   itself falls back to that. Free blocks have the requested size of their last use, as in PyTorch, or 0 where it
//!   is not known.
//! * `frames` are Python frames. All trace entries except frees have them, and blocks that were handed out since the
//!   attach. The list is empty where no stack was taken and where a thread ran no Python. It is always empty for
//!   segments; the trace entries about a segment have its frames. `compile_context` is `N/A`.
//!   `external_annotations`, `host_segments` and `host_traces` are empty, as in PyTorch as long as nobody asked it
//!   to record them.
//! * `allocator_settings` come from the process's memory, or else from its environment at its start
//!   (`memscope.settings_from` says which). The environment does not show what a script changed later.
//! * There is one key more than in PyTorch's dictionary, `memscope`: it says which process the snapshot is of, at
//!   which time it was taken, and what limits it. Readers of PyTorch's snapshots ignore keys that they do not know.

mod belonging;
mod diff;
mod error;
mod history;
mod html;
mod json;
mod levels;
mod names;
mod parts;
mod perfetto;
mod pickle;
pub mod pool;
mod private_pool;
mod progress;
mod settings;
mod sink;
mod snapshot;
pub mod stacks;
mod writer;

pub use diff::diff;
pub use error::ExportError;
use memscope_ledger::report::SnapshotReport;
pub use names::{Names, missing};
pub use parts::SnapshotParts;
pub use pool::pool;
pub use progress::Progress;
use std::io::{BufWriter, Write};
pub use writer::{SnapshotWriter, StackWriter, Writer, writer};

/// Size in bytes of the buffer in front of the output.
const BUFFER: usize = 64 << 10;

/// Writes the snapshot as the pickle that PyTorch's viewer opens.
pub fn memory_viz(report: &SnapshotReport, out: &mut dyn Write) -> Result<(), ExportError> {
    memory_viz_told(report, out, &|_, _| {})
}

/// Like [`memory_viz`], but calls `tell` with the progress.
pub fn memory_viz_told(
    report: &SnapshotReport,
    out: &mut dyn Write,
    tell: Progress<'_>,
) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let mut pickle = pickle::Pickle::start(&mut out)?;
    snapshot::write(report, &mut pickle, tell)?;
    pickle.stop()?;
    Ok(out.flush()?)
}

/// Writes the same dictionary as JSON (tuples are lists there).
pub fn json(report: &SnapshotReport, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    snapshot::write(report, &mut json::Json::new(&mut out), &|_, _| {})?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Writes a snapshot as one JSON document `{header, segments, trace}`, with the fields that the parts of a snapshot
/// have on the wire. Calls `tell` with the progress.
pub fn document(
    report: &SnapshotReport,
    out: &mut dyn Write,
    tell: Progress<'_>,
) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    parts::document(report, &mut out, tell)?;
    Ok(out.flush()?)
}

/// Writes a trace that <https://ui.perfetto.dev> opens: counters of allocated and reserved bytes per
/// device and private pool, slices for long-lived blocks, and the allocator's own events.
///
/// Allocated bytes are requested bytes, because the trace has no others. Where PyTorch's trace does not name pools, the
/// pool of an entry is taken from its segment; entries in segments that are gone count for their device only. At most
/// 20,000 blocks become slices, the largest ones; the event `snapshot` at the end counts the others.
pub fn perfetto(report: &SnapshotReport, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    perfetto::write(report, &mut out)?;
    Ok(out.flush()?)
}

/// Writes one HTML file with the data and a viewer in it: it works from a disk, without a network.
///
/// It draws at most 50,000 blocks over time and at most as many in the map of the segments, the largest
/// first, and says how many it left out.
pub fn html(report: &SnapshotReport, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    html::write(report, &mut out)?;
    Ok(out.flush()?)
}
