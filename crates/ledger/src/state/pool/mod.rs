//! A framework's pool: which blocks live, and what their events mean together.
//!
//! Owns: the blocks of a process by address, their reports (trace entries are read in `trace`), and the pairing of the
//! two events (a trace entry, then a report, on one thread) that come from one call. Refuses: to count a call twice, or
//! to invent a size.
//!
//! PyTorch holds the device's lock from the trace entry to the report of the same call, so on one thread no other
//! allocation or free lies between the two. Which of them comes depends on the level and may change at any time; each
//! says enough to be used alone.

pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod deferred;
pub(crate) mod held;
pub(crate) mod reading;
pub(crate) mod rooms;
pub(crate) mod segment;
pub(crate) mod suspects;
pub(crate) mod take_over;
pub(crate) mod totals;
pub(crate) mod trace;
pub(crate) mod trace_ring;

use crate::event::{PoolOom, PoolReport, TraceAction};
use crate::fast_hash::FastMap;
use crate::report::Space;
use crate::state::device::Devices;
use crate::state::driver::Driver;
use crate::state::labels::LabelSet;
use crate::state::membership::{GroupKey, Membership};
use crate::state::pool::block::{Block, FreedSize, Half, Origin};
use crate::state::pool::blocks::Blocks;
use crate::state::pool::deferred::Deferred;
use crate::state::pool::suspects::Suspects;
use crate::state::pool::totals::{Sized, least_rounded};
use crate::state::pool::trace_ring::Entry;
use crate::state::scene::Scene;
use crate::state::stacks::Level;
use crate::steps::Turn;
use serde::{Deserialize, Serialize};

/// Maximum number of threads whose last event is remembered. With more threads, a pair may be missed.
const THREADS: usize = 16_384;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) blocks: Blocks,
    pub(crate) halves: FastMap<u32, Half>,
    last_serial: u64,
    pub(crate) suspects: Suspects,
    pub(crate) deferred: Deferred,
    pub(crate) seen: bool,
    /// From this moment on, all events are known.
    pub(crate) complete_since: u64,
    /// When the last loss of records became known; 0 before any.
    pub(crate) lost_by: u64,
}

/// A block that is about to be entered.
pub(crate) struct Arrival {
    pub(crate) device: i32,
    pub(crate) addr: u64,
    pub(crate) requested: Option<u64>,
    pub(crate) rounded: Option<u64>,
    pub(crate) stream: Option<u64>,
}

impl Pool {
    /// Takes a report: a block came or went, and the allocator's totals after it.
    pub(crate) fn report(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        report: &PoolReport,
    ) {
        self.seen = true;
        if let Some(allocator) = self.deferred.told_by(scene.tid, report) {
            self.place_held(scene, driver, allocator, report.device);
        }
        let in_reading = self.see(scene, report.device, false);
        let half = self.halves.remove(&scene.tid);
        let bytes = report.size.unsigned_abs();
        if in_reading {
            self.report_in_reading(scene, driver, report, half);
            return;
        }
        if report.size < 0 {
            peak_before_free(scene, report.device, report.total_allocated, bytes);
        }
        let (came, went) = match report.size {
            0 => (0, 0),
            1.. => self.report_alloc(scene, driver, report, bytes, half),
            _ => self.report_free(scene, report, bytes, half),
        };
        self.settle(scene, report.device, report.total_allocated);
        let device = scene.devices.pool(report.device);
        device.set_reserved(report.total_reserved);
        // The first report tells the level before itself as well.
        let change = report.size.saturating_neg();
        let before = report.total_allocated.saturating_add_signed(change);
        device.level_from(before, report.total_reserved);
        device.note_level(scene.time_ns, came, went);
    }

    /// Returns how many blocks came and went that were not counted before.
    fn report_alloc(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        report: &PoolReport,
        rounded: u64,
        half: Option<Half>,
    ) -> (u64, u64) {
        if let Some(Half::Alloc { addr, serial }) = half
            && addr == report.ptr
            && let Some(mut block) = self.blocks.get(&addr)
            && block.serial == serial
            && !block.pending
            && block.device == report.device
            && block
                .requested
                .get()
                .is_none_or(|requested| requested <= rounded)
        {
            let device = scene.devices.pool(report.device);
            device
                .totals
                .sized(addr, block.rounded, rounded, block.size);
            scene
                .stacks
                .resized(Some(block.device), block.stack, block.rounded, rounded);
            block.rounded = rounded;
            block.size = Sized::EXACT;
            device.ring.last_is_sized(addr, rounded);
            device.rooms.taken(addr, rounded);
            self.blocks.insert(addr, block);
            return (0, 0);
        }
        self.came(
            scene,
            driver,
            Arrival {
                device: report.device,
                addr: report.ptr,
                requested: None,
                rounded: Some(rounded),
                stream: None,
            },
        );
        push_entry(
            scene,
            report.device,
            TraceAction::Alloc,
            report.ptr,
            rounded,
            None,
            false,
        );
        (1, 0)
    }

    fn report_free(
        &mut self,
        scene: &mut Scene<'_>,
        report: &PoolReport,
        rounded: u64,
        half: Option<Half>,
    ) -> (u64, u64) {
        let addr = report.ptr;
        let held = self.blocks.get(&addr).filter(|b| !b.pending);
        if held.is_none()
            && let Some(Half::Free {
                addr: freed,
                counted,
                size,
            }) = half
            && freed == addr
        {
            self.confirm_free(scene, report.device, addr, rounded, counted, size);
            return (0, 0);
        }
        let (size, stream) = match held {
            Some(block) => {
                self.went(scene, addr, block, Some(rounded));
                self.forget(addr);
                (block.requested.get().unwrap_or(rounded), block.stream.get())
            }
            None => {
                if let Some(old) = self.blocks.get(&addr) {
                    self.end_pending(scene, addr, old);
                }
                self.orphan_went(scene, report.device, Some(rounded), 0);
                (rounded, None)
            }
        };
        // Without trace entries it is not known when a stream has finished with the block, so the free counts as
        // completed.
        for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
            let orphan = held.is_none() && action == TraceAction::FreeRequested;
            push_entry(scene, report.device, action, addr, size, stream, orphan);
        }
        (0, 1)
    }

    /// The report of a free whose trace entry was taken before: only its size may be new.
    fn confirm_free(
        &mut self,
        scene: &mut Scene<'_>,
        device: i32,
        addr: u64,
        rounded: u64,
        counted: u64,
        size: FreedSize,
    ) {
        let row = scene.devices.pool(device);
        match size {
            FreedSize::Counted if counted != rounded => row.totals.correct(counted, rounded),
            FreedSize::Counted | FreedSize::Cancelled => {}
            FreedSize::Unknown => {
                if row.totals.orphan_sized(counted, rounded) {
                    row.orphan_free_bytes = row.orphan_free_bytes.saturating_add(rounded);
                }
            }
        }
        if let Some(mut block) = self.blocks.get(&addr) {
            row.pending_bytes = row
                .pending_bytes
                .saturating_sub(block.rounded)
                .saturating_add(rounded);
            block.rounded = rounded;
            block.size = Sized::EXACT;
            self.blocks.insert(addr, block);
        }
    }

    /// Takes a report that the allocator is out of memory.
    pub(crate) fn oom(&mut self, scene: &mut Scene<'_>, oom: &PoolOom) {
        self.seen = true;
        let in_reading = self.see(scene, oom.device, false);
        let told = matches!(self.halves.remove(&scene.tid), Some(Half::Oom));
        let device = scene.devices.pool(oom.device);
        device.oom_count += u64::from(!told);
        device.oom_ns = scene.time_ns;
        if in_reading {
            return;
        }
        self.settle(scene, oom.device, oom.total_allocated);
        let device = scene.devices.pool(oom.device);
        device.set_reserved(oom.total_reserved);
        device.note_level(scene.time_ns, 0, 0);
    }

    /// Enters a block; returns its serial number.
    pub(crate) fn came(&mut self, scene: &mut Scene<'_>, driver: &mut Driver, new: Arrival) -> u64 {
        let size_for_groups = new.requested.or(new.rounded).unwrap_or(0);
        if scene
            .steps
            .block_comes(new.device, size_for_groups, scene.stack)
        {
            self.step_ends(scene);
        }
        let rounded = new.rounded.unwrap_or(least_rounded(size_for_groups));
        let end = new.addr.saturating_add(rounded);
        self.drop_gone(scene, new.addr);
        self.clear_range(scene, new.addr, end);
        let row = scene.devices.pool(new.device);
        if scene.nothing_missed {
            row.totals.start_at_zero();
        }
        let size = row
            .totals
            .came(new.addr, size_for_groups, rounded, new.rounded.is_some());
        row.alloc_count += 1;
        row.live_blocks += 1;
        row.requested_bytes = row
            .requested_bytes
            .saturating_add(new.requested.unwrap_or(0));
        row.sizes.record(size_for_groups);
        let place = scene.groups.join(
            scene.time_ns,
            GroupKey {
                device: Some(new.device),
                space: Space::Pool,
                stream: new.stream,
                size: size_for_groups,
                stack: scene.stack,
            },
        );
        if new.rounded.is_some() {
            row.rooms.taken(new.addr, rounded);
        }
        driver.claim(scene, new.device, new.addr, rounded);
        scene
            .stacks
            .came(Some(new.device), scene.stack, rounded, true);
        self.last_serial += 1;
        self.blocks.insert(
            new.addr,
            Block {
                device: new.device,
                pending: false,
                origin: Origin::Seen,
                labels: scene.labels,
                rounded,
                size,
                requested: new.requested.into(),
                stream: new.stream.into(),
                born_ns: scene.time_ns,
                serial: self.last_serial,
                stack: scene.stack,
                place,
            },
        );
        let (step, launches) = (scene.steps.coming(), scene.steps.launches.unwrap_or(0));
        scene
            .steps
            .survivors
            .came(step, new.addr, self.last_serial, launches);
        let blocks = &self.blocks;
        self.suspects
            .came(new.addr, blocks.len(), |addr| blocks.contains_key(&addr));
        self.last_serial
    }

    /// Gives the block at an address other labels.
    pub(crate) fn label(&mut self, addr: u64, labels: impl FnOnce(LabelSet) -> LabelSet) {
        if let Some(mut block) = self.blocks.get(&addr) {
            block.labels = labels(block.labels);
            self.blocks.insert(addr, block);
        }
    }

    /// A step begins, ends or goes on at this moment, or nothing of that.
    pub(crate) fn turn(&self, scene: &mut Scene<'_>, turn: Turn) {
        match turn {
            Turn::None => {}
            Turn::Begin => scene.steps.begin(scene.devices, scene.time_ns),
            Turn::More => scene.steps.go_on(scene.devices, scene.time_ns),
            Turn::Both | Turn::End => self.step_ends(scene),
        }
    }

    /// A step ends at this moment.
    fn step_ends(&self, scene: &mut Scene<'_>) {
        scene.steps.end(scene.devices, scene.time_ns);
        if let Some(step) = scene.steps.outlived() {
            scene.steps.survivors.end(step, &self.blocks);
        }
        let windows = scene.steps.windows();
        let (began, generation) = (scene.steps.began, scene.steps.generation);
        scene.groups.tick(windows, began, generation);
    }

    /// A live block was seen to go. It stays in the map; the caller takes it out or makes it pending. Returns whether
    /// no total came while the block lived, so that its allocation and its free cancel out.
    pub(crate) fn went(
        &self,
        scene: &mut Scene<'_>,
        addr: u64,
        block: Block,
        told: Option<u64>,
    ) -> bool {
        debug_assert!(self.blocks.contains_key(&addr));
        scene
            .groups
            .leave(scene.time_ns, block.place, block.rounded);
        scene
            .stacks
            .went(Some(block.device), block.stack, block.rounded);
        let row = scene.devices.pool(block.device);
        let open = row.totals.went(addr, block.rounded, block.size, told);
        row.unsized_count += u64::from(open);
        row.live_blocks = row.live_blocks.saturating_sub(1);
        row.requested_bytes = row
            .requested_bytes
            .saturating_sub(block.requested.get().unwrap_or(0));
        row.free_count += 1;
        row.origin_went(block.origin, block.rounded);
        if block.origin == Origin::Seen {
            row.lifetimes
                .record(scene.time_ns.saturating_sub(block.born_ns));
        }
        if block.size == Sized::EXACT && told.is_some_and(|told| told != block.rounded) {
            // It was another block than the one that we knew: the free of that one was not seen.
            row.found_gone += 1;
        }
        open
    }

    pub(crate) fn orphan_went(
        &self,
        scene: &mut Scene<'_>,
        device: i32,
        told: Option<u64>,
        least: u64,
    ) {
        let row = scene.devices.pool(device);
        row.free_count += 1;
        row.orphan_free_count += 1;
        match told {
            Some(bytes) => {
                row.orphan_free_bytes = row.orphan_free_bytes.saturating_add(bytes);
                row.totals.orphan_went(bytes);
            }
            None => row.totals.unsized_orphan_went(least),
        }
    }

    pub(crate) fn begin_pending(&mut self, scene: &mut Scene<'_>, addr: u64, mut block: Block) {
        block.pending = true;
        block.place = Membership::NOWHERE;
        let row = scene.devices.pool(block.device);
        row.pending_bytes = row.pending_bytes.saturating_add(block.rounded);
        // PyTorch counts what was requested until the stream has finished.
        let requested = block.requested.get().unwrap_or(0);
        row.requested_bytes = row.requested_bytes.saturating_add(requested);
        self.blocks.insert(addr, block);
    }

    pub(crate) fn end_pending(&mut self, scene: &mut Scene<'_>, addr: u64, block: Block) {
        let row = scene.devices.pool(block.device);
        row.pending_bytes = row.pending_bytes.saturating_sub(block.rounded);
        let requested = block.requested.get().unwrap_or(0);
        row.requested_bytes = row.requested_bytes.saturating_sub(requested);
        self.forget(addr);
    }

    /// Counts what was requested anew where blocks are pending: checkpoints once left those out.
    pub(crate) fn recount_requested(&self, devices: &mut Devices) {
        for row in devices.iter_mut() {
            let Some(device) = row.ordinal.filter(|_| row.pool.pending_bytes > 0) else {
                continue;
            };
            let blocks = self.blocks.iter().map(|(_, block)| block);
            row.pool.requested_bytes = blocks
                .filter(|block| block.device == device)
                .filter_map(|block| block.requested.get())
                .fold(0, u64::saturating_add);
        }
    }

    pub(crate) fn forget(&mut self, addr: u64) {
        self.blocks.remove(&addr);
        self.suspects.went(addr);
    }

    /// Removes the blocks in a range in which none can live: another block comes there, or the memory went back to the
    /// driver. There are such blocks only after a loss of records.
    pub(crate) fn clear_range(&mut self, scene: &mut Scene<'_>, addr: u64, end: u64) {
        while let Some(under) = self.suspects.take_overlapping(addr, end) {
            self.drop_gone(scene, under);
        }
    }

    /// Removes the block at this address, if one is thought to live there. It must be gone, although its free was not
    /// seen.
    pub(crate) fn drop_gone(&mut self, scene: &mut Scene<'_>, addr: u64) {
        let Some(block) = self.blocks.get(&addr) else {
            return;
        };
        if block.pending {
            self.end_pending(scene, addr, block);
            return;
        }
        self.forget(addr);
        scene
            .groups
            .leave(scene.time_ns, block.place, block.rounded);
        scene
            .stacks
            .went(Some(block.device), block.stack, block.rounded);
        let row = scene.devices.pool(block.device);
        row.totals.was_gone(addr, block.rounded, block.size);
        row.origin_went(block.origin, block.rounded);
        row.live_blocks = row.live_blocks.saturating_sub(1);
        row.requested_bytes = row
            .requested_bytes
            .saturating_sub(block.requested.get().unwrap_or(0));
        row.found_gone += 1;
    }

    pub(crate) fn remember(&mut self, tid: u32, half: Half) {
        if self.halves.len() >= THREADS {
            self.halves.clear();
        }
        self.halves.insert(tid, half);
    }

    pub(crate) fn remember_free(
        &mut self,
        scene: &Scene<'_>,
        addr: u64,
        counted: u64,
        size: FreedSize,
    ) {
        self.remember(
            scene.tid,
            Half::Free {
                addr,
                counted,
                size,
            },
        );
    }

    /// Notes that an event named this device. Returns whether a reading contains what the event reports.
    pub(crate) fn see(&self, scene: &mut Scene<'_>, device: i32, traced: bool) -> bool {
        let row = scene.devices.pool(device);
        row.seen = true;
        row.traced |= traced;
        row.level_known |= scene.nothing_missed;
        let unread = match scene.nothing_missed {
            // All was known up to the first loss, and a reading has to heal the last one.
            true => self.lost_by > 0 && row.read.until_ns <= self.lost_by,
            false => row.read.until_ns <= self.complete_since,
        };
        row.ring.hold(unread);
        let in_reading = scene.time_ns < row.read.until_ns;
        if !in_reading {
            row.read.pending.clear();
        }
        in_reading
    }

    /// Takes the allocator's own total, which may also give a block its size.
    pub(crate) fn settle(&mut self, scene: &mut Scene<'_>, device: i32, total: u64) {
        let row = scene.devices.pool(device);
        if scene.pool_came_later && row.missed.is_none() {
            let missed = row.totals.beyond_known(total);
            row.missed = Some(if self.lost_by == 0 { missed } else { 0 });
        }
        row.unsized_count += u64::from(row.totals.has_unsized());
        let settled = row.totals.settle(total);
        row.resync_count += u64::from(settled.resynced);
        if row.orphan_free_count > 0 {
            // Frees that a first reading has explained since then are not counted.
            row.orphan_free_bytes = row.orphan_free_bytes.saturating_add(settled.orphan_bytes);
        }
        if let Some((addr, excess)) = settled.sized
            && let Some(mut block) = self.blocks.get(&addr)
        {
            let rounded = block.rounded.saturating_add(excess);
            scene
                .stacks
                .resized(Some(block.device), block.stack, block.rounded, rounded);
            block.rounded = rounded;
            block.size = Sized::EXACT;
            self.blocks.insert(addr, block);
            let row = scene.devices.pool(device);
            row.ring.last_is_sized(addr, block.rounded);
            row.rooms.taken(addr, block.rounded);
        }
        tell_stacks(scene, device, total);
    }

    /// Up to `time_ns`, events may have been missed.
    pub(crate) fn blind_until(&mut self, time_ns: u64) {
        self.complete_since = self.complete_since.max(time_ns);
    }

    /// Records were lost, the last of them by `time_ns`. The free of any block may be among them.
    pub(crate) fn records_lost(&mut self, time_ns: u64) {
        self.blind_until(time_ns);
        self.lost_by = self.lost_by.max(time_ns);
        let blocks = &self.blocks;
        let all = blocks
            .iter()
            .map(|(addr, block)| (addr, addr.saturating_add(block.rounded)));
        self.suspects.records_lost(all, |addr| {
            blocks
                .get(&addr)
                .map(|block| addr.saturating_add(block.rounded))
        });
    }

    /// Whether any pool event has come.
    pub(crate) fn seen(&self) -> bool {
        self.seen
    }

    /// Live and pending blocks, in no order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.blocks.iter()
    }

    /// Number of blocks that may have been freed in a loss of records.
    pub(crate) fn suspects(&self) -> usize {
        self.suspects.len()
    }

    /// Number and bytes of the blocks of which only their address and size tell that they are those from before a loss.
    pub(crate) fn stayed_by_place(&self) -> (usize, u64) {
        self.suspects.stayed()
    }

    /// Number of blocks that are kept, and of other entries that threads and losses leave behind.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (
            self.blocks.len(),
            self.halves.len() + self.suspects.kept() + self.deferred.kept(),
        )
    }

    /// Number of trace entries whose device is not known: those about memory, and those that only say that a snapshot
    /// was taken.
    pub(crate) fn unplaced(&self) -> (u64, u64) {
        (self.deferred.unplaced(), self.deferred.asked())
    }
}

/// The first total of a device came with the free of `bytes`: takes the total from before that free as a peak.
pub(crate) fn peak_before_free(scene: &mut Scene<'_>, device: i32, total: u64, bytes: u64) {
    let totals = &mut scene.devices.pool(device).totals;
    if totals.peak().is_none() {
        let before = total.saturating_add(bytes);
        totals.raise_peak(before);
        tell_stacks(scene, device, before);
    }
}

/// Tells the stacks what a device's pool has handed out: `total` bytes.
pub(crate) fn tell_stacks(scene: &mut Scene<'_>, device: i32, total: u64) {
    let row = scene.devices.pool(device);
    let level = Level {
        bytes: total,
        of_driver: false,
        unknown: row.totals.beyond_known(total),
        // Those whose size is not known yet went after the last total.
        orphans: row
            .orphan_free_count
            .saturating_sub(row.totals.unsized_orphans()),
    };
    scene.stacks.level(Some(device), level);
}

/// Adds the trace entry for a call of which only the report came.
pub(crate) fn push_entry(
    scene: &mut Scene<'_>,
    device: i32,
    action: TraceAction,
    addr: u64,
    size: u64,
    stream: Option<u64>,
    orphan: bool,
) {
    scene.devices.pool(device).ring.push(Entry {
        action,
        addr,
        size,
        stream: stream.unwrap_or(0),
        pool: None,
        time_ns: scene.time_ns,
        tid: scene.tid,
        stack: scene.stack,
        orphan,
        reported: true,
        rounded: if action == TraceAction::Alloc {
            size
        } else {
            0
        },
    });
}
