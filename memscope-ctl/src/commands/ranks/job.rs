//! The ranks of one job, from whichever nodes they are.

use super::gather::{LeftOut, Member, Members};
use crate::failure::Failure;
use crate::fleet::Replies;
use crate::output::no_json;
use memscope_ranks::{Judgement, Rank, judge};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One job: its ranks by number, each with the name of its node, and what was found out about them.
pub(super) struct Job {
    pub(super) name: Option<String>,
    pub(super) members: Vec<(String, Member)>,
    /// Numbers that no rank has, as ranges: the first and the last of each.
    pub(super) missing: Vec<(u64, u64)>,
    /// Numbers that more than one process has.
    pub(super) twice: Vec<u64>,
    /// The nodes and processes that are not told, since another one of the same node has their number.
    pub(super) left_out: Vec<(String, LeftOut)>,
    pub(super) judgement: Judgement,
}

/// The jobs of all nodes.
pub(super) fn jobs(replies: &Replies<Members>) -> Vec<Job> {
    let mut by_job: BTreeMap<Option<String>, Vec<(String, Member)>> = BTreeMap::new();
    for (node, members) in replies.answers() {
        for member in &members.asked {
            let job = by_job.entry(member.place.job.clone()).or_default();
            job.push((node.name.clone(), member.clone()));
        }
    }
    let left_out = |name: &Option<String>| {
        let all = replies.answers().flat_map(|(node, members)| {
            let of_node = members.left_out.iter();
            of_node.map(|one| (node.name.clone(), one.clone()))
        });
        all.filter(|(_, one)| one.place.job == *name).collect()
    };
    by_job
        .into_iter()
        .map(|(name, members)| {
            let left_out = left_out(&name);
            job(name, members, left_out)
        })
        .collect()
}

fn job(
    name: Option<String>,
    mut members: Vec<(String, Member)>,
    left_out: Vec<(String, LeftOut)>,
) -> Job {
    leave_out_earlier(&mut members);
    members.sort_by_key(|(_, member)| member.of.rank);
    compare_alike(&mut members);
    let ranks: Vec<Rank> = members
        .iter()
        .map(|(_, member)| member.of.clone())
        .collect();
    let numbers: Vec<u64> = ranks.iter().map(|rank| rank.rank).collect();
    let sizes = members
        .iter()
        .filter_map(|(_, member)| member.place.world_size);
    let mut twice: Vec<u64> = numbers
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] if a == b => Some(*a),
            _ => None,
        })
        .collect();
    twice.dedup();
    Job {
        missing: missing(&numbers, sizes.max().unwrap_or_default()),
        judgement: judge(&ranks),
        name,
        members,
        twice,
        left_out,
    }
}

/// Leaves out ranks of an earlier run: those that had ended before one that runs was attached on the same machine. A rank that ended later,
/// as by running out of memory, is of the run whose others wait for it. On a machine on which none runs any more, an ended
/// one stays if no other rank has its number.
fn leave_out_earlier(members: &mut Vec<(String, Member)>) {
    let running = members
        .iter()
        .filter(|(_, member)| member.lived.1.is_none());
    let running: Vec<(String, u64, u64)> = running
        .map(|(node, member)| (node.clone(), member.lived.0, member.of.rank))
        .collect();
    if running.is_empty() {
        return;
    }
    members.retain(|(node, member)| {
        let Some(end) = member.lived.1 else {
            return true;
        };
        let mut beside = running.iter().filter(|(of, ..)| of == node).peekable();
        match beside.peek() {
            Some(_) => beside.any(|(_, from, _)| *from < end),
            None => running.iter().all(|(.., rank)| *rank != member.of.rank),
        }
    });
}

/// Tells the growth of all ranks per second where that of some is not known per step. Bytes in a step and bytes in a second cannot be
/// compared with one another.
fn compare_alike(members: &mut [(String, Member)]) {
    let grows = |member: &Member| member.of.growth.is_some_and(|growth| growth.grows);
    let mut growing = members.iter().map(|(_, member)| member);
    if growing.all(|member| member.is_per_step || !grows(member)) {
        return;
    }
    for (_, member) in members {
        member.is_per_step = false;
        if let Some(growth) = &mut member.of.growth {
            growth.pace = member.growth_bytes_per_s;
        }
    }
}

/// The numbers below `size` that are not there, as ranges.
fn missing(sorted: &[u64], size: u64) -> Vec<(u64, u64)> {
    let mut next = 0;
    let mut ranges = Vec::new();
    for number in sorted.iter().copied().filter(|number| *number < size) {
        if number > next {
            ranges.push((next, number - 1));
        }
        next = number + 1;
    }
    if next < size {
        ranges.push((next, size - 1));
    }
    ranges
}

/// The job as JSON, with all numbers.
pub(super) fn document(job: &Job) -> Result<Value, Failure> {
    let ranks: Vec<Value> = job
        .members
        .iter()
        .map(|(node, member)| {
            let growth = member.of.growth;
            json!({
                "rank": member.of.rank,
                "node": node,
                "pid": member.pid,
                "peak_allocated_bytes": member.of.peak_bytes,
                "allocated_bytes": member.allocated_bytes,
                "peak_reserved_bytes": member.of.reserved_bytes,
                "floor_bytes": member.of.floor_bytes,
                "grows": growth.map(|growth| growth.grows),
                "growth_bytes_per_step": growth
                    .filter(|growth| growth.grows && member.is_per_step)
                    .map(|growth| growth.pace),
                "growth_bytes_per_s": growth
                    .filter(|growth| growth.grows)
                    .map(|_| member.growth_bytes_per_s),
                "step_median_ns": member.of.step_ns,
            })
        })
        .collect();
    let left_out = job.left_out.iter();
    let left_out: Vec<Value> = left_out
        .map(|(node, one)| json!({"rank": one.place.rank, "node": node, "pid": one.pid}))
        .collect();
    let mut judgement = serde_json::to_value(&job.judgement).map_err(no_json)?;
    judgement["stands_out"] = (!job.judgement.odd.is_empty()).into();
    Ok(json!({
        "job": job.name,
        "ranks": ranks,
        "missing": job.missing.iter().map(|(from, to)| json!({"from": from, "to": to})).collect::<Vec<_>>(),
        "twice": job.twice,
        "left_out": left_out,
        "judgement": judgement,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn member(rank: u64, pid: u32, lived: (u64, Option<u64>)) -> Member {
        Member {
            pid,
            lived,
            of: Rank {
                rank,
                ..Rank::default()
            },
            ..Member::default()
        }
    }

    fn of(nodes: Vec<Vec<Member>>) -> Job {
        let members = |asked| Members {
            asked,
            refused: Vec::new(),
            not_asked: 0,
            left_out: Vec::new(),
        };
        let replies = Replies::answered(nodes.into_iter().map(members).collect());
        jobs(&replies).pop().unwrap()
    }

    #[test]
    fn ranks_of_an_earlier_run_on_other_nodes_are_left_out() {
        // The job was started anew, with the nodes the other way round.
        let run = |first: u64, lived: (u64, Option<u64>)| {
            (first..first + 8).map(move |rank| member(rank, 10, lived))
        };
        let node = |now: u64, before: u64| {
            let before = run(before, (100, Some(200)));
            before.chain(run(now, (300, None))).collect()
        };
        let job = of(vec![node(0, 8), node(8, 0)]);
        assert_eq!(job.twice, [] as [u64; 0]);
        assert_eq!(job.members.len(), 16);
        let runs = |(_, member): &(String, Member)| member.lived.1.is_none();
        assert!(job.members.iter().all(runs));
        // The earlier run had more ranks.
        let now = (0..4).map(|rank| member(rank, 10, (300, None)));
        let before = (0..8).map(|rank| member(rank, 20, (100, Some(200))));
        assert_eq!(of(vec![before.chain(now).collect()]).members.len(), 4);
        // Where nothing runs any more, all count.
        assert_eq!(
            of(vec![run(0, (100, Some(200))).collect()]).members.len(),
            8
        );
    }

    /// The rank that is looked for may be the one that is not there any more.
    #[test]
    fn a_rank_that_ended_while_the_others_run_is_shown() {
        let on = |node: &str, member: Member| (node.to_owned(), member);
        let left = |node: &str, ended: Member| {
            let others = (1..8).map(|rank| on("a", member(rank, 10, (100, None))));
            let mut members: Vec<(String, Member)> = others.chain([on(node, ended)]).collect();
            leave_out_earlier(&mut members);
            members.len()
        };
        assert_eq!(left("a", member(0, 9, (100, Some(500)))), 8);
        assert_eq!(left("a", member(0, 9, (10, Some(50)))), 7);
        // All ranks of its machine have ended, whose clock is another.
        assert_eq!(left("b", member(0, 9, (10, Some(50)))), 8);
        // Another one has its number by now.
        assert_eq!(left("b", member(1, 9, (100, Some(500)))), 7);
    }

    #[test]
    fn what_is_not_there_is_told_in_ranges() {
        assert_eq!(missing(&[0, 1, 2], 3), []);
        assert_eq!(missing(&[1, 1, 4], 7), [(0, 0), (2, 3), (5, 6)]);
        assert_eq!(missing(&[], u64::MAX), [(0, u64::MAX - 1)]);
        assert_eq!(missing(&[9], 0), []);
    }
}
