//! From the daemon's answers to the samples of metrics.
//!
//! Owns: which field of an answer each metric is, the labels of a process, and which processes have series of their own. Refuses: to
//! fill in what an answer leaves out.

use crate::family::*;
use memscope_proto::{seconds_to_full, v1};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What it is of.
    pub labels: Labels,
    /// The number, in the metric's unit.
    pub value: f64,
    /// From when on a counter counts, in nanoseconds of boot time, such as the attach of its process. `None`: the start of the daemon.
    pub since_boot_ns: Option<u64>,
}

/// A metric with its numbers.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Which metric.
    pub family: &'static Family,
    /// Its numbers.
    pub samples: Vec<Sample>,
}

/// What the daemon says of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct TakenProcess {
    /// What it holds, and who it is.
    pub stats: v1::StatsResponse,
    /// Its steps.
    pub steps: v1::StepSummary,
    /// What is known to leak in it.
    pub findings: Vec<v1::Finding>,
    /// How long ago it ended, in nanoseconds; `None` while it runs.
    pub ended_ago_ns: Option<u64>,
}

/// What the daemon says at one moment.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Every process that is traced or was lately.
    pub processes: Vec<TakenProcess>,
    /// All devices.
    pub devices: v1::DevicesResponse,
    /// The daemon itself.
    pub status: v1::StatusResponse,
    /// Processor time of the daemon so far, in nanoseconds.
    pub cpu_ns: u64,
    /// For how long what a device had free counts as what it has, in nanoseconds: the rule of the ledger's answers.
    pub free_holds_ns: u64,
    /// From when on losses of these causes count, in nanoseconds of boot time, where that is not the start of the daemon.
    pub drops_since: BTreeMap<&'static str, u64>,
    /// What became of what is sent to a collector, by signal; empty where nothing is sent.
    pub pushed: Vec<Pushed>,
}

/// What became of the data points or of the log records that are sent to a collector, since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Which of them: `metrics` or `logs`.
    pub signal: &'static str,
    /// The collector has accepted so many.
    pub sent: u64,
    /// So many wait for it.
    pub waiting: u64,
    /// So many requests came to nothing and are sent again.
    pub retries: u64,
    /// So many will never be there, by cause.
    pub dropped: Vec<(&'static str, u64)>,
}

/// How many series there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes with series of their own.
    pub processes: usize,
    /// Findings of a process with series of their own, those that grow most.
    pub findings: usize,
    /// Kinds of failed calls of a process with series of their own, the most frequent ones.
    pub failures: usize,
    /// For how long the counters of a process that has ended stay, in nanoseconds: what it died of must still be fetched.
    pub ended_ns: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            processes: 256,
            findings: 5,
            failures: 8,
            ended_ns: 300_000_000_000,
        }
    }
}

/// Longest value of a label, in characters.
const LONGEST_VALUE: usize = 200;
/// The value of the label `pid` for all processes without series of their own.
const OTHER: &str = "other";

/// The metrics of one moment, in the order of [`FAMILIES`]. Those without a sample are left out.
#[must_use]
pub fn fold(taken: &Taken, limits: &Limits) -> Vec<Metric> {
    let mut out = Out::default();
    let within = |one: &&TakenProcess| one.ended_ago_ns.is_none_or(|ago| ago <= limits.ended_ns);
    let mut order: Vec<&TakenProcess> = taken.processes.iter().filter(within).collect();
    // The same pid may have been another process a moment ago. The one that runs has the series, else the one that ended last.
    order.sort_by_key(|one| one.ended_ago_ns);
    let mut seen = HashSet::new();
    order.retain(|one| seen.insert(pid(one)));
    // A process that runs goes before one that has ended; then whoever holds most.
    order.sort_by_key(|one| (one.ended_ago_ns.is_some(), Reverse(holds(one))));
    let (own, others) = order.split_at(order.len().min(limits.processes));
    for one in own {
        let process_is = one.stats.process.as_ref();
        out.since_boot_ns = process_is.map(|process| process.attached_boot_ns);
        process(&mut out, one, limits, taken.free_holds_ns);
    }
    out.since_boot_ns = None;
    together(&mut out, others);
    out.put(
        WITHOUT_SERIES,
        Labels::new(),
        running(others).count() as f64,
    );
    devices(&mut out, &taken.devices);
    daemon(&mut out, taken);
    pushed(&mut out, &taken.pushed);
    out.metrics()
}

fn pid(one: &TakenProcess) -> u32 {
    one.stats.pid
}

fn holds(one: &TakenProcess) -> u64 {
    let devices = one.stats.devices.iter();
    devices.filter_map(|device| device.reserved_bytes).sum()
}

fn running<'a>(all: &'a [&'a TakenProcess]) -> impl Iterator<Item = &'a TakenProcess> {
    let all = all.iter().copied();
    all.filter(|one| one.ended_ago_ns.is_none())
}

/// Samples by metric.
#[derive(Default)]
struct Out {
    samples: HashMap<&'static str, Vec<Sample>>,
    /// From when on what is put in now counts.
    since_boot_ns: Option<u64>,
}

impl Out {
    fn put(&mut self, family: &'static Family, labels: Labels, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into() {
            let samples = self.samples.entry(family.name).or_default();
            samples.push(Sample {
                labels,
                value,
                since_boot_ns: self.since_boot_ns,
            });
        }
    }

    fn metrics(mut self) -> Vec<Metric> {
        let all = FAMILIES.iter().filter_map(|family| {
            let samples = self.samples.remove(family.name)?;
            Some(Metric { family, samples })
        });
        all.collect()
    }
}

/// A text as the value of a label.
fn value(text: &str) -> String {
    text.chars().take(LONGEST_VALUE).collect()
}

/// Labels that tell who a process is, in all of its series: so a query needs no join.
#[must_use]
pub fn of_process(process: &v1::Process) -> Labels {
    let facts = process.facts.clone().unwrap_or_default();
    let of = process.workload.clone().unwrap_or_default();
    let mut labels: Labels = vec![
        ("pid", facts.pid.to_string()),
        ("program", value(&program(&facts))),
    ];
    let told = [
        ("job_id", of.job),
        ("rank", of.rank.map(|rank| rank.to_string())),
        ("namespace", of.namespace),
        ("pod", of.pod),
        ("container", of.container),
    ];
    labels.extend(
        told.into_iter()
            .filter_map(|(name, text)| Some((name, value(&text?)))),
    );
    labels
}

/// What a process runs, in a word: the script of an interpreter or the module that it runs, else its own name.
fn program(facts: &v1::ProcessFacts) -> String {
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let words = facts.cmdline.get(1..).unwrap_or_default();
    let module = words
        .iter()
        .position(|word| word == "-m")
        .and_then(|at| words.get(at + 1));
    let script = words.iter().find(|word| word.ends_with(".py"));
    match (script, module) {
        (Some(script), _) => last(script),
        (None, Some(module)) => module.clone(),
        (None, None) => facts.comm.clone(),
    }
}

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn with(labels: &Labels, more: &[(&'static str, String)]) -> Labels {
    [labels, more].concat()
}

fn process(out: &mut Out, one: &TakenProcess, limits: &Limits, free_holds_ns: u64) {
    let Some(process) = &one.stats.process else {
        return;
    };
    let labels = of_process(process);
    counters(out, one, &labels, limits);
    if one.ended_ago_ns.is_some() {
        return;
    }
    out.put(PROCESS, with(&labels, &whose(process)), 1.0);
    for device in &one.stats.devices {
        let labels = with(&labels, &[("device", ordinal(device.device))]);
        gauges(out, device, &labels);
        let blocks = (!one.stats.hides_pool()).then_some(device.live_blocks);
        out.put(LIVE_BLOCKS, labels.clone(), number(blocks));
        out.put(TO_FULL, labels, to_full(device, one, free_holds_ns));
    }
    out.put(GROWING_LINES, labels.clone(), one.findings.len() as f64);
    let growth = one.findings.iter();
    let growth = growth.map(|finding| finding.growth_bytes_per_s);
    out.put(GROWTH, labels.clone(), summed(growth));
    let per_step = one.findings.iter();
    // Where one of them is not known, there is no sum.
    let per_step: Option<Vec<f64>> = per_step
        .map(|finding| finding.growth_bytes_per_step)
        .collect();
    out.put(GROWTH_PER_STEP, labels.clone(), per_step.map(summed));
    out.put(STEPS, labels.clone(), number(one.steps.count));
    let median = one.steps.median_ns.map(|ns| ns as f64 / 1e9);
    out.put(STEP_TIME, labels.clone(), median);
    findings(out, one, &labels, limits);
    for note in &one.stats.coverage {
        for kind in &note.affects {
            let bound = if note.lower_bound { "true" } else { "false" };
            let more = [
                ("code", value(&note.code)),
                ("affects", value(kind)),
                ("lower_bound", bound.to_owned()),
            ];
            out.put(NOTE, with(&labels, &more), 1.0);
        }
    }
}

/// Labels that only [`PROCESS`] has.
fn whose(process: &v1::Process) -> Labels {
    let facts = process.facts.clone().unwrap_or_default();
    let of = process.workload.clone().unwrap_or_default();
    let level = v1::Level::try_from(facts.level).unwrap_or_default();
    let mut labels: Labels = vec![("uid", facts.uid.to_string()), ("level", level.to_string())];
    let told = [
        ("local_rank", of.local_rank.map(|rank| rank.to_string())),
        ("world_size", of.world_size.map(|size| size.to_string())),
        ("job_name", of.job_name),
        ("slurm_job", of.slurm_job),
        ("slurm_step", of.slurm_step),
        ("container_id", of.container_id),
        ("container_runtime", of.container_runtime),
        ("pod_uid", of.pod_uid),
    ];
    labels.extend(
        told.into_iter()
            .filter_map(|(name, text)| Some((name, value(&text?)))),
    );
    labels
}

fn ordinal(device: Option<i32>) -> String {
    device.map_or_else(|| "unknown".to_owned(), |device| device.to_string())
}

fn gauges(out: &mut Out, device: &v1::DeviceStats, labels: &Labels) {
    let both = device.allocated_bytes.zip(device.reserved_bytes);
    let fragmentation = both
        .filter(|(allocated, reserved)| *reserved > 0 && allocated <= reserved)
        .map(|(allocated, reserved)| (reserved - allocated) as f64 / reserved as f64);
    for (family, value) in [
        (ALLOCATED, number(device.allocated_bytes)),
        (RESERVED, number(device.reserved_bytes)),
        (PEAK_ALLOCATED, number(device.peak_allocated_bytes)),
        (PEAK_RESERVED, number(device.peak_reserved_bytes)),
        (BASELINE, number(device.baseline_bytes)),
        (DIRECT, number(device.direct.map(|direct| direct.bytes))),
        (CONTEXT, number(device.context_bytes)),
        (
            FRAGMENTATION,
            fragmentation.filter(|_| device.source() == v1::Source::Pool),
        ),
    ] {
        out.put(family, labels.clone(), value);
    }
}

/// What only grows. It stays for a while after the process has ended.
fn counters(out: &mut Out, one: &TakenProcess, labels: &Labels, limits: &Limits) {
    for device in &one.stats.devices {
        if one.stats.hides_pool() {
            continue;
        }
        let labels = with(labels, &[("device", ordinal(device.device))]);
        let failed = (!one.stats.hides_ooms()).then_some(device.oom_count);
        for (family, count) in [
            (ALLOCATIONS, Some(device.alloc_count)),
            (FREES, Some(device.free_count)),
            (OUT_OF_MEMORY, failed),
        ] {
            out.put(family, labels.clone(), number(count));
        }
    }
    let mut failures: Vec<&v1::Failure> = one.stats.failures.iter().collect();
    failures.sort_by_key(|failure| Reverse(failure.count));
    for failure in failures.into_iter().take(limits.failures) {
        let more = [
            ("function", value(&failure.function)),
            ("status", failure.status.to_string()),
        ];
        out.put(FAILURES, with(labels, &more), failure.count as f64);
    }
    out.put(LOST, labels.clone(), one.stats.lost_records as f64);
}

fn findings(out: &mut Out, one: &TakenProcess, labels: &Labels, limits: &Limits) {
    let mut all: Vec<&v1::Finding> = one.findings.iter().collect();
    all.sort_by(|a, b| b.growth_bytes_per_s.total_cmp(&a.growth_bytes_per_s));
    let mut lines: BTreeMap<(String, String, String), (f64, u64)> = BTreeMap::new();
    for finding in all.into_iter().take(limits.findings) {
        // Findings about blocks of several sizes without a known line have the same labels.
        let key = (
            ordinal(finding.device),
            place(finding),
            value(&finding.name),
        );
        let (growth, live) = lines.entry(key).or_default();
        *growth += finding.growth_bytes_per_s;
        *live = live.saturating_add(finding.live_bytes);
    }
    for ((device, line, function), (growth, live)) in lines {
        let labels = with(
            labels,
            &[("device", device), ("line", line), ("function", function)],
        );
        out.put(FINDING, labels.clone(), growth);
        out.put(FINDING_LIVE, labels, live as f64);
    }
}

/// A line of a program: the last two parts of the file's path, which mostly tell it apart, and the number.
fn place(finding: &v1::Finding) -> String {
    if finding.file.is_empty() {
        return "unknown".to_owned();
    }
    let mut parts: Vec<&str> = finding.file.rsplit('/').take(2).collect();
    parts.reverse();
    let file: String = value(&parts.join("/"));
    format!("{file}:{}", finding.line)
}

/// Seconds until a device is full at the growth of the findings on it, by the rule of the ledger's answers. Unknown where nobody said lately
/// how much is free.
fn to_full(device: &v1::DeviceStats, one: &TakenProcess, free_holds_ns: u64) -> Option<f64> {
    let growth = |is_of: &dyn Fn(&str) -> bool| -> f64 {
        let findings = one.findings.iter();
        let on = findings.filter(|one| one.device == device.device && is_of(&one.space));
        on.map(|one| one.growth_bytes_per_s).sum()
    };
    let of_pool = growth(&|space| space == "pool");
    let beside = growth(&|space| !["pool", "host"].contains(&space));
    let has_pool = device.source() == v1::Source::Pool;
    let held = device.reserved_bytes.zip(device.allocated_bytes);
    let spare = held.filter(|_| has_pool && !one.stats.hides_pool());
    let spare = spare.map_or(0, |(reserved, allocated)| {
        reserved.saturating_sub(allocated)
    });
    let (free, seen_ns) = device.free_bytes.zip(device.free_bytes_boot_ns)?;
    let is_new = one.stats.as_of_boot_ns.saturating_sub(seen_ns) <= free_holds_ns;
    seconds_to_full(free, spare, of_pool, beside).filter(|_| is_new)
}

/// A device that is full soon, at the growth of what is known to leak on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Filling {
    /// The process whose leaks fill it.
    pub pid: u32,
    /// Ordinal of the device within the process; `None`: not known.
    pub device: Option<i32>,
    /// Time until it is full.
    pub seconds: f64,
}

/// The devices that are full within so many seconds, as these metrics tell it.
#[must_use]
pub fn filling(metrics: &[Metric], within_seconds: f64) -> Vec<Filling> {
    let found = metrics
        .iter()
        .find(|metric| std::ptr::eq(metric.family, TO_FULL));
    let samples = found.map_or(&[][..], |metric| &metric.samples);
    let filling = samples.iter().filter_map(|sample| {
        let label = |wanted: &str| {
            let found = sample.labels.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_str())
        };
        Some(Filling {
            pid: label("pid")?.parse().ok()?,
            device: label("device").and_then(|device| device.parse().ok()),
            seconds: sample.value,
        })
    });
    filling.filter(|one| one.seconds < within_seconds).collect()
}

/// Sums over the processes that have no series of their own. A sum of which a part is unknown is left out.
fn together(out: &mut Out, others: &[&TakenProcess]) {
    let others: Vec<&TakenProcess> = running(others).collect();
    if others.is_empty() {
        return;
    }
    type Field<T> = fn(&T) -> Option<u64>;
    type Fields = (Field<v1::DeviceStats>, Field<v1::Process>);
    let fields: [(&'static Family, Fields); 2] = [
        (
            ALLOCATED,
            (|device| device.allocated_bytes, |all| all.allocated_bytes),
        ),
        (
            RESERVED,
            (|device| device.reserved_bytes, |all| all.reserved_bytes),
        ),
    ];
    for (family, (of_device, of_process)) in fields {
        let each = others.iter().map(|one| {
            let stats = &one.stats;
            if stats.devices.is_empty() {
                // It has nothing, or nothing is known of it yet.
                return stats.process.as_ref().and_then(of_process);
            }
            stats.devices.iter().map(of_device).sum::<Option<u64>>()
        });
        let sum: Option<u64> = each.sum();
        let labels = vec![("pid", OTHER.to_owned())];
        out.put(family, labels, number(sum));
    }
    let growth = others.iter().flat_map(|one| &one.findings);
    let growth = summed(growth.map(|finding| finding.growth_bytes_per_s));
    out.put(GROWTH, vec![("pid", OTHER.to_owned())], growth);
}

/// What all of these grow by. The sum of no numbers is the negative zero, which would be written as `-0.0`.
fn summed(all: impl IntoIterator<Item = f64>) -> f64 {
    all.into_iter().fold(0.0, |sum, one| sum + one)
}

fn devices(out: &mut Out, answer: &v1::DevicesResponse) {
    let mut seen = HashMap::new();
    for device in &answer.devices {
        let name = device.name.clone().unwrap_or_else(|| "unknown".to_owned());
        // Processes that see other devices under the same number have rows of their own.
        let again: &mut u32 = seen.entry((device.kind.clone(), name.clone())).or_default();
        *again += 1;
        let id = if *again > 1 {
            format!("{name}#{again}")
        } else {
            name
        };
        let mut labels = vec![
            ("hw_type", "gpu".to_owned()),
            (
                "hw_vendor",
                value(device.kind.as_deref().unwrap_or("unknown")),
            ),
            ("hw_id", value(&id)),
        ];
        // A part's id is its own, and the device that it is a part of is the parent.
        let part = device.hardware.as_ref().filter(|it| it.mig_uuid.is_some());
        labels.extend(part.map(|it| ("hw_parent", value(&it.uuid))));
        let used = device.total_bytes.zip(device.free_bytes);
        let used = used.and_then(|(total, free)| total.checked_sub(free));
        // A number has no words beside it which say that the part of a process is missing, or is only what was seen since the attach of
        // a process whose totals are not known.
        let mut holders = device.holders.iter();
        let all_known = holders.all(|holder| {
            let is_total = holder.allocated_bytes.is_some() || !holder.at_least;
            holder.held_bytes.is_some() && is_total
        });
        for (family, bytes) in [
            (GPU_LIMIT, device.total_bytes),
            (GPU_USAGE, used),
            (GPU_HELD, device.held_bytes.filter(|_| all_known)),
            (
                GPU_UNEXPLAINED,
                device.unexplained_bytes.filter(|_| !device.at_least),
            ),
        ] {
            out.put(family, labels.clone(), number(bytes));
        }
    }
}

fn pushed(out: &mut Out, all: &[Pushed]) {
    for one in all {
        let labels = vec![("signal", one.signal.to_owned())];
        for (cause, count) in &one.dropped {
            let labels = with(&labels, &[("cause", (*cause).to_owned())]);
            out.put(OTLP_DROPPED, labels, *count as f64);
        }
        for (family, count) in [
            (OTLP_SENT, one.sent),
            (OTLP_RETRIES, one.retries),
            (OTLP_WAITING, one.waiting),
        ] {
            out.put(family, labels.clone(), count as f64);
        }
    }
}

fn daemon(out: &mut Out, taken: &Taken) {
    let status = &taken.status;
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for one in &taken.processes {
        let state = one.stats.process.as_ref().map(|process| process.state());
        *states
            .entry(state.unwrap_or_default().to_string())
            .or_default() += 1;
    }
    for (state, count) in states {
        out.put(PROCESSES, vec![("state", state)], count as f64);
    }
    let by_cause = |out: &mut Out, family, causes: &[v1::Cause]| {
        for cause in causes {
            out.put(
                family,
                vec![("cause", value(&cause.cause))],
                cause.count as f64,
            );
        }
    };
    for cause in &status.drops {
        out.since_boot_ns = taken.drops_since.get(&*cause.cause).copied();
        by_cause(out, DROPS, std::slice::from_ref(cause));
    }
    out.since_boot_ns = None;
    out.put(RECORDS, Labels::new(), status.records as f64);
    // Who attaches and detaches is busy then, and does not say.
    if !status.attaching {
        out.put(SITES, Labels::new(), status.sites as f64);
    }
    out.put(CPU, Labels::new(), taken.cpu_ns as f64 / 1e9);
    out.put(BUILD, vec![("version", status.version.clone())], 1.0);
    if let Some(journal) = &status.journal {
        out.put(JOURNAL, Labels::new(), journal.bytes as f64);
        // Who chose to have no journal is not to be woken because none is written.
        if journal.state != "off" {
            let writing = if journal.state == "writing" { 1.0 } else { 0.0 };
            out.put(JOURNAL_WRITING, Labels::new(), writing);
        }
    }
    if let Some(memory) = &status.memory {
        out.put(MEMORY, Labels::new(), memory.used_bytes as f64);
        out.put(MEMORY_LIMIT, Labels::new(), memory.limit_bytes as f64);
        by_cause(out, SHED, &memory.shed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FREE_HOLDS_NS: u64 = 15;

    fn of(pid: u32, reserved: Option<u64>) -> TakenProcess {
        let device = v1::DeviceStats {
            device: Some(0),
            source: v1::Source::Pool.into(),
            allocated_bytes: reserved.map(|bytes| bytes / 2),
            reserved_bytes: reserved,
            oom_count: 1,
            ..v1::DeviceStats::default()
        };
        let facts = v1::ProcessFacts {
            pid,
            comm: "python".into(),
            cmdline: ["/usr/bin/python", "-u", "/jobs/a/train.py"]
                .map(str::to_owned)
                .into(),
            ..v1::ProcessFacts::default()
        };
        let process = v1::Process {
            facts: Some(facts),
            state: v1::ProcessState::Attached.into(),
            workload: Some(v1::Workload {
                rank: Some(3),
                ..v1::Workload::default()
            }),
            ..v1::Process::default()
        };
        TakenProcess {
            stats: v1::StatsResponse {
                pid,
                process: Some(process),
                devices: vec![device],
                ..v1::StatsResponse::default()
            },
            ..TakenProcess::default()
        }
    }

    fn samples(metrics: &[Metric], name: &str) -> Vec<(String, f64)> {
        let found = metrics
            .iter()
            .find(|metric| metric.family.full_name() == name);
        let samples = found.map_or(&[][..], |metric| &metric.samples);
        let words = |labels: &Labels| {
            let each = labels.iter().map(|(name, value)| format!("{name}={value}"));
            each.collect::<Vec<_>>().join(" ")
        };
        samples
            .iter()
            .map(|one| (words(&one.labels), one.value))
            .collect()
    }

    #[test]
    fn what_is_not_known_is_not_there() {
        let taken = Taken {
            processes: vec![of(7, None), of(8, Some(100))],
            ..Taken::default()
        };
        let metrics = fold(&taken, &Limits::default());
        let labels = "pid=8 program=train.py rank=3 device=0";
        assert_eq!(
            samples(&metrics, "memscope_reserved_bytes"),
            [(labels.to_owned(), 100.0)]
        );
        assert_eq!(
            samples(&metrics, "memscope_fragmentation_ratio"),
            [(labels.to_owned(), 0.5)]
        );
        assert_eq!(samples(&metrics, "memscope_to_full_seconds"), []);
        assert_eq!(samples(&metrics, "memscope_step_time_seconds"), []);
        assert_eq!(samples(&metrics, "memscope_out_of_memory_total").len(), 2);
        // While the tracer is busy nobody says how many probes there are.
        for attaching in [false, true] {
            let mut taken = Taken::default();
            (taken.status.sites, taken.status.attaching) = (300, attaching);
            let sites = samples(&fold(&taken, &Limits::default()), "memscope_probe_sites");
            assert_eq!(sites.len(), usize::from(!attaching));
        }
    }

    /// At level `segments` nobody sees what the pool hands out, and 0 would say that there was nothing.
    #[test]
    fn what_a_hidden_pool_does_is_not_there() {
        let mut hidden = of(7, Some(100));
        hidden.stats.coverage.push(v1::CoverageNote {
            code: "level_segments".into(),
            ..v1::CoverageNote::default()
        });
        let taken = Taken {
            processes: vec![hidden],
            ..Taken::default()
        };
        let metrics = fold(&taken, &Limits::default());
        for name in [
            "memscope_live_blocks",
            "memscope_allocations_total",
            "memscope_frees_total",
            "memscope_out_of_memory_total",
        ] {
            let told = samples(&metrics, name);
            assert!(told.is_empty(), "{name}: {told:?}");
        }
    }

    #[test]
    fn failed_allocations_that_nothing_tells_of_are_not_there() {
        for (code, there) in [("level_read", 0), ("oom_unseen", 0), ("no_stacks", 1)] {
            let mut one = of(7, Some(100));
            one.stats.coverage.push(v1::CoverageNote {
                code: code.to_owned(),
                ..v1::CoverageNote::default()
            });
            let taken = Taken {
                processes: vec![one],
                ..Taken::default()
            };
            let metrics = fold(&taken, &Limits::default());
            let failed = samples(&metrics, "memscope_out_of_memory_total");
            assert_eq!(failed.len(), there, "{code}");
            assert_eq!(samples(&metrics, "memscope_allocations_total").len(), 1);
        }
    }

    /// An alert stands on 0: where no journal is wanted there is no number, or it would be raised for ever.
    #[test]
    fn a_journal_that_nobody_wants_has_not_stopped() {
        for (state, expected) in [
            ("writing", Some(1.0)),
            ("full", Some(0.0)),
            ("failed", Some(0.0)),
            ("off", None),
        ] {
            let journal = v1::Journal {
                state: state.to_owned(),
                ..v1::Journal::default()
            };
            let taken = Taken {
                status: v1::StatusResponse {
                    journal: Some(journal),
                    ..v1::StatusResponse::default()
                },
                ..Taken::default()
            };
            let metrics = fold(&taken, &Limits::default());
            let writing = samples(&metrics, "memscope_journal_writing");
            let told = writing.first().map(|(_, value)| *value);
            assert_eq!(told, expected, "{state}");
            assert_eq!(samples(&metrics, "memscope_journal_bytes").len(), 1);
        }
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let limits = Limits {
            processes: 10,
            ..Limits::default()
        };
        let count = |processes: u32| {
            let all = (1..=processes).map(|pid| of(pid, Some(u64::from(pid) * 10)));
            let taken = Taken {
                processes: all.collect(),
                ..Taken::default()
            };
            fold(&taken, &limits)
        };
        let series =
            |metrics: &[Metric]| metrics.iter().map(|one| one.samples.len()).sum::<usize>();
        assert_eq!(series(&count(100)), series(&count(1000)));
        let metrics = count(100);
        let reserved = samples(&metrics, "memscope_reserved_bytes");
        assert_eq!(reserved.len(), 11);
        assert_eq!(reserved[0].0, "pid=100 program=train.py rank=3 device=0");
        let others: u32 = (1..=90).sum();
        assert_eq!(
            reserved[10],
            ("pid=other".to_owned(), f64::from(others * 10))
        );
        assert_eq!(
            samples(&metrics, "memscope_processes_without_series"),
            [(String::new(), 90.0)]
        );
        // A sum with an unknown part is unknown.
        let mut all: Vec<_> = (1..=20).map(|pid| of(pid, Some(10))).collect();
        all.push(of(21, None));
        let metrics = fold(
            &Taken {
                processes: all,
                ..Taken::default()
            },
            &limits,
        );
        assert_eq!(samples(&metrics, "memscope_reserved_bytes").len(), 10);
        // So it is where nothing is known of a process yet, not even its devices; one that has nothing adds nothing.
        let with = |reserved: Option<u64>| {
            let mut one = of(21, None);
            one.stats.devices.clear();
            if let Some(process) = &mut one.stats.process {
                process.reserved_bytes = reserved;
            }
            let mut all: Vec<_> = (1..=20).map(|pid| of(pid, Some(10))).collect();
            all.push(one);
            let taken = Taken {
                processes: all,
                ..Taken::default()
            };
            let metrics = fold(&taken, &limits);
            samples(&metrics, "memscope_reserved_bytes").len()
        };
        assert_eq!((with(None), with(Some(0))), (10, 11));
    }

    #[test]
    fn counters_outlive_their_process_for_a_while() {
        let limits = Limits::default();
        let mut ended = of(7, Some(100));
        ended.ended_ago_ns = Some(limits.ended_ns);
        let counters = |ended: TakenProcess| {
            let taken = Taken {
                processes: vec![ended],
                ..Taken::default()
            };
            let metrics = fold(&taken, &limits);
            assert_eq!(samples(&metrics, "memscope_reserved_bytes"), []);
            samples(&metrics, "memscope_out_of_memory_total").len()
        };
        assert_eq!(counters(ended.clone()), 1);
        ended.ended_ago_ns = Some(limits.ended_ns + 1);
        assert_eq!(counters(ended.clone()), 0);
        // The process that has the pid now has the series.
        ended.ended_ago_ns = Some(1);
        let taken = Taken {
            processes: vec![ended, of(7, Some(5))],
            ..Taken::default()
        };
        let metrics = fold(&taken, &limits);
        assert_eq!(samples(&metrics, "memscope_out_of_memory_total").len(), 1);
        assert_eq!(samples(&metrics, "memscope_reserved_bytes")[0].1, 5.0);
    }

    /// A pid that was several processes within the time has the counters of the one that ended last, whatever an earlier one held.
    #[test]
    fn of_several_processes_of_a_pid_the_last_one_has_the_series() {
        let ended = |ago, reserved, alloc_count| {
            let mut one = of(7, Some(reserved));
            one.stats.devices[0].alloc_count = alloc_count;
            one.ended_ago_ns = Some(ago);
            one
        };
        let taken = Taken {
            processes: vec![ended(20, 1000, 5), ended(10, 0, 3), ended(30, 10, 4)],
            ..Taken::default()
        };
        let limits = Limits {
            processes: 1,
            ..Limits::default()
        };
        let metrics = fold(&taken, &limits);
        let told = samples(&metrics, "memscope_allocations_total");
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].1, 3.0);
    }

    /// A sum of no numbers would be written as `-0.0`.
    #[test]
    fn what_does_not_grow_grows_by_zero() {
        let taken = Taken {
            processes: vec![of(7, Some(100)), of(8, Some(50))],
            ..Taken::default()
        };
        let limits = Limits {
            processes: 1,
            ..Limits::default()
        };
        let metrics = fold(&taken, &limits);
        for (name, count) in [
            ("memscope_growth_bytes_per_second", 2),
            ("memscope_growth_bytes_per_step", 1),
        ] {
            let told = samples(&metrics, name);
            assert_eq!(told.len(), count, "{name}: {told:?}");
            let zero = |(_, value): &(String, f64)| value.to_bits() == 0;
            assert!(told.iter().all(zero), "{name}: {told:?}");
        }
    }

    #[test]
    fn findings_name_their_lines() {
        let mut leaky = of(7, Some(100));
        let finding = |file: &str, line, growth| v1::Finding {
            device: Some(0),
            space: "pool".into(),
            file: file.into(),
            line,
            name: "step".into(),
            live_bytes: 10,
            growth_bytes_per_s: growth,
            ..v1::Finding::default()
        };
        leaky.findings = (1..=9)
            .map(|line| finding("/jobs/a/train.py", line, f64::from(line)))
            .collect();
        leaky.findings.push(finding("", 0, 100.0));
        leaky.findings.push(finding("", 0, 50.0));
        leaky.stats.as_of_boot_ns = FREE_HOLDS_NS + 5;
        let device = &mut leaky.stats.devices[0];
        (device.free_bytes, device.free_bytes_boot_ns) = (Some(390), Some(5));
        let taken = Taken {
            processes: vec![leaky.clone()],
            free_holds_ns: FREE_HOLDS_NS,
            ..Taken::default()
        };
        let metrics = fold(&taken, &Limits::default());
        let found = samples(&metrics, "memscope_finding_growth_bytes_per_second");
        assert_eq!(
            found.len(),
            4,
            "five findings, two of which have the same labels"
        );
        let labels = "pid=7 program=train.py rank=3 device=0 line=a/train.py:9 function=step";
        assert!(found.contains(&(labels.to_owned(), 9.0)), "{found:?}");
        assert!(
            found
                .iter()
                .any(|(labels, growth)| labels.contains("line=unknown") && *growth == 150.0)
        );
        assert_eq!(
            samples(&metrics, "memscope_to_full_seconds")[0].1,
            // The pool has 100, and has handed out 50 of them.
            (390.0 + 50.0) / 195.0
        );
        leaky.stats.as_of_boot_ns += 1;
        let metrics = fold(
            &Taken {
                processes: vec![leaky],
                free_holds_ns: FREE_HOLDS_NS,
                ..Taken::default()
            },
            &Limits::default(),
        );
        assert_eq!(
            samples(&metrics, "memscope_to_full_seconds"),
            [],
            "what was free is not known any more"
        );
    }

    /// What the ledger answers after each of 40 backward passes of which four make a step: it knows that only after sixteen of them.
    #[test]
    fn a_number_of_steps_that_falls_is_no_counter() {
        let counts = (1..=40u64).map(|pass| if pass < 16 { pass } else { pass / 4 });
        let mut before: HashMap<String, Sample> = HashMap::new();
        let mut seen = Vec::new();
        for count in counts {
            let mut one = of(7, Some(100));
            one.steps.source = v1::StepSource::Backward.into();
            one.steps.count = Some(count);
            let taken = Taken {
                processes: vec![one],
                ..Taken::default()
            };
            let metrics = fold(&taken, &Limits::default());
            seen.extend(samples(&metrics, "memscope_steps").iter().map(|one| one.1));
            let counters = metrics
                .iter()
                .filter(|one| one.family.kind == Kind::Counter);
            for metric in counters {
                for sample in &metric.samples {
                    let series = format!("{} {:?}", metric.family.name, sample.labels);
                    let last = before.insert(series, sample.clone());
                    let Some(last) = last.filter(|last| last.since_boot_ns == sample.since_boot_ns)
                    else {
                        continue;
                    };
                    let name = metric.family.full_name();
                    assert!(last.value <= sample.value, "{name}: {last:?}, {sample:?}");
                }
            }
        }
        assert_eq!((seen.len(), seen[14], seen[15]), (40, 15.0, 4.0));
    }
}
