//! A daemon without probes, for tests: its answers are made up and can be changed.

mod answers;
mod process;
mod stacks;
mod triggers;

pub use answers::{
    device, event, given_back, group, noted, process, snapshot, step, summary, young,
};
pub use process::FakeProcess;
pub use stacks::{hard, native, python, stack_row, stacks};
pub use triggers::{FakeTriggers, kept, trigger};

use crate::{
    AttachRequest, AttachScope, Caller, Condition, Daemon, DetachScope, EventFilter, EventHub,
    EventReader, KeptSnapshots, Moment, OpenKept, Refusal, TriggerStatus, Triggers, Wanted, Window,
};
use answers::AS_OF;
use memscope_ledger::event::{EventId, Mark, ProcessHandle};
use memscope_ledger::report::{SnapshotReport, StackReport};
use memscope_ledger::{Answered, Asked, Who};
use memscope_proto::v1;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A daemon whose processes and answers a test makes up.
#[derive(Default)]
pub struct FakeDaemon {
    /// The traced processes by pid.
    pub processes: Mutex<BTreeMap<u32, FakeProcess>>,
    /// If set, every `attach` is refused with a copy of this.
    pub refuse: Mutex<Option<Refusal>>,
    /// If true, requests wait for ever.
    pub hangs: bool,
    /// The readers of events.
    pub hub: EventHub,
    /// The moments for which snapshots and stacks were asked, in the order of the requests.
    pub asked: Mutex<Vec<Option<crate::Moment>>>,
    /// The triggers and the kept snapshots.
    pub triggers: Mutex<FakeTriggers>,
    /// The rules that `status` lists.
    pub rules: Mutex<Vec<v1::Rule>>,
    /// How often somebody asked which processes there are.
    pub who: AtomicUsize,
    /// If set, this process takes the place of the one with its pid, right after the next time that somebody asked which
    /// processes there are.
    pub next: Mutex<Option<FakeProcess>>,
    /// If set, this process had its pid at all earlier moments of which `owners` is asked.
    pub earlier: Mutex<Option<FakeProcess>>,
    /// The processes that got a mark.
    pub marked: Mutex<Vec<ProcessHandle>>,
    /// If set, this runs on a blocking thread before a snapshot of an earlier moment is answered, as the fold of a
    /// journal would.
    pub fold: Option<Fold>,
}

/// Work that takes the place of the fold of a journal.
pub type Fold = Arc<dyn Fn(&Wanted) + Send + Sync>;

impl FakeDaemon {
    /// A daemon that traces these processes.
    #[must_use]
    pub fn with(processes: impl IntoIterator<Item = FakeProcess>) -> Self {
        let fake = FakeDaemon::default();
        lock(&fake.processes).extend(
            processes
                .into_iter()
                .map(|process| (process.process.facts.pid, process)),
        );
        fake
    }

    /// A daemon that never answers.
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
    ) -> Result<v1::AttachResponse, Refusal> {
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
            .or_insert_with(|| process(pid, caller.uid().unwrap_or(0)));
        if !caller.may_see(&traced.process.facts.uids) {
            return Err(Refusal::NoSuchProcess { pid });
        }
        Ok(v1::AttachResponse {
            processes: vec![v1::AttachedProcess {
                pid,
                comm: traced.process.facts.comm.clone(),
                sites: 61,
                ways: vec!["record_trace".into()],
                level: request.options.level.into(),
                coverage: traced.coverage.clone(),
                cost: Some("Two traps for each block.".into()),
                baseline: None,
                baseline_pending: true,
            }],
            rule,
            refused: Vec::new(),
        })
    }

    async fn detach(
        &self,
        caller: Caller,
        scope: DetachScope,
    ) -> Result<v1::DetachResponse, Refusal> {
        let mut processes = lock(&self.processes);
        let pids: Vec<u32> = match scope {
            DetachScope::Pid(pid) => vec![pid],
            DetachScope::Rule(rule) => return Err(Refusal::NoSuchRule { rule }),
            DetachScope::All => processes
                .iter()
                .filter(|(_, process)| caller.may_see(&process.process.facts.uids))
                .map(|(pid, _)| *pid)
                .collect(),
        };
        for pid in &pids {
            if processes.remove(pid).is_none() {
                return Err(Refusal::NotTraced { pid: *pid });
            }
        }
        Ok(v1::DetachResponse {
            pids,
            rules: Vec::new(),
        })
    }

    async fn who(&self, pid: Option<u32>) -> Result<Vec<Who>, Refusal> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        self.who.fetch_add(1, Ordering::Relaxed);
        let mut processes = lock(&self.processes);
        let asked = |one: &&FakeProcess| pid.is_none_or(|pid| one.process.facts.pid == pid);
        let found = processes.values().filter(asked);
        let found = found.map(|one| one.process.who()).collect();
        if let Some(next) = lock(&self.next).take() {
            processes.insert(next.process.facts.pid, next);
        }
        Ok(found)
    }

    async fn ask(&self, asked: Asked, of: Vec<ProcessHandle>) -> Result<Answered, Refusal> {
        let processes = lock(&self.processes);
        let all = processes.values();
        let about: Vec<&FakeProcess> = all.filter(|one| of.contains(&one.process.handle)).collect();
        let pid = asked.pid().unwrap_or_default();
        answers::answer(&asked, &about).ok_or(Refusal::NotTraced { pid })
    }

    async fn course(
        &self,
        window: Window,
        _wanted: &Wanted,
    ) -> Result<v1::FluctuationResponse, Refusal> {
        let edge = |moment: Option<Moment>, other: u64| match moment {
            Some(Moment::Boot(ns)) => ns,
            _ => other,
        };
        let end_ns = answers::AS_OF.boot_ns;
        let question = v1::FluctuationRequest {
            pid: window.pid,
            window_ns: end_ns.saturating_sub(edge(window.from, 0)),
            intervals: window.intervals,
            to_boot_ns: Some(edge(window.to, end_ns)),
            ..v1::FluctuationRequest::default()
        };
        match self.ask(question.into(), vec![window.of]).await? {
            Answered::Fluctuation(answer) => Ok(answer),
            _ => Err(Refusal::NotTraced { pid: window.pid }),
        }
    }

    /// The present moment: a second later with each snapshot and each report of stacks that was asked for.
    async fn end(&self) -> Result<u64, Refusal> {
        let asked = lock(&self.asked).len() as u64;
        Ok(AS_OF.boot_ns + asked * 1_000_000_000)
    }

    async fn recording(&self) -> Result<crate::RecordingWriter, Refusal> {
        Ok(Box::new(|out| {
            out.write_all(b"a recording")?;
            Ok(vec!["a part of it is missing".to_owned()])
        }))
    }

    async fn mark(&self, of: Who, _mark: Mark) -> Result<EventId, Refusal> {
        let processes = lock(&self.processes);
        let mut all = processes.values();
        if !all.any(|one| one.process.handle == of.handle) {
            return Err(Refusal::NotTraced { pid: of.pid });
        }
        lock(&self.marked).push(of.handle);
        Ok(AS_OF.event)
    }

    async fn holders(
        &self,
        request: v1::HoldersRequest,
        before: Arc<SnapshotReport>,
    ) -> Result<v1::HoldersResponse, Refusal> {
        Ok(v1::HoldersResponse {
            pid: request.pid,
            coverage: before.coverage.clone(),
            ..v1::HoldersResponse::default()
        })
    }

    async fn owners(
        &self,
        request: v1::OwnersRequest,
        before: Arc<SnapshotReport>,
        at: Option<crate::Moment>,
        _wanted: &crate::Wanted,
    ) -> Result<(v1::OwnersResponse, Who), Refusal> {
        let earlier = at.and_then(|_| lock(&self.earlier).clone());
        let of = earlier.map_or_else(|| before.process.who(), |earlier| earlier.process.who());
        let answer = v1::OwnersResponse {
            pid: request.pid,
            coverage: before.coverage.clone(),
            ..v1::OwnersResponse::default()
        };
        Ok((answer, of))
    }

    async fn snapshot(
        &self,
        pid: u32,
        at: Option<crate::Moment>,
        wanted: &Wanted,
    ) -> Result<Arc<SnapshotReport>, Refusal> {
        let process = self.find(pid).await?;
        lock(&self.asked).push(at);
        if let (Some(fold), Some(_)) = (self.fold.clone(), at) {
            let wanted = wanted.clone();
            let folded = tokio::task::spawn_blocking(move || fold(&wanted)).await;
            folded.map_err(|error| Refusal::Internal {
                what: "the fold failed".into(),
                source: Box::new(error),
            })?;
        }
        let (segments, blocks, entries) = process.snapshot;
        Ok(Arc::new(SnapshotReport {
            process: process.process,
            coverage: process.coverage,
            ..snapshot(pid, segments, blocks, entries)
        }))
    }

    async fn stacks(
        &self,
        pid: u32,
        at: Option<crate::Moment>,
        _wanted: &Wanted,
    ) -> Result<StackReport, Refusal> {
        let process = self.find(pid).await?;
        let now_ns = self.end().await?;
        lock(&self.asked).push(at);
        let mut report = stacks(pid, 0, process.stacks, at.is_some());
        report.rows.extend(process.more_stacks);
        report
            .rows
            .sort_by_key(|row| std::cmp::Reverse(row.live.bytes));
        report.as_of.boot_ns = match at {
            Some(crate::Moment::Ago(ns)) => now_ns - ns,
            Some(crate::Moment::Boot(ns)) => ns,
            _ => report.as_of.boot_ns,
        };
        Ok(StackReport {
            process: process.process,
            ..report
        })
    }

    async fn events(&self, filter: EventFilter) -> Result<EventReader, Refusal> {
        Ok(self.hub.subscribe(filter))
    }

    async fn status(&self) -> Result<v1::StatusResponse, Refusal> {
        Ok(v1::StatusResponse {
            version: "0.1.0".into(),
            pid: std::process::id(),
            kernel: "6.12.0".into(),
            uptime_ns: 90_000_000_000,
            now_unix_ns: AS_OF.unix_ns,
            attach_method: Some("uprobe_multi".into()),
            ring_bytes: Some(8 << 20),
            sites: 61,
            journal: Some(v1::Journal {
                state: "writing".into(),
                path: "/var/lib/memscope/journal".into(),
                epoch: 1,
                last_sequence: 4711,
                bytes: 1 << 20,
                ..v1::Journal::default()
            }),
            records: 4711,
            drops: vec![v1::Cause {
                cause: "ring_full".into(),
                count: 0,
            }],
            libraries: vec![v1::Library {
                path: "/venv/libc10_cuda.so".into(),
                pids: vec![4242],
                sites: 2,
                ways: vec!["record_trace".into()],
                ..v1::Library::default()
            }],
            rules: lock(&self.rules).clone(),
            ..v1::StatusResponse::default()
        })
    }
}

#[tonic::async_trait]
impl Triggers for FakeDaemon {
    async fn add_trigger(
        &self,
        caller: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal> {
        if let Some(pid) = pid
            && !lock(&self.processes).contains_key(&pid)
        {
            return Err(Refusal::NotTraced { pid });
        }
        let mut state = lock(&self.triggers);
        if state.off {
            return Err(Refusal::NoTriggers { why: "it is off" });
        }
        let status = TriggerStatus {
            trigger: state.triggers.iter().map(|t| t.trigger).max().unwrap_or(0) + 1,
            condition,
            process: pid.map(|pid| (pid, [caller.uid().unwrap_or(0); 3])),
            user: caller.account(),
            from_start: false,
            watching: 1,
            fired: 0,
            written: 0,
            skipped: Vec::new(),
            last_unix_ns: None,
        };
        state.triggers.push(status.clone());
        Ok(status)
    }

    async fn remove_trigger(&self, caller: Caller, number: u64) -> Result<(), Refusal> {
        let mut state = lock(&self.triggers);
        let before = state.triggers.len();
        state
            .triggers
            .retain(|t| t.trigger != number || !t.is_of(&caller));
        if state.triggers.len() == before {
            return Err(Refusal::NoSuchTrigger { trigger: number });
        }
        Ok(())
    }

    async fn triggers(&self) -> Result<Vec<TriggerStatus>, Refusal> {
        Ok(lock(&self.triggers).triggers.clone())
    }

    async fn kept(&self) -> Result<KeptSnapshots, Refusal> {
        let state = lock(&self.triggers);
        Ok(KeptSnapshots {
            snapshots: state.kept.iter().map(|(kept, _)| kept.clone()).collect(),
            limit_count: 16,
            limit_bytes: 1 << 30,
        })
    }

    async fn open_kept(&self, number: u64) -> Result<OpenKept, Refusal> {
        let state = lock(&self.triggers);
        let found = state.kept.iter().find(|(kept, _)| kept.snapshot == number);
        let (snapshot, content) = found.ok_or(Refusal::NoSuchSnapshot { snapshot: number })?;
        Ok(OpenKept {
            snapshot: snapshot.clone(),
            content: Box::new(Cursor::new(content.clone())),
        })
    }
}
