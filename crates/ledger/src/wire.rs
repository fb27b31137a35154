//! Translation of stored values and of values of events into the messages of answers.
//!
//! Owns: the one translation of each such type. Refuses: to compute numbers; the questions do.

use crate::event::{
    Backend, CoverageNote, EventId, Finding, Hardware, Layer, Level, MarkKind, MarkSource,
    OperatorPart, Placement, ProcessFacts, ReadingCost, TraceAction,
};
use crate::questions::effect;
use crate::report::{
    BlockState, Component, DriverBytes, Frame, FrameKind, Gap, MarkOrigin, ProcessState,
    ProcessSummary, RegionPool, RegionsOnDevice, Source, Space, StepSource, Verdict,
};
use memscope_proto::v1;

/// Most bytes of a command line that an answer shows; a list shows fewer.
const CMDLINE: usize = 64 * 1024;

/// The first `room` bytes of a command line; a word that was cut ends in "…", and the words after it are left out.
pub(crate) fn cut(cmdline: Vec<String>, mut room: usize) -> Vec<String> {
    let mut kept = Vec::new();
    for mut word in cmdline {
        if word.len() > room {
            word.truncate(word.floor_char_boundary(room));
            word.push('…');
            kept.push(word);
            break;
        }
        room -= word.len();
        kept.push(word);
    }
    kept
}

/// Translates enums whose variants have the same names in the ledger and in the messages.
macro_rules! same_names {
    ($($name:ident { $($variant:ident),* })*) => {
        $(
            impl From<$name> for v1::$name {
                fn from(one: $name) -> v1::$name {
                    match one {
                        $($name::$variant => v1::$name::$variant,)*
                    }
                }
            }

            impl From<$name> for i32 {
                fn from(one: $name) -> i32 {
                    v1::$name::from(one).into()
                }
            }
        )*
    };
}

same_names! {
    BlockState { Active, PendingFree, Inactive }
    FrameKind { Python, Native }
    Layer { Runtime, Driver }
    Level { Read, Segments, Blocks, Trace }
    MarkKind { Instant, Begin, End, Step }
    MarkOrigin { People, Program, Framework }
    OperatorPart { Begin, Given, Returned, End }
    MarkSource { Memscope, Mstx, Nvtx, RecordFunction, Backward, Outside }
    ProcessState { Attached, Detached, Exited, Replaced, GivenUp }
    StepSource { Unknown, Pattern, Backward, Optimizer, Profiler, Mark, Named }
    TraceAction { Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap, Snapshot, Oom }
    Verdict { Growing, Undecided, Steady }
}

impl From<Source> for v1::Source {
    fn from(source: Source) -> v1::Source {
        match source {
            Source::Pool => v1::Source::Pool,
            Source::Driver => v1::Source::Driver,
        }
    }
}

impl From<Space> for v1::Source {
    fn from(space: Space) -> v1::Source {
        match space {
            Space::Pool => v1::Source::Pool,
            Space::Driver => v1::Source::Driver,
            Space::Host => v1::Source::Host,
        }
    }
}

impl From<EventId> for v1::EventId {
    fn from(id: EventId) -> v1::EventId {
        v1::EventId {
            epoch: id.epoch,
            sequence: id.sequence,
        }
    }
}

impl From<CoverageNote> for v1::CoverageNote {
    fn from(note: CoverageNote) -> v1::CoverageNote {
        let effect = effect(&note.code);
        let affects = effect.affects.iter().map(|kind| kind.word().to_owned());
        v1::CoverageNote {
            affects: affects.collect(),
            lower_bound: effect.lower_bound,
            code: note.code,
            text: note.text,
        }
    }
}

impl From<ReadingCost> for v1::ReadingCost {
    fn from(cost: ReadingCost) -> v1::ReadingCost {
        v1::ReadingCost {
            at_boot_ns: cost.at_ns,
            duration_ns: cost.duration_ns,
            bytes_read: cost.bytes_read,
            raced: cost.raced,
        }
    }
}

impl From<DriverBytes> for v1::DriverBytes {
    fn from(bytes: DriverBytes) -> v1::DriverBytes {
        v1::DriverBytes {
            count: bytes.count,
            bytes: bytes.bytes,
        }
    }
}

impl From<Gap> for v1::Gap {
    fn from(gap: Gap) -> v1::Gap {
        v1::Gap {
            from_boot_ns: gap.from_ns,
            to_boot_ns: gap.to_ns,
            records: gap.records,
        }
    }
}

impl From<Hardware> for v1::Hardware {
    fn from(one: Hardware) -> v1::Hardware {
        v1::Hardware {
            uuid: one.uuid,
            mig_uuid: one.mig_uuid,
            pci_address: one.pci_address,
        }
    }
}

impl From<Backend> for v1::Backend {
    fn from(backend: Backend) -> v1::Backend {
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
}

impl From<Placement> for v1::Placement {
    fn from(placement: Placement) -> v1::Placement {
        v1::Placement {
            sites: placement.sites,
            operators: placement.operators,
            ways: placement.ways,
            pool_seen: placement.pool_seen,
            libraries: placement.libraries,
        }
    }
}

impl From<Component> for v1::Component {
    fn from(component: Component) -> v1::Component {
        v1::Component {
            name: component.name().to_owned(),
            module: component.module().map(|module| u32::from(module.0)),
            count: component.count,
            bytes: component.bytes,
            huge_page_bytes: component.huge_page_bytes,
            giant_page_bytes: component.giant_page_bytes,
        }
    }
}

impl From<RegionsOnDevice> for v1::RegionsOnDevice {
    fn from(row: RegionsOnDevice) -> v1::RegionsOnDevice {
        v1::RegionsOnDevice {
            device: row.device,
            count: row.count,
            bytes: row.bytes,
            peak_bytes: row.peak_bytes,
            heap_bytes: row.heap_bytes,
            alloc_count: row.alloc_count,
            free_count: row.free_count,
        }
    }
}

impl From<RegionPool> for v1::RegionPool {
    fn from(pool: RegionPool) -> v1::RegionPool {
        v1::RegionPool {
            title: pool.title(),
            domain: pool.domain.map(|name| name.to_string()),
            handle: pool.handle,
            devices: pool.devices.into_iter().map(Into::into).collect(),
            orphan_free_count: pool.orphan_free_count,
            untold_count: pool.untold_count,
        }
    }
}

impl From<&Finding> for v1::Finding {
    fn from(finding: &Finding) -> v1::Finding {
        v1::Finding {
            number: finding.number,
            withdrawn: finding.withdrawn,
            device: finding.device,
            space: finding.space.clone(),
            live_bytes: finding.live_bytes,
            growth_bytes_per_s: finding.growth_bytes_per_s,
            growth_bytes_per_step: finding.growth_bytes_per_step,
            first_step: finding.first_step,
            confidence: finding.confidence,
            file: finding.file.clone(),
            line: finding.line,
            name: finding.name.clone(),
            reason: finding.reason.clone(),
        }
    }
}

impl From<&Frame> for v1::CodeLine {
    fn from(frame: &Frame) -> v1::CodeLine {
        v1::CodeLine {
            file: frame.file.to_string(),
            line: frame.line,
            name: frame.name.to_string(),
        }
    }
}

impl From<ProcessFacts> for v1::ProcessFacts {
    fn from(facts: ProcessFacts) -> v1::ProcessFacts {
        let [uid, effective_uid, saved_uid] = facts.uids;
        let environment = facts.environment.into_iter();
        v1::ProcessFacts {
            pid: facts.pid,
            namespace_pid: facts.namespace_pid,
            start_ticks: facts.start_ticks,
            generation: facts.generation,
            parent_pid: facts.parent_pid,
            uid,
            effective_uid,
            saved_uid,
            comm: facts.comm,
            cmdline: cut(facts.cmdline, CMDLINE),
            cgroup: facts.cgroup,
            environment: environment
                .map(|(name, value)| v1::EnvironmentVariable { name, value })
                .collect(),
            level: facts
                .level
                .map_or(v1::Level::Unspecified, Into::into)
                .into(),
            from_start: facts.from_start,
            image: facts.image,
        }
    }
}

impl From<ProcessSummary> for v1::Process {
    fn from(process: ProcessSummary) -> v1::Process {
        v1::Process {
            handle: process.handle.0,
            workload: Some(process.facts.workload()),
            facts: Some(process.facts.into()),
            state: process.state.into(),
            attached_boot_ns: process.attached_ns,
            ended_boot_ns: process.ended_ns,
            allocated_bytes: process.allocated_bytes,
            reserved_bytes: process.reserved_bytes,
            lost_records: process.lost_records,
            events: process.events,
            waits_for_device: process.waits_for_device,
            // The remaining fields are filled in only by a list.
            ..v1::Process::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cuts_long_command_lines_between_characters() {
        let words = ["ab", "cdéf", "g"].map(String::from).to_vec();
        assert_eq!(cut(words.clone(), 100), words);
        assert_eq!(cut(words, 5), ["ab", "cd…"]);
    }
}
