//! The ranks of jobs as text: the sentence, the lines that make it so, and the numbers.

use super::gather::Member;
use super::job::Job;
use crate::render::table::{Column, table};
use crate::units::{self, bytes, grouped, maybe_bytes, nanoseconds, plain, signed_bytes};
use memscope_ranks::{Explained, Finding, LIKELY, Metric, NotJudged, Odd, SURE, Why, groups};

/// Ranks up to which all are in the table.
const ALL: usize = 16;
/// Ranks that stand out and are told one by one.
const ODD: usize = 8;
/// Lines that are shown for one rank.
const LINES: usize = 5;
/// Ranges of numbers that are listed; further ones are counted.
const RANGES: usize = 6;
/// Share of a level within which ranks are summed up in one line.
const ALIKE: f64 = 0.02;

/// All jobs, one after the other; of one job where only that was asked for.
pub(super) fn text(jobs: &[Job], wanted: Option<&str>) -> String {
    if jobs.is_empty() {
        return match wanted {
            Some(job) => format!(
                "No traced process that was asked about is a rank of the job {}.\n",
                plain(job)
            ),
            None => "No traced process is a rank of a job: none was started with RANK, SLURM_PROCID or their like.\n".to_owned(),
        };
    }
    let each: Vec<String> = jobs.iter().map(of_job).collect();
    each.join("\n")
}

fn of_job(job: &Job) -> String {
    let count = job.members.len();
    let ranks = if count == 1 { "rank" } else { "ranks" };
    let mut text = match &job.name {
        Some(name) => format!("Job {}: {} {ranks}\n", plain(name), grouped(count as u64)),
        None => format!(
            "{} {ranks} of a job without a name\n",
            grouped(count as u64)
        ),
    };
    text.push_str(&headline(job));
    if !job.missing.is_empty() {
        let missing: Vec<String> = job.missing.iter().map(|(a, b)| range(*a, *b)).collect();
        text.push_str(&format!("Missing: rank {}.\n", listed(&missing)));
    }
    if !job.twice.is_empty() {
        let twice: Vec<String> = job.twice.iter().map(u64::to_string).collect();
        text.push_str(&format!(
            "Several processes have the same number, so these are several jobs: rank {}.\n",
            listed(&twice)
        ));
    }
    text.push_str(&left_out(job));
    let later = &job.judgement.began_later;
    if !later.is_empty() {
        text.push_str(&format!(
            "Followed for less long than the others, so what they hold and held is not compared: rank {}.\n",
            listed(&ranges(later))
        ));
    }
    text.push('\n');
    if count <= ALL {
        text.push_str(&rows(job.members.iter()));
        return text;
    }
    let is_odd = |place: usize| job.judgement.odd.iter().any(|odd| odd.place == place);
    let mut odd = job
        .members
        .iter()
        .enumerate()
        .filter(|(place, _)| is_odd(*place))
        .map(|(_, member)| member)
        .peekable();
    if odd.peek().is_some() {
        text.push_str(&rows(odd.take(ALL)));
    }
    text.push_str(&summary(job, is_odd));
    text
}

/// `rank 317 (node40, pid 4242) stands out: …`, a sentence for each, or that none does.
fn headline(job: &Job) -> String {
    let mut text = String::new();
    for odd in job.judgement.odd.iter().take(ODD) {
        text.push_str(&sentence(job, odd));
    }
    let more = job.judgement.odd.len().saturating_sub(ODD);
    if more > 0 {
        text.push_str(&format!("and {more} more stand out\n"));
    }
    if text.is_empty() {
        // One that grows while the others do not, if the leak detection is not sure enough of it.
        let grows = |one: &&Finding| one.metric == Metric::Growth && one.peers_median <= 0.0;
        if let Some(finding) = job.judgement.nearest.as_ref().filter(grows) {
            text.push_str(&format!(
                "It is not sure enough yet that rank {} is unlike the others: {}.\n",
                finding.rank,
                found(finding, is_per_step(job, finding.place))
            ));
        }
        let why = not_judged(&job.judgement.not_judged).join("; ");
        text.push_str(&match (job.judgement.comparisons, why.is_empty()) {
            (0, true) => "Whether a rank stands out cannot be told.\n".to_owned(),
            (0, false) => format!("Whether a rank stands out cannot be told: {why}.\n"),
            (_, true) => "No rank stands out.\n".to_owned(),
            (_, false) => format!("No rank stands out. Not judged: {why}.\n"),
        });
    }
    text
}

fn is_per_step(job: &Job, place: usize) -> bool {
    let whose = job.members.get(place);
    whose.is_none_or(|(_, member)| member.is_per_step)
}

/// The processes that are not in the table, since another one of their node has the same number.
fn left_out(job: &Job) -> String {
    if job.left_out.is_empty() {
        return String::new();
    }
    let each: Vec<String> = job
        .left_out
        .iter()
        .map(|(node, one)| {
            let rank = one.place.rank.unwrap_or_default();
            format!("rank {rank} ({}, pid {})", plain(node), one.pid)
        })
        .collect();
    format!(
        "Left out, since a later process of the same node has the same number: {}. If they are of another job, start each job with \
         torchrun, Slurm or MPI, or with its own TORCHELASTIC_RUN_ID.\n",
        listed(&each)
    )
}

fn sentence(job: &Job, odd: &Odd) -> String {
    let whose = job.members.get(odd.place);
    let place = whose.map_or_else(String::new, |(node, member)| {
        format!(" ({}, pid {})", plain(node), member.pid)
    });
    let is_per_step = is_per_step(job, odd.place);
    let mut text = format!("rank {}{place} stands out: ", odd.rank);
    let mut findings = odd.findings.iter();
    if let Some(first) = findings.next() {
        text.push_str(&found(first, is_per_step));
    }
    if let Some(explained) = &odd.explained
        && let Some(line) = explained.lines.first()
    {
        let much = bytes(line.difference().abs() as u64);
        let of_it = match odd.findings.first().map(|one| one.metric) {
            Some(Metric::Growth) => "more than in the others",
            _ => "of it",
        };
        text.push_str(&format!("; {much} {of_it} at {}", plain(&line.name)));
    }
    text.push('\n');
    for finding in findings {
        text.push_str(&format!("  also, {}\n", found(finding, is_per_step)));
    }
    if let Some(explained) = &odd.explained {
        text.push_str(&lines(explained));
    }
    text
}

/// `its peak is 6.10 GiB above the others' 41.2 GiB, surely (0.999)`.
fn found(finding: &Finding, is_per_step: bool) -> String {
    let difference = finding.difference();
    let (is_more, size) = (difference > 0.0, difference.abs());
    let (much, level) = match finding.metric {
        Metric::StepTime => (
            nanoseconds(size as u64),
            nanoseconds(finding.peers_median as u64),
        ),
        _ => (bytes(size as u64), bytes(finding.peers_median as u64)),
    };
    let beside = match is_more {
        true => format!("{much} above the others' {level}"),
        false => format!("{much} below the others' {level}"),
    };
    let what = match finding.metric {
        Metric::Peak => format!("its peak is {beside}"),
        Metric::Floor => format!("its floor is {beside}"),
        Metric::Reserved => format!("what its pool reserves is {beside}"),
        Metric::StepTime => format!("the time of its steps is {beside}"),
        Metric::Growth => {
            let per = if is_per_step { "a step" } else { "a second" };
            let pace = signed_bytes(finding.value.round() as i64);
            match finding.peers_median > 0.0 {
                false => format!("it grows by {pace} {per}, and the others do not"),
                true => format!("it grows by {pace} {per}, the others by {level}"),
            }
        }
    };
    match finding.confidence {
        // It is cut and not rounded: nothing is wholly sure.
        Some(sure) => format!(
            "{what}, {} ({:.3})",
            how_sure(sure),
            (sure * 1000.0).floor().min(999.0) / 1000.0
        ),
        None => what,
    }
}

/// A confidence in words.
fn how_sure(confidence: f64) -> &'static str {
    match confidence {
        SURE.. => "surely",
        LIKELY.. => "probably",
        _ => "perhaps",
    }
}

fn lines(explained: &Explained) -> String {
    let mut text = String::new();
    for line in explained.lines.iter().take(LINES) {
        text.push_str(&format!(
            "    {}  {}, the others {}\n",
            plain(&line.name),
            bytes(line.bytes),
            bytes(line.peers_bytes)
        ));
    }
    let more = explained.lines.len().saturating_sub(LINES);
    if more > 0 {
        text.push_str(&format!("    and {more} more\n"));
    }
    if let Some(share) = explained.share {
        text.push_str(&match explained.lines.is_empty() {
            true => "    no line of it has more than those of the others\n".to_owned(),
            false => format!(
                "    these lines make up {:.0} % of the difference\n",
                share * 100.0
            ),
        });
    }
    text
}

fn name(metric: Metric) -> &'static str {
    match metric {
        Metric::Peak => "peak",
        Metric::Reserved => "reserved",
        Metric::Floor => "floor",
        Metric::Growth => "growth",
        Metric::StepTime => "step time",
    }
}

/// Why numbers were not judged: a sentence for each reason, with all numbers that it is true of.
fn not_judged(all: &[NotJudged]) -> Vec<String> {
    let mut reasons: Vec<(Why, Vec<&str>)> = Vec::new();
    for one in all {
        match reasons.iter_mut().find(|(why, _)| *why == one.why) {
            Some((_, names)) => names.push(name(one.metric)),
            None => reasons.push((one.why, vec![name(one.metric)])),
        }
    }
    let sentence = |(why, names): (Why, Vec<&str>)| {
        let names = names.join(", ");
        match why {
            Why::TooFew { known: 1, needed } => {
                format!("{names}: known of 1 rank, and {needed} are needed to judge")
            }
            Why::TooFew { known, needed } => {
                format!("{names}: known of {known} ranks, and {needed} are needed to judge")
            }
            Why::NoneAlike => format!("{names}: too many ranks have no other like them"),
        }
    };
    reasons.into_iter().map(sentence).collect()
}

fn rows<'a>(members: impl Iterator<Item = &'a (String, Member)>) -> String {
    let head = [
        Column::Right("RANK"),
        Column::Left("NODE"),
        Column::Right("PID"),
        Column::Right("PEAK"),
        Column::Right("ALLOCATED"),
        Column::Right("RESERVED"),
        Column::Right("FLOOR"),
        Column::Right("GROWS BY"),
        Column::Right("STEP TIME"),
    ];
    let rows = members.map(|(node, member)| {
        let growth = match member.of.growth {
            None => units::unknown(),
            Some(growth) if growth.grows => {
                let per = if member.is_per_step { "step" } else { "s" };
                format!("{}/{per}", signed_bytes(growth.pace.round() as i64))
            }
            Some(_) => String::new(),
        };
        vec![
            member.of.rank.to_string(),
            plain(node),
            member.pid.to_string(),
            maybe_bytes(member.of.peak_bytes),
            maybe_bytes(member.allocated_bytes),
            maybe_bytes(member.of.reserved_bytes),
            maybe_bytes(member.of.floor_bytes),
            growth,
            member.of.step_ns.map_or_else(units::unknown, nanoseconds),
        ]
    });
    table(&head, rows.collect())
}

/// The other ranks, by groups of like peaks: `ranks 0-316, 318-511: peak 41.2 GiB (40.9 GiB to 41.5 GiB)`.
fn summary(job: &Job, is_odd: impl Fn(usize) -> bool) -> String {
    let mut values: Vec<(usize, f64)> = Vec::new();
    let mut unknown: Vec<u64> = Vec::new();
    for (place, (_, member)) in job.members.iter().enumerate() {
        match Metric::Peak.of(&member.of) {
            _ if is_odd(place) => {}
            Some(peak) => values.push((place, peak)),
            None => unknown.push(member.of.rank),
        }
    }
    let mut text = String::new();
    for group in groups(&values, ALIKE) {
        let numbers = group
            .members
            .iter()
            .filter_map(|place| job.members.get(*place));
        let mut numbers: Vec<u64> = numbers.map(|(_, member)| member.of.rank).collect();
        numbers.sort_unstable();
        // Two jobs of which the name is not known have the same numbers.
        numbers.dedup();
        text.push_str(&format!(
            "ranks {}: peak {} ({} to {})\n",
            listed(&ranges(&numbers)),
            bytes(group.median as u64),
            bytes(group.low as u64),
            bytes(group.high as u64)
        ));
    }
    if !unknown.is_empty() {
        unknown.sort_unstable();
        unknown.dedup();
        let numbers = listed(&ranges(&unknown));
        text.push_str(&format!("ranks {numbers}: peak {}\n", units::unknown()));
    }
    text
}

fn ranges(sorted: &[u64]) -> Vec<String> {
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    let range = |run: &[u64]| Some(range(*run.first()?, *run.last()?));
    runs.filter_map(range).collect()
}

fn range(from: u64, to: u64) -> String {
    match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    }
}

fn listed(ranges: &[String]) -> String {
    let shown = ranges
        .iter()
        .take(RANGES)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match ranges.len().saturating_sub(RANGES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), ["0-2", "5", "7-8"]);
        let every_other: Vec<u64> = (0..20).step_by(2).collect();
        assert_eq!(
            listed(&ranges(&every_other)),
            "0, 2, 4, 6, 8, 10 and 4 more"
        );
    }

    #[test]
    fn confidence_is_never_one_and_has_words() {
        let finding = |confidence| Finding {
            rank: 3,
            place: 3,
            metric: Metric::Peak,
            value: 3.0 * 1_073_741_824.0,
            peers_median: 1_073_741_824.0,
            peers_low: 0.0,
            peers_high: 0.0,
            peers: Vec::new(),
            peer_places: Vec::new(),
            confidence: Some(confidence),
        };
        let said = |confidence| found(&finding(confidence), true);
        assert_eq!(
            said(1.0),
            "its peak is 2.00 GiB above the others' 1.00 GiB, surely (0.999)"
        );
        assert!(said(0.99).ends_with(", surely (0.990)"));
        assert!(said(0.866).ends_with(", probably (0.866)"));
        assert!(said(0.425).ends_with(", perhaps (0.425)"));
    }
}
