//! The fake's triggers: they never fire, and the snapshots that are kept are made up.

use super::{FakeDaemon, lock};
use crate::{Caller, Condition, Kept, KeptSnapshot, OpenKept, Refusal, TriggerStatus, Triggers};
use std::io::Cursor;

/// What the fake was told, and what it is to say.
#[derive(Default)]
pub struct FakeTriggers {
    /// Its triggers.
    pub triggers: Vec<TriggerStatus>,
    /// Its snapshots, and their files.
    pub kept: Vec<(KeptSnapshot, Vec<u8>)>,
    /// It takes none.
    pub off: bool,
}

/// A trigger of a user, for all processes.
#[must_use]
pub fn trigger(number: u64, when: &str, uid: u32) -> Option<TriggerStatus> {
    Some(TriggerStatus {
        trigger: number,
        condition: when.parse().ok()?,
        process: None,
        uid,
        from_start: false,
        watching: 1,
        fired: 3,
        written: 2,
        skipped: vec![("paused".into(), 1)],
        last_unix_ns: Some(1_750_000_000_000_000_000),
    })
}

/// A snapshot of a user's process.
#[must_use]
pub fn kept(number: u64, pid: u32, uid: u32) -> KeptSnapshot {
    KeptSnapshot {
        snapshot: number,
        unix_ns: 1_750_000_000_000_000_000 + number,
        pid,
        comm: "python".into(),
        uids: vec![uid],
        when: "oom".into(),
        reason: "ran out of memory on device 0".into(),
        device: Some(0),
        format: "memory-viz".into(),
        bytes: 300_000,
        path: format!("/var/lib/memscope/snapshots/{number:06}.pickle").into(),
        without_baseline: number.is_multiple_of(2),
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
            process: pid.map(|pid| (pid, [caller.uid; 3])),
            uid: caller.uid,
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
            .retain(|t| t.trigger != number || !t.is_of(caller));
        if state.triggers.len() == before {
            return Err(Refusal::NoSuchTrigger { trigger: number });
        }
        Ok(())
    }

    async fn triggers(&self) -> Result<Vec<TriggerStatus>, Refusal> {
        Ok(lock(&self.triggers).triggers.clone())
    }

    async fn kept(&self) -> Result<Kept, Refusal> {
        let state = lock(&self.triggers);
        Ok(Kept {
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
