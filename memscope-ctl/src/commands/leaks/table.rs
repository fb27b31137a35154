//! Formats what grows as text: the headline, the lines, the reasons, and what was given back.

use crate::fleet::{Replies, Told};
use crate::render::steps;
use crate::render::table::{Column, table};
use crate::render::{OF_NODE, coverage, coverage_of_many, device_or_host, heading, of_node};
use crate::units::{self, bytes, grouped, nanoseconds, plain, rate};
use memscope_proto::v1;
use std::time::Duration;

/// The answer as text: the program's lines; with `all`, each group of blocks as well.
pub(super) fn text(answer: &v1::LeaksResponse, all: bool) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(steps) = &answer.steps
        && steps.count.is_some()
    {
        text.push_str(&steps::summary(steps));
    }
    text.push_str(&headline(answer));
    let ended = ended_ns(answer).is_some();
    if let Some(left) = answer.seconds_to_full
        && let Ok(left) = Duration::try_from_secs_f64(left)
    {
        let left = units::duration(left);
        text.push_str(&format!("At this pace the device is full in {left}.\n"));
    } else if grows_on_a_device(answer) && !ended && !is_quiet(answer) {
        text.push_str(
            "When the device will be full is not known: a call such as cudaMemGetInfo, or NVML, would tell.\n",
        );
    }
    if !answer.lines.is_empty() {
        text.push('\n');
        text.push_str(&lines(&answer.lines, ended));
    }
    if answer.lines.iter().any(|line| line.confidence.is_some()) {
        text.push_str(SURE_MEANS);
    }
    if answer.omitted_lines > 0 {
        let omitted = grouped(answer.omitted_lines);
        text.push_str(&format!(" and {omitted} smaller ones left out\n"));
    }
    if all && !answer.groups.is_empty() {
        text.push_str("\nEach group of blocks of one device, stream, size and stack\n");
        text.push_str(&groups(&answer.groups, ended));
        if answer.omitted_groups > 0 {
            let omitted = grouped(answer.omitted_groups);
            text.push_str(&format!(" and {omitted} smaller groups left out\n"));
        }
    }
    text.push_str(&given_back(answer));
    if all {
        text.push_str(&why_groups(&answer.groups, ended));
    } else {
        text.push_str(&why_lines(answer));
    }
    text.push_str(&held_by(answer));
    text.push_str(&coverage(&answer.coverage));
    text
}

/// Whether no step has ended for long, so that nobody can tell when one will fill the device.
fn is_quiet(answer: &v1::LeaksResponse) -> bool {
    let steps = answer.steps.as_ref();
    steps.is_some_and(|steps| steps.quiet_ns.is_some())
}

/// Whether a line grows that takes memory of a device: page-locked memory of the host fills none.
fn grows_on_a_device(answer: &v1::LeaksResponse) -> bool {
    growing_lines(answer).any(|line| line.source() != v1::Source::Host)
}

fn growing_lines(answer: &v1::LeaksResponse) -> impl Iterator<Item = &v1::LeakLine> {
    let lines = answer.lines.iter();
    lines.filter(|line| line.verdict() == v1::Verdict::Growing)
}

/// Largest number of holders that are shown.
const HOLDERS: usize = 3;

/// What keeps the blocks that grow: `list __main__.history (201 elements), train.py`.
fn held_by(answer: &v1::LeaksResponse) -> String {
    let Some(looked_at) = answer.looked_at.filter(|all| all.count > 0) else {
        return String::new();
    };
    let growing = answer.groups.iter().filter(|group| {
        group.verdict() == v1::Verdict::Growing && group.source() == v1::Source::Pool
    });
    let all: u64 = growing.map(|group| group.live_count).sum();
    // A few are always missing: those that came or went while the objects were read.
    let of_all = if looked_at.count < all / 2 {
        format!(" of {}", grouped(all))
    } else {
        String::new()
    };
    let mut text = format!(
        "\nHeld by ({}{of_all} blocks that grow were looked at)\n",
        grouped(looked_at.count)
    );
    let shown = || answer.holders.iter().take(HOLDERS);
    for holder in shown() {
        let blocks = holder.blocks.unwrap_or_default();
        let name = who(holder);
        text.push_str(&format!(
            "  {name}: {} in {} blocks\n",
            bytes(blocks.bytes),
            grouped(blocks.count)
        ));
        // Several ways may lead from one list to what it holds.
        if shown().filter(|other| who(other) == name).count() > 1 {
            text.push_str(&format!("    {}\n", plain(&holder.path)));
        }
    }
    let more = answer.holders.len().saturating_sub(HOLDERS);
    if more > 0 {
        text.push_str(&format!(
            "  and {more} more: memscope-ctl holders --pid {}\n",
            answer.pid
        ));
    }
    let unheld = answer.unheld.unwrap_or_default();
    if unheld.count > 0 {
        text.push_str(&format!(
            "  nothing that was found (C++ code, or they were in use): {} in {} blocks\n",
            bytes(unheld.bytes),
            grouped(unheld.count)
        ));
    }
    text
}

pub(in crate::commands) fn who(holder: &v1::Holder) -> String {
    let mut who = match (&holder.container, &holder.kind, holder.length) {
        (Some(container), Some(kind), Some(length)) => format!(
            "{} {} ({} elements)",
            plain(kind),
            plain(container),
            grouped(length)
        ),
        _ => plain(&holder.path),
    };
    match holder.via() {
        v1::HolderVia::Graph => who.push_str(", by autograd graphs that it leads to"),
        v1::HolderVia::Gradient => who.push_str(", as gradients"),
        v1::HolderVia::Tensor | v1::HolderVia::Unspecified => {}
    }
    match holder.origin() {
        v1::HolderOrigin::Garbage => {
            who.push_str(", which waits for the garbage collector: gc.collect() frees it");
        }
        v1::HolderOrigin::Outside => who.push_str(", which no name of the program leads to"),
        v1::HolderOrigin::Named | v1::HolderOrigin::Unspecified => {}
    }
    let first = holder.way.first();
    if let Some(file) = first.map(|step| &step.file).filter(|file| !file.is_empty()) {
        let name = file.rsplit('/').next().unwrap_or(file);
        who.push_str(&format!(", {}", plain(name)));
    }
    who
}

/// Largest number of callers that are shown for a line.
const CALLERS: usize = 4;

/// The reason why each line grows. It is that of the line's group that grows most.
fn why_lines(answer: &v1::LeaksResponse) -> String {
    let mut text = String::new();
    for line in answer.lines.iter().filter(|line| !line.reason.is_empty()) {
        let at = match &line.line {
            Some(at) => steps::line(at),
            None => sizes(line),
        };
        let mut parts = Vec::new();
        if let (Some(low), Some(high)) = (
            line.growth_bytes_per_step_low,
            line.growth_bytes_per_step_high,
        ) {
            parts.push(between(low, high));
        }
        if let Some(first) = line.first_step {
            parts.push(format!("since step {}", grouped(first)));
        }
        let of = match line.growing_groups {
            0 | 1 => String::new(),
            count => format!("of {} groups that grow, the largest: ", grouped(count)),
        };
        parts.push(format!("{of}{}", plain(&line.reason)));
        text.push_str(&format!("  {at}\n    {}\n", parts.join("; ")));
        if !line.callers.is_empty() {
            let shown = line.callers.iter().take(CALLERS).map(place);
            let more = match line.callers.len().saturating_sub(CALLERS) {
                0 => String::new(),
                more => format!(", {more} more"),
            };
            let callers: Vec<String> = shown.collect();
            text.push_str(&format!("    called by {}{more}\n", callers.join(", ")));
        }
    }
    if text.is_empty() {
        return text;
    }
    let hint = match answer.groups.len() as u64 > answer.lines.len() as u64 {
        true => "  (--all-groups shows each group of blocks)\n",
        false => "",
    };
    format!("\nWhy\n{text}{hint}")
}

/// Why each group is judged as it is.
fn why_groups(groups: &[v1::LeakGroup], ended: bool) -> String {
    let mut text = String::new();
    for group in groups.iter().filter(|group| !group.reason.is_empty()) {
        let (size, reason) = (bytes(group.size_bytes), plain(&group.reason));
        text.push_str(&format!(
            "  {size}, {}: {reason}{}\n",
            word(group.verdict(), ended),
            beside(group)
        ));
        if let Some(line) = &group.line {
            text.push_str(&format!("    {}\n", steps::line(line)));
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("\nWhy\n{text}")
}

/// An interval of growth per step, from its lower to its upper end.
pub(in crate::commands) fn between(low: f64, high: f64) -> String {
    format!(
        "{} to {} a step",
        units::signed_bytes(low.round() as i64),
        units::signed_bytes(high.round() as i64)
    )
}

/// Size of a line's blocks, such as `2.00 MiB`, or the range from the smallest to the largest.
fn sizes(line: &v1::LeakLine) -> String {
    if line.smallest_bytes == line.largest_bytes {
        return bytes(line.largest_bytes);
    }
    let (smallest, largest) = (bytes(line.smallest_bytes), bytes(line.largest_bytes));
    format!("{smallest} to {largest}")
}

/// `train.py:18 (train_step)`: the file without its folders, which stand beneath the table.
pub(in crate::commands) fn short(line: &v1::LeakLine) -> String {
    match &line.line {
        Some(at) => place(at),
        None => format!("blocks of {}, line not known", sizes(line)),
    }
}

pub(in crate::commands) fn place(at: &v1::CodeLine) -> String {
    let file = at.file.rsplit('/').next().unwrap_or(&at.file);
    format!("{}:{} ({})", plain(file), at.line, plain(&at.name))
}

/// `+2.48 MiB a step`, or a second where steps are not known.
pub(in crate::commands) fn pace(line: &v1::LeakLine) -> String {
    match line.growth_bytes_per_step {
        Some(step) => format!("{} a step", units::signed_bytes(step.round() as i64)),
        None => rate(line.growth_bytes_per_s),
    }
}

/// Describes the line that grows most.
fn foremost(line: &v1::LeakLine) -> String {
    let mut text = format!("{}: {}", short(line), pace(line));
    // Some of its stacks may have only groups that do not grow.
    let together = line.stacks.min(line.growing_groups);
    if together > 1 {
        text.push_str(&format!(
            "; {} call stacks grow together",
            grouped(together)
        ));
    }
    if line.source() == v1::Source::Host {
        text.push_str("; page-locked host memory");
    }
    if line.looks_like_kept_graph {
        text.push_str("; looks like a kept autograd graph");
    }
    text
}

/// The lines of all processes of all nodes as one table, by growth.
pub(super) fn of_fleet(replies: &Replies<Told<v1::LeaksResponse>>, limit: usize) -> String {
    let mut all = Vec::new();
    let (mut growing, mut processes, mut young, mut omitted) = (0, 0, 0, 0);
    let (mut unread, mut grew) = (0, 0);
    for (node, told) in replies.answers() {
        for (process, answer) in told.answers() {
            processes += 1;
            omitted += answer.omitted_lines;
            match answer.process_verdict() {
                v1::ProcessVerdict::Growing if ended_ns(answer).is_some() => grew += 1,
                v1::ProcessVerdict::Growing => growing += 1,
                v1::ProcessVerdict::NothingRead => unread += 1,
                v1::ProcessVerdict::TooEarly => young += 1,
                _ => {}
            }
            let each = answer.lines.iter();
            let ended = ended_ns(answer).is_some();
            all.extend(each.map(|line| (of_node(&node.name, process), line, ended)));
        }
    }
    let grows = |line: &v1::LeakLine| line.verdict() == v1::Verdict::Growing;
    all.sort_by(|(_, a, _), (_, b, _)| {
        (grows(b).cmp(&grows(a)))
            .then(b.growth_bytes.cmp(&a.growth_bytes))
            .then(b.live_bytes.cmp(&a.live_bytes))
    });
    if processes == 0 {
        return "No process was judged.\n".to_owned();
    }
    let mut text = format!(
        "{} of {} processes grow{}{}{}.\n",
        grouped(growing),
        grouped(processes),
        match grew {
            0 => String::new(),
            1 => "; 1 that is no longer traced grew".to_owned(),
            grew => format!("; {} that are no longer traced grew", grouped(grew)),
        },
        match young {
            0 => String::new(),
            young => format!("; of {} it is too early to tell", grouped(young)),
        },
        match unread {
            0 => String::new(),
            unread => format!("; of {} nothing has been read yet", grouped(unread)),
        }
    );
    if limit > 0 {
        omitted += all.len().saturating_sub(limit) as u64;
        all.truncate(limit);
    }
    let limits = || {
        let answers = replies.answers().flat_map(|(_, told)| told.answers());
        coverage_of_many(answers.map(|(_, answer)| answer.coverage.as_slice()))
    };
    if all.is_empty() {
        return text + &limits();
    }
    let by_step = all
        .iter()
        .any(|(_, line, _)| line.growth_bytes_per_step.is_some());
    let mut columns = Vec::from(OF_NODE);
    columns.extend(head(by_step));
    let rows = all.into_iter().map(|(whose, line, ended)| {
        let mut row = Vec::from(whose);
        row.extend(cells(line, by_step, ended));
        row
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect()));
    if omitted > 0 {
        let omitted = grouped(omitted);
        text.push_str(&format!(" and {omitted} smaller ones left out\n"));
    }
    text.push_str(&limits());
    text
}

fn lines(lines: &[v1::LeakLine], ended: bool) -> String {
    let by_step = lines
        .iter()
        .any(|line| line.growth_bytes_per_step.is_some());
    let rows = lines.iter().map(|line| cells(line, by_step, ended));
    table(&head(by_step), rows.collect())
}

fn head(by_step: bool) -> [Column; 8] {
    [
        Column::Left("VERDICT"),
        Column::Right("SURE"),
        Column::Right("DEVICE"),
        Column::Right("HELD"),
        Column::Right("GREW BY"),
        Column::Right(if by_step { "PER STEP" } else { "RATE" }),
        Column::Right("BLOCKS"),
        Column::Left("LINE"),
    ]
}

/// What is said of a line or a group; `ended` is whether its process has ended.
fn word(verdict: v1::Verdict, ended: bool) -> String {
    match verdict {
        v1::Verdict::Growing if ended => "grew".to_owned(),
        verdict => verdict.to_string(),
    }
}

/// A line as cells of a table; `ended` is whether its process has ended.
fn cells(line: &v1::LeakLine, by_step: bool, ended: bool) -> Vec<String> {
    let pace = match line.growth_bytes_per_step {
        Some(step) => units::signed_bytes(step.round() as i64),
        None if by_step => units::unknown(),
        None => rate(line.growth_bytes_per_s),
    };
    vec![
        word(line.verdict(), ended),
        line.confidence
            .map_or_else(units::unknown, |sure| format!("{:.0} %", sure * 100.0)),
        device_or_host(line.device, line.source()),
        bytes(line.live_bytes),
        bytes(line.growth_bytes),
        pace,
        grouped(line.live_count),
        short(line),
    ]
}

/// What is known from steps, as an addition to a group's reason.
fn beside(group: &v1::LeakGroup) -> String {
    let mut parts = Vec::new();
    if let (Some(low), Some(high)) = (
        group.growth_bytes_per_step_low,
        group.growth_bytes_per_step_high,
    ) {
        parts.push(between(low, high));
    }
    if let Some(first) = group.first_step {
        parts.push(format!("since step {}", grouped(first)));
    }
    if group.freed_count > 0 {
        parts.push(format!(
            "{} others went, the longest after {} steps",
            grouped(group.freed_count),
            grouped(group.freed_longest_steps)
        ));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("; {}", parts.join(", "))
}

/// Sums up all groups in a sentence or two.
pub(crate) fn headline(answer: &v1::LeaksResponse) -> String {
    let watched = nanoseconds(answer.watched_ns);
    let has_ended = ended_ns(answer).is_some();
    let mut text = match (answer.growing_groups, &answer.young) {
        (0, _) if answer.is_unread() => {
            return "Cannot tell: nothing has been read of this process yet.\n".to_owned();
        }
        (0, None) => match undecided(answer) {
            0 if has_ended => format!("Nothing grew, watched for {watched}.\n"),
            0 => format!("Nothing grows, watched for {watched}.\n"),
            count => {
                let least = if answer.omitted_lines > 0 {
                    "at least "
                } else {
                    ""
                };
                let lines = if count == 1 { "line" } else { "lines" };
                let grow = if has_ended { "have grown" } else { "grow" };
                format!(
                    "Nothing is known to {grow}, watched for {watched}; of {least}{} {lines} it cannot be told.\n",
                    grouped(count)
                )
            }
        },
        (0, Some(young)) => return format!("Too early to tell: {}.\n", rising(young, &watched)),
        (_, _) => growing(answer, &watched),
    };
    if let Some(young) = &answer.young {
        text.push_str(&format!(
            "Too early to tell of others: {}.\n",
            rising(young, &watched)
        ));
    }
    if let Some((ended, until)) = ended_ns(answer).zip(answer.until_boot_ns) {
        text.push_str(&format!(
            "As it was {} before the end: what a program frees as it ends does not count as given back.\n",
            nanoseconds(ended.saturating_sub(until))
        ));
    }
    text
}

/// When the process ended, or stopped being traced.
fn ended_ns(answer: &v1::LeaksResponse) -> Option<u64> {
    answer.process.as_ref()?.ended_boot_ns
}

/// The lines of which nobody can tell whether they grow.
fn undecided(answer: &v1::LeaksResponse) -> u64 {
    let lines = answer.lines.iter();
    let undecided = lines.filter(|line| line.verdict() == v1::Verdict::Undecided);
    undecided.count() as u64
}

/// Says how many lines grow, by how much, and which grows most.
fn growing(answer: &v1::LeaksResponse, watched: &str) -> String {
    let sum = bytes(answer.growing_bytes);
    let has_ended = ended_ns(answer).is_some();
    let count = match answer.growing_lines {
        1 if has_ended => "1 line of the program grew".to_owned(),
        1 => "1 line of the program grows".to_owned(),
        count => format!(
            "{} lines of the program {}",
            grouped(count),
            if has_ended { "grew" } else { "grow" }
        ),
    };
    let most = match (answer.lines.first(), answer.growing_lines) {
        (None, _) => String::new(),
        (Some(line), 1) => format!("{}.\n", foremost(line)),
        (Some(line), _) => format!("Most of it: {}.\n", foremost(line)),
    };
    let on_host = growing_lines(answer).filter(|line| line.source() == v1::Source::Host);
    let on_host: u64 = on_host.map(|line| line.growth_bytes).sum();
    let on_host = match on_host {
        0 => String::new(),
        _ if !grows_on_a_device(answer) && answer.omitted_lines == 0 => {
            ", all of it page-locked host memory".to_owned()
        }
        known => {
            let at_least = if answer.omitted_lines > 0 {
                "at least "
            } else {
                ""
            };
            format!(", {at_least}{} of it page-locked host memory", bytes(known))
        }
    };
    let together = answer.together.as_ref().map(together).unwrap_or_default();
    let sure = answer.lines.iter().filter_map(|line| line.confidence);
    let early = match sure.fold(f64::NAN, f64::max) < SURE {
        true if has_ended => "A cache that was not full yet would have looked the same.\n",
        true => "A cache that still fills looks the same until it is full: ask again later.\n",
        false => "",
    };
    format!("{count}: {sum} in {watched}{on_host}.\n{most}{together}{early}")
}

/// Line beneath the table that explains its column SURE.
const SURE_MEANS: &str =
    " SURE: the share of such growths that go on; the others are caches that still fill.\n";

/// Confidence from which on users are no longer warned that a cache may still be filling.
const SURE: f64 = 0.95;

/// Names the common caller of the lines that grow together.
fn together(together: &v1::LeakTogether) -> String {
    let Some(line) = &together.line else {
        return String::new();
    };
    let pace = match together.growth_bytes_per_step {
        Some(step) => format!("{} a step", units::signed_bytes(step.round() as i64)),
        None => rate(together.growth_bytes_per_s),
    };
    let graph = match together.looks_like_kept_graph {
        true => "; looks like a kept autograd graph",
        false => "",
    };
    format!(
        "{} of these lines grow together, called by {}: {pace} in all{graph}.\n",
        grouped(together.lines),
        place(line)
    )
}

/// `20 groups rose in every step, 89 of 100 steps seen`.
fn rising(young: &v1::YoungGrowth, watched: &str) -> String {
    let groups = match young.groups {
        1 => "1 group".to_owned(),
        count => format!("{} groups", grouped(count)),
    };
    match (young.steps, young.needed_steps) {
        (Some(steps), Some(needed)) => {
            let rose = if young.in_every_step {
                "rose in every step"
            } else {
                "rose"
            };
            let (steps, needed) = (grouped(steps), grouped(needed));
            format!("{groups} {rose}, {steps} of {needed} steps seen")
        }
        _ => format!("{groups} rose, watched for {watched}"),
    }
}

/// Lists growth that ended because its memory was given back.
fn given_back(answer: &v1::LeaksResponse) -> String {
    if answer.given_back.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nGiven back\n");
    for back in &answer.given_back {
        let of = back.size_bytes.map_or_else(
            || " of one stack".to_owned(),
            |size| format!(" in blocks of {}", bytes(size)),
        );
        let ago = nanoseconds(answer.as_of_boot_ns.saturating_sub(back.last_boot_ns));
        let grew = back
            .first_step
            .map(|step| format!(", had grown since step {}", grouped(step)))
            .unwrap_or_default();
        let step = back
            .step
            .map(|step| format!(" in step {}", grouped(step)))
            .unwrap_or_default();
        let reserved = match back.reserved_unused_bytes {
            Some(0) => "; the pool has returned it".to_owned(),
            Some(unused) => format!(
                "; the pool still reserves {} that nothing uses",
                bytes(unused)
            ),
            None => String::new(),
        };
        text.push_str(&format!(
            "  {}{of}{grew}: the last went {ago} ago{step}{reserved}\n",
            bytes(back.bytes)
        ));
        if let Some(line) = &back.line {
            text.push_str(&format!("    {}\n", steps::line(line)));
        }
    }
    text
}

/// An age; of blocks that a process freed as it ended it is not known.
pub(in crate::commands) fn age(age_ns: u64) -> String {
    match age_ns {
        0 => units::unknown(),
        age_ns => nanoseconds(age_ns),
    }
}

fn groups(groups: &[v1::LeakGroup], ended: bool) -> String {
    let by_step = groups
        .iter()
        .any(|group| group.growth_bytes_per_step.is_some());
    // Most programs use the default stream alone.
    let has_streams = groups.iter().any(|group| group.stream.unwrap_or(0) != 0);
    let mut head = vec![
        Column::Left("VERDICT"),
        Column::Right("SURE"),
        Column::Right("DEVICE"),
        Column::Right("SIZE"),
        Column::Right("LIVE"),
        Column::Right("HELD"),
        Column::Right("GREW BY"),
        Column::Right(if by_step { "PER STEP" } else { "RATE" }),
        Column::Right("OLDEST"),
    ];
    head.extend(has_streams.then_some(Column::Right("STREAM")));
    head.push(Column::Left("FROM"));
    let rows = groups.iter().map(|group| {
        let pace = match group.growth_bytes_per_step {
            Some(step) => units::signed_bytes(step.round() as i64),
            None if by_step => units::unknown(),
            None => rate(group.growth_bytes_per_s),
        };
        let mut row = vec![
            word(group.verdict(), ended),
            group
                .confidence
                .map_or_else(units::unknown, |sure| format!("{:.0} %", sure * 100.0)),
            device_or_host(group.device, group.source()),
            bytes(group.size_bytes),
            grouped(group.live_count),
            bytes(group.live_bytes),
            bytes(group.growth_bytes),
            pace,
            age(group.oldest_age_ns),
        ];
        let stream = || {
            let stream = group.stream;
            stream.map_or_else(units::unknown, |stream| format!("{stream:#x}"))
        };
        row.extend(has_streams.then(stream));
        row.push(group.source().to_string());
        row
    });
    table(&head, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_which_nothing_was_read_is_not_told_as_one_that_does_not_grow() {
        let note = |code: &str| v1::CoverageNote {
            code: code.to_owned(),
            ..v1::CoverageNote::default()
        };
        let of = |codes: &[&str], young: bool| {
            let answer = v1::LeaksResponse {
                coverage: codes.iter().map(|code| note(code)).collect(),
                young: young.then(v1::YoungGrowth::default),
                ..v1::LeaksResponse::default()
            };
            (v1::Process::default(), Ok(answer))
        };
        let text = |processes| {
            let told = Told {
                processes,
                not_asked: 0,
            };
            of_fleet(&Replies::answered(vec![told]), 0)
        };
        let unread = || of(&["level_read", "totals_unknown"], false);
        assert_eq!(
            text(vec![unread()]),
            "0 of 1 processes grow; of 1 nothing has been read yet.\n"
        );
        assert_eq!(
            text(vec![unread(), of(&[], true), of(&["level_read"], false)]),
            "0 of 3 processes grow; of 1 it is too early to tell; of 1 nothing has been read yet.\n"
        );
    }

    #[test]
    fn what_has_ended_grew_and_grows_no_more() {
        let of = |ended_boot_ns| {
            let process = v1::Process {
                ended_boot_ns,
                ..v1::Process::default()
            };
            let answer = v1::LeaksResponse {
                process: Some(process.clone()),
                ..answer(vec![grows(v1::Source::Pool, 1)])
            };
            (process, Ok(answer))
        };
        let text = |processes| {
            let told = Told {
                processes,
                not_asked: 0,
            };
            of_fleet(&Replies::answered(vec![told]), 0)
        };
        let one = text(vec![of(None), of(Some(7))]);
        assert!(
            one.starts_with("1 of 2 processes grow; 1 that is no longer traced grew.\n"),
            "{one}"
        );
        assert_eq!(one.matches(" growing ").count(), 1, "{one}");
        assert_eq!(one.matches(" grew ").count(), 1, "{one}");
        let two = text(vec![of(Some(7)), of(Some(8))]);
        assert!(
            two.starts_with("0 of 2 processes grow; 2 that are no longer traced grew.\n"),
            "{two}"
        );
    }

    /// A line that grows, of this kind of memory.
    fn grows(source: v1::Source, growth_bytes: u64) -> v1::LeakLine {
        v1::LeakLine {
            device: (source != v1::Source::Host).then_some(0),
            source: source.into(),
            verdict: v1::Verdict::Growing.into(),
            growing_groups: 1,
            stacks: 1,
            smallest_bytes: 1 << 20,
            largest_bytes: 1 << 20,
            growth_bytes,
            ..v1::LeakLine::default()
        }
    }

    fn answer(lines: Vec<v1::LeakLine>) -> v1::LeaksResponse {
        let all = lines.len() as u64;
        v1::LeaksResponse {
            growing_bytes: lines.iter().map(|line| line.growth_bytes).sum(),
            growing_lines: all,
            growing_groups: all,
            lines,
            ..v1::LeaksResponse::default()
        }
    }

    #[test]
    fn growth_of_host_memory_is_told_as_such() {
        let pool = || grows(v1::Source::Pool, 1 << 20);
        let host = || grows(v1::Source::Host, 3 << 20);
        let full = "When the device will be full is not known";
        let told = text(&answer(vec![pool()]), false);
        assert!(told.contains(full) && !told.contains("host"), "{told}");
        let told = text(&answer(vec![host()]), false);
        assert!(!told.contains(full), "{told}");
        assert!(
            told.contains("3.00 MiB in 0 µs, all of it page-locked host memory.\n"),
            "{told}"
        );
        let told = text(&answer(vec![host(), pool()]), false);
        assert!(told.contains(full), "{told}");
        assert!(
            told.contains("4.00 MiB in 0 µs, 3.00 MiB of it page-locked host memory.\n"),
            "{told}"
        );
        let most = told.lines().find(|line| line.starts_with("Most of it"));
        assert!(
            most.is_some_and(|most| most.ends_with("; page-locked host memory.")),
            "{told}"
        );
        let of = |source: v1::Source| {
            let line = grows(source, 1);
            cells(&line, false, false).swap_remove(2)
        };
        assert_eq!([of(v1::Source::Host), of(v1::Source::Pool)], ["host", "0"]);
    }

    /// A kept loss is one line, however many stacks of the library it came by.
    #[test]
    fn the_headline_names_the_line_its_stacks_and_its_kind() {
        let kept = v1::LeakLine {
            line: Some(v1::CodeLine {
                name: "train_step".into(),
                file: "/jobs/train.py".into(),
                line: 18,
            }),
            stacks: 20,
            growing_groups: 20,
            growth_bytes_per_step: Some(2.48 * f64::from(1 << 20)),
            looks_like_kept_graph: true,
            ..grows(v1::Source::Pool, 1 << 30)
        };
        let told = headline(&answer(vec![kept.clone()]));
        let of_line = "train.py:18 (train_step): +2.48 MiB a step; 20 call stacks grow together; looks like a kept autograd graph.\n";
        assert!(told.contains(&format!("\n{of_line}")), "{told}");
        let other = grows(v1::Source::Pool, 1);
        let told = headline(&answer(vec![kept, other.clone()]));
        assert!(told.contains(&format!("\nMost of it: {of_line}")), "{told}");
        let told = headline(&answer(vec![other]));
        assert!(
            !told.contains("graph") && !told.contains("together"),
            "{told}"
        );
    }

    #[test]
    fn what_cannot_be_told_of_a_line_is_not_told_of_all() {
        let line = |verdict: v1::Verdict| v1::LeakLine {
            verdict: verdict.into(),
            ..v1::LeakLine::default()
        };
        let told = |lines| {
            headline(&v1::LeaksResponse {
                lines,
                ..v1::LeaksResponse::default()
            })
        };
        let (steady, undecided) = (line(v1::Verdict::Steady), line(v1::Verdict::Undecided));
        let nothing = "Nothing grows, watched for 0 µs.\n";
        assert_eq!(told(vec![]), nothing);
        assert_eq!(told(vec![steady.clone()]), nothing);
        assert_eq!(
            told(vec![undecided.clone(), steady]),
            "Nothing is known to grow, watched for 0 µs; of 1 line it cannot be told.\n"
        );
        assert_eq!(
            told(vec![undecided; 2]),
            "Nothing is known to grow, watched for 0 µs; of 2 lines it cannot be told.\n"
        );
    }

    /// What a program frees as it ends does not clear it, and the answer says of which moment it is.
    #[test]
    fn a_process_that_has_ended() {
        let told = |until_boot_ns, growing_groups| {
            headline(&v1::LeaksResponse {
                growing_groups,
                growing_lines: growing_groups,
                until_boot_ns,
                process: Some(v1::Process {
                    ended_boot_ns: Some(9_000_000_000),
                    ..v1::Process::default()
                }),
                ..v1::LeaksResponse::default()
            })
        };
        let moment = "As it was 3 s before the end: what a program frees as it ends does not count as given back.\n";
        assert_eq!(
            told(Some(6_000_000_000), 0),
            format!("Nothing grew, watched for 0 µs.\n{moment}")
        );
        let grew = told(Some(6_000_000_000), 1);
        assert!(
            grew.starts_with("1 line of the program grew: ") && grew.ends_with(moment),
            "{grew}"
        );
        assert!(!told(None, 1).contains("As it was"));
    }

    /// Rows that read alike are told apart by the ways that lead to what they hold.
    #[test]
    fn holders_of_one_name_have_their_paths() {
        let holder = |path: &str, container: &str| v1::Holder {
            path: path.into(),
            kind: Some("list".into()),
            container: Some(container.into()),
            length: Some(3),
            ..v1::Holder::default()
        };
        let told = held_by(&v1::LeaksResponse {
            holders: vec![
                holder("log.errors[*].a", "log.errors"),
                holder("log.errors[*].b", "log.errors"),
                holder("cache[*]", "cache"),
            ],
            looked_at: Some(v1::Amount { count: 9, bytes: 9 }),
            ..v1::LeaksResponse::default()
        });
        assert!(told.contains("\n    log.errors[*].a\n"), "{told}");
        assert!(told.contains("\n    log.errors[*].b\n"), "{told}");
        assert!(!told.contains("cache[*]"), "{told}");
    }

    #[test]
    fn few_blocks_that_were_looked_at_are_told_of_all() {
        let told = |count| {
            let group = |source: v1::Source, live_count| v1::LeakGroup {
                source: source.into(),
                verdict: v1::Verdict::Growing.into(),
                live_count,
                ..v1::LeakGroup::default()
            };
            held_by(&v1::LeaksResponse {
                looked_at: Some(v1::Amount {
                    count,
                    ..v1::Amount::default()
                }),
                groups: vec![group(v1::Source::Pool, 265), group(v1::Source::Host, 100)],
                ..v1::LeaksResponse::default()
            })
        };
        assert_eq!(
            told(5),
            "\nHeld by (5 of 265 blocks that grow were looked at)\n"
        );
        assert_eq!(
            told(263),
            "\nHeld by (263 blocks that grow were looked at)\n"
        );
    }

    #[test]
    fn lines_that_the_daemons_left_out_are_counted_as_well() {
        let answer = |omitted_lines| v1::LeaksResponse {
            lines: vec![v1::LeakLine::default(); 2],
            omitted_lines,
            ..v1::LeaksResponse::default()
        };
        let told = |omitted: u64| Told {
            processes: vec![(v1::Process::default(), Ok(answer(omitted)))],
            not_asked: 0,
        };
        let text = |limit| of_fleet(&Replies::answered(vec![told(30), told(100)]), limit);
        assert!(text(3).ends_with(" and 131 smaller ones left out\n"));
        assert!(text(0).ends_with(" and 130 smaller ones left out\n"));
    }
}
