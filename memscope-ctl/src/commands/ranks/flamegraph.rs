//! `ranks --flamegraph`: what the odd rank holds beside one of its peers, drawn.

use super::gather::Member;
use super::job::Job;
use crate::client::Rpc;
use crate::failure::Failure;
use crate::file::Target;
use crate::fleet::Fleet;
use crate::render::frames::{Frame, why_missing};
use crate::units::plain;
use inferno::flamegraph::{Options, from_lines};
use memscope_proto::v1;
use memscope_ranks::{Metric, Odd};
use std::collections::BTreeMap;
use std::path::Path;

/// What stands for the stacks of which it is not known what both ranks hold.
const FURTHER: &str = "(further stacks)";

/// What a rank holds.
#[derive(Debug, Default)]
struct Held {
    /// Bytes by stack, its frames outermost first.
    stacks: BTreeMap<String, u64>,
    /// Bytes of the stacks for which the answer has no room; `None`: it has all.
    further: Option<u64>,
}

/// What was drawn: the odd rank, and the one beside it.
pub(super) struct Drawn {
    pub(super) rank: u64,
    pub(super) beside: u64,
}

/// Draws the first rank that stands out by its memory, beside the rank that is most like it. `None` if no rank does.
pub(super) async fn draw(
    fleet: &Fleet,
    jobs: &[Job],
    path: &Path,
) -> Result<Option<Drawn>, Failure> {
    let mut all = jobs
        .iter()
        .flat_map(|job| job.judgement.odd.iter().map(move |odd| (job, odd)));
    let found = all.find_map(|(job, odd)| {
        let member = |place: usize| job.members.get(place);
        Some((odd, member(odd.place)?, member(peer(odd)?)?))
    });
    let Some((odd, whose, beside_whose)) = found else {
        return Ok(None);
    };
    let beside = beside_whose.1.of.rank;
    let is_peak = odd
        .findings
        .first()
        .is_some_and(|one| one.metric == Metric::Peak);
    let own = stacks(fleet, whose, is_peak).await?;
    let other = stacks(fleet, beside_whose, is_peak).await?;
    let lines = folded(&other, &own);
    let mut content = Vec::new();
    let is_text = path
        .extension()
        .is_some_and(|ending| ending == "folded" || ending == "txt");
    if is_text {
        content = lines.concat().into_bytes();
    } else {
        let mut options = Options::default();
        let what = if is_peak { "at its peak" } else { "now" };
        options.title = format!("What rank {} holds {what}, beside rank {beside}", odd.rank);
        options.subtitle = Some(format!(
            "red: rank {} has more, blue: rank {beside} has more",
            odd.rank
        ));
        options.count_name = "bytes".to_owned();
        let drawn = from_lines(&mut options, lines.iter().map(String::as_str), &mut content);
        drawn.map_err(|source| Failure::Output {
            what: "the flame graph cannot be drawn".into(),
            source,
        })?;
    }
    let mut target = Target::open(Some(path))?;
    target.write(&content)?;
    target.finish()?;
    let rank = odd.rank;
    Ok(Some(Drawn { rank, beside }))
}

/// The place of the rank beside which an odd one is drawn: the one whose lines are most alike.
fn peer(odd: &Odd) -> Option<usize> {
    let finding = odd
        .findings
        .iter()
        .find(|one| one.metric != Metric::StepTime)?;
    let alike = odd
        .explained
        .as_ref()
        .map(|explained| explained.beside_place);
    let places = &finding.peer_places;
    alike.or_else(|| places.get(places.len() / 2).copied())
}

/// Stacks that are asked for of a rank, so that the answer is as small as a fleet's are taken.
const STACKS: u32 = 1_000;

/// What a rank holds.
async fn stacks(
    fleet: &Fleet,
    (node, member): &(String, Member),
    is_peak: bool,
) -> Result<Held, Failure> {
    let metric = match is_peak {
        true => v1::StackMetric::Peak,
        false => v1::StackMetric::Live,
    };
    let ask = async |asking: &crate::fleet::Asking<'_>| {
        let question = v1::StacksRequest {
            pid: member.pid,
            view: Some(v1::StackView {
                metric: metric.into(),
                ..v1::StackView::default()
            }),
            by: v1::StackGrouping::Stack.into(),
            limit: STACKS,
            ..v1::StacksRequest::default()
        };
        let call = async |mut rpc: Rpc, request| rpc.stacks(request).await;
        asking.ask(question, call).await
    };
    let answer = fleet.ask_one(node, ask).await?;
    let bytes_of = |amounts: Option<v1::StackAmounts>| {
        let amounts = amounts.unwrap_or_default();
        let amount = if is_peak { amounts.peak } else { amounts.live };
        amount.unwrap_or_default().bytes
    };
    let mut held = Held {
        further: (answer.omitted > 0).then(|| bytes_of(answer.others)),
        ..Held::default()
    };
    for row in &answer.rows {
        let frames = row.frames.iter().rev();
        let frames = frames.filter_map(|place| answer.frames.get(*place as usize));
        let mut names: Vec<String> = frames
            .map(|frame| name(&Frame::of(&answer, frame)))
            .collect();
        if names.is_empty() {
            names.push(why_missing(row.missing.as_deref()));
        }
        let sum = held.stacks.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(bytes_of(row.amounts));
    }
    Ok(held)
}

/// A frame as one part of a folded line, in which semicolons divide the parts.
fn name(frame: &Frame<'_>) -> String {
    let text = format!("{} ({})", plain(&frame.name()), frame.place());
    text.replace(';', ":")
}

/// A line for each stack: its frames, its bytes in the one rank, and in the other. A stack that is missing in an answer which has not all
/// of them is among the further ones on both sides: else it would look like a difference that there is not.
fn folded(before: &Held, now: &Held) -> Vec<String> {
    let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut further = (before.further.unwrap_or(0), now.further.unwrap_or(0));
    for (stack, bytes) in &before.stacks {
        if now.further.is_some() && !now.stacks.contains_key(stack) {
            further.0 = further.0.saturating_add(*bytes);
        } else {
            both.entry(stack).or_default().0 = *bytes;
        }
    }
    for (stack, bytes) in &now.stacks {
        if before.further.is_some() && !before.stacks.contains_key(stack) {
            further.1 = further.1.saturating_add(*bytes);
        } else {
            both.entry(stack).or_default().1 = *bytes;
        }
    }
    if further != (0, 0) {
        both.insert(FURTHER, further);
    }
    let line = |(stack, (before, now)): (&str, (u64, u64))| format!("{stack} {before} {now}\n");
    both.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{Held, folded};

    fn of(pairs: &[(&str, u64)], further: Option<u64>) -> Held {
        let pairs = pairs.iter();
        Held {
            stacks: pairs
                .map(|(stack, bytes)| ((*stack).to_owned(), *bytes))
                .collect(),
            further,
        }
    }

    #[test]
    fn both_ranks_are_in_each_line() {
        let lines = folded(
            &of(&[("a;b", 1), ("a;c", 2)], None),
            &of(&[("a;b", 5), ("a;d", 7)], None),
        );
        assert_eq!(lines, ["a;b 1 5\n", "a;c 2 0\n", "a;d 0 7\n"]);
    }

    /// What only one of two answers has room for is no difference.
    #[test]
    fn a_stack_that_an_answer_leaves_out_is_not_one_that_holds_nothing() {
        let lines = folded(
            &of(&[("a;b", 10), ("a;c", 2)], None),
            &of(&[("a;b", 10), ("a;d", 3)], Some(2)),
        );
        assert_eq!(
            lines,
            ["(further stacks) 2 2\n", "a;b 10 10\n", "a;d 0 3\n"]
        );
        let lines = folded(&of(&[("a;c", 2)], Some(8)), &of(&[("a;d", 3)], Some(7)));
        assert_eq!(lines, ["(further stacks) 10 10\n"]);
    }
}
