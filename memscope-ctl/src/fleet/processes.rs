//! The processes of a node, asked one after the other.

use super::asking::Asking;
use crate::client::all;
use crate::failure::{Exit, Failure};
use crate::process::Processes;
use memscope_proto::v1;

/// Processes of one node that are asked about.
pub(super) const PROCESSES_MOST: usize = 256;

/// What a node said of each of its processes.
pub(crate) struct Told<A> {
    /// The processes that were asked about, and what was said of each.
    pub(crate) processes: Vec<(v1::Process, Result<A, Failure>)>,
    /// Processes that were not asked about, since the node has more than are asked about of one.
    pub(crate) not_asked: usize,
}

impl<A> Told<A> {
    /// The processes of which the node answered, and its answers.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (&v1::Process, &A)> {
        let each = self.processes.iter();
        each.filter_map(|(process, answer)| Some((process, answer.as_ref().ok()?)))
    }

    /// The processes of which the node refused to answer, and why.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&v1::Process, &Failure)> {
        let each = self.processes.iter();
        each.filter_map(|(process, answer)| Some((process, answer.as_ref().err()?)))
    }

    /// Whether the node said something of the process with this pid, be it a refusal.
    pub(super) fn has(&self, pid: u32) -> bool {
        let mut each = self.processes.iter();
        each.any(|(process, _)| pid_of(process) == Some(pid))
    }
}

/// The pid of a process, which a node that lies may leave out.
pub(crate) fn pid_of(process: &v1::Process) -> Option<u32> {
    process.facts.as_ref().map(|facts| facts.pid)
}

/// Asks about each chosen process of a node: the named ones that it has, else all that it traces. A node that traces none
/// has nothing to say, which is an answer.
pub(crate) async fn of_processes<A>(
    asking: &Asking<'_>,
    processes: &Processes,
    ask: impl AsyncFn(u32) -> Result<A, Failure>,
) -> Result<Told<A>, Failure> {
    let list = list(asking).await?;
    let named = processes.named();
    let chosen = match named.is_empty() {
        true => all(&list.processes),
        false => named,
    };
    // A named process may be of another node.
    let here = |pid| Some((pid, latest(&list.processes, pid)?));
    let here: Vec<(u32, &v1::Process)> = chosen.into_iter().filter_map(here).collect();
    let mut told = Told {
        processes: Vec::new(),
        not_asked: here.len().saturating_sub(PROCESSES_MOST),
    };
    for (pid, process) in here.into_iter().take(PROCESSES_MOST) {
        match ask(pid).await {
            // It ended in between, or is not of those that the caller may see any more.
            Err(failure) if failure.exit() == Exit::NoProcess => {}
            Err(failure) if failure.is_of_the_node() => return Err(failure),
            answer => told.processes.push((process.clone(), answer)),
        }
    }
    Ok(told)
}

/// The processes that a node traces.
pub(crate) async fn list(asking: &Asking<'_>) -> Result<v1::ListResponse, Failure> {
    asking
        .ask(v1::ListRequest {}, async |mut rpc, request| {
            rpc.list(request).await
        })
        .await
}

/// The process with this pid that came last: an ended one may have had the same.
fn latest(processes: &[v1::Process], pid: u32) -> Option<&v1::Process> {
    let has_pid = |process: &&v1::Process| pid_of(process) == Some(pid);
    processes
        .iter()
        .filter(has_pid)
        .max_by_key(|one| one.handle)
}
