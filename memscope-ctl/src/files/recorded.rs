//! Reads the last moment of a recording as a snapshot.

use super::kept::{Block, Segment, SnapshotFile, line_of};
use crate::client::{Client, Room};
use crate::failure::Failure;
use crate::recording::Replayer;
use memscope_pickle::{Stacks, State};
use memscope_proto::v1;
use std::path::Path;
use std::sync::Arc;
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
        stacks: true,
        ..v1::SnapshotRequest::default()
    };
    let mut parts = client
        .ask(question, async |mut rpc, request| {
            rpc.snapshot(request).await
        })
        .await?;
    let mut read = Read::of(path);
    while let Some(part) = client.next(&mut parts).await? {
        match part.part {
            Some(Part::Header(header)) => read.header(header),
            Some(Part::Segments(chunk)) => read.segments(chunk),
            Some(Part::Stacks(chunk)) => read.stacks(chunk),
            Some(Part::End(_)) => return Ok(read.whole()),
            Some(Part::Trace(_)) | None => {}
        }
    }
    Err(Failure::Incomplete {
        what: "the snapshot ended early".into(),
    })
}

/// What was read of a snapshot so far.
struct Read {
    kept: SnapshotFile,
    /// Nanoseconds from boot time to time of day.
    offset: u64,
    strings: Vec<String>,
    /// The frames as text, in the order in which they came.
    frames: Vec<Arc<str>>,
    /// The different stacks, and of each stack that came the place among them.
    different: Stacks<Arc<str>>,
    places: Vec<Option<u32>>,
}

impl Read {
    fn of(path: &Path) -> Read {
        Read {
            kept: SnapshotFile {
                path: path.to_owned(),
                image: None,
                attached_ns: None,
                as_of_ns: None,
                traced_from_ns: None,
                has_births: true,
                segments: Vec::new(),
                stacks: Vec::new(),
                coverage: Vec::new(),
            },
            offset: 0,
            strings: Vec::new(),
            frames: Vec::new(),
            different: Stacks::default(),
            places: Vec::new(),
        }
    }

    fn header(&mut self, header: v1::SnapshotHeader) {
        self.offset = header.as_of.saturating_sub(header.as_of_boot_ns);
        self.kept.as_of_ns = Some(header.as_of);
        if let Some(process) = header.process {
            self.kept.attached_ns = Some(process.attached_boot_ns.saturating_add(self.offset));
            self.kept.image = process.facts.map(|facts| facts.memory_image());
        }
        self.kept.coverage = header.coverage;
    }

    fn segments(&mut self, chunk: v1::SegmentChunk) {
        for segment in chunk.segments {
            let continued = segment.continued;
            let segment = of_wire(segment, self.offset);
            match self.kept.segments.last_mut() {
                Some(last) if continued => last.blocks.extend(segment.blocks),
                _ => self.kept.segments.push(segment),
            }
        }
    }

    fn stacks(&mut self, chunk: v1::StackChunk) {
        self.strings.extend(chunk.strings);
        for frame in chunk.frames {
            let string = |place: u32| self.strings.get(place as usize).map_or("", String::as_str);
            let (name, file) = (string(frame.name), string(frame.file));
            self.frames
                .push(line_of(name, file, Some(frame.line.into())));
        }
        for stack in chunk.stacks {
            let frames = stack.frames.iter();
            let frames = frames.filter_map(|place| self.frames.get(*place as usize).cloned());
            self.places.push(self.different.add(frames));
        }
    }

    /// The snapshot, once all parts have come: only then it is known which stack each block has.
    fn whole(mut self) -> SnapshotFile {
        let segments = self.kept.segments.iter_mut();
        for block in segments.flat_map(|segment| &mut segment.blocks) {
            let came = block
                .stack
                .and_then(|place| self.places.get(place as usize));
            block.stack = came.copied().flatten();
        }
        self.kept.stacks = self.different.all;
        self.kept
    }
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
            stack: block.stack,
        }
    };
    Segment {
        device: segment.device,
        stream: segment.stream,
        size: segment.size_bytes,
        blocks: segment.blocks.into_iter().map(block).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_stacks_that_come_after_them() {
        let block = |stack| v1::Block {
            size_bytes: 512,
            stack,
            ..v1::Block::default()
        };
        let mut read = Read::of(Path::new("run.mscope"));
        read.segments(v1::SegmentChunk {
            segments: vec![v1::Segment {
                blocks: [Some(1), Some(0), None, Some(2)].map(block).to_vec(),
                ..v1::Segment::default()
            }],
        });
        let frame = |name, line| v1::StackFrame {
            name,
            file: 2,
            line,
            ..v1::StackFrame::default()
        };
        let stack = |frames: &[u32]| v1::BlockStack {
            frames: frames.to_vec(),
            ..v1::BlockStack::default()
        };
        read.stacks(v1::StackChunk {
            strings: ["", "forward", "/home/ada/train.py"]
                .map(str::to_owned)
                .to_vec(),
            frames: vec![frame(1, 7)],
            stacks: vec![stack(&[0]), stack(&[])],
        });
        // Names and frames of an earlier part are not sent again.
        read.stacks(v1::StackChunk {
            strings: vec!["main".to_owned()],
            frames: vec![frame(3, 9)],
            stacks: vec![stack(&[0, 1])],
        });
        let kept = read.whole();
        let of = |block: &Block| -> Vec<String> {
            let stack = block
                .stack
                .and_then(|place| kept.stacks.get(place as usize));
            let frames = stack.into_iter().flat_map(|stack| stack.iter());
            frames.map(|frame| frame.to_string()).collect()
        };
        let told: Vec<Vec<String>> = kept.segments[0].blocks.iter().map(of).collect();
        let forward = "forward (/home/ada/train.py:7)".to_owned();
        let main = "main (/home/ada/train.py:9)".to_owned();
        assert_eq!(
            told,
            [vec![], vec![forward.clone()], vec![], vec![forward, main]]
        );
    }
}
