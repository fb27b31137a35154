//! Reports of a made-up allocator that runs for a while: trace and state agree by construction.

use super::{BASE, block, process};
use memscope_ledger::event::{EventId, TraceAction};
use memscope_ledger::report::*;

/// A source of numbers that is the same everywhere (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// One block that is handed out.
#[derive(Clone, Copy)]
struct Held {
    slot: u64,
    requested: u64,
    since_ns: u64,
}

/// Slots are this far apart; a segment is this many slots.
const SLOT: u64 = 4 << 20;
const SLOTS: u64 = 16;

/// One device with one pool.
struct Device {
    ordinal: i32,
    pool: (u64, u64),
    stream: u64,
    base: u64,
    held: Vec<Held>,
    free: Vec<u64>,
    segments: u64,
}

impl Device {
    fn entry(&self, action: TraceAction, addr: u64, size: u64, time_ns: u64) -> SnapshotTrace {
        SnapshotTrace {
            action,
            device: self.ordinal,
            addr,
            size,
            reported: false,
            stream: self.stream,
            pool: Some(self.pool),
            time_ns,
            unix_ns: 1_700_000_000_000_000_000 + time_ns,
            tid: 9,
            stack: 0,
        }
    }

    fn alloc(&mut self, numbers: &mut Numbers, time_ns: u64, trace: &mut Vec<SnapshotTrace>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            let first = self.segments * SLOTS;
            self.segments += 1;
            let addr = self.base + first * SLOT;
            trace.push(self.entry(TraceAction::SegmentAlloc, addr, SLOTS * SLOT, time_ns));
            self.free.extend((first + 1..first + SLOTS).rev());
            first
        });
        let kind = [600, 70_000, 1 << 20, 3 << 20][numbers.next(4) as usize];
        let requested = kind + numbers.next(4) * 1000;
        trace.push(self.entry(
            TraceAction::Alloc,
            self.base + slot * SLOT,
            requested,
            time_ns,
        ));
        self.held.push(Held {
            slot,
            requested,
            since_ns: time_ns,
        });
    }

    fn free(&mut self, at: usize, time_ns: u64, trace: &mut Vec<SnapshotTrace>) {
        let held = self.held.swap_remove(at);
        let addr = self.base + held.slot * SLOT;
        for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
            trace.push(self.entry(action, addr, held.requested, time_ns));
        }
        self.free.push(held.slot);
    }

    fn segments(&self) -> impl Iterator<Item = SnapshotSegment> {
        (0..self.segments).map(|segment| {
            let mut blocks = Vec::new();
            for slot in segment * SLOTS..(segment + 1) * SLOTS {
                let addr = self.base + slot * SLOT;
                match self.held.iter().find(|held| held.slot == slot) {
                    Some(held) => {
                        let size = held.requested.next_multiple_of(512);
                        let active = block(addr, size, Some(held.requested), BlockState::Active);
                        blocks.push(SnapshotBlock {
                            since_ns: held.since_ns,
                            ..active
                        });
                        blocks.push(block(addr + size, SLOT - size, None, BlockState::Inactive));
                    }
                    None => blocks.push(block(addr, SLOT, None, BlockState::Inactive)),
                }
            }
            SnapshotSegment {
                device: self.ordinal,
                addr: self.base + segment * SLOTS * SLOT,
                size: SLOTS * SLOT,
                stream: self.stream,
                large: true,
                pool: self.pool,
                pool_told: true,
                expandable: false,
                seen: true,
                blocks,
            }
        })
    }
}

/// A report with `entries` trace entries of training-like work on two devices and a private pool. The first `drop`
/// entries are no longer kept, as when a question comes late.
pub fn course(entries: usize, drop: usize, seed: u64) -> SnapshotReport {
    let mut numbers = Numbers(seed);
    let device = |ordinal, pool, stream, place: u64| Device {
        ordinal,
        pool,
        stream,
        base: BASE + (place << 40),
        held: Vec::new(),
        free: Vec::new(),
        segments: 0,
    };
    let mut devices = [
        device(0, (0, 0), 0, 0),
        device(1, (0, 0), 0x5555_0000_1234, 1),
        device(0, (0, 1), 0x5555_0000_1234, 2),
    ];
    let mut trace = Vec::with_capacity(entries + drop + 3);
    let mut time_ns = 1_000_000_000_000;
    while trace.len() < entries + drop {
        time_ns += 1 + numbers.next(50_000);
        let device = &mut devices[[0, 0, 0, 1, 2][numbers.next(5) as usize]];
        // Blocks come in waves, as activations do; now and then one stays.
        let target = 40 + (time_ns / 10_000_000) % 100;
        if (device.held.len() as u64) < target {
            device.alloc(&mut numbers, time_ns, &mut trace);
        } else {
            let at = device.held.len() - 1 - numbers.next(device.held.len() as u64 / 2) as usize;
            device.free(at, time_ns, &mut trace);
        }
        if numbers.next(20_000) == 0 {
            trace.push(device.entry(TraceAction::Oom, 123_456, 90 << 30, time_ns));
        }
    }
    let over = trace.len() - entries;
    trace.drain(..over);
    let mut segments: Vec<SnapshotSegment> = devices.iter().flat_map(Device::segments).collect();
    segments.sort_by_key(|segment| (segment.device, segment.addr));
    let as_of_ns = time_ns + 1_000_000;
    SnapshotReport {
        process: ProcessSummary {
            attached_ns: 1_000_000_000_000,
            ..process(&[])
        },
        as_of: AsOf {
            boot_ns: as_of_ns,
            unix_ns: 1_700_000_000_000_000_000 + as_of_ns,
            event: EventId::default(),
        },
        segments,
        unmapped: Vec::new(),
        trace,
        allocator: Default::default(),
        trace_dropped: over as u64,
        stacks: Vec::new(),
        labels: vec![Vec::new()],
        coverage: Vec::new(),
    }
}

/// A large report.
pub fn busy(entries: usize) -> SnapshotReport {
    course(entries, 1000, 7)
}
