//! A small simulated caching allocator that makes consistent streams of events, and helpers for tests.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::too_many_arguments)]

pub mod calls;
pub mod pictures;
mod structures;

use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_proto::v1;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub const P: ProcessHandle = ProcessHandle(1);
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
pub const MIB: u64 = 1 << 20;

/// Which events a call of the allocator makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only reports, as at level `blocks`.
    Reports,
    /// Trace entries without totals, then reports.
    Uncalibrated,
    /// Trace entries with totals.
    Calibrated,
    /// Trace entries with totals, and reports: while one way in replaces the other.
    Both,
    /// Trace entries without totals, and no reports: while one way in replaces the other.
    Bare,
}

impl Mode {
    fn traces(self) -> bool {
        self != Mode::Reports
    }
    fn reports(self) -> bool {
        matches!(self, Mode::Reports | Mode::Uncalibrated | Mode::Both)
    }
    fn totals(self) -> bool {
        matches!(self, Mode::Calibrated | Mode::Both)
    }
    pub fn tells_total(self) -> bool {
        self != Mode::Bare
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub device: i32,
    pub rounded: u64,
    pub requested: u64,
    pub stream: u64,
    /// The ledger had an event for it (else it was allocated before the attach).
    pub told: bool,
    pub born_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct DeviceState {
    /// addr → (size, stream, small)
    segments: BTreeMap<u64, (u64, u64, bool)>,
    /// free pieces: addr → (size, stream, small, segment, request of the last use)
    free: BTreeMap<u64, (u64, u64, bool, u64, u64)>,
    next_segment: u64,
    /// Expandable segments: (stream, small) → (start, end of all that was ever mapped).
    ranges: BTreeMap<(u64, bool), (u64, u64)>,
    allocated: u64,
    reserved: u64,
}

/// The simulated process.
#[derive(Clone)]
pub struct Sim {
    pub time: u64,
    pub tid: u32,
    pub mode: Mode,
    pub attached: bool,
    /// Stack of the next events.
    pub stack: StackRef,
    pub sampling: u8,
    pub names_device: bool,
    pub driver_calls: bool,
    /// Whether the setting `expandable_segments:True` is simulated.
    pub expandable: bool,
    /// Number of events, from the next one on, that are lost.
    pub lose: u32,
    pub lost: u64,
    pub sequence: u64,
    pub out: Vec<Event>,
    devices: BTreeMap<i32, DeviceState>,
    pub live: BTreeMap<u64, Live>,
    pub pending: HashMap<u64, Live>,
    /// The segment of each block (expandable: its range), and whether it belongs to the small pool.
    segment_of: HashMap<u64, (u64, bool)>,
    /// Mapped chunks by address: size and handle.
    chunks: BTreeMap<u64, (u64, u64)>,
    handles: u64,
}

impl Default for Sim {
    fn default() -> Self {
        Self::new(Mode::Calibrated)
    }
}

impl Sim {
    pub fn new(mode: Mode) -> Sim {
        Sim {
            time: SECOND,
            tid: 100,
            mode,
            attached: true,
            stack: StackRef::NotTaken,
            sampling: 0,
            names_device: true,
            driver_calls: false,
            expandable: false,
            lose: 0,
            lost: 0,
            sequence: 0,
            out: Vec::new(),
            devices: BTreeMap::new(),
            live: BTreeMap::new(),
            pending: HashMap::new(),
            segment_of: HashMap::new(),
            chunks: BTreeMap::new(),
            handles: 0,
        }
    }

    /// A stack of one line: the line of `train.py` that has the same number as the stack.
    pub fn line(&mut self, id: u64) {
        let code = 0x1000 * id;
        self.emit(Body::Stack(Box::new(StackSeen {
            id,
            frames: vec![(code, code + 100)],
            ..StackSeen::default()
        })));
        self.emit(Body::Code(Box::new(CodeName {
            code,
            died: None,
            name: "f".into(),
            file: "train.py".into(),
            first_line: id as u32,
            origin: code + 100,
            unit: 1,
            entered_at: 0,
            lines: vec![(0, id as u32)],
            lines_cut: false,
        })));
    }

    pub fn emit(&mut self, body: Body) {
        if !self.attached {
            return;
        }
        self.sequence += 1;
        if self.lose > 0 {
            self.lose -= 1;
            self.lost += 1;
            return;
        }
        self.out.push(Event {
            id: EventId {
                epoch: 1,
                sequence: self.sequence,
            },
            time_ns: self.time,
            process: P,
            tid: self.tid,
            lost_before: self.lost,
            stack: self.stack,
            sampling: self.sampling,
            body,
        });
    }

    /// Applies all emitted events to the ledger.
    pub fn feed(&mut self, ledger: &mut Ledger) {
        for event in self.out.drain(..) {
            ledger.apply(&event);
        }
    }

    pub fn allocated(&self, device: i32) -> u64 {
        self.devices.get(&device).map_or(0, |d| d.allocated)
    }

    pub fn reserved(&self, device: i32) -> u64 {
        self.devices.get(&device).map_or(0, |d| d.reserved)
    }

    pub fn segments(&self, device: i32) -> Vec<(u64, u64)> {
        self.devices.get(&device).map_or(vec![], |d| {
            d.segments.iter().map(|(a, s)| (*a, s.0)).collect()
        })
    }

    fn trace(
        &mut self,
        device: i32,
        action: TraceAction,
        addr: u64,
        size: u64,
        stream: u64,
        block: Option<u64>,
        extra: u64,
    ) {
        if !self.mode.traces() {
            return;
        }
        let state = &self.devices[&device];
        let totals = self.mode.totals();
        let body = Body::Trace(PoolTrace {
            action,
            allocator: 0x7000 + device as u64,
            device: self.names_device.then_some(device),
            addr,
            size,
            stream,
            block_size: block.filter(|_| totals),
            total_allocated: totals.then_some(state.allocated + extra),
            total_reserved: totals.then_some(state.reserved),
            pool: Some((0, 0)),
        });
        self.emit(body);
    }

    fn report(&mut self, device: i32, ptr: u64, size: i64) {
        if self.mode.reports() {
            let state = &self.devices[&device];
            let body = Body::Report(PoolReport {
                device,
                ptr,
                size,
                total_allocated: state.allocated,
                total_reserved: state.reserved,
            });
            self.emit(body);
        }
    }

    fn call(&mut self, op: CallOp, ptr: u64, size: u64) {
        if self.driver_calls {
            self.emit(call("cudaMalloc", op, ptr, size));
        }
    }

    /// Allocates a block as PyTorch does: rounds, takes the best fit, splits it, or else takes a new segment.
    pub fn alloc(&mut self, device: i32, stream: u64, requested: u64) -> u64 {
        let size = requested.max(1).next_multiple_of(512);
        let small = size <= MIB;
        self.devices.entry(device).or_insert_with(|| DeviceState {
            next_segment: 0x7f00_0000_0000 + ((device as u64) << 40),
            ..DeviceState::default()
        });
        let fit = |d: &DeviceState| {
            d.free
                .iter()
                .filter(|(_, f)| f.0 >= size && f.1 == stream && f.2 == small)
                .min_by_key(|(a, f)| (f.0, **a))
                .map(|(a, f)| (*a, *f))
        };
        let found = fit(&self.devices[&device]);
        let (addr, (room, _, _, segment, last)) = match found {
            Some(found) => found,
            None if self.expandable => {
                let at = self.map(device, stream, small, size);
                (at, self.devices[&device].free[&at])
            }
            None => {
                let bytes = if small {
                    2 * MIB
                } else if size < 10 * MIB {
                    20 * MIB
                } else {
                    size.next_multiple_of(2 * MIB)
                };
                let state = self.devices.get_mut(&device).unwrap();
                let at = state.next_segment;
                state.next_segment += bytes + 2 * MIB * (at / MIB % 2);
                state.segments.insert(at, (bytes, stream, small));
                state.reserved += bytes;
                state.free.insert(at, (bytes, stream, small, at, 0));
                self.call(CallOp::Alloc, at, bytes);
                self.trace(
                    device,
                    TraceAction::SegmentAlloc,
                    at,
                    bytes,
                    stream,
                    None,
                    0,
                );
                (at, (bytes, stream, small, at, 0))
            }
        };
        let rest = room - size;
        let split = if small { rest >= 512 } else { rest > MIB };
        let rounded = if split { size } else { room };
        let state = self.devices.get_mut(&device).unwrap();
        state.free.remove(&addr);
        if split {
            state
                .free
                .insert(addr + size, (rest, stream, small, segment, last));
        }
        // PyTorch makes the entry before it counts the block; the decoder adds it.
        self.trace(
            device,
            TraceAction::Alloc,
            addr,
            requested,
            stream,
            Some(rounded),
            rounded,
        );
        self.devices.get_mut(&device).unwrap().allocated += rounded;
        self.report(device, addr, rounded as i64);
        self.segment_of.insert(addr, (segment, small));
        self.live.insert(
            addr,
            Live {
                device,
                rounded,
                requested,
                stream,
                told: self.attached,
                born_ns: self.time,
            },
        );
        addr
    }

    /// Frees a block. With `later`, a stream still uses it until [`Sim::complete`].
    pub fn free(&mut self, addr: u64, later: bool) {
        let block = self.live.remove(&addr).unwrap();
        let device = block.device;
        self.devices.get_mut(&device).unwrap().allocated -= block.rounded;
        self.trace(
            device,
            TraceAction::FreeRequested,
            addr,
            block.requested,
            block.stream,
            Some(block.rounded),
            0,
        );
        if later {
            self.pending.insert(addr, block);
        } else {
            self.complete_block(addr, block);
        }
        self.report(device, addr, -(block.rounded as i64));
    }

    /// The stream no longer uses the freed block.
    pub fn complete(&mut self, addr: u64) {
        let block = self.pending.remove(&addr).unwrap();
        self.complete_block(addr, block);
    }

    fn complete_block(&mut self, addr: u64, block: Live) {
        self.trace(
            block.device,
            TraceAction::FreeCompleted,
            addr,
            block.requested,
            block.stream,
            Some(block.rounded),
            0,
        );
        let (segment, small) = self.segment_of.remove(&addr).unwrap();
        let state = self.devices.get_mut(&block.device).unwrap();
        let piece = (block.rounded, block.stream, small, segment, block.requested);
        state.give_back(addr, piece);
    }
}

impl DeviceState {
    /// Makes a piece free and joins it with its free neighbours.
    fn give_back(&mut self, addr: u64, piece: (u64, u64, bool, u64, u64)) -> u64 {
        let state = self;
        let (size, stream, small, segment, last) = piece;
        let (mut start, mut size) = (addr, size);
        if let Some(next) = state.free.get(&(addr + size)).copied()
            && next.3 == segment
        {
            state.free.remove(&(addr + size));
            size += next.0;
        }
        if let Some((&before, &piece)) = state.free.range(..addr).next_back()
            && piece.3 == segment
            && before + piece.0 == addr
        {
            state.free.remove(&before);
            start = before;
            size += piece.0;
        }
        state
            .free
            .insert(start, (size, stream, small, segment, last));
        start
    }
}

impl Sim {
    /// Gives segments back that are wholly free. PyTorch changes its totals after the entry.
    pub fn empty_cache(&mut self, device: i32) {
        if self.expandable && self.devices.contains_key(&device) {
            self.unmap_free(device);
            return;
        }
        let Some(state) = self.devices.get(&device) else {
            return;
        };
        let whole: Vec<(u64, u64, u64)> = state
            .segments
            .iter()
            .filter(|(a, s)| state.free.get(a).is_some_and(|f| f.0 == s.0))
            .map(|(a, s)| (*a, s.0, s.1))
            .collect();
        for (addr, size, stream) in whole {
            self.trace(
                device,
                TraceAction::SegmentFree,
                addr,
                size,
                stream,
                None,
                0,
            );
            self.call(CallOp::Free, addr, 0);
            let state = self.devices.get_mut(&device).unwrap();
            state.segments.remove(&addr);
            state.free.remove(&addr);
            state.reserved -= size;
        }
    }
}

pub fn call(function: &str, op: CallOp, ptr: u64, size: u64) -> Body {
    Body::Call(Call {
        function: Arc::from(function),
        layer: Layer::Runtime,
        vendor: Vendor::Cuda,
        op,
        status: 0,
        device: None,
        ptr,
        size,
        stream: None,
        handle: 0,
        context: 0,
        of_host: false,
        hal: None,
        extra: 0,
        nested: 0,
        duration_ns: 1000,
    })
}

pub fn event(process: ProcessHandle, time_ns: u64, body: Body) -> Event {
    Event {
        id: EventId::default(),
        time_ns,
        process,
        tid: 100,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body,
    }
}

pub fn facts(pid: u32, level: Level, from_start: bool) -> Box<ProcessFacts> {
    Box::new(ProcessFacts {
        pid,
        start_ticks: 77,
        level: Some(level),
        from_start,
        ..ProcessFacts::default()
    })
}

/// The step of an optimizer begins or ends.
pub fn update(kind: MarkKind, name: &str) -> Body {
    Body::Mark(Box::new(Mark {
        kind,
        source: MarkSource::RecordFunction,
        name: match kind {
            MarkKind::End => "".into(),
            _ => format!("Optimizer.step#{name}.step").into(),
        },
        ..Mark::default()
    }))
}

/// A ledger with one attached process with a native pool.
pub fn attached(level: Level, from_start: bool, at: u64) -> Ledger {
    attached_as(level, from_start, at, Backend::Native)
}

pub fn attached_as(level: Level, from_start: bool, at: u64, backend: Backend) -> Ledger {
    let pool_seen = backend == Backend::Native && level != Level::Segments;
    let mut ledger = Ledger::new(LedgerConfig {
        // With short windows, programs of a few seconds are long enough.
        leak_window_ns: 100 * MS,
        ..LedgerConfig::default()
    });
    ledger.apply(&event(P, at, Body::Attached(facts(42, level, from_start))));
    ledger.apply(&event(P, at, Body::Backend(backend)));
    let placement = Placement {
        sites: 3,
        pool_seen,
        function_ends: true,
        ..Placement::default()
    };
    ledger.apply(&event(P, at, Body::Placed(Box::new(placement))));
    ledger
}

pub fn as_of(boot_ns: u64) -> AsOf {
    AsOf {
        boot_ns,
        ..AsOf::default()
    }
}

pub fn stats(ledger: &Ledger) -> v1::StatsResponse {
    ledger
        .ask(&[P], as_of(0), &v1::StatsRequest::default())
        .unwrap()
}

/// Growth of a group in bytes per step: lower end of the interval, median, upper end.
pub fn per_step(group: &v1::LeakGroup) -> Option<[f64; 3]> {
    Some([
        group.growth_bytes_per_step_low?,
        group.growth_bytes_per_step?,
        group.growth_bytes_per_step_high?,
    ])
}

/// Count and bytes of one kind of memory, as an answer has them.
pub fn bytes(count: u64, bytes: u64) -> Option<v1::DriverBytes> {
    Some(v1::DriverBytes { count, bytes })
}

pub fn device(ledger: &Ledger, ordinal: i32) -> v1::DeviceStats {
    find_device(ledger, Some(ordinal)).unwrap_or_else(|| panic!("no device {ordinal}"))
}

/// A device of the answer to `stats`, but with the ledger's own levels, even where the answer leaves them out because
/// they are not proven.
pub fn find_device(ledger: &Ledger, ordinal: Option<i32>) -> Option<v1::DeviceStats> {
    let mut devices = stats(ledger).devices.into_iter();
    let mut device = devices.find(|d| d.device == ordinal)?;
    if let Some(gauge) = ordinal.and_then(|ordinal| ledger.gauge(P, ordinal)) {
        device.allocated_bytes = gauge.allocated_bytes;
        device.reserved_bytes = gauge.reserved_bytes;
    }
    Some(device)
}

pub fn has_note(coverage: &[v1::CoverageNote], code: &str) -> bool {
    coverage.iter().any(|note| note.code == code)
}

/// Small deterministic random numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) ^ (self.0 >> 11)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
