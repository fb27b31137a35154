//! Asks one question about several processes.

use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::fleet::{Told, pid_of};
use crate::output;
use crate::process::Processes;
use serde::Serialize;
use serde_json::Value;

/// Asks about each of the chosen processes, and prints the answers one after the other. As JSON, the answer about one
/// process is a document; several are a list, in which a process that cannot be asked has its error instead. Such a
/// process does not hold back the answers about the others: its error is reported, and its exit code is returned
/// beside the answers. Whether anybody reads them decides nothing.
pub(super) async fn each<A: Serialize>(
    client: &Client,
    processes: &Processes,
    json: bool,
    ask: impl AsyncFn(u32) -> Result<A, Failure>,
    show: impl Fn(&A) -> String,
    document: impl Fn(&A) -> Result<Value, Failure>,
) -> Result<(Vec<A>, Option<Exit>), Failure> {
    let pids = client.chosen(processes).await?;
    if let [pid] = pids[..] {
        let answer = ask(pid).await?;
        output::although_closed(match json {
            true => output::json(&document(&answer)?),
            false => output::text(&show(&answer)),
        })?;
        return Ok((vec![answer], None));
    }
    let (mut answers, mut documents, mut exit) = (Vec::new(), Vec::new(), None);
    for pid in pids {
        match ask(pid).await {
            Ok(answer) if json => {
                documents.push(document(&answer)?);
                answers.push(answer);
            }
            Ok(answer) => {
                let gap = if answers.is_empty() { "" } else { "\n" };
                let printed = output::text(&format!("{gap}{}", show(&answer)));
                output::although_closed(printed)?;
                answers.push(answer);
            }
            Err(failure) => {
                output::complain(&failure);
                documents.push(output::error_document(&failure)?);
                exit = Some(failure.exit());
            }
        }
    }
    if json {
        output::although_closed(output::json(&documents))?;
    }
    Ok((answers, exit))
}

/// What a node of a fleet said of its processes, as JSON: a list of documents, in which a process that could not be asked has
/// its error.
pub(super) fn documents<A: Serialize>(told: &Told<A>) -> Result<Value, Failure> {
    documents_by(told, whole)
}

/// The same, with the documents that `document` makes.
pub(super) fn documents_by<A>(
    told: &Told<A>,
    document: impl Fn(&A) -> Result<Value, Failure>,
) -> Result<Value, Failure> {
    let each = told.processes.iter().map(|(process, answer)| match answer {
        Ok(answer) => document(answer),
        Err(failure) => {
            let mut error = output::error_document(failure)?;
            error["pid"] = pid_of(process).into();
            Ok(error)
        }
    });
    each.collect()
}

/// The whole answer as JSON.
pub(super) fn whole<A: Serialize>(answer: &A) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(output::no_json)
}
