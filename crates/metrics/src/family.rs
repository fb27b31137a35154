//! The list of metrics. Dashboards, rules and the documentation are made from it.
//!
//! A name is written once, as OpenTelemetry wants it: parts with dots between them, the unit beside it. Names for OpenMetrics follow from
//! that by the rule that OpenTelemetry has for Prometheus ([`Family::full_name`]). Where OpenTelemetry has a name for hardware
//! (`hw.gpu.memory.*`), that name is used.

/// What the samples of a metric are of; it decides which labels they have beside those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// One process on one device: `device`, the ordinal within the process.
    ProcessDevice,
    /// One process.
    Process,
    /// A line of a process's program that leaks: `device`, `line`, `function`.
    Finding,
    /// A function of the driver with a status that it failed with: `function`, `status`.
    Failure,
    /// A note about what a process's numbers do not show: `code`, and `affects`, one kind of numbers.
    Note,
    /// A device of the machine, or a part of one: `hw_id`, `hw_type`, `hw_vendor`, `hw_parent`.
    MachineDevice,
    /// The daemon.
    Daemon,
    /// The daemon, by a word: `cause` or `state`.
    DaemonBy(&'static str),
    /// What the daemon sends to a collector: `signal`, which is `metrics` or `logs`.
    Signal,
    /// The same, by another word.
    SignalBy(&'static str),
}

/// How the samples of a metric behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Goes up and down, and OpenTelemetry's conventions say that its sum over all devices means something.
    UpDown,
    /// Only grows, until the process or the daemon starts anew.
    Counter,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, or 0 and 1 for no and yes.
    None,
    /// Bytes.
    Bytes,
    /// Bytes in a second.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// A part of a whole, 0 to 1.
    Ratio,
}

impl Unit {
    /// The end of the metric's name.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes_per_second",
            Unit::Seconds => "seconds",
            Unit::Ratio => "ratio",
        }
    }

    /// The unit as OpenTelemetry writes it, in UCUM; empty for a count.
    #[must_use]
    pub fn ucum(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Bytes => "By",
            Unit::BytesPerSecond => "By/s",
            Unit::Seconds => "s",
            Unit::Ratio => "1",
        }
    }
}

/// A metric: its name, and what its samples mean.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name for OpenTelemetry: parts with dots between them, without the unit. A unit that no program can spell out (bytes in a step) is a
    /// part of the name.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// How its samples behave.
    pub kind: Kind,
    /// What its samples are of.
    pub of: Of,
    /// What it means, in a sentence.
    pub help: &'static str,
}

impl Family {
    /// Name for OpenMetrics without the unit: an underscore for each dot.
    #[must_use]
    pub fn base_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// Name as Prometheus's queries use it: underscores for dots, the unit as a word, and `total` for what only grows.
    #[must_use]
    pub fn full_name(&self) -> String {
        let end = match self.kind {
            Kind::Counter => "total",
            Kind::Gauge | Kind::UpDown => "",
        };
        let base = self.base_name();
        let parts = [base.as_str(), self.unit.suffix(), end];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("_")
    }
}

/// Makes a constant for each metric, and the list of all.
macro_rules! families {
    ($($constant:ident = $name:literal, $unit:ident, $kind:ident, $of:expr, $help:literal;)*) => {
        $(#[doc = $help] pub(crate) const $constant: &Family = &Family {
            name: $name, unit: Unit::$unit, kind: Kind::$kind, of: $of, help: $help,
        };)*
        /// All metrics, in the order in which they are written.
        pub const FAMILIES: &[&Family] = &[$($constant),*];
    };
}

families! {
    PROCESS = "memscope.process", None, Gauge, Of::Process, "Traced processes, always 1; its labels say whose a process is.";
    ALLOCATED = "memscope.allocated", Bytes, Gauge, Of::ProcessDevice, "Bytes that the process's allocator has handed out.";
    RESERVED = "memscope.reserved", Bytes, Gauge, Of::ProcessDevice, "Bytes that the process's allocator has taken from the driver; without an allocator, all that it has from the driver.";
    PEAK_ALLOCATED = "memscope.peak_allocated", Bytes, Gauge, Of::ProcessDevice, "Largest allocated bytes since the attach.";
    PEAK_RESERVED = "memscope.peak_reserved", Bytes, Gauge, Of::ProcessDevice, "Largest reserved bytes since the attach.";
    BASELINE = "memscope.baseline", Bytes, Gauge, Of::ProcessDevice, "The part of the allocated bytes that was there before the attach.";
    DIRECT = "memscope.direct", Bytes, Gauge, Of::ProcessDevice, "Bytes that the process has from the driver beside its framework's allocator.";
    CONTEXT = "memscope.context", Bytes, Gauge, Of::ProcessDevice, "Bytes that the driver uses for the process beside what the process holds, such as its context.";
    FRAGMENTATION = "memscope.fragmentation", Ratio, Gauge, Of::ProcessDevice, "The part of the reserved bytes that is not handed out.";
    LIVE_BLOCKS = "memscope.live_blocks", None, Gauge, Of::ProcessDevice, "Blocks that are handed out and known one by one.";
    ALLOCATIONS = "memscope.allocations", None, Counter, Of::ProcessDevice, "Blocks that were handed out since the attach.";
    FREES = "memscope.frees", None, Counter, Of::ProcessDevice, "Blocks that were given back since the attach.";
    OUT_OF_MEMORY = "memscope.out_of_memory", None, Counter, Of::ProcessDevice, "Allocations that failed because the device was full, as the framework reported them.";
    FAILURES = "memscope.failed_calls", None, Counter, Of::Failure, "Calls of the driver's or runtime's allocation functions that failed.";
    GROWING_LINES = "memscope.growing_lines", None, Gauge, Of::Process, "Lines of the program that are known to keep more and more memory.";
    GROWTH = "memscope.growth", BytesPerSecond, Gauge, Of::Process, "Growth of what those lines keep, bytes in a second.";
    GROWTH_PER_STEP = "memscope.growth_bytes_per_step", None, Gauge, Of::Process, "Growth of what those lines keep, bytes in a step of the program.";
    FINDING = "memscope.finding.growth", BytesPerSecond, Gauge, Of::Finding, "Growth of what one line of the program keeps, bytes in a second, while it is known to leak.";
    FINDING_LIVE = "memscope.finding.live", Bytes, Gauge, Of::Finding, "Bytes that one line of the program keeps, while it is known to leak.";
    TO_FULL = "memscope.to_full", Seconds, Gauge, Of::ProcessDevice, "Time until the device is full if the known leaks go on as they do.";
    STEPS = "memscope.steps", None, Gauge, Of::Process, "Steps that are known of the program since the attach. It can fall: when something better tells of steps, they are counted anew, and several backward passes may turn out to be one step.";
    STEP_TIME = "memscope.step_time", Seconds, Gauge, Of::Process, "Median duration of the program's last steps.";
    LOST = "memscope.lost_records", None, Counter, Of::Process, "Records of the process that were lost, so that its numbers may be wrong until the next reading.";
    NOTE = "memscope.coverage", None, Gauge, Of::Note, "Something limits the numbers of that kind, always 1: 'lower_bound' says that they can only be too small.";
    GPU_LIMIT = "hw.gpu.memory.limit", Bytes, UpDown, Of::MachineDevice, "Memory of the device.";
    GPU_USAGE = "hw.gpu.memory.usage", Bytes, UpDown, Of::MachineDevice, "Memory of the device that is in use, by whomever.";
    GPU_HELD = "memscope.device.held", Bytes, Gauge, Of::MachineDevice, "Bytes that the traced processes have from the driver on the device.";
    GPU_UNEXPLAINED = "memscope.device.unexplained", Bytes, Gauge, Of::MachineDevice, "Bytes of the device that are in use and that no traced process explains.";
    PROCESSES = "memscope.processes", None, Gauge, Of::DaemonBy("state"), "Processes that are traced ('attached'), and that were until five minutes ago at most ('exited' and so on); without those that wait for a device.";
    WITHOUT_SERIES = "memscope.processes_without_series", None, Gauge, Of::Daemon, "Traced processes that are summed up under the pid 'other', because there are too many.";
    RECORDS = "memscope.records", None, Counter, Of::Daemon, "Records of events that the daemon has read.";
    DROPS = "memscope.dropped_records", None, Counter, Of::DaemonBy("cause"), "Records that were lost or not understood, of all processes.";
    JOURNAL = "memscope.journal", Bytes, Gauge, Of::Daemon, "Disk space of the journal.";
    JOURNAL_WRITING = "memscope.journal_writing", None, Gauge, Of::Daemon, "Whether the journal is being written: 1, or 0 if it is full or failed. Not there where it is switched off (journal-mib is 0).";
    MEMORY = "memscope.daemon.memory", Bytes, Gauge, Of::Daemon, "Anonymous memory of the daemon.";
    MEMORY_LIMIT = "memscope.daemon.memory_limit", Bytes, Gauge, Of::Daemon, "Memory that the daemon may take.";
    SHED = "memscope.daemon.shed", None, Counter, Of::DaemonBy("cause"), "Times that the daemon gave up a part of what it kept, because its memory was short.";
    CPU = "memscope.daemon.cpu", Seconds, Counter, Of::Daemon, "Processor time of the daemon.";
    SITES = "memscope.probe_sites", None, Gauge, Of::Daemon, "Places in libraries that have a probe.";
    BUILD = "memscope.build", None, Gauge, Of::DaemonBy("version"), "Version of the daemon, always 1.";
    OTLP_SENT = "memscope.otlp.sent", None, Counter, Of::Signal, "Data points and log records that the collector has accepted.";
    OTLP_DROPPED = "memscope.otlp.dropped", None, Counter, Of::SignalBy("cause"), "Data points and log records that the collector will never have: there was no room for them while it did not answer, or it refused them.";
    OTLP_RETRIES = "memscope.otlp.retries", None, Counter, Of::Signal, "Requests to the collector that came to nothing and are sent again.";
    OTLP_WAITING = "memscope.otlp.waiting", None, Gauge, Of::Signal, "Data points and log records that wait for the collector.";
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_those_of_open_metrics() {
        let mut seen = HashSet::new();
        for family in FAMILIES {
            let name = family.full_name();
            assert!(seen.insert(name.clone()), "{name} is there twice");
            let letters = name
                .bytes()
                .all(|one| one.is_ascii_lowercase() || one == b'_');
            assert!(letters, "{name}");
            assert!(family.help.ends_with('.'), "{name}: {}", family.help);
            assert!(
                !family.name.ends_with("_total") && !family.name.ends_with("_info"),
                "{name}"
            );
            let parts = family.name.split('.');
            assert!(
                parts.clone().count() > 1 && parts.clone().all(|part| !part.is_empty()),
                "{}: a namespace, and then what it is",
                family.name
            );
        }
    }

    /// A row for each metric. `MEMSCOPE_BOOK=write` writes them.
    #[test]
    fn the_page_has_every_metric() {
        const HEADING: &str = "## All metrics\n";
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (before, _) = text.split_once(HEADING).unwrap();
        let mut expected = format!(
            "{before}{HEADING}\n| metric | what it is | of | in OTLP |\n|---|---|---|---|\n"
        );
        for family in FAMILIES {
            let of = match family.of {
                Of::ProcessDevice => "a process on a device: `device`",
                Of::Process => "a process",
                Of::Finding => "a line that leaks: `device`, `line`, `function`",
                Of::Failure => "a kind of failed call: `function`, `status`",
                Of::Note => "a note: `code`, `affects`, `lower_bound`",
                Of::MachineDevice => {
                    "a device of the machine: `hw_id`, `hw_type`, `hw_vendor`, of a part `hw_parent`"
                }
                Of::Daemon => "the daemon",
                Of::DaemonBy(label) => &format!("the daemon, by `{label}`"),
                Of::Signal => "what is sent to a collector: `signal`",
                Of::SignalBy(label) => &format!("what is sent to a collector: `signal`, `{label}`"),
            };
            let kind = match family.kind {
                Kind::Gauge => "gauge",
                Kind::UpDown => "sum, up and down",
                Kind::Counter => "sum, only up",
            };
            let unit = match family.unit.ucum() {
                "" => String::new(),
                unit => format!(" in `{unit}`"),
            };
            expected.push_str(&format!(
                "| `{}` | {} | {of} | `{}`{unit}, {kind} |\n",
                family.full_name(),
                family.help,
                family.name
            ));
        }
        if std::env::var_os("MEMSCOPE_BOOK").is_some_and(|how| how == "write") {
            std::fs::write(&page, &expected).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&page).unwrap(),
            expected,
            "MEMSCOPE_BOOK=write writes the page anew"
        );
    }
}
