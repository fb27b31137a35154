//! A snapshot as a whole: devices with their traces in the order of time, the program's annotations, the allocator's settings.

use crate::once::Once;
use crate::reader::{Pickle, Value};
use crate::snapshot::{Action, NotASnapshot, Note, Origin, Segment};
use std::collections::BTreeMap;

/// Keys of the divisions: sizes in MiB.
const DIVISIONS: [&str; 16] = [
    "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192",
    "16384", ">",
];

/// The settings of the allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// As text in the form of `PYTORCH_CUDA_ALLOC_CONF`.
    pub(crate) text: String,
    /// `max_split_size_mb`, in bytes; `u64::MAX` if there is no limit.
    pub(crate) max_split_bytes: u64,
    /// `garbage_collection_threshold`.
    pub(crate) collection_threshold: f64,
    /// `roundup_power2_divisions`, one number for each power of two from 1 MiB on.
    pub(crate) divisions: Vec<u64>,
}

/// An entry of the trace of which the action is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) action: Action,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// When it was, nanoseconds since 1970; never earlier than the entry before it, and at least 2, so that there is a moment before it.
    pub(crate) time_ns: u64,
    pub(crate) frames: Option<Value>,
    pub(crate) pool: Option<(u64, u64)>,
}

/// One device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    /// By address.
    pub(crate) segments: Vec<Segment>,
    pub(crate) trace: Vec<Entry>,
    /// Number of entries whose time is before that of an entry before them.
    pub(crate) moved: u64,
}

/// The beginning or the end of a range that the program named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Annotation {
    pub(crate) begins: bool,
    /// A text of the pickle: a million annotations may have one name of many MiB.
    pub(crate) name: Option<Value>,
    pub(crate) time_ns: u64,
}

/// What a pickle of `torch.cuda.memory._snapshot()` says, and how much of it could not be understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// By ordinal.
    pub(crate) devices: BTreeMap<i32, Device>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) settings: Option<Settings>,
    pub(crate) expandable: bool,
    pub(crate) origin: Origin,
    /// memscope wrote it.
    pub(crate) is_memscopes: bool,
    /// What limits the numbers, as memscope wrote it.
    pub(crate) notes: Vec<Note>,
    /// Whether it says any moment.
    pub(crate) has_times: bool,
    /// Number of entries without a time of their own.
    pub(crate) untimed: u64,
    /// Number of entries of an action that is not known, and of those to which the program added words of its own.
    pub(crate) unknown: u64,
    pub(crate) worded: u64,
}

impl Snapshot {
    /// Reads a snapshot out of a file that was written at this moment.
    pub(crate) fn read(pickle: &Pickle, written_ns: u64) -> Result<Snapshot, NotASnapshot> {
        let mut read = crate::Snapshot::of(pickle)?;
        let mut snapshot = Snapshot {
            origin: Origin {
                as_of_unix_ns: read.origin().as_of_unix_ns.filter(|ns| *ns > 0),
                ..read.origin()
            },
            is_memscopes: pickle.get(pickle.root(), "memscope").is_some(),
            notes: read.notes(),
            ..Snapshot::default()
        };
        for segment in read.segments()? {
            let device = snapshot.devices.entry(segment.device).or_default();
            device.segments.push(segment);
        }
        read.entries(|device, entry| snapshot.entry(device, &entry))?;
        snapshot.annotations(pickle);
        snapshot.settings(pickle);
        snapshot.has_times = snapshot.newest_ns().is_some();
        snapshot.place_untimed(written_ns);
        Ok(snapshot)
    }

    /// The newest moment that it says.
    fn newest_ns(&self) -> Option<u64> {
        let lasts = self.devices.values().filter_map(|one| one.trace.last());
        let lasts = lasts.map(|entry| entry.time_ns).filter(|ns| *ns > 0);
        let annotated = self.annotations.last().map(|one| one.time_ns);
        lasts
            .chain(annotated)
            .chain(self.origin.as_of_unix_ns)
            .max()
    }

    /// Entries without a time before the first one that has a time get the nanoseconds before it; where no entry has a time, as in
    /// what torch_npu writes, those before the end. So each of them has a moment of its own, after the state at the trace's beginning.
    fn place_untimed(&mut self, written_ns: u64) {
        let end_ns = self.newest_ns().unwrap_or(written_ns);
        for device in self.devices.values_mut() {
            let untimed = device.trace.partition_point(|entry| entry.time_ns == 0);
            let next_ns = device
                .trace
                .get(untimed)
                .map_or(end_ns, |entry| entry.time_ns);
            let entries = device.trace.iter_mut().take(untimed).rev();
            for (before, entry) in (1..).zip(entries) {
                entry.time_ns = next_ns.saturating_sub(before).max(2);
            }
        }
    }

    fn entry(&mut self, device: i32, entry: &crate::Entry) {
        let Some(action) = entry.action else {
            self.unknown += 1;
            return;
        };
        let device = self.devices.entry(device).or_default();
        let trace = &mut device.trace;
        let last_ns = trace.last().map_or(0, |entry| entry.time_ns);
        let told_us = entry.time_us.filter(|us| *us > 0);
        let told_ns = told_us.and_then(|us| us.checked_mul(1_000));
        self.untimed += u64::from(told_ns.is_none());
        device.moved += u64::from(told_ns.is_some_and(|ns| ns < last_ns));
        self.worded += u64::from(entry.worded);
        trace.push(Entry {
            action,
            addr: entry.addr,
            size: entry.size,
            stream: entry.stream,
            time_ns: told_ns.unwrap_or(last_ns).max(last_ns),
            frames: entry.frames,
            pool: entry.pool,
        });
    }

    fn annotations(&mut self, pickle: &Pickle) {
        let list = pickle.get(pickle.root(), "external_annotations");
        let list = list.and_then(|list| pickle.list(list)).unwrap_or(&[]);
        let mut once = Once::new(pickle);
        for one in list {
            if once.check(*one).is_err() {
                continue;
            }
            let stage = pickle.get(*one, "stage");
            let begins = match stage.and_then(|stage| pickle.text(stage)) {
                Some("START") => true,
                Some("END") => false,
                _ => continue,
            };
            let time = pickle.get(*one, "time_us").and_then(Value::unsigned);
            let Some(time_ns) = time.and_then(|us| us.checked_mul(1_000)) else {
                continue;
            };
            self.annotations.push(Annotation {
                begins,
                name: pickle.get(*one, "name"),
                time_ns,
            });
        }
        self.annotations.sort_by_key(|one| one.time_ns);
    }

    fn settings(&mut self, pickle: &Pickle) {
        let Some(told) = pickle.get(pickle.root(), "allocator_settings") else {
            return;
        };
        let number = |of: Value, key: &str| pickle.get(of, key).and_then(Value::unsigned);
        self.expandable = pickle.get(told, "expandable_segments") == Some(Value::Bool(true));
        let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
        let text = |name: &&str| pickle.text(pickle.get(told, name)?);
        let text = names.iter().find_map(text);
        let divisions = pickle.get(told, "roundup_power2_divisions");
        let division = |(place, key): (usize, &&str)| {
            let divisions = divisions?;
            let last = number(divisions, "32768").filter(|_| place == DIVISIONS.len() - 1);
            number(divisions, key).or(last)
        };
        let divisions: Option<Vec<u64>> = DIVISIONS.iter().enumerate().map(division).collect();
        let threshold = match pickle.get(told, "garbage_collection_threshold") {
            Some(Value::Float(threshold)) => threshold,
            _ => 0.0,
        };
        self.settings = Some(Settings {
            text: text.unwrap_or_default().to_owned(),
            // -1: there is no limit.
            max_split_bytes: number(told, "max_split_size").unwrap_or(u64::MAX),
            collection_threshold: threshold,
            divisions: divisions.unwrap_or_default(),
        });
    }
}
