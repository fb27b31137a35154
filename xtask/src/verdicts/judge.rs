//! Judges whether the answers about a run are right. Pure: no I/O.
//!
//! A leak is found if the last answer of the run says that something grows, and everything that it says to grow comes
//! from lines that leak. A clean process is accused wrongly if any answer says that something grows. A leaking one is
//! accused wrongly if something is said to grow before the leak began, or at the end something from another line.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::answer::{Answer, Group, GroupPlace};
use super::workload::Leak;

/// One question about leaks, and its answer.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Number of steps that the script had made.
    pub step: u64,
    /// Number of steps that it had made since the attach.
    pub own: u64,
    /// The answer to the question.
    pub answer: Answer,
    /// The script's own lengths of its containers, by their names.
    pub lengths: BTreeMap<String, u64>,
}

/// What is true of a process, and the name of its script.
#[derive(Clone, Copy, Debug)]
pub struct Truth<'a> {
    /// File name of the script.
    pub script: &'a str,
    /// The leak, if the process has one.
    pub leak: Option<&'a Leak>,
    /// Sources from which the steps can be counted; if empty, the steps are not checked.
    pub sources: &'a [String],
}

/// The judgement on one process, or on all processes of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Judgement {
    /// Whether the process really leaks.
    pub leaks: bool,
    /// Step of the first answer that said that something grows.
    pub first_said_step: Option<u64>,
    /// Whether the last answer said that something grows.
    pub said_at_end: bool,
    /// Highest confidence of what was said to grow at the end.
    pub confidence: Option<f64>,
    /// Lines that were named at the end.
    pub lines: Vec<String>,
    /// Whether these are the lines that leak. `None`: nothing was said to grow, or the place of a group is not
    /// reported.
    pub line_right: Option<bool>,
    /// What was said at the end to hold most of what leaks.
    pub holder: Option<String>,
    /// Whether it holds it, and has the length that was said. `None`: nothing was said to grow, or the script does not say what holds it.
    pub holder_right: Option<bool>,
    /// Number of answers before the last one that said that something from a line that does not leak grows.
    pub strays: u64,
    /// Number of steps that memscope counted since the attach.
    pub steps_counted: Option<u64>,
    /// Number of steps that the script made since the attach.
    pub steps_own: u64,
    /// Source from which memscope counted the steps. `None`: the answer says nothing about steps.
    pub source: Option<String>,
    /// Whether number and source of the steps are right. `None`: the answer or the script says nothing about them.
    pub steps_right: Option<bool>,
    /// Whether the leak was found.
    pub found: bool,
    /// Whether something was said to grow that does not.
    pub accused_wrongly: bool,
    /// Whether nothing was asked, so that nothing is known.
    pub unasked: bool,
    /// What is wrong, in words for people.
    pub wrong: Vec<String>,
}

/// Judges one process by all answers about it, in their order, and by the answer once it had ended.
pub fn judge(truth: Truth<'_>, course: &[Asked], ended: &Answer) -> Judgement {
    let mut judgement = Judgement {
        leaks: truth.leak.is_some(),
        ..Judgement::default()
    };
    let first = course
        .iter()
        .find(|asked| asked.answer.growing().next().is_some());
    judgement.first_said_step = first.map(|asked| asked.step);
    let Some((end, before)) = course.split_last() else {
        judgement.unasked = true;
        judgement.wrong.push("nothing was asked".to_owned());
        return judgement;
    };
    let stray = |asked: &&Asked| {
        let mut places = asked.answer.growing().map(|group| right(truth, group));
        places.any(|right| right == Some(false))
    };
    judgement.strays = before.iter().filter(stray).count() as u64;
    let growing: Vec<&Group> = end.answer.growing().collect();
    judgement.said_at_end = !growing.is_empty();
    judgement.confidence = growing
        .iter()
        .filter_map(|group| group.confidence)
        .max_by(f64::total_cmp);
    judgement.lines = named(truth, &growing);
    let each: Vec<Option<bool>> = growing.iter().map(|group| right(truth, group)).collect();
    judgement.line_right = if each.contains(&Some(false)) {
        Some(false)
    } else if growing.is_empty() || each.contains(&None) {
        None
    } else {
        Some(true)
    };
    match truth.leak {
        Some(leak) => leaking(&mut judgement, leak),
        None => {
            if let Some(asked) = first {
                judgement.accused_wrongly = true;
                let reasons: Vec<String> = asked.answer.growing().map(described).collect();
                judgement.wrong.push(format!(
                    "nothing leaks, and after step {} it was said of {}",
                    asked.step,
                    reasons.join("; of ")
                ));
            }
        }
    }
    for group in growing
        .iter()
        .filter(|group| truth.leak.is_some() && right(truth, group) == Some(false))
    {
        judgement
            .wrong
            .push(format!("does not leak: {}", described(group)));
    }
    let after = named(truth, &ended.growing().collect::<Vec<_>>());
    if after != judgement.lines {
        let said = |lines: &[String]| match lines {
            [] => "nothing".to_owned(),
            lines => lines.join(", "),
        };
        judgement.found &= !after.is_empty();
        judgement.accused_wrongly |= after.iter().any(|line| !judgement.lines.contains(line));
        judgement.wrong.push(format!(
            "once it had ended {} was said to have grown, and before {}",
            said(&after),
            said(&judgement.lines)
        ));
    }
    holder(&mut judgement, truth, end);
    steps(&mut judgement, truth, end);
    judgement
}

/// The lines of these groups, each once.
fn named(truth: Truth<'_>, groups: &[&Group]) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for group in groups {
        lines.insert(match group.place(truth.script) {
            GroupPlace::Unsaid => continue,
            GroupPlace::Line(name, _) => name,
            GroupPlace::Frames(lines) if lines.is_empty() => "none".to_owned(),
            GroupPlace::Frames(lines) => {
                let lines: Vec<String> = lines.iter().map(u64::to_string).collect();
                format!("among {}", lines.join(", "))
            }
        });
    }
    lines.into_iter().collect()
}

/// Compares what is said to hold what leaks with what the script says, and its length with the script's own.
fn holder(judgement: &mut Judgement, truth: Truth<'_>, end: &Asked) {
    let held_by = truth.leak.map_or(&[][..], |leak| &leak.held_by);
    if held_by.is_empty() || !judgement.said_at_end {
        return;
    }
    let Some(first) = end.answer.holders.first() else {
        judgement.holder_right = Some(false);
        judgement.wrong.push(format!(
            "{} holds it, and no holder was said",
            held_by.join(" or ")
        ));
        return;
    };
    let name = first.name();
    let own = end.lengths.get(name).copied();
    let is_named = held_by
        .iter()
        .any(|held| any_number(held) == any_number(name));
    let has_length = own.is_none() || own == first.length;
    judgement.holder = Some(match first.length {
        Some(length) => format!("{name} ({length})"),
        None => name.to_owned(),
    });
    judgement.holder_right = Some(is_named && has_length);
    if !is_named {
        judgement
            .wrong
            .push(format!("{} holds it, and not {name}", held_by.join(" or ")));
    } else if !has_length {
        judgement.wrong.push(format!(
            "{name} has {own:?} elements, and not {:?}",
            first.length
        ));
    }
}

/// A way without the numbers of elements.
fn any_number(path: &str) -> String {
    let mut parts = path.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((number, rest)) if number.parse::<u64>().is_ok() => {
                text.push_str(&format!("[*]{rest}"))
            }
            _ => text.push_str(&format!("[{part}")),
        }
    }
    text
}

/// Whether a group comes from a line that leaks. `None`: nothing leaks, or the group's place is not reported.
fn right(truth: Truth<'_>, group: &Group) -> Option<bool> {
    let leak = truth.leak?;
    match group.place(truth.script) {
        GroupPlace::Unsaid => None,
        GroupPlace::Line(_, line) => Some(line.is_some_and(|line| leak.lines.contains(&line))),
        GroupPlace::Frames(lines) if leak.lines.is_empty() => Some(lines.is_empty()),
        GroupPlace::Frames(lines) => Some(lines.iter().any(|line| leak.lines.contains(line))),
    }
}

fn described(group: &Group) -> String {
    let number = |value: Option<u64>| value.map_or("?".to_owned(), |value| value.to_string());
    format!(
        "{} × {} bytes: {}",
        number(group.live_count),
        number(group.size_bytes),
        group.reason
    )
}

fn leaking(judgement: &mut Judgement, leak: &Leak) {
    judgement.found = judgement.line_right == Some(true);
    match (judgement.said_at_end, judgement.line_right) {
        (false, _) if judgement.first_said_step.is_some() => {
            judgement
                .wrong
                .push("it leaks, which was said and is not any more at the end".to_owned());
        }
        (false, _) => judgement
            .wrong
            .push("it leaks, and nothing was ever said to grow".to_owned()),
        (true, None) => judgement.wrong.push("no line was said".to_owned()),
        (true, Some(false)) => judgement.accused_wrongly = true,
        (true, Some(true)) => {}
    }
    if let Some(step) = judgement.first_said_step
        && step <= leak.begins
    {
        judgement.accused_wrongly = true;
        judgement.wrong.push(format!(
            "said after step {step}, and the leak begins after step {}",
            leak.begins
        ));
    }
}

/// Compares the steps that memscope counted with those that the script made. Steps of an optimizer and backward passes
/// must be counted exactly. A pattern must be seen a few times before it is recognised, and its beginning may differ
/// from what the script's author calls a step, so the count may differ by two or by a twentieth.
fn steps(judgement: &mut Judgement, truth: Truth<'_>, end: &Asked) {
    judgement.steps_own = end.own;
    let Some(said) = &end.answer.steps else {
        return;
    };
    judgement.steps_counted = said.count;
    judgement.source = Some(said.source.clone());
    if truth.sources.is_empty() {
        return;
    }
    let room = if said.source == "pattern" {
        (end.own / 20).max(2)
    } else {
        0
    };
    let counted = match said.count {
        Some(count) => count.abs_diff(end.own) <= room,
        None => said.source == "unknown",
    };
    judgement.steps_right = Some(counted && truth.sources.contains(&said.source));
}

/// The judgement on a workload of several processes. The first leaking process gives time and place; whatever is wrong
/// with any process is wrong with the workload.
pub fn together(each: Vec<(u32, Judgement)>) -> Judgement {
    let many = each.len() > 1;
    let shown = each.iter().position(|(_, one)| one.leaks).unwrap_or(0);
    let mut all = each
        .get(shown)
        .map(|(_, one)| one.clone())
        .unwrap_or_default();
    all.wrong.clear();
    for (rank, one) in &each {
        all.found &= one.found || !one.leaks;
        all.accused_wrongly |= one.accused_wrongly;
        all.unasked |= one.unasked;
        if one.steps_right == Some(false) {
            all.steps_right = Some(false);
        }
        if one.holder_right == Some(false) {
            all.holder_right = Some(false);
        }
        for wrong in &one.wrong {
            all.wrong.push(if many {
                format!("rank {rank}: {wrong}")
            } else {
                wrong.clone()
            });
        }
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::verdicts::answer::{Holder, Line, Steps};

    fn leak() -> Leak {
        Leak {
            lines: vec![7, 9],
            begins: 10,
            ..Leak::default()
        }
    }

    fn growing(line: u64) -> Group {
        Group {
            verdict: "growing".to_owned(),
            confidence: Some(0.9),
            line: Some(Some(Line {
                file: "/x/a.py".to_owned(),
                line: Some(line),
            })),
            ..Group::default()
        }
    }

    /// Answers after every 5 steps, from the groups in each.
    fn course(groups: &[&[Group]]) -> Vec<Asked> {
        (1..)
            .zip(groups)
            .map(|(n, groups)| Asked {
                step: 5 * n,
                own: 5 * n,
                answer: Answer {
                    groups: groups.to_vec(),
                    ..Answer::default()
                },
                lengths: BTreeMap::new(),
            })
            .collect()
    }

    fn truth<'a>(leak: Option<&'a Leak>, sources: &'a [String]) -> Truth<'a> {
        Truth {
            script: "a.py",
            leak,
            sources,
        }
    }

    /// Judges a process of which the same is said once it has ended.
    fn of_course(truth: Truth<'_>, course: &[Asked]) -> Judgement {
        let ended = course.last().map(|asked| asked.answer.clone());
        judge(truth, course, &ended.unwrap_or_default())
    }

    #[test]
    fn the_end_of_a_process_changes_nothing() {
        let leak = leak();
        let ended = |groups: &[Group]| Answer {
            groups: groups.to_vec(),
            ..Answer::default()
        };
        let course = course(&[&[], &[], &[growing(7)]]);
        let of = |leak, ended: &Answer| judge(truth(leak, &[]), &course, ended);
        let same = of(Some(&leak), &ended(&[growing(7)]));
        assert!(same.found && same.wrong.is_empty(), "{same:?}");
        let forgotten = of(Some(&leak), &ended(&[]));
        assert!(
            !forgotten.found && forgotten.wrong.len() == 1,
            "{forgotten:?}"
        );
        let more = of(Some(&leak), &ended(&[growing(7), growing(8)]));
        assert!(more.accused_wrongly && more.wrong.len() == 1, "{more:?}");
    }

    #[test]
    fn a_leak_is_found_by_its_lines_only() {
        let leak = leak();
        let of = |groups: &[&[Group]]| of_course(truth(Some(&leak), &[]), &course(groups));
        let found = of(&[&[], &[], &[growing(7)], &[growing(7), growing(9)]]);
        assert!(
            found.found && !found.accused_wrongly && found.wrong.is_empty(),
            "{found:?}"
        );
        assert_eq!(
            (found.first_said_step, found.confidence),
            (Some(15), Some(0.9))
        );
        assert_eq!(found.lines, ["a.py:7", "a.py:9"]);

        let beside = of(&[&[], &[], &[growing(8)], &[growing(7), growing(8)]]);
        assert!(!beside.found && beside.accused_wrongly, "{beside:?}");
        assert_eq!((beside.line_right, beside.strays), (Some(false), 1));

        let silent = of(&[&[], &[]]);
        assert!(
            !silent.found && !silent.accused_wrongly && silent.wrong.len() == 1,
            "{silent:?}"
        );
        let forgotten = of(&[&[], &[], &[growing(7)], &[]]);
        assert!(
            !forgotten.found && forgotten.first_said_step == Some(15),
            "{forgotten:?}"
        );
        let unsaid = Group {
            line: None,
            ..growing(7)
        };
        let unsaid = of(&[&[], &[], &[unsaid]]);
        assert!(
            !unsaid.found && unsaid.said_at_end && !unsaid.accused_wrongly,
            "{unsaid:?}"
        );
        assert_eq!(unsaid.line_right, None);
    }

    #[test]
    fn nothing_can_be_said_before_it_is_so() {
        let leak = leak();
        let early = of_course(
            truth(Some(&leak), &[]),
            &course(&[&[], &[growing(7)], &[growing(7)]]),
        );
        assert!(early.found && early.accused_wrongly, "{early:?}");
    }

    #[test]
    fn a_leak_outside_of_any_line() {
        let leak = Leak::default();
        let outside = Group {
            line: Some(None),
            frames: Some(Vec::new()),
            ..growing(0)
        };
        let found = of_course(truth(Some(&leak), &[]), &course(&[&[outside]]));
        assert!(found.found && found.lines == ["none"], "{found:?}");
        let named = of_course(truth(Some(&leak), &[]), &course(&[&[growing(7)]]));
        assert!(!named.found && named.accused_wrongly, "{named:?}");
    }

    #[test]
    fn a_clean_run_is_accused_by_a_single_word() {
        let clean = of_course(truth(None, &[]), &course(&[&[], &[], &[]]));
        assert!(
            !clean.accused_wrongly && clean.wrong.is_empty(),
            "{clean:?}"
        );
        let accused = of_course(truth(None, &[]), &course(&[&[], &[growing(7)], &[]]));
        assert!(
            accused.accused_wrongly && accused.first_said_step == Some(10),
            "{accused:?}"
        );
        assert!(
            of_course(truth(None, &[]), &[]).wrong.len() == 1,
            "nothing asked is no proof"
        );
    }

    #[test]
    fn steps_are_compared_with_the_loops_own() {
        let sources = [
            "optimizer".to_owned(),
            "pattern".to_owned(),
            "unknown".to_owned(),
        ];
        let of = |count, source: &str| {
            let mut course = course(&[&[], &[]]);
            course[1].answer.steps = Some(Steps {
                count,
                source: source.to_owned(),
            });
            of_course(truth(None, &sources), &course).steps_right
        };
        assert_eq!(of(Some(10), "optimizer"), Some(true));
        assert_eq!(of(Some(11), "optimizer"), Some(false));
        assert_eq!(of(Some(8), "pattern"), Some(true));
        assert_eq!(of(Some(7), "pattern"), Some(false));
        assert_eq!(of(Some(10), "backward"), Some(false));
        assert_eq!(of(None, "unknown"), Some(true));
        assert_eq!(of(None, "optimizer"), Some(false));
        assert_eq!(
            of_course(truth(None, &sources), &course(&[&[]])).steps_right,
            None
        );
    }

    #[test]
    fn the_holder_and_its_length_are_the_scripts_own() {
        let leak = Leak {
            held_by: vec!["workload.cache[0]".to_owned(), "workload.kept".to_owned()],
            ..leak()
        };
        let of = |container: &str, length, own| {
            let mut course = course(&[&[], &[], &[growing(7)]]);
            let end = course.last_mut().unwrap();
            end.answer.holders.push(Holder {
                container: Some(container.to_owned()),
                length: Some(length),
                ..Holder::default()
            });
            end.lengths.insert(container.to_owned(), own);
            of_course(truth(Some(&leak), &[]), &course)
        };
        assert_eq!(of("workload.kept", 5, 5).holder_right, Some(true));
        assert_eq!(of("workload.cache[3]", 5, 5).holder_right, Some(true));
        let shorter = of("workload.kept", 5, 6);
        assert_eq!(
            (shorter.holder_right, shorter.wrong.len()),
            (Some(false), 1)
        );
        assert_eq!(of("workload.other", 5, 5).holder_right, Some(false));
        let none = of_course(truth(Some(&leak), &[]), &course(&[&[], &[], &[growing(7)]]));
        assert_eq!(none.holder_right, Some(false));
        let clean = of_course(truth(None, &[]), &course(&[&[]]));
        assert_eq!(clean.holder_right, None);
    }

    #[test]
    fn ranks_are_judged_each_and_shown_together() {
        let leak = leak();
        let of = |leak, groups: &[&[Group]]| of_course(truth(leak, &[]), &course(groups));
        let leaking = of(Some(&leak), &[&[], &[], &[growing(7)]]);
        let fine = of(None, &[&[]]);
        let all = together(vec![(0, fine.clone()), (1, leaking.clone())]);
        assert!(all.found && !all.accused_wrongly && all.leaks, "{all:?}");
        assert_eq!(all.first_said_step, Some(15));
        let accused = of(None, &[&[growing(7)]]);
        let all = together(vec![(0, accused), (1, leaking)]);
        assert!(all.found && all.accused_wrongly, "{all:?}");
        assert!(all.wrong[0].starts_with("rank 0: "), "{all:?}");
        let silent = of(Some(&leak), &[&[]]);
        assert!(!together(vec![(0, fine), (1, silent)]).found);
    }
}
