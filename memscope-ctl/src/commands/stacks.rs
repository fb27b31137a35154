//! `top` and `flamegraph`.

use super::each::each;
use super::snapshot::{Target, export, told};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::{self, no_json};
use crate::render;
use crate::stack_args::{FlameGraph, StackFormat, Top};
use memscope_proto::v1;
use serde_json::{Value, json};

pub(super) async fn top(client: &Client, top: &Top, json: bool) -> Result<Exit, Failure> {
    let ask = async |pid| {
        let question = v1::StacksRequest {
            pid,
            at: top.view.at.clone(),
            from: top.view.from.clone(),
            view: Some(top.view.wire()),
            by: top.by.wire().into(),
            cumulative: top.cumulative,
            limit: top.limit,
        };
        client
            .ask(question, async |mut rpc, request| rpc.stacks(request).await)
            .await
    };
    let show = |answer: &_| render::stacks::top(answer, top.frames);
    let (_, exit) = each(client, &top.processes, json, ask, show, document).await?;
    Ok(exit.unwrap_or(Exit::Done))
}

/// `diff --by stack` between two moments: what each stack holds more or less.
pub(super) async fn grown(
    client: &Client,
    diff: &crate::args::Diff,
    json: bool,
) -> Result<Exit, Failure> {
    let question = v1::StacksRequest {
        pid: client.choose(diff.process.pid).await?,
        at: diff.to.clone(),
        from: diff.from.clone(),
        view: Some(v1::StackView {
            metric: v1::StackMetric::Growth.into(),
            unit: v1::StackUnit::Bytes.into(),
            device: None,
        }),
        by: v1::StackGrouping::Stack.into(),
        cumulative: false,
        limit: u32::try_from(diff.limit).unwrap_or(u32::MAX),
    };
    let answer = client
        .ask(question, async |mut rpc, request| rpc.stacks(request).await)
        .await?;
    if json {
        output::json(&document(&answer)?)?;
    } else {
        output::text(&render::stacks::top(&answer, FRAMES))?;
    }
    Ok(Exit::Done)
}

/// Frames of a stack that `diff` shows.
const FRAMES: usize = 12;

/// The answer with every frame where it stands: on the wire, names are numbers.
fn document(answer: &v1::StacksResponse) -> Result<Value, Failure> {
    // Unknown is null in JSON.
    let string = |place: u32| answer.strings.get(place as usize).filter(|s| !s.is_empty());
    let frame = |place: &u32| {
        let frame = answer.frames.get(*place as usize);
        frame.map(|frame| {
            json!({
                "kind": frame.kind().to_string(),
                "name": string(frame.name),
                "file": string(frame.file),
                "line": (frame.line > 0).then_some(frame.line),
            })
        })
    };
    let mut document = serde_json::to_value(answer).map_err(no_json)?;
    let Some(fields) = document.as_object_mut() else {
        return Ok(document);
    };
    fields.remove("strings");
    fields.remove("frames");
    let rows = fields.get_mut("rows").and_then(Value::as_array_mut);
    for (made, row) in rows.into_iter().flatten().zip(&answer.rows) {
        made["frames"] = row.frames.iter().map(frame).collect();
    }
    let groups = fields.get_mut("groups").and_then(Value::as_array_mut);
    for (made, group) in groups.into_iter().flatten().zip(&answer.groups) {
        made["frame"] = group.frame.as_ref().and_then(frame).unwrap_or_default();
    }
    Ok(document)
}

/// What makes no sense is told before anything is asked or started.
pub(super) fn check(request: &FlameGraph) -> Result<(), Failure> {
    request.check()?;
    let binary = request.format()? == StackFormat::Pprof;
    if request.output.is_none() && binary && output::is_terminal() {
        return Err(Failure::Usage {
            what: "this format is binary and standard output is a terminal".into(),
            hint: "write it to a file with -o FILE, or choose another --format".into(),
        });
    }
    Ok(())
}

pub(super) async fn flamegraph(
    client: &Client,
    request: &FlameGraph,
    json: bool,
) -> Result<Exit, Failure> {
    let format = request.format()?;
    let pid = client.choose(request.process.pid()).await?;
    let question = v1::ExportRequest {
        pid,
        format: format.wire().into(),
        at: request.view.at.clone(),
        from: request.view.from.clone(),
        view: Some(v1::StackView {
            // What changed is drawn over what lives.
            metric: match request.diff {
                true => v1::StackMetric::Live.into(),
                false => request.view.wire().metric,
            },
            ..request.view.wire()
        }),
        differential: request.diff,
    };
    let mut target = Target::open(request.output.as_deref())?;
    export(client, question, &mut target).await?;
    let Some(path) = told(target, pid, json)? else {
        return Ok(Exit::Done);
    };
    if !json {
        let path = path.display();
        output::text(&match format {
            StackFormat::Svg => "Open it in a browser.\n".to_owned(),
            StackFormat::Folded => String::new(),
            StackFormat::Pprof => format!("Look at it with: go tool pprof -http=: {path}\n"),
            StackFormat::Speedscope => "Open it at https://www.speedscope.app\n".to_owned(),
        })?;
    }
    Ok(Exit::Done)
}
