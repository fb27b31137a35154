//! Rules: attach every process that matches, now and later.

use serde::{Deserialize, Serialize};
use std::path::Path;

use memscope_rpc::{AttachOptions, AttachScope, Caller};
use memscope_site::process;

/// A rule by which processes are attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Number of the rule, from 1 on.
    pub id: u64,
    /// The processes that match; never `Pid`.
    pub scope: AttachScope,
    /// What is traced of the processes that it attaches.
    pub options: AttachOptions,
    /// Client that made it. Only processes that this client may see are attached.
    pub caller: Caller,
    /// Number of processes that it has attached so far.
    pub attached: u64,
}

impl Rule {
    /// Whether a process matches: by its name, by its cgroup, or for `All` by its mapped libraries.
    pub fn matches(&self, pid: u32) -> bool {
        match &self.scope {
            AttachScope::Pid { .. } => false,
            AttachScope::Comm(name) => comm(pid).is_some_and(|c| c == *name),
            AttachScope::Cgroup(path) => {
                process::cgroup(pid).is_some_and(|c| Path::new(&c).starts_with(path))
            }
            AttachScope::All => maps_device_library(pid),
        }
    }

    /// Whether a matching process is attached even before it maps a device library.
    pub fn waits(&self) -> bool {
        !matches!(self.scope, AttachScope::All)
    }
}

/// Pids of the processes that exist now.
pub fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

fn comm(pid: u32) -> Option<String> {
    let text = process::read(pid, "comm").ok()?;
    Some(
        String::from_utf8_lossy(&text)
            .trim_end_matches('\n')
            .to_owned(),
    )
}

/// Whether the process maps a library of a device vendor now.
pub fn maps_device_library(pid: u32) -> bool {
    let mut files = process::mapped_files(pid).into_iter();
    files.any(|(_, is_of_device)| is_of_device)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use memscope_ledger::event::Level;
    use memscope_rpc::StackKinds;

    #[test]
    fn matches_this_process_by_name_and_cgroup() {
        let pid = std::process::id();
        let rule = |scope| Rule {
            id: 1,
            scope,
            options: AttachOptions {
                level: Level::Trace,
                read_every: None,
                stacks: StackKinds::PYTHON,
                step_name: None,
                launches: false,
                kernels: false,
                accesses: false,
                stack_budget: None,
            },
            caller: Caller::root(),
            attached: 0,
        };
        let name = comm(pid).expect("comm");
        assert!(rule(AttachScope::Comm(name)).matches(pid));
        assert!(!rule(AttachScope::Comm("no such".into())).matches(pid));
        let group = process::cgroup(pid).expect("cgroup");
        assert!(rule(AttachScope::Cgroup(group.clone())).matches(pid));
        assert!(!rule(AttachScope::Cgroup(format!("{group}/deeper"))).matches(pid));
        assert!(!rule(AttachScope::All).matches(pid));
    }
}
