//! Answers as text for people. Pure: answers in, text out.

pub(crate) mod bars;
pub(crate) mod frames;
pub(crate) mod libraries;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod window;

use crate::units::{self, nanoseconds, plain, rate, signed_bytes};
use memscope_proto::v1;
use std::collections::{BTreeMap, BTreeSet};

/// How exactly the numbers of one kind are known, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Known {
    /// The numbers are exact.
    Exactly,
    /// Something is not counted, so the numbers are lower bounds.
    AtLeast,
    /// The numbers may be too large as well as too small.
    Not,
}

impl Known {
    /// How exactly numbers of these kinds are known, according to the coverage notes.
    pub(crate) fn of<'a>(
        notes: impl IntoIterator<Item = &'a v1::CoverageNote>,
        kinds: &[&str],
    ) -> Known {
        let affects = |note: &&v1::CoverageNote| {
            let mut affects = note.affects.iter();
            affects.any(|kind| kinds.contains(&kind.as_str()))
        };
        let mut spoilt = notes.into_iter().filter(affects).peekable();
        if spoilt.peek().is_none() {
            Known::Exactly
        } else if spoilt.all(|note| note.lower_bound) {
            Known::AtLeast
        } else {
            Known::Not
        }
    }

    /// The text for a number, as exactly as it is known. A number that is unknown stays so.
    pub(crate) fn say(self, number: String) -> String {
        match self {
            Known::Not => units::unknown(),
            Known::AtLeast if number != units::unknown() => format!("at least {number}"),
            Known::Exactly | Known::AtLeast => number,
        }
    }
}

/// The coverage notes, which stand beneath every table.
pub(crate) fn coverage(notes: &[v1::CoverageNote]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nWhat these numbers do not show\n");
    for note in notes {
        text.push_str(&format!("  {}: {}\n", plain(&note.code), plain(&note.text)));
    }
    text
}

/// Which coverage notes limit the numbers of how many of these answers, each about a process, beneath a table of all.
pub(crate) fn coverage_of_many<'a>(
    answers: impl Iterator<Item = &'a [v1::CoverageNote]>,
) -> String {
    let (mut all, mut counts) = (0_usize, BTreeMap::<&str, usize>::new());
    for notes in answers {
        all += 1;
        let limiting = notes.iter().filter(|note| !note.affects.is_empty());
        let codes: BTreeSet<&str> = limiting.map(|note| note.code.as_str()).collect();
        for code in codes {
            *counts.entry(code).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nWhat these numbers do not show\n");
    for (code, count) in counts {
        let (code, count) = (plain(code), units::grouped(count as u64));
        text.push_str(&format!(
            "  {code}: in {count} of {} processes\n",
            units::grouped(all as u64)
        ));
    }
    text.push_str("  memscope-ctl stats on the node of a process says what its notes mean\n");
    text
}

/// The line above an answer about one process.
pub(crate) fn heading(
    process: Option<&v1::Process>,
    as_of: u64,
    event: Option<&v1::EventId>,
    lost: u64,
) -> String {
    let mut text = match process {
        Some(process) => name(process),
        None => "process".to_owned(),
    };
    if let Some(process) = process
        && process.state() != v1::ProcessState::Attached
    {
        text.push_str(&format!(", {}", process.state()));
    }
    text.push_str(&format!("  as of {}", units::moment(as_of)));
    if let Some(event) = event {
        text.push_str(&format!(", event {}", event.sequence));
    }
    text.push_str(&match lost {
        0 => ", no records lost\n".to_owned(),
        1 => ", 1 RECORD LOST\n".to_owned(),
        lost => format!(", {} RECORDS LOST\n", units::grouped(lost)),
    });
    text
}

/// `python (pid 4242)`.
pub(crate) fn name(process: &v1::Process) -> String {
    match &process.facts {
        Some(facts) => format!("{} (pid {})", plain(&facts.comm), facts.pid),
        None => format!("process {}", process.handle),
    }
}

/// The rank of the process in its job; empty if it has none.
pub(crate) fn rank(process: &v1::Process) -> String {
    let workload = process.workload.as_ref();
    let rank = workload.and_then(|workload| workload.rank);
    rank.map_or_else(String::new, |rank| rank.to_string())
}

/// The process of a node, as tables over many nodes begin each row: node, process and rank.
pub(crate) fn of_node(node: &str, process: &v1::Process) -> [String; 3] {
    let pid = process.facts.as_ref().map_or(0, |facts| facts.pid);
    [plain(node), pid.to_string(), rank(process)]
}

/// The columns of [`of_node`].
pub(crate) const OF_NODE: [table::Column; 3] = [
    table::Column::Left("NODE"),
    table::Column::Right("PID"),
    table::Column::Left("RANK"),
];

/// A device's ordinal, or `unknown`.
pub(crate) fn device(device: Option<i32>) -> String {
    device.map_or_else(units::unknown, |device| device.to_string())
}

/// Where memory lies that grows: the ordinal of its device, or `host`.
pub(crate) fn device_or_host(ordinal: Option<i32>, source: v1::Source) -> String {
    match source {
        v1::Source::Host => "host".to_owned(),
        _ => device(ordinal),
    }
}

/// A device's ordinal with its kind, such as `npu:0`. The kind CUDA is left out, because PyTorch's users expect it.
pub(crate) fn device_of_kind(ordinal: Option<i32>, kind: Option<&str>) -> String {
    match kind {
        None | Some("cuda") => device(ordinal),
        Some(kind) => format!("{}:{}", units::plain(kind), device(ordinal)),
    }
}

/// What a device is: `GPU-8c3b… (0000:01:00.0)`, `MIG-03d1… of GPU-8c3b… (0000:01:00.0)`.
pub(crate) fn hardware(told: &v1::Hardware) -> String {
    let mut text = match &told.mig_uuid {
        Some(part) => format!("{} of {}", plain(part), plain(&told.uuid)),
        None => plain(&told.uuid),
    };
    if let Some(address) = &told.pci_address {
        text.push_str(&format!(" ({})", plain(address)));
    }
    text
}

/// The words separated by commas, or `none`.
pub(crate) fn list(words: &[String]) -> String {
    if words.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<_> = words.iter().map(|word| plain(word)).collect();
    words.join(", ")
}

/// A command line in at most `most` characters. What tells processes apart comes first: the folder of the interpreter
/// is left out, and of the program's path only its last folder and its name are kept.
pub(crate) fn command_line(words: &[String], comm: &str, most: usize) -> String {
    let name = |path: &str, parts: usize| {
        let from = path.rmatch_indices('/').nth(parts - 1);
        let start = from
            .filter(|_| path.starts_with('/') || parts == 1)
            .map_or(0, |(at, _)| at + 1);
        path.get(start..).unwrap_or(path).to_owned()
    };
    let mut shown: Vec<String> = words.to_vec();
    if let Some(first) = shown.first_mut() {
        *first = name(first, 1);
    }
    if let Some(script) = shown.get_mut(1) {
        *script = name(script, 2);
    }
    let text = match shown.is_empty() {
        true => plain(comm),
        false => plain(&shown.join(" ")),
    };
    if text.chars().count() <= most {
        return text;
    }
    let mut cut: String = text.chars().take(most.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Growth on devices of the lines that are known to leak, per step or, where no steps are known, per second. Empty if none leaks.
pub(crate) fn growth(process: &v1::Process) -> String {
    let per_s = process.growth_bytes_per_s.unwrap_or_default();
    match (
        process.growing_lines.unwrap_or_default(),
        process.growth_bytes_per_step,
    ) {
        (0, _) => String::new(),
        // It stands in the row of a device, which page-locked memory of the host takes nothing of.
        (_, None) if per_s <= 0.0 => "host only".to_owned(),
        (_, Some(step)) => format!("{}/step", signed_bytes(step.round() as i64)),
        (_, None) => rate(per_s),
    }
}

/// Age of a verdict from which on it is shown.
const OLD_NS: u64 = 10_000_000_000;

/// Adds to what was said of a process how long ago that was judged, if it was long ago: what has ended since then is not known yet.
pub(crate) fn with_age(said: String, process: &v1::Process) -> String {
    match process.judged_ago_ns {
        Some(ago) if ago >= OLD_NS && !said.is_empty() => {
            format!("{said}, {} ago", nanoseconds(ago))
        }
        _ => said,
    }
}

/// Whether a process grows, or has `ended` and grew until then, in a few words, such as `GROWS 84 %`. Empty if that is not said.
pub(crate) fn verdict(verdict: v1::ProcessVerdict, confidence: Option<f64>, ended: bool) -> String {
    let grows = if ended { "GREW" } else { "GROWS" };
    match (verdict, confidence) {
        (v1::ProcessVerdict::Unspecified, _) => String::new(),
        (v1::ProcessVerdict::Growing, Some(sure)) => format!("{grows} {:.0} %", sure * 100.0),
        (v1::ProcessVerdict::Growing, None) => grows.to_owned(),
        (v1::ProcessVerdict::TooEarly, _) => "too early".to_owned(),
        (v1::ProcessVerdict::NothingRead, _) => "nothing read".to_owned(),
        (v1::ProcessVerdict::Steady, _) => "steady".to_owned(),
    }
}

/// How exactly the totals of a device are known. If they are the driver's allocations, notes that limit those count,
/// too.
pub(crate) fn totals_of(device: &v1::DeviceStats, notes: &[v1::CoverageNote]) -> Known {
    totals_from(device.source(), notes)
}

/// How exactly the peaks of a device are known: no better than its totals, of which they are the largest, and than what happened.
pub(crate) fn peaks_of(device: &v1::DeviceStats, notes: &[v1::CoverageNote]) -> Known {
    totals_of(device, notes).max(Known::of(notes, &["history"]))
}

/// The same as [`totals_of`], of totals from this source.
pub(crate) fn totals_from(source: v1::Source, notes: &[v1::CoverageNote]) -> Known {
    match source {
        v1::Source::Driver => Known::of(notes, &["totals", "driver"]),
        _ => Known::of(notes, &["totals"]),
    }
}

/// How exactly the course of a device is known: its levels rest on the totals, and what may have come and went unseen is in none of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CourseKnown {
    totals: Known,
    history: Known,
}

impl CourseKnown {
    /// Of a course from this source, according to the coverage notes.
    pub(crate) fn of(source: v1::Source, notes: &[v1::CoverageNote]) -> CourseKnown {
        // Entries of the trace that were given up had gone into the course before.
        let of_course = notes.iter().filter(|note| note.code != "trace_shed");
        CourseKnown {
            totals: totals_from(source, notes),
            history: Known::of(of_course, &["history"]),
        }
    }

    /// The text for a level at one moment.
    pub(crate) fn level(self, number: String) -> String {
        self.totals.say(number)
    }

    /// The text for a lowest level: what was not seen may have been lower.
    pub(crate) fn lowest(self, number: String) -> String {
        match (self.totals, self.history) {
            (totals, Known::Exactly) => totals.say(number),
            (Known::Exactly, Known::AtLeast) if number != units::unknown() => {
                format!("at most {number}")
            }
            (Known::Exactly, Known::AtLeast) => number,
            (Known::AtLeast | Known::Not, _) | (_, Known::Not) => units::unknown(),
        }
    }

    /// The text for a highest level: what was not seen may have been higher.
    pub(crate) fn highest(self, number: String) -> String {
        self.totals.max(self.history).say(number)
    }

    /// The text for how often something happened.
    pub(crate) fn count(self, number: String) -> String {
        self.history.say(number)
    }

    /// The text for what is compared of two levels, such as a share, a difference or a slope. It is no bound where a level is one.
    pub(crate) fn compared(self, words: String) -> String {
        match self.totals.max(self.history) {
            Known::Exactly => words,
            Known::AtLeast | Known::Not => units::unknown(),
        }
    }
}

/// Digits of a container's id that are shown, as docker and podman do.
const SHORT_ID: usize = 12;

/// Whose a process is, in a few words: its pod, else its job, else its container. Empty where nothing tells.
pub(crate) fn whose(process: &v1::Process) -> String {
    let Some(of) = &process.workload else {
        return String::new();
    };
    let pod = of.pod.as_deref().map(|pod| match &of.namespace {
        Some(namespace) => format!("{namespace}/{pod}"),
        None => pod.to_owned(),
    });
    let id = of.container_id.as_deref();
    let id = id.map(|id| id.get(..SHORT_ID).unwrap_or(id).to_owned());
    let container = of.container.clone().or(id);
    let whose = pod.or_else(|| of.job.clone()).or(container);
    whose.map_or_else(String::new, |whose| plain(&whose))
}

#[cfg(test)]
mod tests {
    use super::{Known, command_line, growth, peaks_of};
    use memscope_proto::v1;

    #[test]
    fn a_peak_is_known_no_better_than_totals_and_what_happened() {
        let of = |source: v1::Source, notes: &[(&str, bool)]| {
            let note = |(kind, lower_bound): &(&str, bool)| v1::CoverageNote {
                affects: vec![(*kind).to_owned()],
                lower_bound: *lower_bound,
                ..v1::CoverageNote::default()
            };
            let device = v1::DeviceStats {
                source: source.into(),
                ..v1::DeviceStats::default()
            };
            peaks_of(&device, &notes.iter().map(note).collect::<Vec<_>>())
        };
        assert_eq!(of(v1::Source::Pool, &[("driver", true)]), Known::Exactly);
        assert_eq!(of(v1::Source::Driver, &[("driver", true)]), Known::AtLeast);
        assert_eq!(of(v1::Source::Pool, &[("history", true)]), Known::AtLeast);
        let both = [("totals", true), ("history", false)];
        assert_eq!(of(v1::Source::Pool, &both), Known::Not);
    }

    #[test]
    fn growth_beside_a_device_is_that_of_devices() {
        let of = |growing_lines, per_step, growth_bytes_per_s| {
            growth(&v1::Process {
                growing_lines: Some(growing_lines),
                growth_bytes_per_step: per_step,
                growth_bytes_per_s: Some(growth_bytes_per_s),
                ..v1::Process::default()
            })
        };
        assert_eq!(of(0, None, 0.0), "");
        assert_eq!(of(1, None, 0.0), "host only");
        assert_eq!(of(2, Some(1024.0), 9.0), "+1.00 KiB/step");
        assert_eq!(of(2, None, 1024.0), super::rate(1024.0));
    }

    #[test]
    fn command_lines_begin_with_what_tells_them_apart() {
        let line = |words: &[&str], most| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            command_line(&words, "python", most)
        };
        let long = [
            "/opt/venv/bin/python3.11",
            "/home/ada/jobs/b/train.py",
            "--lr=1",
        ];
        assert_eq!(line(&long, 60), "python3.11 b/train.py --lr=1");
        assert_eq!(line(&["python", "src/train.py"], 60), "python src/train.py");
        assert_eq!(line(&["/bin/x"], 60), "x");
        assert_eq!(line(&["/x"], 60), "x");
        assert_eq!(line(&[], 60), "python");
        assert_eq!(line(&["abcdef"], 4), "abc…");
    }
}
