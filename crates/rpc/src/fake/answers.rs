//! Made-up answers.

use super::process::FakeProcess;
use crate::EventItem;
use memscope_ledger::event::{
    Body, CoverageNote, Event, EventId, Level, ProcessFacts, ProcessHandle, TraceAction,
};
use memscope_ledger::report::{
    AsOf, BlockState, ProcessState, ProcessSummary, SnapshotBlock, SnapshotReport, SnapshotSegment,
    SnapshotTrace,
};
use memscope_ledger::{Answered, Asked};
use memscope_proto::v1;
use std::sync::Arc;

/// The process of [`process`] with other coverage notes: one for each of these codes.
pub fn noted(pid: u32, uid: u32, codes: &[&str]) -> FakeProcess {
    let note = |code: &&str| CoverageNote {
        code: (*code).to_owned(),
        text: format!("it is {code}"),
    };
    FakeProcess {
        coverage: codes.iter().map(|code| note(code).into()).collect(),
        ..process(pid, uid)
    }
}

/// A process of the user `uid`, with memory of device 0 from the pool, and with allocations whose device is not known.
#[must_use]
pub fn process(pid: u32, uid: u32) -> FakeProcess {
    let late = CoverageNote {
        code: "attached_late".into(),
        text: "Blocks from before the attach are known as a sum only.".into(),
    };
    FakeProcess {
        process: summary(pid, uid),
        coverage: vec![late.into()],
        devices: vec![
            device(Some(0), v1::Source::Pool, Some(1_320_702_444)),
            device(None, v1::Source::Driver, None),
        ],
        groups: vec![group()],
        young: None,
        given_back: Vec::new(),
        snapshot: (2, 3, 5),
        stacks: 30,
        more_stacks: Vec::new(),
        steps: (1..=3).map(step).collect(),
    }
}

/// Makes an answer about one process: the fields that all answers have in common, and the given ones.
macro_rules! answer {
    ($reply:ident of $process:expr, { $($field:tt)* }) => {{
        let process: &FakeProcess = $process;
        v1::$reply {
            pid: process.process.facts.pid,
            as_of: AS_OF.unix_ns,
            as_of_boot_ns: AS_OF.boot_ns,
            as_of_event: Some(AS_OF.event.into()),
            lost_records: process.process.lost_records,
            process: Some(process.process.clone().into()),
            coverage: process.coverage.clone(),
            $($field)*
        }
    }};
}

/// The answer to a question about these processes; `None`: the fake has no answer to it.
pub(super) fn answer(asked: &Asked, of: &[&FakeProcess]) -> Option<Answered> {
    if let Asked::List(_) = asked {
        return Some(Answered::List(v1::ListResponse {
            processes: of.iter().map(|process| listed(process)).collect(),
        }));
    }
    if let Asked::Devices(_) = asked {
        return Some(Answered::Devices(v1::DevicesResponse {
            as_of: AS_OF.unix_ns,
            as_of_boot_ns: AS_OF.boot_ns,
            devices: vec![v1::MachineDevice::default()],
            coverage: Vec::new(),
        }));
    }
    let [process] = of else { return None };
    Some(match asked {
        Asked::Fluctuation(asked) => Answered::Fluctuation(fluctuation(asked, process)),
        Asked::Leaks(asked) => Answered::Leaks(leaks(asked, process)),
        Asked::Marks(asked) => Answered::Marks(marks(asked, process)),
        Asked::Stats(_) => Answered::Stats(stats(process)),
        Asked::Steps(asked) => Answered::Steps(steps(asked, process)),
        _ => return None,
    })
}

/// The process as an entry of `list`: known from one second after the attach on, with the sums of its growing groups.
fn listed(process: &FakeProcess) -> v1::Process {
    let growing = |group: &&v1::LeakGroup| group.verdict() == v1::Verdict::Growing;
    let mut listed = v1::Process {
        known_from_unix_ns: Some(process.process.attached_ns + 1_000_000_000),
        growing_lines: Some(process.groups.iter().filter(growing).count() as u64),
        ..process.process.clone().into()
    };
    let judged = leaks(&v1::LeaksRequest::default(), process);
    listed.verdict = judged.process_verdict().into();
    listed.confidence = judged.confidence();
    listed.judged_ago_ns = Some(1_000_000_000);
    if let Some(facts) = &mut listed.facts {
        let is_told = |name: &str| ["RANK", "LOCAL_RANK", "WORLD_SIZE"].contains(&name);
        facts.environment.retain(|one| is_told(&one.name));
    }
    for group in process.groups.iter().filter(growing) {
        *listed.growth_bytes_per_s.get_or_insert(0.0) += group.growth_bytes_per_s;
        let sum = listed.growth_bytes_per_step.get_or_insert(0.0);
        *sum += group.growth_bytes_per_step.unwrap_or_default();
    }
    listed
}

fn stats(process: &FakeProcess) -> v1::StatsResponse {
    let bytes = |count, bytes| Some(v1::DriverBytes { count, bytes });
    answer!(StatsResponse of process, {
        devices: process.devices.clone(),
        level: v1::Level::Trace.into(),
        backend: Some(v1::Backend {
            kind: "native".into(),
            name: None,
        }),
        placement: Some(v1::Placement {
            sites: 61,
            operators: 0,
            ways: vec!["record_trace".into()],
            pool_seen: true,
            libraries: vec!["/venv/libc10_cuda.so".into()],
        }),
        host: bytes(2, 8192),
        host_registered: bytes(0, 0),
        address_reserved: bytes(0, 0),
        nested_calls: 3,
        region_pools: Vec::new(),
        host_components: Vec::new(),
        failures: Vec::new(),
        gaps: Vec::new(),
        reading: None,
    })
}

fn leaks(asked: &v1::LeaksRequest, process: &FakeProcess) -> v1::LeaksResponse {
    let mut groups = process.groups.clone();
    groups.retain(|group| {
        group.oldest_age_ns >= asked.min_age_ns
            && (asked.include_steady || group.verdict() != v1::Verdict::Steady)
    });
    let growing = |group: &&v1::LeakGroup| group.verdict() == v1::Verdict::Growing;
    let growing_groups = groups.iter().filter(growing).count() as u64;
    let growing_bytes = groups
        .iter()
        .filter(growing)
        .map(|group| group.growth_bytes)
        .sum();
    let all = groups.len();
    let mut lines: Vec<v1::LeakLine> = groups.iter().map(line_of).collect();
    if asked.limit > 0 {
        groups.truncate(asked.limit as usize);
        lines.truncate(asked.limit as usize);
    }
    answer!(LeaksResponse of process, {
        omitted_lines: (all - lines.len()) as u64,
        growing_lines: growing_groups,
        together: None,
        lines,
        steps: Some(v1::StepSummary {
            source: v1::StepSource::Unknown.into(),
            ..v1::StepSummary::default()
        }),
        growing_groups,
        growing_bytes,
        omitted_groups: (all - groups.len()) as u64,
        young: process.young,
        given_back: process.given_back.clone(),
        groups,
        watched_ns: 60_000_000_000,
        holders: Vec::new(),
        looked_at: None,
        unheld: None,
        seconds_to_full: None,
        until_boot_ns: None,
    })
}

/// The line of a group that is the only one of its line.
fn line_of(group: &v1::LeakGroup) -> v1::LeakLine {
    let whole = v1::LeakLine {
        device: group.device,
        source: group.source,
        line: group.line.clone(),
        verdict: group.verdict,
        confidence: group.confidence,
        groups: 1,
        stacks: 1,
        smallest_bytes: group.size_bytes,
        largest_bytes: group.size_bytes,
        live_count: group.live_count,
        live_bytes: group.live_bytes,
        oldest_age_ns: group.oldest_age_ns,
        beside: group.beside,
        ..v1::LeakLine::default()
    };
    if group.verdict() == v1::Verdict::Steady {
        return whole;
    }
    v1::LeakLine {
        growing_groups: u64::from(group.verdict() == v1::Verdict::Growing),
        growth_bytes: group.growth_bytes,
        growth_bytes_per_s: group.growth_bytes_per_s,
        growth_bytes_per_step_low: group.growth_bytes_per_step_low,
        growth_bytes_per_step: group.growth_bytes_per_step,
        growth_bytes_per_step_high: group.growth_bytes_per_step_high,
        first_step: group.first_step,
        reason: group.reason.clone(),
        ..whole
    }
}

fn fluctuation(asked: &v1::FluctuationRequest, process: &FakeProcess) -> v1::FluctuationResponse {
    let overall = v1::Interval {
        from_boot_ns: AS_OF.boot_ns.saturating_sub(asked.window_ns),
        to_boot_ns: asked.to_boot_ns.unwrap_or(AS_OF.boot_ns),
        min_allocated_bytes: 500,
        max_allocated_bytes: 1000,
        min_reserved_bytes: 2000,
        max_reserved_bytes: 2000,
        allocs: 10,
        frees: 9,
        ..v1::Interval::default()
    };
    answer!(FluctuationResponse of process, {
        devices: vec![v1::DeviceFluctuation {
            device: Some(0),
            source: v1::Source::Pool.into(),
            overall: Some(overall),
            swing: 0.5,
            floor_slope_bytes_per_s: 12.5,
            intervals: vec![overall; asked.intervals.max(1) as usize],
        }],
    })
}

/// The moment that every answer describes.
pub(super) const AS_OF: AsOf = AsOf {
    boot_ns: 90_000_000_000,
    unix_ns: 1_750_000_000_000_000_000,
    event: EventId {
        epoch: 1,
        sequence: 4711,
    },
};

/// A process of the user `uid` that was attached at level `trace` and has ended.
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
        // Not `Attached`: the server would read the user ids of the real process with this pid.
        state: ProcessState::Exited,
        attached_ns: 30_000_000_000,
        ended_ns: Some(AS_OF.boot_ns),
        allocated_bytes: Some(1_320_702_444),
        reserved_bytes: Some(2_147_483_648),
        lost_records: 0,
        events: 4711,
        waits_for_device: false,
    }
}

/// What the process holds on one device. The totals are known only if `allocated` (in bytes) is given.
#[must_use]
pub fn device(device: Option<i32>, source: v1::Source, allocated: Option<u64>) -> v1::DeviceStats {
    let nothing = Some(v1::DriverBytes::default());
    let none = Some(v1::Distribution::default());
    v1::DeviceStats {
        device,
        device_kind: Some("cuda".into()),
        source: source.into(),
        allocated_bytes: allocated,
        reserved_bytes: allocated.map(|_| 2_147_483_648),
        peak_allocated_bytes: allocated.map(|bytes| bytes + 1024),
        peak_reserved_bytes: allocated.map(|_| 2_147_483_648),
        baseline_bytes: allocated.map(|_| 4096),
        live_blocks: 12,
        driver: nothing,
        direct: nothing,
        async_pool: nothing,
        managed: nothing,
        physical: nothing,
        imported: nothing,
        segments: Some(2),
        alloc_count: 100,
        free_count: 88,
        sizes: none.clone(),
        lifetimes: none,
        ..v1::DeviceStats::default()
    }
}

/// A group that grows.
#[must_use]
pub fn group() -> v1::LeakGroup {
    v1::LeakGroup {
        device: Some(0),
        source: v1::Source::Pool.into(),
        stream: Some(0),
        size_bytes: 1_048_576,
        live_count: 40,
        live_bytes: 41_943_040,
        growth_count: 38,
        growth_bytes: 39_845_888,
        growth_bytes_per_s: 1_048_576.0,
        oldest_age_ns: 40_000_000_000,
        newest_age_ns: 1_000_000_000,
        verdict: v1::Verdict::Growing.into(),
        confidence: Some(0.8),
        growth_bytes_per_step_low: Some(900_000.0),
        growth_bytes_per_step: Some(1_048_576.0),
        growth_bytes_per_step_high: Some(1_100_000.0),
        first_step: Some(7),
        freed_count: 3,
        freed_longest_steps: 2,
        beside: false,
        stack: None,
        frames: vec![line()],
        line: Some(line()),
        reason: "The floor rose in 38 of 40 intervals.".into(),
        examples: vec![0x7f00_0000_0000],
    }
}

/// Twenty groups that grow, but have not been watched long enough to be judged.
#[must_use]
pub fn young() -> v1::YoungGrowth {
    v1::YoungGrowth {
        groups: 20,
        in_every_step: true,
        steps: Some(89),
        needed_steps: Some(100),
    }
}

/// Memory that was given back five seconds ago.
#[must_use]
pub fn given_back() -> v1::GivenBack {
    v1::GivenBack {
        device: Some(0),
        source: v1::Source::Pool.into(),
        size_bytes: Some(1 << 20),
        bytes: 9 << 20,
        last_boot_ns: AS_OF.boot_ns - 5_000_000_000,
        step: Some(310),
        first_step: Some(12),
        reserved_unused_bytes: Some(18 << 20),
        line: Some(line()),
        stack: None,
    }
}

fn line() -> v1::CodeLine {
    v1::CodeLine {
        name: "train".into(),
        file: "/home/me/train.py".into(),
        line: 42,
    }
}

/// Four marks: two of the same name by people, the begin of a range by the program, and an optimizer's step.
fn marks(asked: &v1::MarksRequest, process: &FakeProcess) -> v1::MarksResponse {
    use v1::MarkKind::{Begin, Instant};
    use v1::MarkOrigin::{Framework, People, Program};
    use v1::MarkSource::{Memscope, Outside, RecordFunction};
    let row = |sequence: u64, name: &str, nth: u64, kind: v1::MarkKind, source: v1::MarkSource| {
        let origin = match source {
            Outside => People,
            RecordFunction => Framework,
            _ => Program,
        };
        v1::NamedMoment {
            event: Some(v1::EventId { epoch: 1, sequence }),
            time_boot_ns: sequence * 1_000_000_000,
            time_unix_ns: Some(AS_OF.unix_ns - (90 - sequence) * 1_000_000_000),
            tid: (source != Outside).then_some(77),
            kind: kind.into(),
            source: source.into(),
            origin: origin.into(),
            name: name.into(),
            cut: false,
            nth: Some(nth),
            step: (sequence > 20).then_some(3),
        }
    };
    let mut marks = vec![
        row(17, "new data set", 1, Instant, Outside),
        row(20, "evaluation", 1, Begin, Memscope),
        row(25, "Optimizer.step#Adam.step", 4711, Begin, RecordFunction),
        row(40, "new data set", 2, Instant, Outside),
    ];
    marks.retain(|mark| asked.include_framework || mark.origin() != Framework);
    if asked.limit > 0 {
        marks = marks.split_off(marks.len().saturating_sub(asked.limit as usize));
    }
    let count = |origin: v1::MarkOrigin, count, kept| v1::MarkCount {
        origin: origin.into(),
        count,
        kept,
    };
    answer!(MarksResponse of process, {
        marks,
        counts: vec![
            count(People, 2, 2),
            count(Program, 300, 1),
            count(Framework, 4711, 1),
        ],
    })
}

/// A step of an optimizer on device 0.
#[must_use]
pub fn step(step: u64) -> v1::StepRow {
    v1::StepRow {
        step,
        steps: 1,
        from_boot_ns: step * 1_000_000_000,
        to_boot_ns: (step + 1) * 1_000_000_000,
        device: Some(0),
        source: v1::Source::Pool.into(),
        min_allocated_bytes: 1 << 20,
        max_allocated_bytes: 4 << 20,
        end_allocated_bytes: 2 << 20,
        max_reserved_bytes: 8 << 20,
        reserved_at_max_bytes: 6 << 20,
        end_reserved_bytes: 7 << 20,
        allocs: 100,
        frees: 99,
        allocated_bytes: 9 << 20,
        freed_bytes: 8 << 20,
    }
}

/// The steps of an optimizer.
fn steps(asked: &v1::StepsRequest, process: &FakeProcess) -> v1::StepsResponse {
    let mut rows = process.steps.clone();
    if asked.limit > 0 {
        rows = rows.split_off(rows.len().saturating_sub(asked.limit as usize));
    }
    let gap = v1::StepGap {
        step: 2,
        min_bytes: 1 << 20,
        max_bytes: 4 << 20,
        ratio: 0.25,
    };
    let same = |bytes| {
        Some(v1::StepQuantiles {
            p5: bytes,
            p50: bytes,
            p95: bytes,
        })
    };
    let survivor = v1::StepSurvivor {
        device: 0,
        address: 0x7f00_0000_0000,
        size_bytes: 512,
        step: 2,
        launches_before: None,
    };
    answer!(StepsResponse of process, {
        summary: Some(v1::StepSummary {
            source: v1::StepSource::Optimizer.into(),
            count: Some(3),
            median_ns: Some(1_000_000_000),
            evidence: "3 calls of Optimizer.step#AdamW.step at train.py:42".into(),
            quiet_ns: None,
        }),
        lines: vec![v1::StepLine {
            name: "Optimizer.step#AdamW.step".into(),
            count: 3,
            line: Some(line()),
        }],
        devices: vec![v1::StepDevice {
            device: Some(0),
            source: v1::Source::Pool.into(),
            steps: 2,
            smallest_gap: Some(gap),
            largest_gap: Some(gap),
            min_bytes: same(1 << 20),
            max_bytes: same(4 << 20),
            floor_bytes_per_step: 512.0,
            allocs: 200,
            frees: 198,
        }],
        rows,
        launches: None,
        survivor_count: 1,
        survivor_bytes: 512,
        survivors: if asked.survivors > 0 { vec![survivor] } else { Vec::new() },
        unchecked_blocks: 0,
        forgotten_to_boot_ns: None,
    })
}

/// A snapshot with this many segments, `blocks` blocks in each segment, and `entries` trace entries.
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
                pool_told: true,
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
                        labels: 0,
                    })
                    .collect(),
            })
            .collect(),
        unmapped: Vec::new(),
        trace: (0..entries as u64)
            .map(|entry| SnapshotTrace {
                action: TraceAction::Alloc,
                device: 0,
                addr: 0x7f00_0000_0000 + entry * 512,
                size: 512,
                reported: false,
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
        labels: vec![Vec::new()],
    }
}

/// An event of a process, with `sequence` as its number and its time.
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
        namespace: None,
        unix_ns: None,
        missed: 0,
    }
}
