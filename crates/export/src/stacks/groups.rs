//! Sums by function, file, line, or the program's own line.

use super::{Tallies, View};
use memscope_ledger::report::{Frame, FrameKind, StackReport};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// By what stacks are summed up: what the frames of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Function: name and file.
    Function,
    /// File.
    File,
    /// Line: name, file and line.
    Line,
    /// Line, but only of the program's own frames: what a library's function allocates counts for the line of the
    /// program that called it.
    OwnLine,
}

/// Stacks that have a function, a file or a line in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Device ordinal; `None` if it is not known.
    pub device: Option<i32>,
    /// What the stacks have in common. `line` is 0 unless stacks are grouped by line; `name` is empty if they are
    /// grouped by file. `None`: this is the group of stacks without frames, and `missing` says why they have none.
    pub frame: Option<Frame>,
    /// Why the stacks have no frames, as a word of the wire; `None` if they have frames.
    pub missing: Option<&'static str>,
    /// Sums of the stacks whose innermost counted frame is `frame`.
    pub own: Tallies,
    /// Sums of the stacks that contain `frame`. A stack counts once, even if the frame recurs in it.
    pub total: Tallies,
    /// Number of stacks that contain `frame`.
    pub stacks: u64,
}

/// Device, common frame, and why there are no frames.
type Key = (Option<i32>, Option<Frame>, Option<&'static str>);

/// Sums up the rows of a report in groups, the largest first: by `own`, or by `total` if `cumulative` is set.
#[must_use]
pub fn groups(report: &StackReport, by: GroupBy, view: View, cumulative: bool) -> Vec<Group> {
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    let mut place = |groups: &mut Vec<Group>, device, frame: Option<Frame>, missing| {
        let next = groups.len();
        let place = *places
            .entry((device, frame.clone(), missing))
            .or_insert(next);
        if place == next {
            groups.push(Group {
                device,
                frame,
                missing,
                own: Tallies::default(),
                total: Tallies::default(),
                stacks: 0,
            });
        }
        place
    };
    let mut counted = HashSet::new();
    let no_name: Arc<str> = "".into();
    for row in &report.rows {
        let tallies = Tallies::of(row);
        let stack = &row.stack;
        let told = frames(&stack.frames, by);
        let nothing = told.is_empty().then_some(None);
        let keys = told.into_iter().map(|frame| Some(key(frame, by, &no_name)));
        counted.clear();
        for (index, frame) in keys.chain(nothing).enumerate() {
            let missing = stack.missing.filter(|_| frame.is_none());
            let place = place(&mut groups, row.device, frame, missing);
            let Some(group) = groups.get_mut(place) else {
                continue;
            };
            if index == 0 {
                group.own.add(&tallies);
            }
            if counted.insert(place) {
                group.total.add(&tallies);
                group.stacks += 1;
            }
        }
    }
    // Groups of equal size are ordered by name, so that two answers do not differ by chance.
    groups.sort_by(|one, another| {
        let name = |group: &Group| (group.device, group.frame.clone(), group.missing);
        size(another, view, cumulative)
            .cmp(&size(one, view, cumulative))
            .then_with(|| name(one).cmp(&name(another)))
    });
    groups
}

/// The numbers by which groups are ordered.
fn size(group: &Group, view: View, cumulative: bool) -> (i128, i128) {
    let (own, total) = (view.of(&group.own), view.of(&group.total));
    if cumulative {
        (total, own)
    } else {
        (own, total)
    }
}

/// The frames of a stack that count. For [`GroupBy::OwnLine`] these are the program's own; if there are none, the
/// innermost line of Python code counts instead, and without that the innermost frame.
fn frames(all: &[Frame], by: GroupBy) -> Vec<&Frame> {
    if by != GroupBy::OwnLine {
        return all.iter().collect();
    }
    let own: Vec<&Frame> = all.iter().filter(|frame| frame.is_own()).collect();
    if own.is_empty() {
        let is_line = |frame: &&Frame| frame.kind == FrameKind::Python && frame.line > 0;
        let python = all.iter().find(is_line);
        return python.or_else(|| all.first()).into_iter().collect();
    }
    own
}

fn key(frame: &Frame, by: GroupBy, no_name: &Arc<str>) -> Frame {
    let mut key = frame.clone();
    if !matches!(by, GroupBy::Line | GroupBy::OwnLine) {
        key.line = 0;
    }
    if by == GroupBy::File {
        key.name = Arc::clone(no_name);
    }
    key
}
