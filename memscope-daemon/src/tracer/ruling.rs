//! The policy in force, and what is known of processes that it leaves alone.

use std::collections::HashMap;
use std::time::Instant;

use memscope_proto::v1;
use memscope_rpc::AttachOptions;
use serde::{Deserialize, Serialize};

use super::others::Others;
use crate::policy::{Candidate, Entry, Places, Policy};

/// An entry of the policy, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Its number among all rules.
    pub id: u64,
    /// What it says.
    pub entry: Entry,
    /// Number of processes that it has attached so far.
    pub attached: u64,
}

/// The policy, and what is known of processes that it leaves alone.
pub(super) struct Ruling {
    pub(super) policy: Policy,
    /// Number of each entry among all rules, and number of processes that it has attached.
    pub(super) numbers: Vec<(u64, u64)>,
    places: Places,
    /// Processes that no entry wanted, with what they looked like then.
    pub(super) judged: HashMap<u32, Judged>,
    /// Processes that entries may want.
    pub(super) others: Others,
    /// When all of them are looked at again.
    pub(super) judge_again: Instant,
    /// When the next search may begin.
    pub(super) next_search: Instant,
}

/// What of a process can change while it runs, as far as it can be seen at little cost: its control group, and the size of its
/// address space, which grows with each library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looks {
    pub(super) group: Option<Vec<u8>>,
    size: Option<Vec<u8>>,
}

/// A process that no entry wanted.
#[derive(Debug)]
pub(super) struct Judged {
    /// What it looked like then.
    pub(super) looks: Looks,
    /// It has run since then, so that something else about it may be new; or it was wanted, and its attach was refused.
    pub(super) again: bool,
}

/// How a process is to be attached.
pub(super) struct Wanted {
    /// Place of the entry that wants it.
    pub(super) at: usize,
    /// What is to be watched.
    pub(super) options: AttachOptions,
    /// Whether to attach it even before it has loaded a library of a device.
    pub(super) waits: bool,
}

impl Looks {
    pub(super) fn of(pid: u32) -> Looks {
        let size = memscope_site::process::read(pid, "statm").ok();
        let first = |text: Vec<u8>| {
            let end = text.iter().position(|byte| *byte == b' ');
            text.get(..end.unwrap_or(text.len())).map(<[u8]>::to_vec)
        };
        Looks {
            group: Looks::group_of(pid),
            size: size.and_then(first),
        }
    }

    pub(super) fn group_of(pid: u32) -> Option<Vec<u8>> {
        memscope_site::process::read(pid, "cgroup").ok()
    }
}

impl Ruling {
    /// Nothing is attached by itself yet.
    pub(super) fn new(places: Places) -> Ruling {
        let now = Instant::now();
        Ruling {
            policy: Policy::default(),
            numbers: Vec::new(),
            places,
            judged: HashMap::new(),
            others: Others::default(),
            judge_again: now,
            next_search: now,
        }
    }

    /// Whether no process is attached by itself.
    pub(super) fn is_empty(&self) -> bool {
        self.policy.is_empty()
    }

    /// The entries, to be written down.
    pub(super) fn in_force(&self) -> Vec<InForce> {
        let entries = self.policy.entries.iter().zip(&self.numbers);
        let in_force = |(entry, (id, attached)): (&Entry, &(u64, u64))| InForce {
            id: *id,
            entry: entry.clone(),
            attached: *attached,
        };
        entries.map(in_force).collect()
    }

    /// Whether a rule with this number is an entry of the policy.
    pub(super) fn has(&self, rule: u64) -> bool {
        self.numbers.iter().any(|(id, _)| *id == rule)
    }

    /// The entries as `status` lists them.
    pub(super) fn listed(&self) -> impl Iterator<Item = v1::Rule> {
        let entries = self.policy.entries.iter().zip(&self.numbers);
        entries.map(|(entry, (id, attached))| v1::Rule {
            rule: *id,
            scope: entry.scope(),
            level: match &entry.options {
                Some(options) => options.level.into(),
                None => v1::Level::Unspecified.into(),
            },
            uid: 0,
            attached: *attached,
            policy: true,
            certificate: None,
        })
    }

    /// How the policy wants a process to be attached now; `None`: it does not.
    pub(super) fn decide(&self, pid: u32) -> Option<Wanted> {
        let candidate = Candidate::of(pid, &self.places).ok()?;
        let (at, entry) = self.policy.decide(&candidate)?;
        wanted(at, entry)
    }

    /// The same for a process that the entry with this number had attached, and that has just executed another image. The image has mapped
    /// next to nothing yet: where no entry decides about it, one that asks for a library may do so soon, and what it wanted goes on.
    pub(super) fn decide_again(&self, pid: u32, rule: u64) -> Option<Wanted> {
        let candidate = Candidate::of(pid, &self.places).ok()?;
        if let Some((at, entry)) = self.policy.decide(&candidate) {
            return wanted(at, entry);
        }
        let at = self.numbers.iter().position(|(id, _)| *id == rule)?;
        let entry = self.policy.entries.get(at)?;
        let may_decide = entry.conditions.need_a_library();
        may_decide.then(|| wanted(at, entry)).flatten()
    }

    /// Counts a process that the entry with this number has attached, if it is one.
    pub(super) fn count_attached(&mut self, rule: Option<u64>) {
        let mut entries = self.numbers.iter_mut();
        if let Some((_, attached)) = entries.find(|(id, _)| Some(*id) == rule) {
            *attached += 1;
        }
    }
}

/// How an entry wants the processes that it decides about to be attached; `None`: not at all.
fn wanted(at: usize, entry: &Entry) -> Option<Wanted> {
    Some(Wanted {
        at,
        options: entry.options.clone()?,
        waits: !entry.conditions.need_a_library(),
    })
}

/// Folders in which the machine keeps what it knows of pods.
pub(super) fn places(pod_logs: &std::path::Path, pod_volumes: &std::path::Path) -> Places {
    Places {
        pod_logs: pod_logs.to_owned(),
        pod_volumes: pod_volumes.to_owned(),
    }
}
