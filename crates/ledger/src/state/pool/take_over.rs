//! Takes a reading of one device's pool over into the state.
//!
//! Owns: the rule by which a reading of an earlier moment becomes the present: its blocks and segments are followed
//! through what happened since, and the result replaces what was known. Refuses: a reading since which events may have
//! been missed, and one whose sums disagree with the totals that events have reported since: then nothing is changed.
//!
//! A reading's moment has one place in the order of the device's events. Events up to it are contained in the reading
//! even if they arrive after it (see `trace_in_reading`). Later events are applied to it even if they arrived before
//! it.

use crate::event::{Level, PoolReport, PoolTrace, StackRef, TraceAction};
use crate::report::Space;
use crate::state::device::{Refusal, Watch};
use crate::state::driver::Driver;
use crate::state::membership::{GroupKey, Membership};
use crate::state::pool::block::{Block, Half, HeldState, Origin};
use crate::state::pool::held::{HeldBlock, HeldBlocks};
use crate::state::pool::reading::{Reading, Taken};
use crate::state::pool::rooms::Replay;
use crate::state::pool::segment::{Segment, Segments};
use crate::state::pool::totals::Sized;
use crate::state::pool::{Pool, push_entry, tell_stacks};
use crate::state::scene::Scene;
use crate::state::stacks::{BEFORE_ATTACH, NOT_TAKEN, StackIndex};

/// Properties with which a block is entered that is known from a reading.
#[derive(Clone, Copy)]
struct Unseen {
    device: i32,
    origin: Origin,
    /// The stack that allocated it, where it is known.
    stack: Option<StackIndex>,
    born_ns: u64,
    /// Events report requested size and stream, so groups are made by these.
    traced: bool,
}

impl Pool {
    /// Takes what follows from a part of a reading; if it was the last one, takes the reading over.
    pub(crate) fn take_reading(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        device: i32,
        taken: Taken,
        watch: Watch,
    ) {
        let read = &mut scene.devices.pool(device).read;
        if taken.dropped > 0 {
            read.refused += taken.dropped;
            read.refusal = Some(Refusal::Incomplete);
        }
        let Some(reading) = taken.complete else {
            return;
        };
        let refusal = self.read(scene, driver, &reading, watch).err();
        if reading.allocator != 0 {
            // Of the entries that waited for the device, those from before the reading are contained in it, and later
            // ones are new.
            self.place_held(scene, driver, reading.allocator, device);
        }
        let read = &mut scene.devices.pool(device).read;
        read.refusal = refusal;
        read.refused += u64::from(refusal.is_some());
        read.count += u64::from(refusal.is_none());
    }

    fn read(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        reading: &Reading,
        watch: Watch,
    ) -> Result<(), Refusal> {
        let (device, at_ns) = (reading.device, reading.at_ns);
        let row = scene.devices.pool(device);
        if at_ns < self.complete_since.max(row.ring.forgotten_ns()) {
            return Err(Refusal::TooOld);
        }
        // Everything is computed before it is accepted or refused, so that a refused reading changes nothing.
        let mut held = HeldBlocks::of(reading).ok_or(Refusal::Contradicted)?;
        let explained = held
            .follow(row.ring.after(at_ns))
            .ok_or(Refusal::Contradicted)?;
        let known = self
            .blocks
            .iter()
            .filter(|(_, block)| {
                block.device == device && !block.pending && block.came_after(at_ns)
            })
            .fold(held.active_bytes(), |sum, (_, block)| {
                sum.saturating_add(block.rounded)
            });
        if row.totals.contradicts(known) {
            return Err(Refusal::Contradicted);
        }
        let had_missed = scene.pool_came_later && row.missed != Some(0);
        let is_first = row.read.count == 0 && (!scene.nothing_missed || had_missed);
        let (origin, born_ns) = if is_first && self.lost_by == 0 {
            (Origin::Baseline, watch.attached_ns)
        } else {
            (Origin::Found, at_ns)
        };
        let unseen = Unseen {
            device,
            origin,
            stack: None,
            born_ns,
            traced: row.is_traced(watch),
        };
        let row = scene.devices.pool(device);
        row.read.mixed |= is_first && origin == Origin::Found && !row.read.none_before;
        let orphans = row.orphan_free_count;
        // The newest of these frees may have no size yet. Only the bytes of the others are counted as those of orphans.
        let sized = explained
            .len()
            .saturating_sub(row.totals.unsized_orphans() as usize);
        let bytes = explained.iter().take(sized).sum::<u64>();
        row.orphan_free_count = row.orphan_free_count.saturating_sub(explained.len() as u64);
        row.orphan_free_bytes = row.orphan_free_bytes.saturating_sub(bytes);
        if origin == Origin::Baseline && self.complete_since <= watch.attached_ns {
            // Blocks that went before the first reading without having been known were there before the attach, and are
            // in no answer.
            (row.orphan_free_count, row.orphan_free_bytes) = (0, 0);
        }

        let beyond = row.totals.beyond_known(held.active_bytes());
        if scene.pool_came_later && row.missed.is_none() {
            row.missed = Some(if self.lost_by == 0 { beyond } else { 0 });
        }
        let (came, went) = self.replace_blocks(scene, &held, at_ns, unseen);
        self.recount(scene, device);
        replace_segments(scene, driver, reading);
        let row = scene.devices.pool(device);
        row.seen = true;
        row.read.until_ns = row.read.until_ns.max(at_ns.saturating_add(1));
        row.read.settled = (row.resync_count, row.found_gone);
        row.read.sized = row.unsized_count;
        row.read.pending.clear();
        if !unseen.traced && row.ring.after(at_ns).next().is_none() {
            let pending = held.blocks().iter();
            let pending = pending.filter(|block| block.state == HeldState::Pending);
            // Their frees counted as completed, so their stacks are looked up in the trace. Which block came to an
            // address in a loss of records is not known.
            let sizes = pending.clone().map(|block| (block.addr, block.rounded));
            let stacks = row.ring.last_births(sizes.collect(), self.lost_by);
            let stack = |block: &HeldBlock| stacks.get(&block.addr).copied().unwrap_or(NOT_TAKEN);
            row.read.pending = pending.map(|block| (*block, stack(block))).collect();
        }
        row.totals.raise_peak(reading.total_allocated);
        if let Some(peak) = row.totals.peak() {
            tell_stacks(scene, device, peak);
        }
        if is_first {
            let went = no_stack(origin);
            scene.stacks.all_were_told(Some(device), went, orphans);
        }
        let row = scene.devices.pool(device);
        let mut moved = (0, 0);
        if watch.level == Some(Level::Read) && row.read.count > 0 {
            // No event counts them. Blocks that came and went between two readings are missing.
            moved = (came, went);
            row.alloc_count += came;
            row.free_count += went;
        }
        row.note_level(scene.time_ns, moved.0, moved.1);
        self.seen = true;
        Ok(())
    }

    /// Replaces the blocks that were known before by those of the reading as they are now. Returns how many came and
    /// how many went.
    fn replace_blocks(
        &mut self,
        scene: &mut Scene<'_>,
        held: &HeldBlocks,
        at_ns: u64,
        unseen: Unseen,
    ) -> (u64, u64) {
        let (mut came, mut went) = (0, 0);
        let before: Vec<(u64, Block)> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.device == unseen.device && !block.came_after(at_ns))
            .collect();
        let mut entered = vec![false; held.blocks().len()];
        for (addr, block) in before {
            let place = held.place(addr);
            let found = place.and_then(|place| held.blocks().get(place));
            let same = found.filter(|found| is_same(&block, found));
            if let (Some(found), Some(entered)) =
                (same, place.and_then(|place| entered.get_mut(place)))
                && block.pending == (found.state == HeldState::Pending)
            {
                *entered = true;
                self.correct(scene, found);
                continue;
            }
            self.drop_gone(scene, addr);
            went += u64::from(!block.pending);
            if let (Some(found), Some(entered)) =
                (same, place.and_then(|place| entered.get_mut(place)))
                && !block.pending
            {
                // Only the record of its free was lost: we still know when it came.
                *entered = true;
                let known = Unseen {
                    origin: block.origin,
                    stack: Some(block.stack),
                    born_ns: block.born_ns,
                    ..unseen
                };
                self.enter_held(scene, found, known);
            }
        }
        for (found, entered) in held.blocks().iter().zip(entered) {
            // Without a trace no event would ever say that a stream has finished with a pending block.
            let follows = found.state == HeldState::Active || unseen.traced;
            if !entered && follows && found.state != HeldState::Gone {
                self.drop_gone(scene, found.addr);
                self.enter_held(scene, found, unseen);
                came += 1;
                // The free of a pending block was requested, so it counts as gone.
                went += u64::from(found.state == HeldState::Pending);
            }
        }
        (came, went)
    }

    /// The block was known already: takes its exact sizes and its stream from the reading.
    fn correct(&mut self, scene: &mut Scene<'_>, found: &HeldBlock) {
        if let Some(mut block) = self.blocks.get(&found.addr) {
            let row = scene.devices.pool(block.device);
            if !block.pending {
                row.totals.close(found.addr, block.size);
                scene.stacks.resized(
                    Some(block.device),
                    block.stack,
                    block.rounded,
                    found.rounded,
                );
            }
            block.rounded = found.rounded;
            block.size = Sized::EXACT;
            block.requested = found.requested().or(block.requested.get()).into();
            block.stream = Some(found.stream).into();
            self.blocks.insert(found.addr, block);
        }
    }

    fn enter_held(&mut self, scene: &mut Scene<'_>, found: &HeldBlock, unseen: Unseen) {
        let pending = found.state == HeldState::Pending;
        let stack = match (unseen.stack, found.stack) {
            (Some(known), _) => known,
            (None, Some(id)) => scene.stacks.index(StackRef::Id(id), 0),
            (None, None) => no_stack(unseen.origin),
        };
        let key = GroupKey {
            device: Some(unseen.device),
            space: Space::Pool,
            stack: match unseen.origin {
                Origin::Baseline => BEFORE_ATTACH,
                Origin::Seen | Origin::Found => stack,
            },
            stream: unseen.traced.then_some(found.stream),
            size: if unseen.traced {
                found.requested().unwrap_or(found.rounded)
            } else {
                found.rounded
            },
        };
        let place = match unseen.origin {
            _ if pending => Membership::NOWHERE,
            Origin::Baseline => scene.groups.was_there(scene.time_ns, key),
            Origin::Seen | Origin::Found => scene.groups.join(scene.time_ns, key),
        };
        let block = Block {
            device: unseen.device,
            pending,
            origin: unseen.origin,
            labels: 0,
            rounded: found.rounded,
            size: Sized::EXACT,
            requested: found.requested().into(),
            stream: Some(found.stream).into(),
            born_ns: unseen.born_ns,
            // A block that comes to this address later has a higher number.
            serial: 0,
            stack,
            place,
        };
        let (device, rounded) = (Some(block.device), block.rounded);
        match unseen.origin {
            _ if pending => {}
            Origin::Baseline => scene.stacks.was_there(device, stack, rounded),
            Origin::Seen | Origin::Found => scene.stacks.came(device, stack, rounded, false),
        }
        self.blocks.insert(found.addr, block);
        let blocks = &self.blocks;
        self.suspects
            .came(found.addr, blocks.len(), |addr| blocks.contains_key(&addr));
    }

    /// Computes the sums of a device, of which all blocks are known now.
    fn recount(&mut self, scene: &mut Scene<'_>, device: i32) {
        let row = scene.devices.pool(device);
        let (mut live, mut known, mut requested, mut pending) = (0, 0u64, 0u64, 0u64);
        let (mut old, mut found) = ((0, 0u64), (0, 0u64));
        for (addr, block) in self.blocks.iter().filter(|(_, b)| b.device == device) {
            self.suspects.confirmed(addr, block.rounded);
            requested = requested.saturating_add(block.requested.get().unwrap_or(0));
            if block.pending {
                pending = pending.saturating_add(block.rounded);
                continue;
            }
            live += 1;
            known = known.saturating_add(block.rounded);
            let sum = match block.origin {
                Origin::Seen => continue,
                Origin::Baseline => &mut old,
                Origin::Found => &mut found,
            };
            *sum = (sum.0 + 1, sum.1.saturating_add(block.rounded));
        }
        row.live_blocks = live;
        row.requested_bytes = requested;
        row.pending_bytes = pending;
        (row.read.baseline_blocks, row.read.baseline_bytes) = old;
        (row.read.found_blocks, row.read.found_bytes) = found;
        row.read.mixed &= found.0 > 0;
        row.totals.all_known(known);
    }

    /// Takes an entry that came after a reading that contains what it reports: it is counted, but changes nothing else.
    /// If the block that it allocated still lives, the entry gives the moment at which it came, and its stack.
    pub(crate) fn trace_in_reading(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        device: i32,
        trace: &PoolTrace,
    ) {
        let half = Half::Told { addr: trace.addr };
        let row = scene.devices.pool(device);
        match trace.action {
            TraceAction::Alloc => {
                row.alloc_count += 1;
                row.sizes.record(trace.size);
                self.born_late(scene, device, trace);
                self.remember(scene.tid, half);
            }
            TraceAction::FreeRequested => {
                row.free_count += 1;
                self.remember(scene.tid, half);
            }
            TraceAction::Oom => {
                row.oom_count += 1;
                self.remember(scene.tid, Half::Oom);
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                claim_read(scene, driver, device, trace.addr, trace.size);
            }
            _ => {}
        }
    }

    /// The same for a report.
    pub(crate) fn report_in_reading(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        report: &PoolReport,
        half: Option<Half>,
    ) {
        let (device, addr) = (report.device, report.ptr);
        if matches!(half, Some(Half::Told { addr: told }) if told == addr) {
            return;
        }
        let bytes = report.size.unsigned_abs();
        let row = scene.devices.pool(device);
        let actions: &[TraceAction] = if report.size > 0 {
            row.alloc_count += 1;
            row.sizes.record(bytes);
            claim_read(scene, driver, device, addr, bytes);
            &[TraceAction::Alloc]
        } else {
            row.free_count += 1;
            &[TraceAction::FreeRequested, TraceAction::FreeCompleted]
        };
        for action in actions {
            push_entry(scene, device, *action, addr, bytes, None, false);
        }
    }

    fn born_late(&mut self, scene: &mut Scene<'_>, device: i32, trace: &PoolTrace) {
        let found = self.blocks.get(&trace.addr);
        // Of several entries before the reading the last one allocated the block that it shows.
        let is_later =
            found.is_some_and(|block| block.serial == 0 && block.born_ns < scene.time_ns);
        if let Some(mut block) = found
            && (block.device, block.requested.get()) == (device, Some(trace.size))
            && (block.origin != Origin::Seen || is_later)
        {
            if !block.pending {
                let row = scene.devices.pool(device);
                row.origin_went(block.origin, block.rounded);
                let on = Some(device);
                scene.stacks.went(on, block.stack, block.rounded);
                scene.stacks.came(on, scene.stack, block.rounded, true);
                scene.groups.moves(scene.time_ns, block.place);
                let key = GroupKey {
                    device: on,
                    space: Space::Pool,
                    stack: scene.stack,
                    stream: Some(trace.stream),
                    size: trace.size,
                };
                block.place = scene.groups.join(scene.time_ns, key);
            }
            block.origin = Origin::Seen;
            block.born_ns = scene.time_ns;
            block.stack = scene.stack;
            block.labels = scene.labels;
            self.blocks.insert(trace.addr, block);
        }
    }
}

/// An event names memory of the pool that a reading contained already. The driver's call for it may have come after the
/// reading as well, and then nobody has said yet whose it is. What the reading does not show may be another's by now.
fn claim_read(scene: &mut Scene<'_>, driver: &mut Driver, device: i32, addr: u64, size: u64) {
    let segment = scene.devices.pool(device).segments.at(addr);
    if segment.is_some_and(|segment| addr.saturating_add(size) <= segment.end()) {
        driver.claim(scene, device, addr, size);
    }
}

/// What stands for the stack of a block that only a reading shows.
fn no_stack(origin: Origin) -> StackIndex {
    match origin {
        Origin::Baseline => BEFORE_ATTACH,
        Origin::Seen | Origin::Found => NOT_TAKEN,
    }
}

/// Whether the reading's block is the one that we know. The sizes of a block never change while it
/// lives.
fn is_same(block: &Block, found: &HeldBlock) -> bool {
    found.state != HeldState::Gone
        && (found.requested().is_none()
            || block.requested.get().is_none()
            || found.requested() == block.requested.get())
        && (block.size != Sized::EXACT || block.pending || block.rounded == found.rounded)
}

/// Replaces the device's segments by those of the reading, with what happened to them since.
fn replace_segments(scene: &mut Scene<'_>, driver: &mut Driver, reading: &Reading) {
    let mut segments = Segments::default();
    for segment in &reading.segments {
        segments.add(Segment {
            addr: segment.addr,
            size: segment.size,
            stream: segment.stream,
            pool: segment.pool,
            expandable: segment.expandable,
            large: Some(segment.large),
            told: !segment.pool_untold,
        });
    }
    let held = segments.clone();
    let row = scene.devices.pool(reading.device);
    let mut quiet = true;
    let mut replay = Replay::of(&reading.segments, segments);
    for entry in row.ring.after(reading.at_ns) {
        quiet = false;
        replay.step(&entry);
    }
    let Replay {
        segments, rooms, ..
    } = replay;
    // Where segments are not traced, the reserved total of later reports is more recent than the reading's segments.
    let newer = row.gave_back_ns > reading.at_ns;
    if row.traced || quiet && !newer || row.reserved.is_none() {
        row.set_reserved(segments.bytes());
    }
    row.segments = segments.clone();
    row.rooms = rooms;
    for segment in segments.iter() {
        driver.claim(scene, reading.device, segment.addr, segment.size);
    }
    // Memory of the reading that went since then is kept, because its own driver call is yet to be reported.
    driver.keep_of_pool(scene, reading.device, reading.at_ns, |from, to| {
        segments.explain(from, to) || held.explain(from, to)
    });
}
