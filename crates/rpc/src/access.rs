//! The rule that decides which processes a caller may see.
//!
//! Questions are asked only about processes that the caller may see, and by handle. A picture is asked for by process
//! id, so the rule is applied to the finished picture as well: if another process gets the same pid in the meantime,
//! nothing of it is shown.

use crate::caller::namespace_of;
use crate::{Caller, Daemon, Refusal};
use memscope_ledger::Who;
use memscope_proto::v1;

/// The rule that decides which processes a caller may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Root sees everything; other local users see only processes whose real, effective and saved user id is theirs, and
    /// holders of certificates what their roles say.
    #[default]
    Owner,
    /// The same, and the local user with this id sees all processes as well. It changes nothing of others': that depends on whose a process is.
    Observed(u32),
    /// Whoever can connect to the socket sees everything. For a daemon that replays a recording on a private socket:
    /// the user ids in the recording may belong to another machine. Holders of certificates see what their roles say.
    Everyone,
}

impl Access {
    /// Whether `caller` may see this process.
    pub(crate) fn shows(self, caller: &Caller, who: &Who) -> bool {
        if self.shows_all(caller) {
            return true;
        }
        match caller {
            Caller::Certified(_) => caller.may_see_in(None, namespace_of(who)),
            Caller::Local(_) => {
                // A live process may have changed its ids since the attach.
                let is_still = || uids_now(who.pid).is_none_or(|uids| caller.may_see(&uids));
                caller.may_see(&who.uids) && (!who.is_live || is_still())
            }
        }
    }

    /// Whether `caller` sees everything.
    pub(crate) fn shows_all(self, caller: &Caller) -> bool {
        let is_local = matches!(caller, Caller::Local(_));
        let is_observer = match self {
            Access::Observed(observer) => caller.uid() == Some(observer),
            Access::Owner | Access::Everyone => false,
        };
        self == Access::Everyone && is_local || is_observer || caller.sees_all()
    }

    /// The rule for requests that change something in a process: to observe is not enough.
    pub(crate) fn to_change(self) -> Access {
        match self {
            Access::Observed(_) => Access::Owner,
            other => other,
        }
    }

    /// The processes that a question is about and that the caller may see: the one with this pid, or all.
    ///
    /// # Errors
    /// A process that the caller may not see is refused in the same words as one that is not traced. A request about one process that does
    /// not say which has the pid 0, which only the process of a file has that PyTorch wrote.
    pub(crate) async fn visible(
        self,
        daemon: &dyn Daemon,
        caller: &Caller,
        pid: Option<u32>,
    ) -> Result<Vec<Who>, Refusal> {
        let mut whose = daemon.who(pid).await?;
        whose.retain(|who| self.shows(caller, who));
        match pid {
            Some(0) if whose.is_empty() => Err(crate::refusal::invalid(
                "the request does not say which process it is about: `pid` is missing",
                "set `pid` to the process id; `memscope-ctl ps` lists what is traced",
            )),
            Some(pid) if whose.is_empty() => Err(Refusal::NotTraced { pid }),
            _ => Ok(whose),
        }
    }

    /// Refuses a picture of a process that the caller may not see. Needed because pictures are asked for by pid, and
    /// another process may have got the pid since the first check.
    pub(crate) fn check(self, caller: &Caller, who: &Who) -> Result<(), Refusal> {
        match self.shows(caller, who) {
            true => Ok(()),
            false => Err(Refusal::NotTraced { pid: who.pid }),
        }
    }
}

/// Real, effective and saved user id of a process; `None` if it is gone.
fn uids_now(pid: u32) -> Option<[u32; 3]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut uids = line.split_ascii_whitespace().map(str::parse::<u32>);
    Some([uids.next()?.ok()?, uids.next()?.ok()?, uids.next()?.ok()?])
}

/// Leaves out of a status what counts the processes of all users together, and says so.
pub(crate) fn leave_out_totals(status: &mut v1::StatusResponse) {
    status.totals_left_out = true;
    status.sites = 0;
    status.records = 0;
    status.drops.clear();
    status.reads_given_up = 0;
    status.memory = None;
    if let Some(journal) = &mut status.journal {
        journal.bytes = 0;
        journal.last_sequence = 0;
        journal.refused_records = 0;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_user_may_be_let_see_everything() {
        let (observer, other) = (Caller::local(7, 7, None), Caller::local(8, 8, None));
        let rule = Access::Observed(7);
        assert!(rule.shows_all(&observer) && !rule.to_change().shows_all(&observer));
        assert!(!rule.shows_all(&other) && rule.shows_all(&Caller::root()));
        assert!(!Access::Owner.shows_all(&observer));
    }

    #[test]
    fn reads_our_own_uids() {
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(uids_now(std::process::id()).unwrap()[0], uid);
        assert_eq!(uids_now(u32::MAX), None);
    }
}
