//! The fake's triggers: they never fire, and the snapshots that are kept are made up.

use crate::{KeptSnapshot, TriggerStatus};

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
