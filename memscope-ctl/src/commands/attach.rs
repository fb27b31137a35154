//! `attach` and `detach`.

use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::{output, render};
use memscope_proto::v1;
use std::time::Duration;

pub(super) async fn attach(
    client: &Client,
    attach: &args::Attach,
    json: bool,
) -> Result<Exit, Failure> {
    use v1::attach_request::Scope;
    let scope = if let Some(pid) = attach.pid() {
        Scope::Pid(v1::PidScope {
            pid,
            children: attach.children,
            wait: attach.wait,
        })
    } else if let Some(comm) = &attach.comm {
        Scope::Comm(comm.clone())
    } else if let Some(cgroup) = &attach.cgroup {
        Scope::Cgroup(cgroup.clone())
    } else {
        Scope::All(attach.all)
    };
    let level = match attach.level {
        args::Level::Read => v1::Level::Read,
        args::Level::Segments => v1::Level::Segments,
        args::Level::Blocks => v1::Level::Blocks,
        args::Level::Trace => v1::Level::Trace,
    };
    let request = v1::AttachRequest {
        scope: Some(scope),
        level: level.into(),
        read_every_ns: read_every(attach),
        stacks: match attach.stacks {
            args::Stacks::None => v1::Stacks::None,
            args::Stacks::Python => v1::Stacks::Python,
            args::Stacks::Native => v1::Stacks::Native,
            args::Stacks::All => v1::Stacks::All,
        }
        .into(),
        stack_depth: attach.stack_depth.unwrap_or_default(),
        stack_sample_bytes: attach.stack_sample.unwrap_or_default(),
        launches: attach.launches,
        step_name: attach.steps.clone().unwrap_or_default(),
    };
    let answer = client
        .ask(request, async |mut rpc, request| rpc.attach(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::attach::attached(&answer))?;
    }
    Ok(Exit::Done)
}

/// Time between readings when nobody says one.
const READ_EVERY: Duration = Duration::from_secs(10);

fn read_every(attach: &args::Attach) -> Option<u64> {
    let default = (attach.level == args::Level::Read).then_some(READ_EVERY);
    let every = attach.every.or(default)?;
    Some(u64::try_from(every.as_nanos()).unwrap_or(u64::MAX))
}

pub(super) async fn detach(
    client: &Client,
    detach: &args::Detach,
    json: bool,
) -> Result<Exit, Failure> {
    use v1::detach_request::Scope;
    let scope = match (detach.pid(), detach.rule) {
        (Some(pid), _) => Scope::Pid(pid),
        (None, Some(rule)) => Scope::Rule(rule),
        (None, None) => Scope::All(detach.all),
    };
    let request = v1::DetachRequest { scope: Some(scope) };
    let answer = client
        .ask(request, async |mut rpc, request| rpc.detach(request).await)
        .await?;
    if json {
        output::json(&answer)?;
    } else {
        output::text(&render::attach::detached(&answer))?;
    }
    Ok(Exit::Done)
}
