//! Who may see which process. The rule is applied to the answer, not only to the question, so that
//! a pid that changes hands in between shows nothing.

use crate::{Caller, Daemon, Refusal};
use memscope_ledger::report::{ProcessState, ProcessSummary};

/// The rule in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Root sees everything, others only processes whose real, effective and saved user is theirs.
    #[default]
    Owner,
    /// Whoever can open the socket sees everything: for recordings on a private socket, whose user
    /// ids belong to another machine.
    Everyone,
}

impl Access {
    /// Whether `caller` may see `process`.
    pub(crate) fn shows(self, caller: Caller, process: &ProcessSummary) -> bool {
        if self == Access::Everyone || caller.is_root() {
            return true;
        }
        if !caller.may_see(&process.facts.uids) {
            return false;
        }
        // A live process may have changed its ids since the attach.
        match process.state {
            ProcessState::Attached => {
                uids_now(process.facts.pid).is_none_or(|uids| caller.may_see(&uids))
            }
            _ => true,
        }
    }

    /// Whether `caller` sees everything.
    pub(crate) fn shows_all(self, caller: Caller) -> bool {
        self == Access::Everyone || caller.is_root()
    }

    /// Refuses, in the words for a process that is not traced, before any work is done.
    pub(crate) async fn check(
        self,
        daemon: &dyn Daemon,
        caller: Caller,
        pid: u32,
    ) -> Result<(), Refusal> {
        if self.shows_all(caller) {
            return Ok(());
        }
        let processes = daemon.list().await?;
        let mut same = processes.iter().filter(|p| p.facts.pid == pid);
        if same.any(|process| self.shows(caller, process)) {
            Ok(())
        } else {
            Err(Refusal::NotTraced { pid })
        }
    }

    /// Refuses an answer about a process that the caller may not see.
    pub(crate) fn check_answer(
        self,
        caller: Caller,
        pid: u32,
        process: &ProcessSummary,
    ) -> Result<(), Refusal> {
        if self.shows(caller, process) {
            Ok(())
        } else {
            Err(Refusal::NotTraced { pid })
        }
    }
}

/// Real, effective and saved uid of a process, `None` if it is gone.
fn uids_now(pid: u32) -> Option<[u32; 3]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut uids = line.split_ascii_whitespace().map(str::parse::<u32>);
    Some([uids.next()?.ok()?, uids.next()?.ok()?, uids.next()?.ok()?])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_our_own_uids() {
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(uids_now(std::process::id()).unwrap()[0], uid);
        assert_eq!(uids_now(u32::MAX), None);
    }
}
