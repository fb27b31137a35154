//! Compares two snapshots from files: what came and what went.

use super::kept::SnapshotFile;
use memscope_diff::{Block, Compared, MatchedBy, Side};
use memscope_pickle::State;
use std::sync::Arc;

/// Compares two snapshots, and returns how their blocks were matched: one by one if both files say that they are of
/// one process, or if `same_process` (the user) says so; else by number.
pub(crate) fn compare<'a>(
    before: &'a SnapshotFile,
    after: &'a SnapshotFile,
    same_process: bool,
) -> (MatchedBy, Compared<&'a [Arc<str>]>) {
    let said = before.image.is_some() && before.image == after.image;
    let matched_by = match said || same_process {
        true => MatchedBy::Block,
        false => MatchedBy::Number,
    };
    let compared = memscope_diff::compare(side(before), side(after), matched_by);
    (matched_by, compared)
}

/// A snapshot as one side of the comparison. A block's stack is its frames, innermost first; it is empty where the
/// file has none.
fn side(file: &SnapshotFile) -> Side<impl Iterator<Item = Block<&[Arc<str>]>> + Clone> {
    let blocks = file.segments.iter().flat_map(|segment| {
        let used = segment.blocks.iter();
        let used = used.filter(|block| block.state != State::Inactive);
        used.map(|block| Block {
            device: segment.device,
            stream: segment.stream,
            address: block.address,
            size: block.size,
            requested: block.requested,
            born_ns: block.born_ns,
            stack: block
                .stack
                .and_then(|place| file.stacks.get(place as usize))
                .map_or(&[][..], |stack| stack),
            pending: block.state == State::Pending,
        })
    });
    let mut side = Side::new(file.as_of_ns, blocks);
    for segment in &file.segments {
        side.segment(segment.device, segment.size);
    }
    side
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::kept::Image;

    fn of(pid: Option<u32>) -> SnapshotFile {
        SnapshotFile {
            path: "s".into(),
            image: pid.map(|pid| Image {
                pid,
                start: 7,
                generation: 0,
            }),
            as_of_ns: None,
            segments: Vec::new(),
            stacks: Vec::new(),
            coverage: Vec::new(),
        }
    }

    #[test]
    fn files_are_of_one_process_only_if_somebody_says_so() {
        let matched = |a, b, said| compare(&of(a), &of(b), said).0;
        assert_eq!(matched(Some(1), Some(1), false), MatchedBy::Block);
        assert_eq!(matched(Some(1), Some(2), false), MatchedBy::Number);
        assert_eq!(matched(None, None, false), MatchedBy::Number);
        assert_eq!(matched(None, None, true), MatchedBy::Block);
    }
}
