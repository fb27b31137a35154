//! The answer to `snapshot`: segments with their blocks, and the trace.
//!
//! Owns: the picture of memory, put together so that blocks never overlap and cover their segment.
//! Refuses: memory whose device is not known.

use super::coverage;
use crate::clock::Clock;
use crate::event::AllocatorFacts;
use crate::fast_hash::FastMap;
use crate::report::{
    AsOf, BlockState, SnapshotBlock, SnapshotReport, SnapshotSegment, SnapshotTrace, Source, Stack,
};
use crate::state::device::Device;
use crate::state::driver::allocation::Allocation;
use crate::state::pool::segment::{Segment, Segments};
use crate::state::process::Process;
use crate::state::stacks::{NOT_TAKEN, StackIndex};
use std::sync::Arc;

/// Blocks up to this size come from the small pool (`kSmallSize`).
const SMALL_BLOCK: u64 = 1 << 20;
/// Segments of the small pool have exactly this size (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;

/// A block that is to be put into a segment.
#[derive(Clone, Copy, Debug)]
struct Placed {
    block: SnapshotBlock,
    stream: Option<u64>,
    serial: u64,
}

impl Placed {
    fn end(&self) -> u64 {
        self.block.addr.saturating_add(self.block.size)
    }
}

/// The stacks of a picture that had frames without a name when it was made.
#[derive(Clone, Debug, Default)]
pub struct Unnamed(Vec<(u32, StackIndex)>);

/// Gives the stacks of a picture the names that are known by now.
pub(crate) fn name(process: &Process, report: &mut SnapshotReport, unnamed: &Unnamed) {
    for (at, place) in &unnamed.0 {
        let stack = process.stacks.stack(*place);
        // It may have been given up since.
        if let (None, Some(named)) = (stack.missing, report.stacks.get_mut(*at as usize)) {
            *named = Arc::new(stack);
        }
    }
}

/// Builds the snapshot of a process.
pub(crate) fn report(process: &Process, as_of: AsOf, clock: &Clock) -> (SnapshotReport, Unnamed) {
    let mut making = Making::of(process);
    let (mut segments, mut unmapped) = (Vec::new(), Vec::new());
    let mut trace: Vec<SnapshotTrace> = Vec::new();
    let mut trace_dropped = 0;
    for row in process.devices.sorted() {
        let Some(device) = row.ordinal else {
            continue;
        };
        match process.source() {
            Source::Pool => segments.extend(pool_segments(&mut making, row, device)),
            Source::Driver => {
                let (mapped, others) = driver_segments(&mut making, device);
                segments.extend(mapped);
                unmapped.extend(others);
            }
        }
        trace.extend(row.pool.ring.entries().map(|entry| SnapshotTrace {
            action: entry.action,
            device,
            addr: entry.addr,
            size: entry.size,
            reported: entry.reported,
            stream: entry.stream,
            pool: entry.pool,
            time_ns: entry.time_ns,
            unix_ns: clock.unix_ns(entry.time_ns),
            tid: entry.tid,
            stack: entry.stack,
        }));
        trace_dropped += row.pool.ring.dropped();
    }
    trace.sort_by_key(|entry| entry.time_ns);
    for entry in &mut trace {
        entry.stack = making.stack(entry.stack);
    }
    let unnamed = making.indices.iter();
    let unnamed = unnamed.filter(|(place, _)| process.stacks.is_unnamed(**place));
    let unnamed = Unnamed(unnamed.map(|(place, at)| (*at, *place)).collect());
    let report = SnapshotReport {
        process: process.summary(),
        as_of,
        segments,
        unmapped,
        trace,
        trace_dropped,
        allocator: AllocatorFacts {
            devices: devices_found(process),
            ..process.allocator.clone()
        },
        stacks: making.stacks,
        labels: process.labels.all(),
        coverage: coverage::of_picture(process),
    };
    (report, unnamed)
}

/// How many devices the framework has: the number that was read from it, or else one more than the largest ordinal of
/// which there was a reading.
fn devices_found(process: &Process) -> u32 {
    if process.allocator.devices > 0 {
        return process.allocator.devices;
    }
    let rows = process.devices.iter().filter(|row| row.pool.read.count > 0);
    let most = rows.filter_map(|row| row.ordinal).max();
    most.and_then(|ordinal| u32::try_from(ordinal + 1).ok())
        .unwrap_or(0)
}

/// A snapshot while it is made.
struct Making<'a> {
    process: &'a Process,
    /// The stacks that blocks and trace entries refer to, so far.
    stacks: Vec<Arc<Stack>>,
    /// Their indices in that list, by what the process calls them.
    indices: FastMap<StackIndex, u32>,
    /// The blocks of the segment that is being put together. Lists that grew one by one would be twice as long as they need.
    blocks: Vec<SnapshotBlock>,
}

impl Making<'_> {
    fn of(process: &Process) -> Making<'_> {
        Making {
            process,
            stacks: vec![Arc::new(process.stacks.stack(NOT_TAKEN))],
            indices: FastMap::from_iter([(NOT_TAKEN, 0)]),
            blocks: Vec::new(),
        }
    }

    /// The index of a stack in the list of the answer.
    fn stack(&mut self, place: StackIndex) -> u32 {
        *self.indices.entry(place).or_insert_with(|| {
            self.stacks.push(Arc::new(self.process.stacks.stack(place)));
            self.stacks.len() as u32 - 1
        })
    }
}

/// The segments of a process without a pool: every driver allocation is a segment with one block. Physical memory is
/// shown once, at the first address at which it is mapped; what is mapped nowhere is the second list.
fn driver_segments(
    making: &mut Making<'_>,
    device: i32,
) -> (Vec<SnapshotSegment>, Vec<SnapshotSegment>) {
    let process = making.process;
    let placed = process.driver.vmm.placed();
    let plain = process
        .driver
        .live()
        .map(|(addr, allocation)| (addr, allocation.size, *allocation));
    let mapped = placed.mapped.iter();
    let mapped = mapped.map(|range| (range.addr, range.size, range.allocation));
    let unmapped = placed.unmapped.iter();
    let unmapped = unmapped.map(|(size, allocation)| (0, *size, *allocation));
    let mut segment = |(addr, size, allocation): (u64, u64, Allocation)| SnapshotSegment {
        device,
        addr,
        size,
        stream: allocation.stream.unwrap_or(0),
        large: size > SMALL_SEGMENT,
        pool: (0, 0),
        pool_told: true,
        expandable: false,
        seen: true,
        blocks: vec![SnapshotBlock {
            addr,
            size,
            requested: Some(size),
            state: BlockState::Active,
            since_ns: allocation.born_ns,
            stack: making.stack(allocation.stack),
            labels: 0,
        }],
    };
    let here = |(_, _, allocation): &(u64, u64, Allocation)| allocation.device == Some(device);
    let mut segments: Vec<_> = plain.chain(mapped).filter(here).map(&mut segment).collect();
    segments.sort_by_key(|segment| segment.addr);
    (segments, unmapped.filter(here).map(segment).collect())
}

fn pool_segments(making: &mut Making<'_>, row: &Device, device: i32) -> Vec<SnapshotSegment> {
    let blocks = placed_blocks(making.process, device);
    if row.pool.read.pending.is_empty() {
        return segments_of(making, row, device, blocks);
    }
    let pending = row.pool.read.pending.iter().map(|(held, stack)| Placed {
        block: SnapshotBlock {
            addr: held.addr,
            size: held.rounded,
            requested: held.requested(),
            state: BlockState::PendingFree,
            since_ns: 0,
            stack: *stack,
            labels: 0,
        },
        stream: Some(held.stream),
        serial: 0,
    });
    let mut all: Vec<Placed> = blocks.chain(pending).collect();
    all.sort_by_key(|placed| placed.block.addr);
    segments_of(making, row, device, all.into_iter())
}

/// The segments of a pool with these blocks, which are ordered by address. There may be millions, so each goes straight into
/// the segment that it lies in.
fn segments_of(
    making: &mut Making<'_>,
    row: &Device,
    device: i32,
    blocks: impl Iterator<Item = Placed>,
) -> Vec<SnapshotSegment> {
    let ranges = known_ranges(making.process, row, device);
    let mut blocks = Apart { blocks, last: None }.peekable();
    let mut unplaced = Vec::new();
    let mut segments = Vec::new();
    for range in &ranges {
        while let Some(block) = blocks.next_if(|b| b.block.addr < range.addr) {
            unplaced.push(block);
        }
        let inside = std::iter::from_fn(|| {
            let mut placed = blocks.next_if(|b| b.block.addr < range.end())?;
            // Only after a loss can a block reach past its segment.
            placed.block.size = placed.block.size.min(range.end() - placed.block.addr);
            Some(placed)
        });
        segments.push(segment(making, row, device, range, inside, true));
    }
    unplaced.extend(blocks);
    for run in runs(unplaced, &ranges) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let range = Segment {
            addr: first.block.addr,
            size: last.end() - first.block.addr,
            stream: run.iter().find_map(|b| b.stream).unwrap_or(0),
            pool: (0, 0),
            expandable: false,
            large: None,
            told: false,
        };
        let run = run.into_iter();
        segments.push(segment(making, row, device, &range, run, false));
    }
    segments.sort_by_key(|segment| segment.addr);
    segments
}

/// The known segments of a pool: those from the trace or a reading, and where these have none, driver allocations that
/// hold blocks. A driver allocation from before the last reading is not used: it is in the reading, or it is no
/// segment. Chunks that were mapped where an expandable segment ends or begins have made it larger: each of these has address
/// space of its own, as large as the device, so no other one adjoins.
fn known_ranges(process: &Process, row: &Device, device: i32) -> Vec<Segment> {
    let mut from_driver = Segments::default();
    let plain = process
        .driver
        .live()
        .map(|(addr, allocation)| (addr, allocation.size, allocation, false));
    let mapped: Vec<_> = process.driver.vmm.mapped().collect();
    let mapped = mapped
        .iter()
        .map(|range| (range.addr, range.size, &range.allocation, true));
    for (addr, size, allocation, expandable) in plain.chain(mapped) {
        let told = allocation.born_ns < row.pool.read.until_ns
            || row.pool.segments.overlaps(addr, addr.saturating_add(size));
        if allocation.pooled && allocation.device == Some(device) && !told {
            from_driver.add(Segment {
                addr,
                size,
                stream: 0,
                pool: (0, 0),
                expandable,
                large: None,
                told: false,
            });
        }
    }
    let told = &row.pool.segments;
    let mut ranges = told.clone();
    for range in from_driver.iter() {
        let before = told.before(range.addr);
        let before = before.filter(|told| told.expandable && told.end() == range.addr);
        let after = told.at(range.end());
        let after = after.filter(|told| told.expandable && told.addr == range.end());
        ranges.add(match before.or(after) {
            Some(adjoins) if range.expandable => Segment {
                addr: range.addr,
                size: range.size,
                ..*adjoins
            },
            _ => *range,
        });
    }
    ranges.iter().copied().collect()
}

/// The device's blocks by address.
fn placed_blocks(process: &Process, device: i32) -> impl Iterator<Item = Placed> {
    let level = process.facts.level;
    let blocks = process.pool.blocks.by_address(move |on| on == device);
    blocks.map(move |(addr, block)| Placed {
        block: SnapshotBlock {
            addr,
            size: block.rounded,
            requested: block.requested.get(),
            state: if block.pending {
                BlockState::PendingFree
            } else {
                BlockState::Active
            },
            since_ns: block.since_ns(level),
            stack: block.stack,
            labels: block.labels,
        },
        stream: block.stream.get(),
        serial: block.serial,
    })
}

/// Blocks without those that overlap a newer one: where two of them overlap, the free of the older one was not seen. They are
/// ordered by address, so a block can overlap only the last one that was kept.
struct Apart<I> {
    blocks: I,
    last: Option<Placed>,
}

impl<I: Iterator<Item = Placed>> Iterator for Apart<I> {
    type Item = Placed;

    fn next(&mut self) -> Option<Placed> {
        for placed in self.blocks.by_ref() {
            match &mut self.last {
                Some(last) if last.end() > placed.block.addr => {
                    if last.serial <= placed.serial {
                        *last = placed;
                    }
                }
                last => {
                    if let Some(kept) = last.replace(placed) {
                        return Some(kept);
                    }
                }
            }
        }
        self.last.take()
    }
}

/// Joins blocks without a known segment into runs as long as possible: blocks that touch, on one stream as far as that
/// is known, and with no known segment between them.
fn runs(blocks: Vec<Placed>, ranges: &[Segment]) -> Vec<Vec<Placed>> {
    let mut runs: Vec<Vec<Placed>> = Vec::new();
    for mut placed in blocks {
        let next = ranges.partition_point(|range| range.addr <= placed.block.addr);
        if let Some(range) = ranges.get(next) {
            placed.block.size = placed.block.size.min(range.addr - placed.block.addr);
        }
        match runs.last_mut() {
            Some(run)
                if run.last().is_some_and(|last| {
                    last.end() == placed.block.addr
                        && (last.stream == placed.stream
                            || last.stream.is_none()
                            || placed.stream.is_none())
                }) =>
            {
                run.push(placed);
            }
            _ => runs.push(vec![placed]),
        }
    }
    runs
}

/// A segment with its blocks; the room between them becomes inactive blocks.
fn segment(
    making: &mut Making<'_>,
    row: &Device,
    device: i32,
    range: &Segment,
    inside: impl Iterator<Item = Placed>,
    seen: bool,
) -> SnapshotSegment {
    making.blocks.clear();
    let mut at = range.addr;
    let room = |from: u64, to: u64| SnapshotBlock {
        addr: from,
        size: to - from,
        requested: Some(row.pool.rooms.requested(from, to)),
        state: BlockState::Inactive,
        since_ns: 0,
        // The first entry of the list stands for none.
        stack: 0,
        labels: 0,
    };
    let mut stream = None;
    let (mut is_empty, mut has_large) = (true, false);
    for placed in inside {
        stream = stream.or(placed.stream);
        is_empty = false;
        has_large |= placed.block.size > SMALL_BLOCK;
        if placed.block.size == 0 {
            continue;
        }
        if placed.block.addr > at {
            making.blocks.push(room(at, placed.block.addr));
        }
        at = placed.end();
        let stack = making.stack(placed.block.stack);
        making.blocks.push(SnapshotBlock {
            stack,
            ..placed.block
        });
    }
    if at < range.end() {
        making.blocks.push(room(at, range.end()));
    }
    let large = if let Some(told) = range.large {
        told
    } else if (!seen || range.expandable) && !is_empty {
        // An expandable segment can have any size, so its blocks decide whether it belongs to the large pool.
        has_large
    } else {
        range.size > SMALL_SEGMENT
    };
    SnapshotSegment {
        device,
        addr: range.addr,
        size: range.size,
        stream: if range.stream == 0 {
            stream.unwrap_or(0)
        } else {
            range.stream
        },
        large,
        pool: range.pool,
        pool_told: range.told,
        expandable: range.expandable,
        seen,
        blocks: making.blocks.clone(),
    }
}
