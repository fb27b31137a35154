//! Made-up answers.

use super::FakeProcess;
use crate::EventItem;
use memscope_ledger::event::{
    Backend, Body, CoverageNote, Event, EventId, Level, MarkKind, MarkSource, Placement,
    ProcessFacts, ProcessHandle, TraceAction, Vendor,
};
use memscope_ledger::report::{
    AsOf, BlockState, DeviceStats, Distribution, DriverBytes, Frame, FrameKind, GivenBack,
    KeptMark, LeakGroup, MarkOrigin, MarkRow, MarksReport, OriginMarks, ProcessState,
    ProcessSummary, SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace, Source, Space,
    StatsReport, StepDevice, StepGap, StepLine, StepRow, StepSource, StepSummary, StepsReport,
    Survivor, Verdict, YoungGrowth,
};
use std::sync::Arc;

/// The process of [`process`], whose answers have coverage notes with these codes.
pub fn noted(pid: u32, uid: u32, codes: &[&str]) -> FakeProcess {
    let mut process = process(pid, uid);
    process.stats.coverage = codes
        .iter()
        .map(|code| CoverageNote {
            code: (*code).to_owned(),
            text: format!("it is {code}"),
        })
        .collect();
    process
}

/// A process with one device, of the user `uid`.
#[must_use]
pub fn process(pid: u32, uid: u32) -> FakeProcess {
    FakeProcess {
        stats: stats(pid, uid),
        groups: vec![group()],
        young: None,
        given_back: Vec::new(),
        snapshot: (2, 3, 5),
        stacks: 30,
    }
}

/// The answer to `stats`: device 0 from the pool, and allocations whose device is not known.
#[must_use]
pub fn stats(pid: u32, uid: u32) -> StatsReport {
    StatsReport {
        process: summary(pid, uid),
        as_of: AS_OF,
        backend: Backend::Native,
        placement: Placement {
            sites: 61,
            ways: vec!["record_trace".into()],
            pool_seen: true,
            libraries: vec!["/venv/libc10_cuda.so".into()],
        },
        devices: vec![
            device(Some(0), Source::Pool, Some(1_320_702_444)),
            device(None, Source::Driver, None),
        ],
        region_pools: Vec::new(),
        host: DriverBytes {
            count: 2,
            bytes: 8192,
        },
        host_registered: DriverBytes::default(),
        host_components: Vec::new(),
        address_reserved: DriverBytes::default(),
        failures: Vec::new(),
        nested_calls: 3,
        gaps: Vec::new(),
        reading: None,
        coverage: vec![CoverageNote {
            code: "attached_late".into(),
            text: "Blocks from before the attach are known as a sum only.".into(),
        }],
    }
}

/// When every answer was true.
pub(super) const AS_OF: AsOf = AsOf {
    boot_ns: 90_000_000_000,
    unix_ns: 1_750_000_000_000_000_000,
    event: EventId {
        epoch: 1,
        sequence: 4711,
    },
};

/// A process, attached at level `trace`.
#[must_use]
pub fn summary(pid: u32, uid: u32) -> ProcessSummary {
    ProcessSummary {
        handle: ProcessHandle(pid),
        facts: ProcessFacts {
            pid,
            uids: [uid; 3],
            comm: "python".into(),
            cmdline: vec!["python".into(), "train.py".into()],
            environment: vec![("RANK".into(), "3".into())],
            level: Some(Level::Trace),
            ..ProcessFacts::default()
        },
        // Not `Attached`: the server would compare with the live process of this number.
        state: ProcessState::Exited,
        attached_ns: 30_000_000_000,
        ended_ns: None,
        allocated_bytes: Some(1_320_702_444),
        reserved_bytes: Some(2_147_483_648),
        lost_records: 0,
        events: 4711,
    }
}

/// A device.
#[must_use]
pub fn device(device: Option<i32>, source: Source, allocated: Option<u64>) -> DeviceStats {
    DeviceStats {
        vendor: Some(Vendor::Cuda),
        components: Vec::new(),
        device,
        source,
        allocated_bytes: allocated,
        reserved_bytes: allocated.map(|_| 2_147_483_648),
        peak_allocated_bytes: allocated.map(|bytes| bytes + 1024),
        peak_reserved_bytes: allocated.map(|_| 2_147_483_648),
        baseline_bytes: allocated.map(|_| 4096),
        requested_bytes: None,
        pending_free_bytes: None,
        live_blocks: 12,
        total_bytes: None,
        free_bytes: None,
        driver: DriverBytes::default(),
        direct: DriverBytes::default(),
        async_pool: DriverBytes::default(),
        managed: DriverBytes::default(),
        physical: DriverBytes::default(),
        imported: DriverBytes::default(),
        segments: Some(2),
        alloc_count: 100,
        free_count: 88,
        orphan_free_count: 0,
        orphan_free_bytes: 0,
        oom_count: 0,
        resync_count: 0,
        sizes: Distribution::default(),
        lifetimes: Distribution::default(),
        baseline_blocks: None,
        readings: 0,
        readings_refused: 0,
    }
}

/// A group that grows.
#[must_use]
pub fn group() -> LeakGroup {
    LeakGroup {
        device: Some(0),
        space: Space::Pool,
        stream: Some(0),
        size_bytes: 1_048_576,
        live_count: 40,
        live_bytes: 41_943_040,
        growth_count: 38,
        growth_bytes: 39_845_888,
        growth_bytes_per_s: 1_048_576.0,
        oldest_age_ns: 40_000_000_000,
        newest_age_ns: 1_000_000_000,
        verdict: Verdict::Growing,
        confidence: Some(0.8),
        growth_bytes_per_step: Some([900_000.0, 1_048_576.0, 1_100_000.0]),
        first_step: Some(7),
        freed: (3, 2),
        beside: false,
        frames: vec![line()],
        line: Some(line()),
        reason: "The floor rose in 38 of 40 intervals.".into(),
        examples: vec![0x7f00_0000_0000],
    }
}

/// Twenty groups that rise and are too young to be judged.
#[must_use]
pub fn young() -> YoungGrowth {
    YoungGrowth {
        groups: 20,
        in_every_step: true,
        steps: Some(89),
        needed_steps: Some(100),
    }
}

/// What was given back five seconds ago.
#[must_use]
pub fn given_back() -> GivenBack {
    GivenBack {
        device: Some(0),
        space: Space::Pool,
        size_bytes: 1 << 20,
        bytes: 9 << 20,
        last_ns: AS_OF.boot_ns - 5_000_000_000,
        step: Some(310),
        first_step: Some(12),
        reserved_unused_bytes: Some(18 << 20),
        line: Some(line()),
    }
}

/// A line of a program.
fn line() -> Frame {
    Frame {
        kind: FrameKind::Python,
        name: "train".into(),
        file: "/home/me/train.py".into(),
        line: 42,
    }
}

/// The answer to `marks`: two of one name by people, a range of the program's, an optimizer's step.
pub(super) fn marks(process: ProcessSummary, coverage: Vec<CoverageNote>) -> MarksReport {
    let row = |sequence: u64, name: &str, nth: u64, kind: MarkKind, source: MarkSource| MarkRow {
        mark: KeptMark {
            event: EventId { epoch: 1, sequence },
            time_ns: sequence * 1_000_000_000,
            tid: if source == MarkSource::Outside { 0 } else { 77 },
            kind,
            source,
            name: name.into(),
            cut: false,
            nth: Some(nth),
        },
        step: (sequence > 20).then_some(3),
        unix_ns: AS_OF.unix_ns - (90 - sequence) * 1_000_000_000,
    };
    use MarkKind::{Begin, Instant};
    use MarkSource::{Memscope, Outside, RecordFunction};
    let origin = |origin, count, kept| OriginMarks {
        origin,
        count,
        kept,
    };
    MarksReport {
        process,
        as_of: AS_OF,
        marks: vec![
            row(17, "new data set", 1, Instant, Outside),
            row(20, "evaluation", 1, Begin, Memscope),
            row(25, "Optimizer.step#Adam.step", 4711, Begin, RecordFunction),
            row(40, "new data set", 2, Instant, Outside),
        ],
        origins: vec![
            origin(MarkOrigin::People, 2, 2),
            origin(MarkOrigin::Program, 300, 1),
            origin(MarkOrigin::Framework, 4711, 1),
        ],
        coverage,
    }
}

/// The answer to `steps`: three steps of an optimizer on device 0.
pub(super) fn steps(process: ProcessSummary, coverage: Vec<CoverageNote>) -> StepsReport {
    let row = |step: u64| StepRow {
        step,
        steps: 1,
        from_ns: step * 1_000_000_000,
        to_ns: (step + 1) * 1_000_000_000,
        device: Some(0),
        source: Source::Pool,
        min_allocated_bytes: 1 << 20,
        max_allocated_bytes: 4 << 20,
        end_allocated_bytes: 2 << 20,
        max_reserved_bytes: 8 << 20,
        reserved_at_max_bytes: 6 << 20,
        allocs: 100,
        frees: 99,
        allocated_bytes: 9 << 20,
        freed_bytes: 8 << 20,
    };
    let gap = StepGap {
        step: 2,
        min_bytes: 1 << 20,
        max_bytes: 4 << 20,
        ratio: 0.25,
    };
    StepsReport {
        process,
        as_of: AS_OF,
        summary: StepSummary {
            source: StepSource::Optimizer,
            count: Some(3),
            median_ns: Some(1_000_000_000),
            evidence: "3 calls of Optimizer.step#AdamW.step at train.py:42".into(),
        },
        lines: vec![StepLine {
            name: "Optimizer.step#AdamW.step".into(),
            count: 3,
            line: Some(line()),
        }],
        devices: vec![StepDevice {
            device: Some(0),
            source: Source::Pool,
            steps: 2,
            smallest_gap: Some(gap),
            largest_gap: Some(gap),
            min_bytes: [1 << 20; 3],
            max_bytes: [4 << 20; 3],
            floor_bytes_per_step: 512.0,
            allocs: 200,
            frees: 198,
        }],
        rows: (1..=3).map(row).collect(),
        launches: None,
        survivor_count: 1,
        survivor_bytes: 512,
        survivors: vec![Survivor {
            device: 0,
            addr: 0x7f00_0000_0000,
            size: 512,
            step: 2,
            launches_before: 0,
        }],
        unchecked_blocks: 0,
        coverage,
    }
}

/// A snapshot of a size.
#[must_use]
pub fn snapshot(pid: u32, segments: usize, blocks: usize, entries: usize) -> SnapshotReport {
    let size = 512 * blocks as u64;
    SnapshotReport {
        process: summary(pid, 0),
        as_of: AS_OF,
        segments: (0..segments as u64)
            .map(|index| SnapshotSegment {
                device: 0,
                addr: 0x7f00_0000_0000 + index * size,
                size,
                stream: 0,
                large: false,
                pool: (0, 0),
                expandable: false,
                seen: true,
                blocks: (0..blocks as u64)
                    .map(|block| SnapshotBlock {
                        addr: 0x7f00_0000_0000 + index * size + block * 512,
                        size: 512,
                        requested: (block % 2 == 0).then_some(400),
                        state: BlockState::Active,
                        since_ns: 0,
                        stack: 0,
                    })
                    .collect(),
            })
            .collect(),
        trace: (0..entries as u64)
            .map(|entry| SnapshotTrace {
                action: TraceAction::Alloc,
                device: 0,
                addr: 0x7f00_0000_0000 + entry * 512,
                size: 512,
                stream: 0,
                pool: None,
                time_ns: entry,
                unix_ns: 1_750_000_000_000_000_000 + entry,
                tid: pid,
                stack: 0,
            })
            .collect(),
        allocator: Default::default(),
        trace_dropped: 0,
        stacks: Vec::new(),
        coverage: Vec::new(),
    }
}

/// An event of a process.
#[must_use]
pub fn event(pid: u32, uid: u32, sequence: u64, body: Body) -> EventItem {
    EventItem {
        event: Arc::new(Event {
            id: EventId { epoch: 1, sequence },
            time_ns: sequence,
            process: ProcessHandle(pid),
            tid: pid,
            lost_before: 0,
            stack: memscope_ledger::event::StackRef::NotTaken,
            sampling: 0,
            body,
        }),
        pid: Some(pid),
        uids: Some([uid; 3]),
        unix_ns: None,
        missed: 0,
    }
}
