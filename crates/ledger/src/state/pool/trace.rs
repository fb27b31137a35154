//! The trace entries of a framework's pool.
//!
//! Owns: what each action of the allocator's trace does to blocks, segments and totals. Refuses: the state itself,
//! which `pool` keeps, and entries whose device is not known, which wait in `deferred`.

use crate::event::{PoolTrace, TraceAction};
use crate::state::device::PoolDevice;
use crate::state::driver::Driver;
use crate::state::membership::Membership;
use crate::state::pool::block::{Block, FreedSize, Half, Origin};
use crate::state::pool::deferred::Held;
use crate::state::pool::totals::{Sized, least_rounded};
use crate::state::pool::trace_ring::Entry;
use crate::state::pool::{Arrival, Pool, peak_before_free};
use crate::state::scene::Scene;
use crate::state::stacks::NOT_TAKEN;

impl Pool {
    /// Takes an entry of the allocator's trace.
    pub(crate) fn trace(&mut self, scene: &mut Scene<'_>, driver: &mut Driver, trace: &PoolTrace) {
        // An entry that says that a snapshot was taken reports no memory.
        self.seen |= trace.action != TraceAction::Snapshot;
        // PyTorch's snapshot entry says device 0 whatever the allocator's device is.
        let named = trace
            .device
            .filter(|_| trace.action != TraceAction::Snapshot);
        let known = self.deferred.device(trace.allocator);
        if let (None, Some(device)) = (known, named) {
            self.place_held(scene, driver, trace.allocator, device);
        }
        if let Some(device) = named.or(known) {
            self.trace_on(scene, driver, device, trace);
            return;
        }
        self.deferred.hold(Held {
            time_ns: scene.time_ns,
            tid: scene.tid,
            stack: scene.stack,
            labels: scene.labels,
            trace: *trace,
        });
        let of_segment = matches!(
            trace.action,
            TraceAction::SegmentAlloc | TraceAction::SegmentMap
        );
        if of_segment && let Some(device) = driver.device_at(trace.addr) {
            self.place_held(scene, driver, trace.allocator, device);
        }
    }

    /// The device of an allocator object is known now: applies the entries that waited for it.
    pub(crate) fn place_held(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        allocator: u64,
        device: i32,
    ) {
        let (time_ns, tid) = (scene.time_ns, scene.tid);
        let (stack, labels) = (scene.stack, scene.labels);
        for held in self.deferred.learn(allocator, device) {
            scene.time_ns = held.time_ns;
            scene.tid = held.tid;
            scene.stack = held.stack;
            scene.labels = held.labels;
            self.trace_on(scene, driver, device, &held.trace);
        }
        scene.time_ns = time_ns;
        scene.tid = tid;
        scene.stack = stack;
        scene.labels = labels;
    }

    fn trace_on(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        device: i32,
        trace: &PoolTrace,
    ) {
        let in_reading = self.see(scene, device, true);
        let row = scene.devices.pool(device);
        let entry = Entry {
            action: trace.action,
            addr: trace.addr,
            size: trace.size,
            stream: trace.stream,
            pool: trace.pool,
            time_ns: scene.time_ns,
            tid: scene.tid,
            stack: scene.stack,
            orphan: false,
            reported: false,
            rounded: match trace.action {
                TraceAction::Alloc => trace.block_size.unwrap_or(0),
                _ => 0,
            },
        };
        row.ring.push(entry);
        if trace.action == TraceAction::SegmentFree {
            driver.announce_free(device, trace.addr);
        }
        if in_reading {
            self.trace_in_reading(scene, driver, device, trace);
            return;
        }
        if trace.action == TraceAction::FreeRequested
            && let Some(total) = trace.total_allocated
        {
            let bytes = trace.block_size.unwrap_or(0);
            peak_before_free(scene, device, total, bytes);
        }
        let row = scene.devices.pool(device);
        let (came, went) = match trace.action {
            TraceAction::Alloc => self.trace_alloc(scene, driver, device, trace),
            TraceAction::FreeRequested => self.trace_free(scene, device, trace),
            TraceAction::FreeCompleted => self.trace_completed(scene, device, trace),
            TraceAction::SegmentAlloc
            | TraceAction::SegmentMap
            | TraceAction::SegmentFree
            | TraceAction::SegmentUnmap => {
                row.segments.step(&entry);
                row.rooms.step(&row.segments, &entry);
                reserved_step(row, trace);
                if matches!(
                    trace.action,
                    TraceAction::SegmentAlloc | TraceAction::SegmentMap
                ) {
                    driver.claim(scene, device, trace.addr, trace.size);
                } else {
                    self.clear_range(scene, trace.addr, trace.addr.saturating_add(trace.size));
                }
                (0, 0)
            }
            TraceAction::Snapshot => (0, 0),
            TraceAction::Oom => {
                row.oom_count += 1;
                self.remember(scene.tid, Half::Oom);
                (0, 0)
            }
        };
        if let Some(total) = trace.total_allocated {
            self.settle(scene, device, total);
        }
        let row = scene.devices.pool(device);
        if let Some(reserved) = trace.total_reserved
            && !is_segment(trace.action)
        {
            row.set_reserved(reserved);
        }
        row.note_level(scene.time_ns, came, went);
    }

    fn trace_alloc(
        &mut self,
        scene: &mut Scene<'_>,
        driver: &mut Driver,
        device: i32,
        trace: &PoolTrace,
    ) -> (u64, u64) {
        let serial = self.came(
            scene,
            driver,
            Arrival {
                device,
                addr: trace.addr,
                requested: Some(trace.size),
                rounded: trace.block_size,
                stream: Some(trace.stream),
            },
        );
        self.remember(
            scene.tid,
            Half::Alloc {
                addr: trace.addr,
                serial,
            },
        );
        (1, 0)
    }

    fn trace_free(&mut self, scene: &mut Scene<'_>, device: i32, trace: &PoolTrace) -> (u64, u64) {
        let addr = trace.addr;
        let known = self.blocks.get(&addr);
        let mut block = match known {
            Some(block) if !block.pending => block,
            other => {
                if let Some(old) = other {
                    // The completion of its free, and the reuse of its address, were not seen.
                    self.end_pending(scene, addr, old);
                }
                let block = Block {
                    device,
                    pending: true,
                    origin: Origin::Seen,
                    labels: 0,
                    rounded: trace.block_size.unwrap_or(least_rounded(trace.size)),
                    size: Sized::EXACT,
                    requested: Some(trace.size).into(),
                    stream: Some(trace.stream).into(),
                    born_ns: 0,
                    serial: 0,
                    stack: NOT_TAKEN,
                    place: Membership::NOWHERE,
                };
                self.orphan_went(scene, device, trace.block_size, block.rounded);
                scene.devices.pool(device).ring.last_is_orphan();
                self.begin_pending(scene, addr, block);
                let size = match trace.block_size {
                    Some(_) => FreedSize::Counted,
                    None => FreedSize::Unknown,
                };
                self.remember_free(scene, addr, block.rounded, size);
                return (0, 1);
            }
        };
        let cancelled = self.went(scene, addr, block, trace.block_size);
        block.rounded = trace.block_size.unwrap_or(block.rounded);
        let size = if cancelled {
            FreedSize::Cancelled
        } else {
            FreedSize::Counted
        };
        self.begin_pending(scene, addr, block);
        self.remember_free(scene, addr, block.rounded, size);
        (0, 1)
    }

    fn trace_completed(
        &mut self,
        scene: &mut Scene<'_>,
        device: i32,
        trace: &PoolTrace,
    ) -> (u64, u64) {
        let addr = trace.addr;
        let known = self.blocks.get(&addr);
        let rounded = trace.block_size.or(known.map(|block| block.rounded));
        let row = scene.devices.pool(device);
        row.rooms.given_back(
            &row.segments,
            addr,
            rounded.unwrap_or(least_rounded(trace.size)),
            trace.size,
        );
        match known {
            Some(block) if block.pending => {
                self.end_pending(scene, addr, block);
                (0, 0)
            }
            Some(block) => {
                // The entry of the free's request was lost; a report of the same call may still come.
                let cancelled = self.went(scene, addr, block, trace.block_size);
                self.forget(addr);
                let size = if cancelled {
                    FreedSize::Cancelled
                } else {
                    FreedSize::Counted
                };
                let counted = trace.block_size.unwrap_or(block.rounded);
                self.remember_free(scene, addr, counted, size);
                (0, 1)
            }
            // The free was requested before the attach.
            None => (0, 0),
        }
    }
}

fn is_segment(action: TraceAction) -> bool {
    matches!(
        action,
        TraceAction::SegmentAlloc
            | TraceAction::SegmentFree
            | TraceAction::SegmentMap
            | TraceAction::SegmentUnmap
    )
}

fn reserved_step(row: &mut PoolDevice, trace: &PoolTrace) {
    let grows = matches!(
        trace.action,
        TraceAction::SegmentAlloc | TraceAction::SegmentMap
    );
    let changed = |before: u64| {
        if grows {
            before.saturating_add(trace.size)
        } else {
            before.saturating_sub(trace.size)
        }
    };
    // PyTorch counts some of these changes before the entry and some after it. A total that equals ours is from before
    // the change.
    let reserved = match (trace.total_reserved, row.reserved) {
        (Some(told), Some(ours)) if told == ours => Some(changed(ours)),
        (Some(told), _) => Some(told),
        (None, ours) => ours.map(changed),
    };
    if let Some(reserved) = reserved {
        row.set_reserved(reserved);
    }
}
