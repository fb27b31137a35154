//! Growth that was given back: groups that would have been called leaks until at least half of their blocks were freed.
//!
//! Owns: which groups grew and were then freed, how much that was and when. Refuses: memory that only goes up and down;
//! it never grew by the rules of `growth::trend` and `growth::verdict`.

use super::judge::{Amount, Chances, What};
use super::view::View;
use crate::growth::floor::{Floor, Row};
use crate::growth::group::{Left, StackKey, UNIT};
use crate::growth::verdict::ENOUGH_BLOCKS;
use crate::report::{Source, Space, Verdict};
use crate::state::stacks::StackIndex;
use memscope_proto::v1;
use memscope_proto::v1::GivenBack;

/// Most groups of this kind in an answer; those that were freed last are shown.
const MOST: usize = 10;

/// A group whose row may have grown and fallen.
struct Candidate<'a> {
    what: What,
    space: Space,
    floors: (&'a Floor, &'a Floor),
    left: Option<Left>,
    stack: StackIndex,
    /// Size of each block in bytes; 0 where sizes differ.
    size: u64,
    /// Bytes of the device that 1 in the row stands for: those of a block, or a unit.
    each: u64,
}

/// Groups that grew and have since given back at least half of what they held, those that were freed last first.
pub(super) fn given_back(view: &View<'_>, chances: &Chances) -> Vec<GivenBack> {
    let groups = &view.judge.process.groups;
    let exact = groups.groups().map(|(_, group)| Candidate {
        what: What {
            device: group.key.device,
            space: group.key.space,
            bytes: group.key.size as f64,
            amount: Amount::Blocks,
            chances: chances.of_stack(&StackKey::of(&group.key)),
        },
        space: group.key.space,
        floors: (&group.floor, &group.steps),
        left: group.left,
        stack: group.key.stack,
        size: group.key.size,
        each: group.block_bytes(),
    });
    let mut found: Vec<(StackIndex, GivenBack)> = exact
        .filter_map(|one| Some((one.stack, of(view, &one)?)))
        .collect();
    let stacks = &view.judge.process.stacks;
    let of_stacks = groups
        .of_stacks()
        .filter(|(_, all)| !stacks.is_missing(all.key.stack))
        .map(|(_, all)| Candidate {
            what: What {
                device: all.key.device,
                space: all.key.space,
                bytes: UNIT as f64,
                amount: Amount::Units,
                chances: chances.of_stack(&all.key),
            },
            space: all.key.space,
            floors: (&all.floor, &all.steps),
            left: all.left,
            stack: all.key.stack,
            size: 0,
            each: UNIT,
        });
    let told: Vec<StackIndex> = found.iter().map(|(stack, _)| *stack).collect();
    found.extend(
        of_stacks
            .filter(|one| !told.contains(&one.stack))
            .filter_map(|one| Some((one.stack, of(view, &one)?))),
    );
    found.sort_by_key(|(stack, one)| {
        (
            std::cmp::Reverse(one.last_boot_ns),
            std::cmp::Reverse(one.bytes),
            one.size_bytes,
            *stack,
        )
    });
    found.truncate(MOST);
    found
        .into_iter()
        .map(|(stack, mut one)| {
            one.line = view.frames(stack).1.as_ref().map(Into::into);
            one.stack = (one.line.is_none() && one.size_bytes.is_none()).then_some(stack);
            one
        })
        .collect()
}

fn of(view: &View<'_>, one: &Candidate<'_>) -> Option<GivenBack> {
    let left = one.left?;
    let row = view
        .judge
        .row(one.space, one.floors.0, one.floors.1, one.left);
    let highest = *row.over.iter().max()?;
    // The last window with the highest floor.
    let top = row.over.iter().rposition(|floor| *floor == highest)?;
    let after = row.over.get(top..).unwrap_or_default();
    let lowest = after.iter().copied().min()?.min(row.now);
    let fall = highest - lowest;
    if fall < ENOUGH_BLOCKS || fall < highest - fall {
        return None;
    }
    let grown = Row {
        over: row.over.get(..=top)?.to_vec(),
        now: highest,
    };
    let judged = view.judge.judge(&one.what, &grown);
    if judged.verdict != Verdict::Growing {
        return None;
    }
    let process = view.judge.process;
    let device = process
        .visible_devices()
        .into_iter()
        .find(|row| row.ordinal == one.what.device);
    let unused = device
        .filter(|_| one.space == Space::Pool && process.ended_ns.is_none())
        .filter(|row| process.source_of(row) == Source::Pool)
        .and_then(|row| {
            let reserved = process.reserved_bytes(row)?;
            reserved.checked_sub(process.allocated_bytes(row)?)
        });
    Some(GivenBack {
        device: one.what.device,
        source: v1::Source::from(one.space).into(),
        size_bytes: (one.size > 0).then_some(one.size),
        bytes: u64::from(fall).saturating_mul(one.each),
        last_boot_ns: left.time_ns,
        step: view.judge.step_after(left.tick),
        first_step: judged.first_step,
        reserved_unused_bytes: unused,
        line: None,
        stack: None,
    })
}
