//! A daemon without probes: its answers are made up and can be changed. For tests.

mod answers;
mod stacks;
mod triggers;

pub use answers::{
    device, event, given_back, group, noted, process, snapshot, stats, summary, young,
};
pub use stacks::{hard, native, python, stack_row, stacks};
pub use triggers::{FakeTriggers, kept, trigger};

use crate::{
    AttachOutcome, AttachRequest, AttachScope, AttachedProcess, Caller, Daemon, DaemonStatus,
    DetachOutcome, DetachScope, EventFilter, EventHub, EventItem, JournalState, JournalStatus,
    LibraryStatus, Refusal,
};
use answers::{AS_OF, marks, steps};
use memscope_ledger::event::{EventId, Finding, Mark, ProcessHandle};
use memscope_ledger::report::{
    DeviceFluctuation, FluctuationQuery, FluctuationReport, GivenBack, Interval, LeakGroup,
    LeakLine, LeakQuery, LeakReport, MarksReport, ProcessSummary, SnapshotReport, Source,
    StackReport, StatsReport, StepQuery, StepSummary, StepsReport, Verdict, YoungGrowth,
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
    /// What it says is too young.
    pub young: Option<YoungGrowth>,
    /// What it says was given back.
    pub given_back: Vec<GivenBack>,
    /// Size of the snapshot: segments, blocks in each, trace entries.
    pub snapshot: (usize, usize, usize),
    /// Number of plain stacks in the answer to `stacks`, which has others besides.
    pub stacks: usize,
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
    /// The moments that snapshots and stacks were asked for, in order.
    pub asked: Mutex<Vec<Option<crate::Moment>>>,
    /// Its triggers.
    pub triggers: Mutex<FakeTriggers>,
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
                baseline: None,
                baseline_pending: true,
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

    async fn findings(&self) -> Result<Vec<(ProcessHandle, Finding)>, Refusal> {
        let processes = lock(&self.processes);
        let of = |process: &FakeProcess| {
            let handle = process.stats.process.handle;
            let growing = process
                .groups
                .iter()
                .filter(|group| group.verdict == Verdict::Growing);
            growing
                .map(|group| {
                    let finding = Finding {
                        growth_bytes_per_s: group.growth_bytes_per_s,
                        growth_bytes_per_step: group
                            .growth_bytes_per_step
                            .map(|[_, middle, _]| middle),
                        ..Finding::default()
                    };
                    (handle, finding)
                })
                .collect::<Vec<_>>()
        };
        Ok(processes.values().flat_map(of).collect())
    }

    async fn known_from(&self) -> Result<Vec<(ProcessHandle, u64)>, Refusal> {
        let processes = lock(&self.processes);
        // A second after the attach.
        let known = |p: &FakeProcess| {
            (
                p.stats.process.handle,
                p.stats.process.attached_ns + 1_000_000_000,
            )
        };
        Ok(processes.values().map(known).collect())
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
        let growing = groups
            .iter()
            .filter(|group| group.verdict == Verdict::Growing);
        let (growing_groups, growing_bytes) = growing.fold((0, 0), |(count, bytes), group| {
            (count + 1, bytes + group.growth_bytes)
        });
        let all = groups.len();
        let mut lines: Vec<LeakLine> = groups.iter().map(line).collect();
        let growing_lines = growing_groups;
        if query.limit > 0 {
            groups.truncate(query.limit);
            lines.truncate(query.limit);
        }
        Ok(LeakReport {
            omitted_lines: (all - lines.len()) as u64,
            growing_lines,
            together: None,
            lines,
            process: process.stats.process,
            as_of: AS_OF,
            steps: StepSummary::default(),
            growing_groups,
            growing_bytes,
            omitted_groups: (all - groups.len()) as u64,
            young: process.young,
            given_back: process.given_back,
            groups,
            watched_ns: 60_000_000_000,
            seconds_to_full: None,
            coverage: process.stats.coverage,
        })
    }

    async fn steps(&self, pid: u32, _query: StepQuery) -> Result<StepsReport, Refusal> {
        let process = self.find(pid).await?;
        Ok(steps(process.stats.process, process.stats.coverage))
    }

    async fn recording(&self) -> Result<crate::RecordingWriter, Refusal> {
        Ok(Box::new(|out| out.write_all(b"a recording")))
    }

    async fn mark(&self, pid: u32, _mark: Mark) -> Result<EventId, Refusal> {
        self.find(pid).await?;
        Ok(AS_OF.event)
    }

    async fn marks(&self, pid: u32) -> Result<MarksReport, Refusal> {
        let process = self.find(pid).await?;
        Ok(marks(process.stats.process, process.stats.coverage))
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

    async fn snapshot(
        &self,
        pid: u32,
        at: Option<crate::Moment>,
    ) -> Result<Arc<SnapshotReport>, Refusal> {
        let process = self.find(pid).await?;
        lock(&self.asked).push(at);
        let (segments, blocks, entries) = process.snapshot;
        Ok(Arc::new(SnapshotReport {
            process: process.stats.process,
            coverage: process.stats.coverage,
            ..snapshot(pid, segments, blocks, entries)
        }))
    }

    async fn stacks(&self, pid: u32, at: Option<crate::Moment>) -> Result<StackReport, Refusal> {
        let process = self.find(pid).await?;
        lock(&self.asked).push(at);
        Ok(StackReport {
            process: process.stats.process,
            ..stacks(pid, 0, process.stacks, at.is_some())
        })
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

/// A line of which there is one group only.
fn line(group: &LeakGroup) -> LeakLine {
    let grows = group.verdict != Verdict::Steady;
    LeakLine {
        device: group.device,
        space: group.space,
        line: group.line.clone(),
        verdict: group.verdict,
        confidence: group.confidence,
        groups: 1,
        growing_groups: u64::from(group.verdict == Verdict::Growing),
        stacks: 1,
        smallest_bytes: group.size_bytes,
        largest_bytes: group.size_bytes,
        live_count: group.live_count,
        live_bytes: group.live_bytes,
        growth_bytes: if grows { group.growth_bytes } else { 0 },
        growth_bytes_per_s: if grows { group.growth_bytes_per_s } else { 0.0 },
        growth_bytes_per_step: group.growth_bytes_per_step.filter(|_| grows),
        first_step: group.first_step.filter(|_| grows),
        oldest_age_ns: group.oldest_age_ns,
        looks_like_kept_graph: false,
        beside: group.beside,
        reason: if grows {
            group.reason.clone()
        } else {
            String::new()
        },
        callers: Vec::new(),
    }
}
