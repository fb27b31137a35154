//! The answer to `steps`: how many there were, how that is known, and the levels of memory in each.
//!
//! Owns: the sentences about steps, msMemScope's gap table and its list of blocks that outlive their step. Refuses: to
//! keep anything; see `crate::steps`.

use super::affects::Answer;
use super::question::{OfOne, One, answer};
use crate::growth::slope;
use crate::report::{Frame, FrameKind, Source, StepSource};
use crate::state::process::Process;
use crate::state::stacks::Stacks;
use crate::steps::{Row, Steps};
use memscope_proto::v1;
use memscope_proto::v1::{StepDevice, StepGap, StepRow};
use std::collections::BTreeMap;

/// Most rows in one answer, whose message must stay below gRPC's limit of 4 MiB.
const MOST_ROWS: usize = 10_000;
/// Most blocks that outlived their step in one answer.
const MOST_SURVIVORS: usize = 20_000;

impl OfOne for v1::StepsRequest {
    type Reply = v1::StepsResponse;
    const KIND: Option<Answer> = Some(Answer::Steps);

    fn pid(&self) -> u32 {
        self.pid
    }

    fn answer(&self, one: &One<'_>) -> v1::StepsResponse {
        let process = one.process;
        let steps = &process.steps;
        let (whole, forgotten_to_ns) = whole_steps(process);
        let rows: Vec<(Row, u64)> = whole.into_iter().map(|row| (row, 1)).collect();
        let mut shown = shown(process, &rows);
        let devices = by_device(&shown);
        if self.every > 1 {
            shown = self::shown(process, &in_groups(rows, u64::from(self.every)));
        }
        let most = match self.limit as usize {
            0 => MOST_ROWS,
            limit => limit.min(MOST_ROWS),
        };
        let ends: Vec<u64> = shown.iter().map(|row| row.to_boot_ns).collect();
        let rows = last(shown, most);
        let cut = ends.len() - rows.len();
        let cut = cut.checked_sub(1).and_then(|last| ends.get(last)).copied();
        let passes = steps.passes();
        let survivors = &steps.survivors;
        let found = survivors.found.iter();
        let wanted = (self.survivors as usize).min(MOST_SURVIVORS);
        answer!(StepsResponse of one, {
            summary: Some(summary(process)),
            lines: lines(steps, &process.stacks),
            devices,
            rows,
            forgotten_to_boot_ns: cut.or(forgotten_to_ns),
            launches: steps.launches,
            survivor_count: survivors.found.len() as u64 + survivors.more.0,
            survivor_bytes: found
                .clone()
                .fold(survivors.more.1, |sum, one| sum.saturating_add(one.size)),
            survivors: found
                .take(wanted)
                .map(|one| v1::StepSurvivor {
                    device: one.device,
                    address: one.addr,
                    size_bytes: one.size,
                    step: one.step.div_ceil(passes),
                    launches_before: steps.launches.map(|_| one.launches_before),
                })
                .collect(),
            unchecked_blocks: survivors.unchecked,
        })
    }

    fn unknown(reply: &v1::StepsResponse) -> Option<&str> {
        let summary = reply.summary.as_ref()?;
        summary.count.is_none().then_some(&summary.evidence)
    }
}

/// For each step that is kept its number and the boot time of its end in nanoseconds, oldest first.
pub(crate) fn ends(process: &Process) -> Vec<(u64, u64)> {
    let (rows, _) = whole_steps(process);
    rows.into_iter().map(|row| (row.step, row.to_ns)).collect()
}

/// When each step that is kept ended, oldest first: boot times in nanoseconds.
pub(super) fn ended(steps: &Steps) -> Vec<u64> {
    let rows = steps.rows.iter().zip(steps.ends());
    rows.filter(|(_, ends)| *ends)
        .map(|(row, _)| row.to_ns)
        .collect()
}

/// The lines of the program whose marks end steps.
fn lines(steps: &Steps, stacks: &Stacks) -> Vec<v1::StepLine> {
    let counts = by_line(steps, &steps.lines(stacks)).into_iter();
    let told = counts.filter_map(|(place, count)| {
        let key = steps.keys.get(place)?;
        Some(v1::StepLine {
            name: key.name.to_string(),
            count,
            line: own_line(&stacks.frames_of(key.stack)).map(Into::into),
        })
    });
    told.collect()
}

/// The innermost line of the program itself: not in an installed package, not in the standard library, and not code
/// that was generated at run time. Where there is none, the innermost line of Python code. A frame whose name is not known (yet) may be the
/// program's own, so nothing is said of what lies outside of it.
pub(crate) fn own_line(frames: &[Frame]) -> Option<&Frame> {
    let is_nameless = |frame: &Frame| {
        frame.kind == FrameKind::Python && frame.name.is_empty() && frame.file.is_empty()
    };
    let python = frames
        .iter()
        .filter(|frame| frame.kind == FrameKind::Python)
        .filter(|frame| frame.line > 0 || is_nameless(frame));
    let mut before = python.take_while(|frame| !is_nameless(frame));
    let first = before.clone().next();
    let own = before.find(|frame| frame.is_own());
    let all_named = !frames.iter().any(is_nameless);
    own.or(first.filter(|_| all_named))
}

/// What is known of a process's steps.
pub(crate) fn summary(process: &Process) -> v1::StepSummary {
    let steps = &process.steps;
    let count = steps.count();
    v1::StepSummary {
        source: steps.source.into(),
        count: count.map(|(count, _)| count),
        median_ns: count.and_then(|_| median_ns(steps)),
        evidence: evidence(process, steps),
        quiet_ns: None,
    }
}

/// The median duration of the last 101 steps, nanoseconds. The first step is left out unless its beginning was seen, because else it
/// counts from the attach on.
fn median_ns(steps: &Steps) -> Option<u64> {
    let mut times: Vec<u64> = Vec::new();
    let mut first: Option<&Row> = None;
    for (row, ends) in steps.rows.iter().zip(steps.ends()) {
        let began = *first.get_or_insert(row);
        if ends {
            if steps.ranges || began.step > 1 {
                times.push(row.to_ns.saturating_sub(began.from_ns));
            }
            first = None;
        }
    }
    let mut times = times.split_off(times.len().saturating_sub(101));
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn evidence(process: &Process, steps: &Steps) -> String {
    let line = |place: usize| {
        let key = steps.keys.get(place);
        let frames = key
            .map(|key| process.stacks.frames_of(key.stack))
            .unwrap_or_default();
        match own_line(&frames) {
            Some(frame) => {
                let base = frame.file.rsplit('/').next().unwrap_or_default();
                format!(" at {base}:{}", frame.line)
            }
            None => String::new(),
        }
    };
    let many = |number: u64, one: &str, more: &str| {
        format!("{number} {}", if number == 1 { one } else { more })
    };
    match steps.source {
        StepSource::Unknown => "no optimizer, no backward pass, no mark, and no pattern of allocations that repeats itself".to_owned(),
        StepSource::Pattern => {
            let period = steps.pattern.cycles().map_or(0, |(_, period)| period);
            format!(
                "the same {} come again and again",
                many(period as u64, "allocation", "allocations")
            )
        }
        StepSource::Backward => {
            let passes = steps.passes();
            let all = many(steps.ticks, "backward pass", "backward passes");
            if passes > 1 {
                format!("{all}{}, {passes} in a step by what is allocated between them", line(0))
            } else {
                format!("{all}{}", line(0))
            }
        }
        _ if steps.ranges => format!("{} of the program", many(steps.ticks, "range “step start”", "ranges “step start”")),
        _ => {
            let lines = named_lines(steps, &process.stacks);
            let counts = by_line(steps, &lines);
            let named = |place: usize| {
                let name = steps.keys.get(place).map(|key| key.name.as_ref());
                let name = name.filter(|name| !name.is_empty()).unwrap_or("a mark");
                format!("{name}{}", line(place))
            };
            let mut led: Vec<usize> = steps
                .told
                .loops()
                .map(|led| lines.get(led.line).copied().unwrap_or(led.line))
                .collect();
            led.sort_unstable();
            led.dedup();
            let told = |place: &usize| counts.get(place).copied().unwrap_or_default();
            led.sort_by_key(|place| std::cmp::Reverse(told(place)));
            let Some((first, more)) = led.split_first() else {
                return String::new();
            };
            let mut text = format!("{} of {}", many(told(first), "call", "calls"), named(*first));
            for place in more.iter().take(3) {
                text.push_str(&format!(", {} of {}", told(place), named(*place)));
            }
            let others: Vec<String> = counts
                .iter()
                .filter(|(place, _)| !led.contains(place))
                .take(3)
                .map(|(place, count)| format!("{count} of {}", named(*place)))
                .collect();
            if !others.is_empty() {
                text.push_str("; beside it ");
                text.push_str(&others.join(", "));
            }
            if steps.end_before_updates() {
                text.push_str("; where these calls end is not seen, so steps end where they begin, before the optimizer allocates");
            }
            text
        }
    }
}

/// The line of each key as the answer shows it. A mark without a stack, such as one right after the attach, is counted
/// for the only line with marks of this name, if there is exactly one.
fn named_lines(steps: &Steps, stacks: &Stacks) -> Vec<usize> {
    let mut lines = steps.lines(stacks);
    // For each name of marks, its lines that have a stack.
    let mut known: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (key, line) in steps.keys.iter().zip(&lines) {
        let of_name = known.entry(&key.name).or_default();
        if !stacks.is_missing(key.stack) && !of_name.contains(line) {
            of_name.push(*line);
        }
    }
    for (key, line) in steps.keys.iter().zip(&mut lines) {
        if stacks.is_missing(key.stack)
            && let Some([only]) = known.get(&*key.name).map(Vec::as_slice)
        {
            *line = *only;
        }
    }
    lines
}

/// How many marks each line made, by the first key of the line.
fn by_line(steps: &Steps, lines: &[usize]) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    for (key, line) in steps.keys.iter().zip(lines) {
        *counts.entry(*line).or_default() += key.count;
    }
    counts
}

/// One row for each whole step, and the boot time in nanoseconds up to which steps are forgotten: the rows of all ticks of a step are merged.
/// Ticks are forgotten one by one, so where a step has several the oldest may have lost some of its own.
pub(crate) fn whole_steps(process: &Process) -> (Vec<Row>, Option<u64>) {
    let steps = &process.steps;
    let passes = steps.passes();
    let ends = steps.ends();
    let is_cut = steps.forgotten_to_ns.is_some() && ends.contains(&false);
    let mut behind = ends.iter().filter(|ends| **ends).count() as u64;
    let count = steps.count().map_or(0, |(count, _)| count);
    let mut whole: Vec<Row> = Vec::new();
    let mut open: Option<Row> = None;
    for (row, ends) in steps.rows.iter().zip(ends) {
        let mut merged = match open.take() {
            Some(before) => before.join(row.clone()),
            None => row.clone(),
        };
        if !ends {
            open = Some(merged);
            continue;
        }
        behind -= 1;
        // Steps are numbered so that the last one has the number of all steps.
        merged.step = match steps.source {
            StepSource::Backward => row.step / passes,
            _ if steps.has_lines() && !steps.ranges => count.saturating_sub(behind),
            _ => row.step,
        };
        whole.push(merged);
    }
    if !is_cut || whole.is_empty() {
        return (whole, steps.forgotten_to_ns);
    }
    let oldest = whole.remove(0);
    (whole, Some(oldest.to_ns))
}

/// Merges the rows of `every` steps each: 1 to N, N + 1 to 2 N, …. Each comes with the number of steps that are in it: the first has fewer
/// where older steps are not kept, and the last where more are to come.
fn in_groups(rows: Vec<(Row, u64)>, every: u64) -> Vec<(Row, u64)> {
    let mut groups: Vec<(Row, u64)> = Vec::new();
    for (row, of_one) in rows {
        let number = |step: u64| step.saturating_sub(1) / every;
        match groups.last_mut() {
            Some((last, steps)) if number(last.step) == number(row.step) => {
                *last = last.clone().join(row);
                *steps += of_one;
            }
            _ => groups.push((row, of_one)),
        }
    }
    groups
}

/// Rows as the answer shows them, one for each device; each comes with the number of steps that it stands for.
fn shown(process: &Process, rows: &[(Row, u64)]) -> Vec<StepRow> {
    let hidden = process.is_pool_hidden();
    let mut shown = Vec::new();
    for (row, steps) in rows {
        for (device, pool, driver) in &row.devices {
            let of_pool = !hidden && device.is_some() && process.source() == Source::Pool;
            let (source, levels) = if of_pool {
                (Source::Pool, pool)
            } else {
                (Source::Driver, driver)
            };
            let Some(levels) = levels else { continue };
            shown.push(StepRow {
                step: row.step,
                steps: *steps,
                from_boot_ns: row.from_ns,
                to_boot_ns: row.to_ns,
                device: *device,
                source: v1::Source::from(source).into(),
                min_allocated_bytes: levels.min,
                max_allocated_bytes: levels.max,
                end_allocated_bytes: levels.end,
                max_reserved_bytes: levels.max_reserved,
                end_reserved_bytes: levels.end_reserved,
                reserved_at_max_bytes: levels.reserved_at_max,
                allocs: levels.allocs,
                frees: levels.frees,
                allocated_bytes: levels.allocated_bytes,
                freed_bytes: levels.freed_bytes,
            });
        }
    }
    shown
}

/// The last rows, so many at most. They begin with a step, or whoever has them could not tell that rows of it are missing; only where a
/// single step has more rows are they the last ones of it.
fn last(mut shown: Vec<StepRow>, most: usize) -> Vec<StepRow> {
    let at = shown.len().saturating_sub(most);
    let cut = at.checked_sub(1).and_then(|before| shown.get(before));
    let cut = cut.map(|row| row.step);
    let mut rows = shown.split_off(at);
    let whole = rows.iter().position(|row| Some(row.step) != cut);
    rows.split_off(whole.unwrap_or_default())
}

/// msMemScope's gap analysis, and further sums over steps, for each device. The first step is a warm-up and left out.
fn by_device(rows: &[StepRow]) -> Vec<StepDevice> {
    let mut devices: BTreeMap<(bool, Option<i32>), Vec<&StepRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.step > 1) {
        let key = (row.device.is_none(), row.device);
        devices.entry(key).or_default().push(row);
    }
    devices
        .into_values()
        .filter_map(|rows| {
            let first = rows.first()?;
            let gap = |row: &&StepRow| StepGap {
                step: row.step,
                min_bytes: row.min_allocated_bytes,
                max_bytes: row.max_allocated_bytes,
                ratio: row.min_allocated_bytes as f64 / row.max_allocated_bytes as f64,
            };
            let mut smallest: Option<StepGap> = None;
            let mut largest: Option<StepGap> = None;
            for gap in rows
                .iter()
                .filter(|row| row.max_allocated_bytes > 0)
                .map(gap)
            {
                if smallest.is_none_or(|known| gap.ratio < known.ratio) {
                    smallest = Some(gap);
                }
                if largest.is_none_or(|known| gap.ratio > known.ratio) {
                    largest = Some(gap);
                }
            }
            let quantiles = |pick: fn(&StepRow) -> u64| {
                let mut values: Vec<u64> = rows.iter().map(|row| pick(row)).collect();
                values.sort_unstable();
                let at = |share: f64| {
                    let place = ((values.len() as f64 * share).ceil() as usize).max(1) - 1;
                    values.get(place).copied().unwrap_or_default()
                };
                Some(v1::StepQuantiles {
                    p5: at(0.05),
                    p50: at(0.5),
                    p95: at(0.95),
                })
            };
            let floors: Vec<(u64, u64)> = rows
                .iter()
                .map(|row| (row.step, row.min_allocated_bytes))
                .collect();
            Some(StepDevice {
                device: first.device,
                source: first.source,
                steps: rows.len() as u64,
                smallest_gap: smallest,
                largest_gap: largest,
                min_bytes: quantiles(|row| row.min_allocated_bytes),
                max_bytes: quantiles(|row| row.max_allocated_bytes),
                floor_bytes_per_step: floor_slope(&floors),
                allocs: rows.iter().map(|row| row.allocs).sum(),
                frees: rows.iter().map(|row| row.frees).sum(),
            })
        })
        .collect()
}

/// The median slope of the last 512 floors at most, in bytes per step. Each is the number of a step and its floor: of steps in
/// which nothing happened on the device there are none.
fn floor_slope(floors: &[(u64, u64)]) -> f64 {
    let recent = floors
        .get(floors.len().saturating_sub(512)..)
        .unwrap_or_default();
    let points: Vec<(f64, f64)> = recent
        .iter()
        .map(|(step, floor)| (*step as f64, *floor as f64))
        .collect();
    slope::median(&slope::slopes(&points))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who asks for the line must not get that of the caller.
    #[test]
    fn what_lies_outside_of_a_nameless_frame_is_not_the_line() {
        let frame = |name: &str, file: &str, line| Frame {
            kind: FrameKind::Python,
            name: name.into(),
            file: file.into(),
            line,
        };
        let own = frame("step", "/home/u/train.py", 9);
        let caller = frame("<module>", "/home/u/train.py", 21);
        let library = frame("forward", "/usr/lib/python3/dist-packages/torch/nn.py", 3);
        let nameless = frame("", "", 0);
        let of = |frames: &[&Frame]| {
            let frames: Vec<Frame> = frames.iter().map(|one| (*one).clone()).collect();
            own_line(&frames).map(|found| found.line)
        };
        assert_eq!(of(&[&library, &own, &caller]), Some(9));
        assert_eq!(of(&[&own, &nameless, &caller]), Some(9));
        assert_eq!(of(&[&nameless, &caller]), None);
        assert_eq!(of(&[&library, &nameless, &caller]), None);
        assert_eq!(of(&[&library]), Some(3));
    }

    /// Numbers of the steps of the last rows, of two devices each.
    fn of_two_devices(steps: u64, most: usize) -> Vec<u64> {
        let rows = (1..=steps).flat_map(|step| {
            [0, 1].map(|device| StepRow {
                step,
                device: Some(device),
                ..StepRow::default()
            })
        });
        let rows = last(rows.collect(), most);
        rows.iter().map(|row| row.step).collect()
    }

    #[test]
    fn rows_that_are_left_out_are_those_of_whole_steps() {
        assert_eq!(of_two_devices(3, 6), [1, 1, 2, 2, 3, 3]);
        assert_eq!(of_two_devices(3, 5), [2, 2, 3, 3]);
        assert_eq!(of_two_devices(3, 4), [2, 2, 3, 3]);
        assert_eq!(of_two_devices(3, 3), [3, 3]);
        assert_eq!(of_two_devices(3, 1), [3]);
        assert!(of_two_devices(0, 1).is_empty());
    }
}
