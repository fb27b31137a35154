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
    let images = before.image.zip(after.image);
    let said = images.is_some_and(|(one, other)| one.is(&other));
    let matched_by = match said || same_process {
        true => MatchedBy::Block,
        false => MatchedBy::Number,
    };
    let compared = memscope_diff::compare_by(side(before), side(after), matched_by, alike);
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
        let (why, hint) = match is_attached_anew(before, after) {
            true => ("its process was attached after the earlier one", ""),
            false => (
                "its trace does not reach back to the earlier one",
                " (more entries in _record_memory_history(max_entries=…) let the trace reach back)",
            ),
        };
        notes.push(CoverageNote {
            code: BY_PLACE.to_owned(),
            text: format!(
                "the later file does not say what came since the earlier one, as {why}: of {} blocks that stayed only their places and \
                 stacks say so, and one that came at the place of another of the same size and stack counts as stayed{hint}",
                grouped(compared.by_place)
            ),
            affects: vec!["blocks".to_owned()],
            lower_bound: false,
        });
    }
    notes
}

/// Whether memscope attached the process of the later file after the earlier one was made.
fn is_attached_anew(before: &SnapshotFile, after: &SnapshotFile) -> bool {
    let moments = before.as_of_ns.zip(after.as_of_ns);
    let (earlier, later) = match moments.is_some_and(|(before, after)| before > after) {
        true => (after, before),
        false => (before, after),
    };
    let attached = later.attached_ns.zip(earlier.as_of_ns);
    attached.is_some_and(|(attached, earlier)| attached > earlier)
}

/// From when on the file says of each block when it came, so that a block without a time was there before. What came in a loss has none.
fn born_from(file: &SnapshotFile) -> Option<u64> {
    let says = |code: &str| file.coverage.iter().any(|note| note.code == code);
    if says("came_unseen") {
        return None;
    }
    let has_all = file.has_births && !says("records_lost") && !says("trace_shed");
    let attached = file.attached_ns.filter(|_| has_all);
    attached.or(file.traced_from_ns)
}

/// Whether two stacks may be of one allocation: they have the same frames of Python code, or one of them has none. PyTorch's own recorder
/// has compiled code in its stacks, memscope's files may have none.
fn alike(one: &[Arc<str>], other: &[Arc<str>]) -> bool {
    one == other
        || python(one).next().is_none()
        || python(other).next().is_none()
        || python(one).eq(python(other))
}

/// The frames that are not compiled code.
fn python(stack: &[Arc<str>]) -> impl Iterator<Item = &str> {
    let lines = stack.iter().map(|line| &**line);
    lines.filter(|line| !crate::render::frames::is_compiled(line))
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
    side.born_from(born_from(file));
    for segment in &file.segments {
        side.segment(segment.device, segment.size);
    }
    side
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::kept::{Block as KeptBlock, Segment};
    use memscope_proto::Image;

    fn of(pid: Option<u32>) -> SnapshotFile {
        SnapshotFile {
            path: "s".into(),
            image: pid.map(|pid| Image {
                pid,
                start_ticks: 7,
                generation: 0,
                number: None,
            }),
            attached_ns: None,
            as_of_ns: None,
            traced_from_ns: None,
            has_births: false,
            segments: Vec::new(),
            stacks: Vec::new(),
            coverage: Vec::new(),
        }
    }

    /// A segment of one block, of which is not known when it came.
    fn one_block(stack: Option<u32>) -> Vec<Segment> {
        let block = KeptBlock {
            address: 4096,
            size: 512,
            requested: None,
            state: State::Active,
            born_ns: None,
            stack,
        };
        vec![Segment {
            device: 0,
            stream: 0,
            size: 512,
            blocks: vec![block],
        }]
    }

    #[test]
    fn a_trace_that_does_not_reach_back_limits_what_stayed() {
        let file = |as_of_ns, traced_from_ns, line: &str| SnapshotFile {
            as_of_ns: Some(as_of_ns),
            traced_from_ns: Some(traced_from_ns),
            segments: one_block(Some(0)),
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

    /// Between a detach and a new attach a block may have gone, and another one have come at its place. The later file has the times of
    /// all blocks that came since the attach.
    #[test]
    fn an_attach_after_the_earlier_file_limits_what_stayed() {
        let file = |as_of_ns, attached_ns| SnapshotFile {
            as_of_ns: Some(as_of_ns),
            attached_ns: Some(attached_ns),
            has_births: true,
            segments: one_block(None),
            ..of(Some(1))
        };
        let told = |before: &SnapshotFile, after: &SnapshotFile| {
            let (_, compared) = compare(before, after, false);
            assert_eq!(
                compared.devices[0].stayed.map(|stayed| stayed.count),
                Some(1)
            );
            limits(before, after, &compared)
        };
        let (before, anew) = (file(100, 50), file(200, 150));
        assert_eq!(told(&before, &file(200, 50)), []);
        for notes in [told(&before, &anew), told(&anew, &before)] {
            assert_eq!(notes[0].code, BY_PLACE);
            assert!(notes[0].text.contains("was attached after"), "{notes:?}");
        }
    }

    #[test]
    fn what_has_no_time_was_there_before_only_if_the_file_has_all_times() {
        let from = |has_births, code: Option<&str>| {
            born_from(&SnapshotFile {
                traced_from_ns: Some(7),
                attached_ns: Some(3),
                has_births,
                coverage: code
                    .map(|code| CoverageNote {
                        code: code.to_owned(),
                        ..CoverageNote::default()
                    })
                    .into_iter()
                    .collect(),
                ..of(Some(1))
            })
        };
        assert_eq!(from(true, None), Some(3));
        assert_eq!(from(true, Some("baseline_read")), Some(3));
        assert_eq!(from(false, None), Some(7));
        assert_eq!(from(true, Some("records_lost")), Some(7));
        assert_eq!(from(true, Some("came_unseen")), None);
        // A pickle of an older version does not say when the process was attached.
        let older = SnapshotFile {
            traced_from_ns: Some(7),
            has_births: true,
            ..of(Some(1))
        };
        assert_eq!(born_from(&older), Some(7));
    }

    #[test]
    fn stacks_with_and_without_compiled_code_are_alike() {
        let stack = |lines: &[&str]| -> Vec<Arc<str>> {
            lines.iter().map(|line| Arc::from(*line)).collect()
        };
        let python = stack(&["f (/a/t.py:5)"]);
        let all = stack(&["at::empty (??)", "f (/a/t.py:5)", "main (/c.cpp:7)"]);
        assert!(alike(&python, &all) && alike(&all, &python));
        assert!(alike(&python, &[]) && alike(&python, &all[..1]));
        let other = stack(&["at::empty (??)", "f (/a/t.py:6)"]);
        assert!(!alike(&python, &other) && !alike(&all, &other));
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
