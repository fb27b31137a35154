//! A daemon without probes: its answers are made up and can be changed. For tests.

use crate::{
    AttachOutcome, AttachRequest, AttachScope, AttachedProcess, Caller, Daemon, DaemonStatus,
    DetachOutcome, DetachScope, EventFilter, EventHub, EventItem, JournalState, JournalStatus,
    LibraryStatus, Refusal,
};
use memscope_ledger::event::{
    Backend, Body, CoverageNote, Event, EventId, Level, Placement, ProcessFacts, ProcessHandle,
    TraceAction,
};
use memscope_ledger::report::{
    AsOf, BlockState, DeviceFluctuation, DeviceStats, Distribution, DriverBytes, FluctuationQuery,
    FluctuationReport, Interval, LeakGroup, LeakQuery, LeakReport, ProcessState, ProcessSummary,
    SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace, Source, StatsReport, Verdict,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// What the fake knows of one process.
#[derive(Clone, Debug)]
pub struct FakeProcess {
    /// Answer to `stats`; its `process` is that of every answer.
    pub stats: StatsReport,
    /// Answer to `leaks`.
    pub groups: Vec<LeakGroup>,
    /// Size of the snapshot: segments, blocks in each, trace entries.
    pub snapshot: (usize, usize, usize),
}

/// The fake.
#[derive(Default)]
pub struct FakeDaemon {
    /// Its processes by pid.
    pub processes: Mutex<BTreeMap<u32, FakeProcess>>,
    /// Makes the next refusal of every `attach`.
    pub refuse: Mutex<Option<Refusal>>,
    /// Every question waits for ever.
    pub hangs: bool,
    /// Its readers of events.
    pub hub: EventHub,
}

impl FakeDaemon {
    /// With these processes.
    #[must_use]
    pub fn with(processes: impl IntoIterator<Item = FakeProcess>) -> Self {
        let fake = FakeDaemon::default();
        lock(&fake.processes).extend(
            processes
                .into_iter()
                .map(|process| (process.stats.process.facts.pid, process)),
        );
        fake
    }

    /// One that never answers.
    #[must_use]
    pub fn hanging() -> Self {
        FakeDaemon {
            hangs: true,
            ..FakeDaemon::default()
        }
    }

    async fn find(&self, pid: u32) -> Result<FakeProcess, Refusal> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        lock(&self.processes)
            .get(&pid)
            .cloned()
            .ok_or(Refusal::NotTraced { pid })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process with one device, of the user `uid`.
#[must_use]
pub fn process(pid: u32, uid: u32) -> FakeProcess {
    FakeProcess {
        stats: stats(pid, uid),
        groups: vec![group()],
        snapshot: (2, 3, 5),
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
        host: DriverBytes {
            count: 2,
            bytes: 8192,
        },
        host_registered: DriverBytes::default(),
        address_reserved: DriverBytes::default(),
        failures: Vec::new(),
        nested_calls: 3,
        gaps: Vec::new(),
        coverage: vec![CoverageNote {
            code: "attached_late".into(),
            text: "Blocks from before the attach are known as a sum only.".into(),
        }],
    }
}

const AS_OF: AsOf = AsOf {
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
    }
}

/// A group that grows.
#[must_use]
pub fn group() -> LeakGroup {
    LeakGroup {
        device: Some(0),
        source: Source::Pool,
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
        reason: "The floor rose in 38 of 40 intervals.".into(),
        examples: vec![0x7f00_0000_0000],
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
            })
            .collect(),
        trace_dropped: 0,
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
            body,
        }),
        pid: Some(pid),
        uids: Some([uid; 3]),
        unix_ns: None,
        missed: 0,
    }
}

#[tonic::async_trait]
impl Daemon for FakeDaemon {
    async fn attach(
        &self,
        caller: Caller,
        request: AttachRequest,
    ) -> Result<AttachOutcome, Refusal> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if let Some(refusal) = lock(&self.refuse).as_ref() {
            return Err(refusal.duplicate());
        }
        let (pid, rule) = match request.scope {
            AttachScope::Pid { pid, .. } => (pid, None),
            _ => (4242, Some(1)),
        };
        let mut processes = lock(&self.processes);
        let traced = processes
            .entry(pid)
            .or_insert_with(|| process(pid, caller.uid));
        if !caller.may_see(&traced.stats.process.facts.uids) {
            return Err(Refusal::NoSuchProcess { pid });
        }
        Ok(AttachOutcome {
            processes: vec![AttachedProcess {
                pid,
                comm: traced.stats.process.facts.comm.clone(),
                sites: 61,
                ways: vec!["record_trace".into()],
                level: request.level,
                coverage: traced.stats.coverage.clone(),
                cost: Some("Two traps for each block.".into()),
            }],
            rule,
            refused: Vec::new(),
        })
    }

    async fn detach(&self, caller: Caller, scope: DetachScope) -> Result<DetachOutcome, Refusal> {
        let mut processes = lock(&self.processes);
        let pids: Vec<u32> = match scope {
            DetachScope::Pid(pid) => vec![pid],
            DetachScope::Rule(rule) => return Err(Refusal::NoSuchRule { rule }),
            DetachScope::All => processes
                .iter()
                .filter(|(_, process)| caller.may_see(&process.stats.process.facts.uids))
                .map(|(pid, _)| *pid)
                .collect(),
        };
        for pid in &pids {
            if processes.remove(pid).is_none() {
                return Err(Refusal::NotTraced { pid: *pid });
            }
        }
        Ok(DetachOutcome {
            pids,
            rules: Vec::new(),
        })
    }

    async fn list(&self) -> Result<Vec<ProcessSummary>, Refusal> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let processes = lock(&self.processes);
        Ok(processes
            .values()
            .map(|p| p.stats.process.clone())
            .collect())
    }

    async fn stats(&self, pid: u32) -> Result<StatsReport, Refusal> {
        Ok(self.find(pid).await?.stats)
    }

    async fn leaks(&self, pid: u32, query: LeakQuery) -> Result<LeakReport, Refusal> {
        let process = self.find(pid).await?;
        let mut groups = process.groups;
        groups.retain(|group| {
            group.oldest_age_ns >= query.min_age_ns
                && (query.include_steady || group.verdict != Verdict::Steady)
        });
        if query.limit > 0 {
            groups.truncate(query.limit);
        }
        Ok(LeakReport {
            process: process.stats.process,
            as_of: AS_OF,
            growing_bytes: groups.iter().map(|group| group.growth_bytes).sum(),
            groups,
            watched_ns: 60_000_000_000,
            seconds_to_full: None,
            coverage: process.stats.coverage,
        })
    }

    async fn fluctuation(
        &self,
        pid: u32,
        query: FluctuationQuery,
    ) -> Result<FluctuationReport, Refusal> {
        let process = self.find(pid).await?;
        let overall = Interval {
            from_ns: AS_OF.boot_ns.saturating_sub(query.window_ns),
            to_ns: AS_OF.boot_ns,
            min_allocated_bytes: 500,
            max_allocated_bytes: 1000,
            min_reserved_bytes: 2000,
            max_reserved_bytes: 2000,
            allocs: 10,
            frees: 9,
        };
        Ok(FluctuationReport {
            process: process.stats.process,
            as_of: AS_OF,
            devices: vec![DeviceFluctuation {
                device: Some(0),
                source: Source::Pool,
                overall,
                swing: 0.5,
                floor_slope_bytes_per_s: 12.5,
                intervals: vec![overall; query.intervals.max(1)],
            }],
            coverage: process.stats.coverage,
        })
    }

    async fn snapshot(&self, pid: u32) -> Result<Arc<SnapshotReport>, Refusal> {
        let process = self.find(pid).await?;
        let (segments, blocks, entries) = process.snapshot;
        Ok(Arc::new(SnapshotReport {
            process: process.stats.process,
            ..snapshot(pid, segments, blocks, entries)
        }))
    }

    async fn events(&self, filter: EventFilter) -> Result<mpsc::Receiver<EventItem>, Refusal> {
        Ok(self.hub.subscribe(filter))
    }

    async fn status(&self) -> Result<DaemonStatus, Refusal> {
        Ok(DaemonStatus {
            version: "0.1.0".into(),
            kernel: "6.12.0".into(),
            uptime: Duration::from_secs(90),
            attach_method: Some("uprobe_multi".into()),
            ring_bytes: Some(8 << 20),
            sites: 61,
            journal: JournalStatus {
                state: JournalState::Writing,
                path: "/var/lib/memscope/journal".into(),
                epoch: 1,
                last_sequence: 4711,
                bytes: 1 << 20,
                ..JournalStatus::default()
            },
            records: 4711,
            drops: vec![("ring_full".into(), 0)],
            libraries: vec![LibraryStatus {
                path: "/venv/libc10_cuda.so".into(),
                pids: vec![4242],
                sites: 2,
                ways: vec!["record_trace".into()],
                ..LibraryStatus::default()
            }],
            ..DaemonStatus::default()
        })
    }
}
