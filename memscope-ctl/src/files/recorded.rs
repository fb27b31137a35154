//! Reads the last moment of a recording as a snapshot.

use super::kept::{Block, Image, Segment, SnapshotFile};
use crate::client::{Client, Room};
use crate::failure::Failure;
use crate::recording::Replayer;
use memscope_pickle::State;
use memscope_proto::v1;
use std::path::Path;
use std::time::Duration;

pub(super) async fn read(
    path: &Path,
    pid: Option<u32>,
    timeout: Duration,
) -> Result<SnapshotFile, Failure> {
    let (replayer, client) = Replayer::start(path, None, Room::ALONE, timeout).await?;
    let kept = ask(&client, path, pid).await;
    drop(client);
    replayer.stop().await;
    kept
}

/// Asks the memscoped that replays the recording for the snapshot of its last moment.
async fn ask(client: &Client, path: &Path, pid: Option<u32>) -> Result<SnapshotFile, Failure> {
    use v1::snapshot_part::Part;
    let pid = client.choose(pid).await?;
    let question = v1::SnapshotRequest {
        pid,
        ..v1::SnapshotRequest::default()
    };
    let mut parts = client
        .ask(question, async |mut rpc, request| {
            rpc.snapshot(request).await
        })
        .await?;
    let mut kept = SnapshotFile {
        path: path.to_owned(),
        image: None,
        as_of_ns: None,
        segments: Vec::new(),
        stacks: Vec::new(),
        coverage: Vec::new(),
    };
    let mut offset = 0;
    while let Some(part) = client.next(&mut parts).await? {
        match part.part {
            Some(Part::Header(header)) => {
                offset = header.as_of.saturating_sub(header.as_of_boot_ns);
                kept.as_of_ns = Some(header.as_of);
                kept.image = header.process.and_then(|process| image(&process));
                kept.coverage = header.coverage;
            }
            Some(Part::Segments(chunk)) => {
                for segment in chunk.segments {
                    let continued = segment.continued;
                    let segment = of_wire(segment, offset);
                    match kept.segments.last_mut() {
                        Some(last) if continued => last.blocks.extend(segment.blocks),
                        _ => kept.segments.push(segment),
                    }
                }
            }
            Some(Part::End(_)) => return Ok(kept),
            Some(Part::Stacks(_) | Part::Trace(_)) | None => {}
        }
    }
    Err(Failure::Incomplete {
        what: "the snapshot ended early".into(),
    })
}

fn image(process: &v1::Process) -> Option<Image> {
    let facts = process.facts.as_ref()?;
    Some(Image {
        pid: facts.pid,
        start: facts.start_ticks,
        generation: facts.generation.into(),
    })
}

fn of_wire(segment: v1::Segment, offset: u64) -> Segment {
    let block = |block: v1::Block| {
        let state = match block.state() {
            v1::BlockState::Active => State::Active,
            v1::BlockState::PendingFree => State::Pending,
            v1::BlockState::Inactive | v1::BlockState::Unspecified => State::Inactive,
        };
        Block {
            address: block.address,
            size: block.size_bytes,
            requested: block.requested_bytes,
            state,
            born_ns: block.since_boot_ns.map(|ns| ns.saturating_add(offset)),
            stack: None,
        }
    };
    Segment {
        device: segment.device,
        stream: segment.stream,
        size: segment.size_bytes,
        blocks: segment.blocks.into_iter().map(block).collect(),
    }
}
