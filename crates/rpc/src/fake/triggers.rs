//! The triggers of the fake daemon. They never fire, and the kept snapshots are made up.

use crate::{Account, KeptSnapshot, TriggerStatus};

/// The triggers and kept snapshots of the fake daemon; tests may change them.
#[derive(Default)]
pub struct FakeTriggers {
    /// The triggers.
    pub triggers: Vec<TriggerStatus>,
    /// The kept snapshots, each with the content of its file.
    pub kept: Vec<(KeptSnapshot, Vec<u8>)>,
    /// If true, the daemon accepts no triggers.
    pub off: bool,
}

/// A trigger of the user `uid` for all processes, which has fired three times. `None`: `when` is no valid condition.
#[must_use]
pub fn trigger(number: u64, when: &str, uid: u32) -> Option<TriggerStatus> {
    Some(TriggerStatus {
        trigger: number,
        condition: when.parse().ok()?,
        process: None,
        user: Account::Local(uid),
        from_start: false,
        watching: 1,
        fired: 3,
        written: 2,
        skipped: vec![("paused".into(), 1)],
        last_unix_ns: Some(1_750_000_000_000_000_000),
    })
}

/// A kept snapshot of a process of the user `uid`.
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
