//! What a snapshot of PyTorch's says, out of its dictionaries.
//!
//! Owns: the shapes of all versions from PyTorch 2.1 on, and the proof that the blocks of a segment lie in it one behind the other.
//! Refuses: what does not fit together, with the place at which it does not.

use super::NotASnapshot;
use crate::once::Once;
use crate::reader::{Pickle, Value};
use memscope_ledger::event::{AllocatorSettings, TraceAction};

/// Most devices of a snapshot; the allocator has an array of them.
const MOST_DEVICES: usize = 256;
/// Keys of the divisions: sizes in MiB.
const DIVISIONS: [&str; 16] = [
    "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192",
    "16384", ">",
];

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Active,
    Pending,
    Inactive,
}

/// A block at the moment of the snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) state: State,
    pub(super) frames: Option<Value>,
}

/// A segment at the moment of the snapshot.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) large: bool,
    pub(super) pool: (u64, u64),
    pub(super) expandable: bool,
    pub(super) blocks: Vec<Block>,
}

/// An entry of the trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: TraceAction,
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    /// When it was, nanoseconds since 1970; never earlier than the entry before it.
    pub(super) time_ns: u64,
    pub(super) frames: Option<Value>,
    pub(super) pool: Option<(u64, u64)>,
}

/// One device.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    /// By address.
    pub(super) segments: Vec<Segment>,
    pub(super) trace: Vec<Entry>,
}

/// The beginning or the end of a range that the program named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotation {
    pub(super) begins: bool,
    /// A text of the pickle: a million annotations may have one name of many MiB.
    pub(super) name: Option<Value>,
    pub(super) time_ns: u64,
}

/// What memscope wrote into a snapshot of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin {
    pub(super) pid: Option<u32>,
    pub(super) start_ticks: u64,
    pub(super) generation: u32,
}

/// What a pickle of `torch.cuda.memory._snapshot()` says, and how much of it could not be understood.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// By ordinal.
    pub(super) devices: Vec<Device>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) settings: Option<AllocatorSettings>,
    pub(super) expandable: bool,
    pub(super) origin: Origin,
    /// Number of entries without a time of their own, and of those whose time is before that of the entry before them.
    pub(super) untimed: u64,
    pub(super) moved: u64,
    /// Number of entries of an action that is not known, and of those to which the program added words of its own.
    pub(super) unknown: u64,
    pub(super) worded: u64,
}

struct Reader<'a> {
    pickle: &'a Pickle,
    once: Once,
}

impl Snapshot {
    pub(super) fn read(pickle: &Pickle) -> Result<Snapshot, NotASnapshot> {
        let root = pickle.root();
        let segments = match pickle.list(root) {
            Some(list) => list,
            None => pickle
                .get(root, "segments")
                .and_then(|segments| pickle.list(segments))
                .ok_or_else(|| NotASnapshot("there is no list \"segments\"".to_owned()))?,
        };
        let mut reader = Reader {
            pickle,
            once: Once::new(pickle),
        };
        let mut snapshot = Snapshot::default();
        for (number, segment) in segments.iter().enumerate() {
            let wrong = |what: String| NotASnapshot(format!("segment {number} {what}"));
            let (device, segment) = reader.segment(*segment).map_err(wrong)?;
            let devices = &mut snapshot.devices;
            if devices.len() <= device {
                devices.resize(device + 1, Device::default());
            }
            if let Some(device) = devices.get_mut(device) {
                device.segments.push(segment);
            }
        }
        for (number, device) in snapshot.devices.iter_mut().enumerate() {
            device.segments.sort_by_key(|segment| segment.addr);
            let mut at = 0;
            for segment in &device.segments {
                if segment.addr < at {
                    return Err(NotASnapshot(format!("segments of device {number} overlap")));
                }
                at = segment.addr.saturating_add(segment.size);
            }
        }
        reader.traces(root, &mut snapshot)?;
        reader.annotations(root, &mut snapshot);
        reader.settings(root, &mut snapshot);
        let origin = pickle.get(root, "memscope");
        let number = |key| origin.and_then(|origin| pickle.get(origin, key)?.unsigned());
        let narrow = |key| number(key).and_then(|number| u32::try_from(number).ok());
        snapshot.origin = Origin {
            pid: narrow("pid"),
            start_ticks: number("start_ticks").unwrap_or(0),
            generation: narrow("generation").unwrap_or(0),
        };
        Ok(snapshot)
    }
}

impl Reader<'_> {
    fn number(&self, of: Value, key: &str) -> Option<u64> {
        self.pickle.get(of, key).and_then(Value::unsigned)
    }

    fn text(&self, of: Value, key: &str) -> Option<&str> {
        self.pickle.text(self.pickle.get(of, key)?)
    }

    fn is_set(&self, of: Value, key: &str) -> bool {
        self.pickle.get(of, key) == Some(Value::Bool(true))
    }

    fn pool(&self, of: Value, key: &str) -> Option<(u64, u64)> {
        let list = self.pickle.list(self.pickle.get(of, key)?)?;
        let [first, second] = list else { return None };
        Some((first.unsigned()?, second.unsigned()?))
    }

    fn segment(&mut self, segment: Value) -> Result<(usize, Segment), String> {
        self.once.check(segment)?;
        let need = |key: &str| {
            let found = self.number(segment, key);
            found.ok_or_else(|| format!("has no number {key:?}"))
        };
        let device = self.number(segment, "device").unwrap_or(0);
        let device = usize::try_from(device).ok();
        let device = device
            .filter(|device| *device < MOST_DEVICES)
            .ok_or("is on a device that no machine has")?;
        let (addr, size) = (need("address")?, need("total_size")?);
        let end = addr
            .checked_add(size)
            .ok_or("ends behind the last address")?;
        let list = self.pickle.get(segment, "blocks");
        let list = list
            .and_then(|blocks| self.pickle.list(blocks))
            .ok_or("has no list \"blocks\"")?;
        let mut blocks = Vec::with_capacity(list.len());
        let mut at = addr;
        for (place, block) in list.iter().enumerate() {
            let wrong = |what: &str| format!("has a block {place} that {what}");
            self.once.check(*block).map_err(wrong)?;
            let state = match self.text(*block, "state") {
                Some("active_allocated") => State::Active,
                Some("active_pending_free" | "active_awaiting_free") => State::Pending,
                Some("inactive") => State::Inactive,
                _ => return Err(wrong("has a state that is not known")),
            };
            let size = self.number(*block, "size").filter(|size| *size > 0);
            let size = size.ok_or_else(|| wrong("has no size"))?;
            // Older versions give a block no address: it follows the one before.
            let address = self.number(*block, "address").unwrap_or(at);
            if address < at || size > end.saturating_sub(address) {
                return Err(wrong("lies outside of it or over another one"));
            }
            at = address + size;
            blocks.push(Block {
                addr: address,
                size,
                requested: self.number(*block, "requested_size").unwrap_or(0),
                state,
                frames: self.pickle.get(*block, "frames"),
            });
        }
        let segment = Segment {
            addr,
            size,
            stream: self.number(segment, "stream").unwrap_or(0),
            large: self.text(segment, "segment_type") != Some("small"),
            pool: self.pool(segment, "segment_pool_id").unwrap_or((0, 0)),
            expandable: self.is_set(segment, "is_expandable"),
            blocks,
        };
        Ok((device, segment))
    }

    fn traces(&mut self, root: Value, snapshot: &mut Snapshot) -> Result<(), NotASnapshot> {
        let traces = self.pickle.get(root, "device_traces");
        let traces = traces.and_then(|traces| self.pickle.list(traces));
        for (device, trace) in traces.unwrap_or(&[]).iter().enumerate() {
            let list = self.pickle.list(*trace).unwrap_or(&[]);
            if list.is_empty() {
                continue;
            }
            let wrong = |place: usize, what: &str| {
                NotASnapshot(format!(
                    "entry {place} of the trace of device {device} {what}"
                ))
            };
            if device >= MOST_DEVICES {
                return Err(wrong(0, "is of a device that no machine has"));
            }
            let mut entries = Vec::with_capacity(list.len());
            let mut last_ns = 0;
            for (place, entry) in list.iter().enumerate() {
                self.once.check(*entry).map_err(|what| wrong(place, what))?;
                let Some(action) = self.text(*entry, "action").and_then(action) else {
                    snapshot.unknown += 1;
                    continue;
                };
                let told = self.number(*entry, "time_us");
                let told_ns = told.and_then(|us| us.checked_mul(1_000));
                let time_ns = told_ns.unwrap_or(last_ns).max(last_ns);
                snapshot.untimed += u64::from(told_ns.is_none());
                snapshot.moved += u64::from(told_ns.is_some_and(|ns| ns < last_ns));
                last_ns = time_ns;
                let words = self.text(*entry, "user_metadata");
                snapshot.worded += u64::from(words.is_some_and(|words| !words.is_empty()));
                let addr = match action {
                    TraceAction::Oom => self.number(*entry, "device_free"),
                    _ => self.number(*entry, "addr"),
                };
                entries.push(Entry {
                    action,
                    addr: addr.unwrap_or(0),
                    size: self.number(*entry, "size").unwrap_or(0),
                    stream: self.number(*entry, "stream").unwrap_or(0),
                    time_ns,
                    frames: self.pickle.get(*entry, "frames"),
                    pool: self
                        .pool(*entry, "segment_pool_id")
                        .or(self.pool(*entry, "pool_id")),
                });
            }
            let devices = &mut snapshot.devices;
            if devices.len() <= device {
                devices.resize(device + 1, Device::default());
            }
            if let Some(device) = devices.get_mut(device) {
                device.trace = entries;
            }
        }
        Ok(())
    }

    fn annotations(&mut self, root: Value, snapshot: &mut Snapshot) {
        let list = self.pickle.get(root, "external_annotations");
        let list = list.and_then(|list| self.pickle.list(list)).unwrap_or(&[]);
        for one in list {
            if self.once.check(*one).is_err() {
                continue;
            }
            let begins = match self.text(*one, "stage") {
                Some("START") => true,
                Some("END") => false,
                _ => continue,
            };
            let time = self.number(*one, "time_us");
            let Some(time_ns) = time.and_then(|us| us.checked_mul(1_000)) else {
                continue;
            };
            snapshot.annotations.push(Annotation {
                begins,
                name: self.pickle.get(*one, "name"),
                time_ns,
            });
        }
        snapshot.annotations.sort_by_key(|one| one.time_ns);
    }

    fn settings(&self, root: Value, snapshot: &mut Snapshot) {
        let Some(told) = self.pickle.get(root, "allocator_settings") else {
            return;
        };
        snapshot.expandable = self.is_set(told, "expandable_segments");
        let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
        let text = names.iter().find_map(|name| self.text(told, name));
        let divisions = self.pickle.get(told, "roundup_power2_divisions");
        let division = |(place, key): (usize, &&str)| {
            let divisions = divisions?;
            let last = self
                .number(divisions, "32768")
                .filter(|_| place == DIVISIONS.len() - 1);
            self.number(divisions, key).or(last)
        };
        let divisions: Option<Vec<u64>> = DIVISIONS.iter().enumerate().map(division).collect();
        let threshold = match self.pickle.get(told, "garbage_collection_threshold") {
            Some(Value::Float(threshold)) => threshold,
            _ => 0.0,
        };
        snapshot.settings = Some(AllocatorSettings {
            text: text.unwrap_or_default().to_owned(),
            // -1: there is no limit.
            max_split_bytes: self.number(told, "max_split_size").unwrap_or(u64::MAX),
            collection_threshold: threshold,
            divisions: divisions.unwrap_or_default(),
        });
    }
}

fn action(word: &str) -> Option<TraceAction> {
    Some(match word {
        "alloc" => TraceAction::Alloc,
        "free_requested" => TraceAction::FreeRequested,
        "free_completed" | "free" => TraceAction::FreeCompleted,
        "segment_alloc" => TraceAction::SegmentAlloc,
        "segment_free" => TraceAction::SegmentFree,
        "segment_map" => TraceAction::SegmentMap,
        "segment_unmap" => TraceAction::SegmentUnmap,
        "snapshot" => TraceAction::Snapshot,
        "oom" => TraceAction::Oom,
        _ => return None,
    })
}
