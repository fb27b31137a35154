//! Reports and outcomes in the words of `memscope.v1`.

mod diff;
mod event;
mod leaks;
mod marks;
mod pool;
mod process;
mod snapshot;
mod stacks;
mod stats;
mod status;
pub(crate) mod steps;

pub(crate) use diff::diff;
pub(crate) use event::event;
pub(crate) use leaks::{fluctuation, leaks};
pub(crate) use marks::marks;
pub(crate) use pool::pool;
pub(crate) use process::process_in_brief;
pub(crate) use snapshot::SnapshotParts;
pub(crate) use stacks::{grouping, stacks};
pub(crate) use stats::stats;
pub(crate) use status::{attached, status};

use memscope_ledger::event::{Backend, CoverageNote, Level, Placement, ReadingCost};
use memscope_ledger::report::{AsOf, DriverBytes, Source};
use memscope_proto::v1;

fn level(level: Level) -> v1::Level {
    match level {
        Level::Read => v1::Level::Read,
        Level::Segments => v1::Level::Segments,
        Level::Blocks => v1::Level::Blocks,
        Level::Trace => v1::Level::Trace,
    }
}

fn reading_cost(cost: ReadingCost) -> v1::ReadingCost {
    v1::ReadingCost {
        at_boot_ns: cost.at_ns,
        duration_ns: cost.duration_ns,
        bytes_read: cost.bytes_read,
        raced: cost.raced,
    }
}

fn source(source: Source) -> v1::Source {
    match source {
        Source::Pool => v1::Source::Pool,
        Source::Driver => v1::Source::Driver,
    }
}

fn coverage(notes: Vec<CoverageNote>) -> Vec<v1::CoverageNote> {
    notes.into_iter().map(note).collect()
}

fn note(note: CoverageNote) -> v1::CoverageNote {
    let effect = memscope_ledger::effect(&note.code);
    v1::CoverageNote {
        affects: effect
            .affects
            .iter()
            .map(|kind| kind.word().to_owned())
            .collect(),
        lower_bound: effect.lower_bound,
        code: note.code,
        text: note.text,
    }
}

fn event_id(as_of: AsOf) -> Option<v1::EventId> {
    Some(v1::EventId {
        epoch: as_of.event.epoch,
        sequence: as_of.event.sequence,
    })
}

fn bytes(bytes: DriverBytes) -> Option<v1::DriverBytes> {
    Some(v1::DriverBytes {
        count: bytes.count,
        bytes: bytes.bytes,
    })
}

fn backend(backend: Backend) -> v1::Backend {
    let (kind, name) = match backend {
        Backend::Unknown => ("unknown", None),
        Backend::Native => ("native", None),
        Backend::Uncached => ("uncached", None),
        Backend::MallocAsync => ("malloc_async", None),
        Backend::Other(name) => ("other", Some(name)),
    };
    v1::Backend {
        kind: kind.into(),
        name,
    }
}

fn placement(placement: Placement) -> v1::Placement {
    v1::Placement {
        sites: placement.sites,
        ways: placement.ways,
        pool_seen: placement.pool_seen,
        libraries: placement.libraries,
    }
}
