//! What a traced process or a recording says: its snapshot, what its memory is for, and what leaks.

use crate::client::Client;
use crate::commands::leaks;
use crate::failure::Failure;
use crate::file::{Target, export};
use crate::files;
use memscope_proto::v1::{self, moment::Moment};
use memscope_report::{Leak, Live, Others, Picture, Row, together};
use std::path::Path;

/// Most rows that are asked for.
const MOST_ROWS: u32 = 200;

/// Takes a snapshot of a process, by way of a file in this folder, and what limits its numbers.
pub(super) async fn picture(
    client: &Client,
    pid: u32,
    folder: &Path,
) -> Result<(Picture, Vec<v1::CoverageNote>), Failure> {
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
        other_leaks: leaks.omitted_lines,
        notes: notes(&leaks.coverage),
        ..Live::default()
    };
    let now = "What the memory is for";
    let owned = owners(client, pid, None, now, &mut live.notes).await?;
    (live.categories, live.owners, live.other_owners) = owned;
    let peak = v1::Moment {
        moment: Some(Moment::Peak(v1::Peak::default())),
    };
    let then = "What the memory was for at the peak";
    let owned = owners(client, pid, Some(peak), then, &mut live.notes).await?;
    (
        live.categories_at_peak,
        live.owners_at_peak,
        live.other_owners_at_peak,
    ) = owned;
    live.notes.sort();
    live.notes.dedup();
    Ok(live)
}

/// What memory is for: by category, whose it is, and what of that is not told one by one.
type Owned = (Vec<Row>, Vec<Row>, Others);

/// Asks what the memory is for at a moment. Where that cannot be told, the notes say so.
async fn owners(
    client: &Client,
    pid: u32,
    at: Option<v1::Moment>,
    what: &str,
    told: &mut Vec<String>,
) -> Result<Owned, Failure> {
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
            Ok(owned(&answer))
        }
        // An ended process has no objects, and a recording has none either.
        Err(failure @ Failure::Refused { .. }) => {
            told.push(format!("{what} was not told: {}.", failure.what()));
            Ok(Default::default())
        }
        Err(failure) => Err(failure),
    }
}

/// The rows of an answer. Those of all devices are one table, so a name that several devices have is one row.
fn owned(answer: &v1::OwnersResponse) -> Owned {
    let categories = answer.devices.iter().flat_map(|one| &one.categories);
    let categories = categories.filter_map(|one| row(&one.category, one.blocks.as_ref()));
    let name = |owner: &v1::Owner| format!("{}: {}", owner.category, owner.owner);
    let owners = answer.owners.iter();
    let owners = owners.filter_map(|owner| row(&name(owner), owner.blocks.as_ref()));
    (
        together(&categories.collect::<Vec<_>>()),
        together(&owners.collect::<Vec<_>>()),
        Others {
            count: answer.more,
            bytes: answer.more_bytes,
        },
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_added_up_and_what_was_left_out_is_carried() {
        let category = |name: &str, bytes| v1::OwnerCategory {
            category: name.to_owned(),
            blocks: Some(v1::Amount { bytes, count: 1 }),
            ..v1::OwnerCategory::default()
        };
        let device = |categories: [(&str, u64); 2]| v1::OwnedDevice {
            categories: categories
                .map(|(name, bytes)| category(name, bytes))
                .to_vec(),
            ..v1::OwnedDevice::default()
        };
        let answer = v1::OwnersResponse {
            devices: vec![
                device([("weights", 50), ("gradients", 40)]),
                device([("gradients", 30), ("weights", 10)]),
            ],
            more: 7,
            more_bytes: 700,
            ..v1::OwnersResponse::default()
        };
        let (categories, owners, others) = owned(&answer);
        let rows: Vec<(&str, u64, u64)> = categories
            .iter()
            .map(|row| (row.name.as_str(), row.bytes, row.blocks))
            .collect();
        assert_eq!(rows, [("gradients", 70, 2), ("weights", 60, 2)]);
        assert_eq!((owners.len(), others.count, others.bytes), (0, 7, 700));
    }
}
