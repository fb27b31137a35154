//! What a traced process or a recording says: its snapshot, what its memory is for, and what leaks.

use crate::client::Client;
use crate::commands::leaks;
use crate::failure::Failure;
use crate::file::{Target, export};
use crate::files;
use memscope_proto::v1::{self, moment::Moment};
use memscope_report::{Leak, Live, Picture, Row};
use std::path::Path;

/// Most rows that are asked for.
const MOST_ROWS: u32 = 200;

/// Takes a snapshot of a process, by way of a file in this folder.
pub(super) async fn picture(client: &Client, pid: u32, folder: &Path) -> Result<Picture, Failure> {
    let path = folder.join("snapshot.pickle");
    let mut target = Target::open(Some(&path))?;
    let question = v1::ExportRequest {
        pid,
        format: v1::ExportFormat::MemoryViz.into(),
        ..v1::ExportRequest::default()
    };
    export(client, question, &mut target).await?;
    target.finish()?;
    files::picture(&path).await
}

/// Asks what the memory of a process is for, and what leaks.
pub(super) async fn answers(client: &Client, pid: u32) -> Result<Live, Failure> {
    let question = v1::LeaksRequest {
        pid,
        limit: MOST_ROWS,
        ..v1::LeaksRequest::default()
    };
    let leaks = client.leaks(question).await?;
    let mut live = Live {
        leaks_headline: leaks::headline(&leaks).trim().to_owned(),
        leaks: leaks.lines.iter().filter_map(leak).collect(),
        notes: notes(&leaks.coverage),
        ..Live::default()
    };
    let now = "What the memory is for";
    (live.categories, live.owners) = owners(client, pid, None, now, &mut live.notes).await?;
    let peak = v1::Moment {
        moment: Some(Moment::Peak(v1::Peak::default())),
    };
    let then = "What the memory was for at the peak";
    (live.categories_at_peak, live.owners_at_peak) =
        owners(client, pid, Some(peak), then, &mut live.notes).await?;
    live.notes.sort();
    live.notes.dedup();
    Ok(live)
}

/// Asks what the memory is for at a moment: by category, and whose it is. Where that cannot be told, the notes say so.
async fn owners(
    client: &Client,
    pid: u32,
    at: Option<v1::Moment>,
    what: &str,
    told: &mut Vec<String>,
) -> Result<(Vec<Row>, Vec<Row>), Failure> {
    let question = v1::OwnersRequest {
        pid,
        limit: MOST_ROWS,
        at,
        ..v1::OwnersRequest::default()
    };
    let call = async |mut rpc: crate::client::Rpc, request| rpc.owners(request).await;
    match client.ask(question, call).await {
        Ok(answer) => {
            told.extend(notes(&answer.coverage));
            let categories = answer.devices.iter().flat_map(|one| &one.categories);
            let name = |owner: &v1::Owner| format!("{}: {}", owner.category, owner.owner);
            Ok((
                categories
                    .filter_map(|one| row(&one.category, one.blocks.as_ref()))
                    .collect(),
                answer
                    .owners
                    .iter()
                    .filter_map(|owner| row(&name(owner), owner.blocks.as_ref()))
                    .collect(),
            ))
        }
        // An ended process has no objects, and a recording has none either.
        Err(failure @ Failure::Refused { .. }) => {
            told.push(format!("{what} was not told: {}.", failure.what()));
            Ok(Default::default())
        }
        Err(failure) => Err(failure),
    }
}

fn notes(coverage: &[v1::CoverageNote]) -> Vec<String> {
    coverage.iter().map(|note| note.text.clone()).collect()
}

fn row(name: &str, amount: Option<&v1::Amount>) -> Option<Row> {
    let amount = amount?;
    Some(Row {
        name: name.to_owned(),
        bytes: amount.bytes,
        blocks: amount.count,
    })
}

fn leak(line: &v1::LeakLine) -> Option<Leak> {
    let verdict = match line.verdict() {
        v1::Verdict::Growing => "grows",
        v1::Verdict::Undecided => "cannot be told",
        v1::Verdict::Steady | v1::Verdict::Unspecified => return None,
    };
    let place = line.line.as_ref();
    Some(Leak {
        line: place.map_or_else(String::new, |at| {
            format!("{} ({}:{})", at.name, at.file, at.line)
        }),
        verdict: verdict.to_owned(),
        growth_bytes: line.growth_bytes,
        live_bytes: line.live_bytes,
        reason: line.reason.clone(),
    })
}
