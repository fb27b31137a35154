//! The lines of the program that keep more and more memory, as the answer to `leaks` has them.
//!
//! A program that keeps a loss keeps with it all that the forward pass saved: dozens of groups, each with its own
//! stack, which all grow in the same steps.
//!
//! Owns: folding groups into the program's own lines, and the rule when their growth looks like a kept autograd graph.
//! Refuses: verdicts; a line grows if one of its groups does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::view::Shown;
use crate::report::{Frame, FrameKind, Space, Verdict};
use crate::state::stacks::StackIndex;
use memscope_proto::v1;
use memscope_proto::v1::{CodeLine, LeakGroup, LeakLine, LeakTogether};

/// Number of stacks of one line that must grow together to look like a kept graph. With fewer, a list of a few results
/// looks the same.
const STACKS_OF_A_GRAPH: usize = 3;

/// What groups must share to be folded together, beside device and kind of memory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// No line is known, and all blocks of a group have this size, or are of the class with this bound.
    Size(u64),
    /// No line is known, and the blocks of this stack have several sizes. Their mean changes with each block.
    Stack(StackIndex),
    /// File and number.
    Line(String, u32),
}

type Key = (Option<i32>, Space, By);

/// Largest ratio of two counts that may be in step. For larger ones the tolerance of a tenth accepts any ratio as a whole
/// number, which proves nothing.
const MOST_IN_STEP: f64 = 50.0;

/// What a group is folded by.
fn key(one: &Shown, line: Option<&Frame>) -> Key {
    let by = match (line, one.stack) {
        (Some(line), _) => By::Line(line.file.to_string(), line.line),
        (None, Some(stack)) if one.class.is_none() => By::Stack(stack),
        _ => By::Size(one.group.size_bytes),
    };
    (one.group.device, one.space, by)
}

/// Folds all groups that are shown into lines, and finds the lines that grow together. What a line holds is also in `others`, the groups
/// that are not shown: they add to it, and have no lines of their own. `frames` returns the frames of a stack, and the one that is the
/// program's own line.
pub(super) fn lines(
    shown: &[Shown],
    others: &[Shown],
    frames: impl Fn(StackIndex) -> (Vec<Frame>, Option<Frame>),
) -> (Vec<LeakLine>, Option<LeakTogether>) {
    let mut folds: BTreeMap<Key, Fold> = BTreeMap::new();
    for one in shown {
        let (frames, line) = one.stack.map(&frames).unwrap_or_default();
        let key = key(one, line.as_ref());
        let stack = match key {
            (_, _, By::Stack(stack)) => Some(stack),
            _ => None,
        };
        let fold = folds
            .entry(key)
            .or_insert_with(|| Fold::new(one, line, stack));
        fold.add(one, &frames);
    }
    // Mostly nothing grows, and then nobody asks for the names of all stacks.
    let others = if folds.is_empty() { &[] } else { others };
    // Blocks of several sizes may have come by one stack.
    let mut known: HashMap<StackIndex, Option<Frame>> = HashMap::new();
    for one in others {
        let line = one.stack.and_then(|stack| {
            known
                .entry(stack)
                .or_insert_with(|| frames(stack).1)
                .as_ref()
        });
        if let Some(fold) = folds.get_mut(&key(one, line)) {
            fold.hold(one);
        }
    }
    let (mut lines, rises): (Vec<LeakLine>, Vec<Rises>) =
        folds.into_values().map(Fold::line).unzip();
    let together = together(&lines, &rises);
    lines.sort_by_key(|line| {
        let growing = grows(line);
        let weight = if growing {
            line.growth_bytes
        } else {
            line.live_bytes
        };
        (!growing, Reverse(weight), line.device)
    });
    (lines, together)
}

fn grows(line: &LeakLine) -> bool {
    line.verdict() == v1::Verdict::Growing
}

/// A line that grows, and its stacks that grow.
type Growing<'a> = (&'a LeakLine, &'a Rises);

/// Share of the growth that a line must call for those outside of it to say no more: with what little it does not call, the whole would
/// often be said of the function that runs the program.
const NEARLY_ALL: f64 = 0.9;

/// The lines that keep blocks in the same steps, all called by one line of the program: of all such sets one that belongs to the line
/// that grows most. Its caller is the innermost one that calls nearly all of the growth of the largest such set.
fn together(lines: &[LeakLine], rises: &[Rises]) -> Option<LeakTogether> {
    let mut growing: Vec<Growing<'_>> = lines
        .iter()
        .zip(rises)
        .filter(|(line, _)| grows(line) && line.line.is_some())
        .collect();
    growing.sort_by_key(|(line, _)| Reverse(line.growth_bytes));
    // A line that also calls every line that does not grow says nothing about the growth.
    let says_nothing = |caller: &CodeLine| {
        let mut others = lines.iter().filter(|line| !grows(line));
        let known = |line: &LeakLine| line.callers.contains(caller);
        others.clone().any(known) && others.all(known)
    };
    let (caller, found, _) = growing.iter().find_map(|(most, _)| {
        let callers = most.callers.iter().filter(|caller| !says_nothing(caller));
        let mut sets: Vec<(&CodeLine, Vec<Growing<'_>>, u64)> = Vec::new();
        for caller in callers {
            let found: Vec<Growing<'_>> = growing
                .iter()
                .filter(|(line, _)| {
                    (line.device, line.source) == (most.device, most.source)
                        && (line.callers.contains(caller) || line.line.as_ref() == Some(caller))
                })
                .copied()
                .collect();
            let counts = found.iter().flat_map(|(_, rises)| rises.values());
            if found.len() > 1 && in_step(counts.map(|(count, _)| *count)) {
                let bytes = found.iter().map(|(line, _)| line.growth_bytes).sum();
                sets.push((caller, found, bytes));
            }
        }
        let most = sets.iter().map(|(_, _, bytes)| *bytes).max()?;
        let mut sets = sets.into_iter();
        sets.find(|(_, _, bytes)| *bytes as f64 >= NEARLY_ALL * most as f64)
    })?;
    let all = found.iter().map(|(line, _)| line);
    Some(LeakTogether {
        line: Some(caller.clone()),
        lines: found.len() as u64,
        growth_bytes: all.clone().map(|line| line.growth_bytes).sum(),
        growth_bytes_per_s: all.clone().map(|line| line.growth_bytes_per_s).sum(),
        growth_bytes_per_step: all.map(|line| line.growth_bytes_per_step).sum(),
        looks_like_kept_graph: is_like_a_graph(found.iter().flat_map(|(_, rises)| rises.values())),
    })
}

/// Whether all counts are whole multiples of the smallest one, with a tolerance of a tenth.
fn in_step(counts: impl Iterator<Item = u64> + Clone) -> bool {
    let Some(least) = counts.clone().min() else {
        return false;
    };
    counts.into_iter().all(|count| {
        let times = (count as f64 / least.max(1) as f64).round().max(1.0);
        let off = (count as f64 - times * least as f64).abs();
        times <= MOST_IN_STEP && off <= 0.1 * times * least as f64
    })
}

/// Whether the growth looks like an autograd graph that is kept, with all that a forward pass saves for its backward
/// pass: several library functions that the program calls each keep one more block in each pass, or a whole number of
/// them for a layer that is called several times.
fn is_like_a_graph<'a>(rises: impl Iterator<Item = &'a (u64, bool)> + Clone) -> bool {
    let of_libraries = rises.filter(|(_, of_library)| *of_library);
    of_libraries.clone().count() >= STACKS_OF_A_GRAPH
        && in_step(of_libraries.map(|(count, _)| *count))
}

/// For each stack that grows, by how many blocks, and whether a library function that the line called allocated them.
type Rises = BTreeMap<StackIndex, (u64, bool)>;

/// A line, and the groups that have been folded into it so far.
struct Fold {
    line: LeakLine,
    own: Option<Frame>,
    stacks: BTreeSet<StackIndex>,
    /// Sums over its groups that grow.
    grown: Sum,
    /// Sums over its groups that rise and are not judged yet.
    rising: Sum,
    growing: Rises,
    /// The program's own lines that called this one in each of its stacks: of stacks that grow, and of all stacks.
    callers: [Option<Vec<Frame>>; 2],
}

/// Growth of several groups together.
#[derive(Default)]
struct Sum {
    groups: u64,
    /// Number of groups with the field `beside`: a part of other groups' growth whose stack is not known.
    beside: u64,
    bytes: u64,
    bytes_per_s: f64,
    /// Sums of the lower ends of their intervals, of the medians, and of the upper ends, without groups with the field
    /// `beside`; `None` before the first. A sum is `None` where the rate of one group is not known: what the others
    /// have would be too little.
    bytes_per_step: Option<[Option<f64>; 3]>,
    first_step: Option<u64>,
    confidence: Option<f64>,
    /// Reason of the first group, which grows most, because groups are added in the order of their growth.
    reason: String,
}

impl Sum {
    fn add(&mut self, group: &LeakGroup) {
        if self.groups == 0 {
            self.reason.clone_from(&group.reason);
        }
        self.groups += 1;
        self.beside += u64::from(group.beside);
        self.bytes = self.bytes.saturating_add(group.growth_bytes);
        self.bytes_per_s += group.growth_bytes_per_s;
        self.first_step = [self.first_step, group.first_step]
            .into_iter()
            .flatten()
            .min();
        self.confidence = match (self.confidence, group.confidence) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        // The groups that it stands beside have the rate already, and what has not grown adds nothing.
        if group.beside || group.growth_bytes == 0 {
            return;
        }
        // The sums of the ends are an interval that contains the true sum at least as often as each interval contains
        // its own true value.
        let slopes = [
            group.growth_bytes_per_step_low,
            group.growth_bytes_per_step,
            group.growth_bytes_per_step_high,
        ];
        let sums = self.bytes_per_step.get_or_insert([Some(0.0); 3]);
        for (sum, slope) in sums.iter_mut().zip(slopes) {
            *sum = sum.zip(slope).map(|(sum, more)| sum + more);
        }
    }
}

impl Fold {
    fn new(first: &Shown, own: Option<Frame>, stack: Option<StackIndex>) -> Fold {
        Fold {
            line: LeakLine {
                device: first.group.device,
                source: v1::Source::from(first.space).into(),
                line: own.as_ref().map(Into::into),
                stack,
                smallest_bytes: u64::MAX,
                ..LeakLine::default()
            },
            own,
            stacks: BTreeSet::new(),
            grown: Sum::default(),
            rising: Sum::default(),
            growing: BTreeMap::new(),
            callers: [None, None],
        }
    }

    /// Counts what a group holds.
    fn hold(&mut self, shown: &Shown) {
        let group = &shown.group;
        let line = &mut self.line;
        line.groups += 1;
        // What has neither line nor stack is known again by its size.
        let [smallest, largest] = match (&line.line, line.stack) {
            (None, None) => [group.size_bytes; 2],
            _ => shown.sizes,
        };
        line.smallest_bytes = line.smallest_bytes.min(smallest);
        line.largest_bytes = line.largest_bytes.max(largest);
        line.live_count = line.live_count.saturating_add(group.live_count);
        line.live_bytes = line.live_bytes.saturating_add(group.live_bytes);
        line.oldest_age_ns = line.oldest_age_ns.max(group.oldest_age_ns);
        self.stacks.extend(shown.stack);
    }

    fn add(&mut self, shown: &Shown, frames: &[Frame]) {
        let (group, stack) = (&shown.group, shown.stack);
        self.hold(shown);
        match shown.verdict {
            Verdict::Growing => self.grown.add(group),
            Verdict::Undecided => self.rising.add(group),
            Verdict::Steady => {}
        }
        let own = frames.iter().filter(|frame| frame.is_own());
        let callers: Vec<Frame> = own.skip(1).cloned().collect();
        let [growing, all] = &mut self.callers;
        let known = match shown.verdict {
            Verdict::Growing => vec![growing, all],
            _ => vec![all],
        };
        for known in known {
            match known {
                Some(known) => known.retain(|caller| callers.contains(caller)),
                None => *known = Some(callers.clone()),
            }
        }
        if let (Some(stack), Verdict::Growing) = (stack, shown.verdict) {
            let own = self.own.as_ref();
            let innermost = frames.iter().find(|frame| frame.kind == FrameKind::Python);
            let of_library = innermost.is_some_and(|frame| Some(frame) != own);
            let grown = self.growing.entry(stack).or_insert((0, of_library));
            grown.0 = grown.0.saturating_add(group.growth_count);
        }
    }

    fn line(self) -> (LeakLine, Rises) {
        let looks_like_kept_graph = is_like_a_graph(self.growing.values());
        let growing_groups = self.grown.groups;
        let (verdict, sum) = match (growing_groups, self.rising.groups) {
            (1.., _) => (Verdict::Growing, self.grown),
            (0, 1..) => (Verdict::Undecided, self.rising),
            (0, 0) => (Verdict::Steady, Sum::default()),
        };
        let [growing, all] = self.callers;
        let [low, middle, high] = sum.bytes_per_step.unwrap_or_default();
        let callers = growing.or(all).unwrap_or_default();
        let line = LeakLine {
            verdict: verdict.into(),
            growing_groups,
            stacks: self.stacks.len() as u64,
            growth_bytes: sum.bytes,
            growth_bytes_per_s: sum.bytes_per_s,
            growth_bytes_per_step_low: low,
            growth_bytes_per_step: middle,
            growth_bytes_per_step_high: high,
            first_step: sum.first_step,
            confidence: sum.confidence,
            reason: sum.reason,
            looks_like_kept_graph,
            beside: growing_groups > 0 && sum.beside == sum.groups,
            callers: callers.iter().map(Into::into).collect(),
            ..self.line
        };
        (line, self.growing)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::growth::floor::Row;
    use proptest::prelude::*;

    /// Stack `n` belongs to line `n / 10` of the program. Stacks whose number ends in 0 have no library function; those
    /// from 90 on have no frames.
    fn frames(stack: StackIndex) -> (Vec<Frame>, Option<Frame>) {
        let frame = |file: &str, line| Frame {
            kind: FrameKind::Python,
            name: "f".into(),
            file: file.into(),
            line,
        };
        if stack >= 90 {
            return (Vec::new(), None);
        }
        let own = frame("/home/me/train.py", stack / 10);
        let mut frames = vec![own.clone()];
        if !stack.is_multiple_of(10) {
            frames.insert(
                0,
                frame("/usr/lib/python3/site-packages/torch/nn.py", stack),
            );
        }
        (frames, Some(own))
    }

    fn shown(stack: StackIndex, size: u64, count: u64, verdict: Verdict) -> Shown {
        let growth = if verdict == Verdict::Steady { 0 } else { count };
        let per_step = |slope: f64| (growth > 0).then_some(slope);
        Shown {
            space: Space::Pool,
            verdict,
            sizes: [size; 2],
            group: LeakGroup {
                device: Some(0),
                source: v1::Source::Pool.into(),
                stream: Some(0),
                size_bytes: size,
                live_count: count + 1,
                live_bytes: (count + 1) * size,
                growth_count: growth,
                growth_bytes: growth * size,
                growth_bytes_per_s: growth as f64,
                oldest_age_ns: count,
                verdict: verdict.into(),
                confidence: per_step(count as f64 / 1000.0),
                growth_bytes_per_step_low: per_step(0.5),
                growth_bytes_per_step: per_step(1.0),
                growth_bytes_per_step_high: per_step(1.5),
                first_step: (growth > 0).then_some(count),
                reason: format!("{count}"),
                ..LeakGroup::default()
            },
            exact: None,
            class: Some(0),
            stack: Some(stack),
            young: None,
            net: Row::default(),
            share: None,
        }
    }

    #[test]
    fn a_kept_loss_is_one_line_that_looks_like_a_graph() {
        let growing = |stack, size| shown(stack, size, 100, Verdict::Growing);
        let all = [
            growing(11, 4096),
            growing(12, 512),
            growing(13, 512),
            shown(14, 64, 1, Verdict::Undecided),
            growing(21, 2048),
        ];
        let (lines, _) = lines(&all, &[], frames);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        let line = &lines[0];
        assert_eq!(line.line.as_ref().unwrap().line, 1);
        assert_eq!((line.groups, line.growing_groups, line.stacks), (4, 3, 4));
        assert_eq!((line.smallest_bytes, line.largest_bytes), (64, 4096));
        assert_eq!(line.growth_bytes, 100 * (4096 + 512 + 512));
        assert_eq!(line.growth_bytes_per_step_low, Some(1.5));
        assert_eq!(line.growth_bytes_per_step, Some(3.0));
        assert_eq!(line.growth_bytes_per_step_high, Some(4.5));
        assert!(line.looks_like_kept_graph);
        assert!(
            !lines[1].looks_like_kept_graph,
            "one stack is a list of results"
        );
    }

    #[test]
    fn what_is_not_shown_adds_to_what_a_line_holds_and_to_nothing_else() {
        let growing = [shown(11, 4096, 100, Verdict::Growing)];
        let others = [
            shown(12, 512, 400, Verdict::Steady),
            shown(21, 512, 400, Verdict::Steady),
        ];
        let (alone, _) = lines(&growing, &[], frames);
        let (held, _) = lines(&growing, &others, frames);
        let expected = LeakLine {
            groups: 2,
            stacks: 2,
            smallest_bytes: 512,
            live_count: 101 + 401,
            live_bytes: 101 * 4096 + 401 * 512,
            oldest_age_ns: 400,
            ..alone[0].clone()
        };
        assert_eq!(held, [expected]);
        assert!(lines(&[], &others, frames).0.is_empty());
    }

    /// While less than all stacks was recorded, a group may grow whose rate is not known.
    #[test]
    fn where_one_rate_is_not_known_there_is_no_sum() {
        let known = || shown(11, 512, 100, Verdict::Growing);
        let without_rate = |mut one: Shown| {
            one.group.growth_bytes_per_step_low = None;
            one.group.growth_bytes_per_step = None;
            one.group.growth_bytes_per_step_high = None;
            one
        };
        let unknown = |stack, beside| {
            let mut one = shown(stack, 512, 50, Verdict::Growing);
            one.group.beside = beside;
            without_rate(one)
        };
        let rates = |all: &[Shown]| {
            let (lines, _) = lines(all, &[], frames);
            assert_eq!(lines.len(), 1, "{lines:#?}");
            let line = &lines[0];
            [
                line.growth_bytes_per_step_low,
                line.growth_bytes_per_step,
                line.growth_bytes_per_step_high,
            ]
        };
        let own = [Some(0.5), Some(1.0), Some(1.5)];
        assert_eq!(rates(&[known(), unknown(12, false)]), [None; 3]);
        assert_eq!(rates(&[unknown(12, false), known()]), [None; 3]);
        // A later group with a rate does not bring a sum back.
        let third = shown(13, 512, 10, Verdict::Growing);
        let all = [known(), unknown(12, false), third];
        assert_eq!(rates(&all), [None; 3]);
        // What stands beside is a part of the others' growth.
        assert_eq!(rates(&[known(), unknown(12, true)]), own);
        assert_eq!(rates(&[unknown(12, true), known()]), own);
        assert_eq!(rates(&[unknown(12, true)]), [None; 3]);
        // What has not grown lacks no rate.
        let mut young = without_rate(shown(12, 512, 50, Verdict::Undecided));
        young.group.growth_bytes = 0;
        let rising = shown(11, 512, 100, Verdict::Undecided);
        assert_eq!(rates(&[rising, young]), own);
    }

    #[test]
    fn what_comes_at_its_own_pace_is_no_graph() {
        let all =
            [11, 12, 13].map(|stack| shown(stack, 512, u64::from(stack) * 37, Verdict::Growing));
        assert!(!lines(&all, &[], frames).0[0].looks_like_kept_graph);
        // Nor are blocks that three lines allocate themselves, without a library function.
        let all = [10, 20, 30].map(|stack| shown(stack, 512, 100, Verdict::Growing));
        assert!(
            lines(&all, &[], frames)
                .0
                .iter()
                .all(|line| !line.looks_like_kept_graph)
        );
    }

    #[test]
    fn blocks_whose_line_is_not_known_are_told_by_their_size() {
        let all = [
            shown(90, 512, 10, Verdict::Growing),
            shown(91, 512, 10, Verdict::Growing),
            shown(92, 1024, 10, Verdict::Growing),
        ];
        let (lines, _) = lines(&all, &[], frames);
        let sizes: Vec<u64> = lines.iter().map(|line| line.largest_bytes).collect();
        assert_eq!(sizes, [512, 1024]);
        assert_eq!(lines[0].stacks, 2);
    }

    #[test]
    fn blocks_of_several_sizes_whose_line_is_not_known_are_told_by_their_stack() {
        let of = |stack, mean| Shown {
            sizes: [mean / 2, mean * 2],
            class: None,
            ..shown(stack, mean, 10, Verdict::Growing)
        };
        let all = [
            of(91, 512),
            of(92, 512),
            shown(93, 512, 10, Verdict::Growing),
            of(21, 512),
        ];
        let (lines, _) = lines(&all, &[], frames);
        let mut told: Vec<(Option<u32>, bool)> = lines
            .iter()
            .map(|line| (line.stack, line.line.is_some()))
            .collect();
        told.sort_unstable();
        let mut sizes: Vec<[u64; 2]> = lines
            .iter()
            .map(|line| [line.smallest_bytes, line.largest_bytes])
            .collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [[256, 1024], [256, 1024], [256, 1024], [512, 512]]);
        let expected = [
            (None, false),
            (None, true),
            (Some(91), false),
            (Some(92), false),
        ];
        assert_eq!(told, expected);
    }

    /// A model with its own functions is called by the training and by a validation that keeps its results; only the
    /// latter grows.
    #[test]
    fn lines_that_one_line_calls() {
        let of = |stack: StackIndex| {
            let frame = |file: &str, line: u32| Frame {
                kind: FrameKind::Python,
                name: "f".into(),
                file: file.into(),
                line,
            };
            let caller = |line| frame("/home/me/train.py", line);
            let own = frame("/home/me/nets.py", stack % 10);
            let library = frame("/usr/lib/python3/site-packages/torch/nn.py", stack);
            let frames = match stack {
                1..=9 => vec![library, own, caller(68), caller(74), caller(90)],
                11..=19 => vec![own, caller(74), caller(90)],
                _ => vec![own, caller(18), caller(90)],
            };
            let own = frames.iter().find(|frame| frame.is_own()).cloned();
            (frames, own)
        };
        let growing = |stack, count| shown(stack, 512, count, Verdict::Growing);
        let mut all = vec![
            growing(4, 40),
            growing(5, 240),
            growing(6, 120),
            shown(21, 512, 300, Verdict::Undecided),
        ];
        let (found, together) = lines(&all, &[], of);
        let together = together.unwrap();
        assert_eq!(
            (together.line.as_ref().unwrap().line, together.lines),
            (68, 3)
        );
        assert!(together.looks_like_kept_graph);
        assert_eq!(together.growth_bytes, 400 * 512);
        assert_eq!(together.growth_bytes_per_step, Some(3.0));
        let lines_of = |callers: &[CodeLine]| callers.iter().map(|f| f.line).collect::<Vec<u32>>();
        assert_eq!(lines_of(&found[0].callers), [68, 74, 90]);
        // A little that the caller's caller keeps does not make the whole its own.
        all.push(growing(17, 40));
        let together = lines(&all, &[], of).1.unwrap();
        assert_eq!(
            (together.line.as_ref().unwrap().line, together.lines),
            (68, 3)
        );
        // Where it keeps much, it is of the same pass.
        all.pop();
        all.push(growing(17, 80));
        let together = lines(&all, &[], of).1.unwrap();
        assert_eq!(
            (together.line.as_ref().unwrap().line, together.lines),
            (74, 4)
        );
        // A line that grows at another pace does not belong to it.
        all.push(growing(23, 2071));
        let together = lines(&all, &[], of).1.unwrap();
        assert_eq!(
            (together.line.as_ref().unwrap().line, together.lines),
            (74, 4)
        );
        assert_eq!(lines(&all[3..4], &[], of).1, None);
    }

    proptest! {
        /// Folding loses no group and counts none twice.
        #[test]
        fn sums_are_those_of_the_groups(
            groups in proptest::collection::vec((0_u32..100, 1_u64..5000, 1_u64..500, 0_u8..3), 0..60)
        ) {
            let all: Vec<Shown> = groups
                .iter()
                .map(|(stack, size, count, verdict)| {
                    let verdict = [Verdict::Growing, Verdict::Undecided, Verdict::Steady][usize::from(*verdict)];
                    shown(*stack, *size, *count, verdict)
                })
                .collect();
            let (lines, _) = lines(&all, &[], frames);
            let of_groups = |number: fn(&LeakGroup) -> u64| all.iter().map(|one| number(&one.group)).sum::<u64>();
            let of_lines = |number: fn(&LeakLine) -> u64| lines.iter().map(number).sum::<u64>();
            prop_assert_eq!(of_lines(|line| line.groups), all.len() as u64);
            prop_assert_eq!(of_lines(|line| line.live_bytes), of_groups(|group| group.live_bytes));
            prop_assert_eq!(of_lines(|line| line.live_count), of_groups(|group| group.live_count));
            let growing = |bytes: u64, verdict: Verdict| if verdict == Verdict::Growing { bytes } else { 0 };
            prop_assert_eq!(
                lines.iter().map(|line| if grows(line) { line.growth_bytes } else { 0 }).sum::<u64>(),
                all.iter().map(|one| growing(one.group.growth_bytes, one.verdict)).sum::<u64>()
            );
            for line in &lines {
                prop_assert_eq!(grows(line), line.growing_groups > 0);
                prop_assert_eq!(line.growth_bytes > 0, line.verdict() != v1::Verdict::Steady);
                prop_assert!(line.growth_bytes <= line.live_bytes);
                prop_assert!(line.smallest_bytes <= line.largest_bytes);
            }
            // Growing lines first.
            let sorted = lines.windows(2).all(|pair| {
                grows(&pair[0]) || !grows(&pair[1])
            });
            prop_assert!(sorted);
        }
    }
}
