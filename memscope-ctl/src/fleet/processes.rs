//! The processes of a node, asked one after the other.

use super::asking::Asking;
use crate::client::all;
use crate::failure::{Exit, Failure};
use crate::process::Processes;
use memscope_proto::v1;

/// Processes of one node that are asked about.
const PROCESSES_MOST: usize = 256;

/// What a node said of each of its processes.
pub(crate) type Told<A> = Vec<(v1::Process, Result<A, Failure>)>;

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
    let mut told = Vec::new();
    for pid in chosen.into_iter().take(PROCESSES_MOST) {
        let Some(process) = latest(&list.processes, pid) else {
            continue;
        };
        match ask(pid).await {
            // It ended in between, or is not of those that the caller may see any more.
            Err(failure) if failure.exit() == Exit::NoProcess => {}
            Err(failure) if failure.is_of_the_node() => return Err(failure),
            answer => told.push((process.clone(), answer)),
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
    let has_pid = |process: &&v1::Process| process.facts.as_ref().is_some_and(|f| f.pid == pid);
    processes
        .iter()
        .filter(has_pid)
        .max_by_key(|one| one.handle)
}
