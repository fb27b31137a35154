//! Compares two snapshots from files: what came and what went.

use super::kept::SnapshotFile;
use crate::units::grouped;
use memscope_diff::{Block, Compared, MatchedBy, Side};
use memscope_pickle::State;
use memscope_proto::v1::CoverageNote;
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

/// Code of the note of [`limits`].
pub(crate) const BY_PLACE: &str = "matched_by_place";

/// Notes that limit a comparison: those of both files, and one if blocks may have gone and come again at their places unseen.
pub(crate) fn limits<S>(
    before: &SnapshotFile,
    after: &SnapshotFile,
    compared: &Compared<S>,
) -> Vec<CoverageNote> {
    let mut notes = before.coverage.clone();
    let new = after.coverage.iter();
    notes.extend(new.filter(|note| !before.coverage.contains(note)).cloned());
    if compared.by_place > 0 {
        notes.push(CoverageNote {
            code: BY_PLACE.to_owned(),
            text: format!(
                "the trace of the later file does not reach back to the earlier one: of {} blocks that stayed only their places and \
                 stacks say so, and one that came at the place of another of the same size and stack counts as stayed (more entries \
                 in _record_memory_history(max_entries=…) let the trace reach back)",
                grouped(compared.by_place)
            ),
            affects: vec!["blocks".to_owned()],
            lower_bound: false,
        });
    }
    notes
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
    // memscope's own files say of each block when it came, unless it was there before the attach.
    side.born_from(match file.image {
        Some(_) => Some(0),
        None => file.traced_from_ns,
    });
    for segment in &file.segments {
        side.segment(segment.device, segment.size);
    }
    side
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::kept::{Block as KeptBlock, Image, Segment};

    fn of(pid: Option<u32>) -> SnapshotFile {
        SnapshotFile {
            path: "s".into(),
            image: pid.map(|pid| Image {
                pid,
                start: 7,
                generation: 0,
            }),
            as_of_ns: None,
            traced_from_ns: None,
            segments: Vec::new(),
            stacks: Vec::new(),
            coverage: Vec::new(),
        }
    }

    #[test]
    fn a_trace_that_does_not_reach_back_limits_what_stayed() {
        let file = |as_of_ns, traced_from_ns, line: &str| SnapshotFile {
            as_of_ns: Some(as_of_ns),
            traced_from_ns: Some(traced_from_ns),
            segments: vec![Segment {
                device: 0,
                stream: 0,
                size: 512,
                blocks: vec![KeptBlock {
                    address: 4096,
                    size: 512,
                    requested: None,
                    state: State::Active,
                    born_ns: None,
                    stack: Some(0),
                }],
            }],
            stacks: vec![[Arc::from(line)].into()],
            ..of(None)
        };
        let told = |before: &SnapshotFile, after: &SnapshotFile| {
            let (_, compared) = compare(before, after, true);
            let notes = limits(before, after, &compared).into_iter();
            let codes: Vec<String> = notes.map(|note| note.code).collect();
            (compared.devices[0].stayed.map(|stayed| stayed.count), codes)
        };
        let before = file(100, 50, "f (t.py:5)");
        let whole = file(200, 100, "f (t.py:5)");
        assert_eq!(told(&before, &whole), (Some(1), vec![]));
        let late = file(200, 101, "f (t.py:5)");
        let note = vec![BY_PLACE.to_owned()];
        assert_eq!(told(&before, &late), (Some(1), note.clone()));
        assert_eq!(told(&late, &before), (Some(1), note));
        let other = file(200, 101, "f (t.py:9)");
        assert_eq!(told(&before, &other), (Some(0), vec![]));
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
