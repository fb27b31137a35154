//! `trigger` and `snapshots`: snapshots that are taken by themselves.

use super::snapshot::{Target, drain};
use crate::args::{AddTrigger, GetKept, Kept, KeptCommand, TriggerCommand};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::{output, render, units};
use memscope_proto::v1;
use serde::Serialize;

pub(super) async fn trigger(
    client: &Client,
    command: &TriggerCommand,
    json: bool,
) -> Result<Exit, Failure> {
    match command {
        TriggerCommand::Add(request) => add(client, request, json).await?,
        TriggerCommand::List => {
            let answer = client
                .ask_triggers(v1::ListTriggersRequest {}, async |mut rpc, request| {
                    rpc.list_triggers(request).await
                })
                .await?;
            if json {
                output::json(&answer)?;
            } else {
                output::text(&render::trigger::list(&answer))?;
            }
        }
        TriggerCommand::Remove(request) => {
            let question = v1::RemoveTriggerRequest {
                trigger: request.trigger,
            };
            let answer = client
                .ask_triggers(question, async |mut rpc, request| {
                    rpc.remove_trigger(request).await
                })
                .await?;
            if json {
                output::json(&answer)?;
            } else {
                output::text(&format!("Removed trigger {}.\n", request.trigger))?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn add(client: &Client, request: &AddTrigger, json: bool) -> Result<(), Failure> {
    let question = v1::AddTriggerRequest {
        when: request.when.join(" "),
        pid: request.pid,
    };
    let answer = client
        .ask_triggers(question, async |mut rpc, request| {
            rpc.add_trigger(request).await
        })
        .await?;
    if json {
        output::json(&answer)
    } else {
        output::text(&render::trigger::added(&answer))
    }
}

pub(super) async fn kept(client: &Client, kept: &Kept, json: bool) -> Result<Exit, Failure> {
    let question = v1::ListKeptRequest { pid: kept.pid };
    let answer = client
        .ask_triggers(question, async |mut rpc, request| {
            rpc.list_kept(request).await
        })
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::trigger::kept(&answer))?;
    }
    Ok(Exit::Done)
}

/// Told before anything is asked: the file may be a pickle.
pub(super) fn check(kept: &Kept) -> Result<(), Failure> {
    let Some(KeptCommand::Get(get)) = &kept.command else {
        return Ok(());
    };
    if kept.pid.is_some() {
        return Err(Failure::Usage {
            what: "--pid chooses what is listed, and a snapshot is got by its number".into(),
            hint: format!("memscope-ctl snapshots get {}", get.snapshot),
        });
    }
    if get.output.is_none() && output::is_terminal() {
        return Err(Failure::Usage {
            what: "the file may be binary and standard output is a terminal".into(),
            hint: "write it to a file with -o FILE".into(),
        });
    }
    Ok(())
}

#[derive(Serialize)]
struct Written {
    snapshot: u64,
    file: String,
    bytes: u64,
}

pub(super) async fn get(client: &Client, get: &GetKept, json: bool) -> Result<Exit, Failure> {
    let mut target = Target::open(get.output.as_deref())?;
    let question = v1::GetKeptRequest {
        snapshot: get.snapshot,
    };
    let chunks = client
        .ask_triggers(question, async |mut rpc, request| {
            rpc.get_kept(request).await
        })
        .await?;
    drain(client, chunks, &mut target, &mut Progress::start()).await?;
    let bytes = target.bytes();
    let Some(path) = target.finish()? else {
        return Ok(Exit::Done);
    };
    if json {
        output::json(&Written {
            snapshot: get.snapshot,
            file: path.display().to_string(),
            bytes,
        })?;
    } else {
        let size = units::exact_bytes(Some(bytes));
        output::text(&format!("Wrote {}, {size}.\n", path.display()))?;
    }
    Ok(Exit::Done)
}
