//! Runtime and driver calls.
//!
//! Owns: live allocations by address, failed calls, and what the calls say about devices. Refuses:
//! calls that failed as changes of state, and to guess a device.

pub(crate) mod allocation;
pub(crate) mod component;
pub(crate) mod home;
pub(crate) mod host;
pub(crate) mod vmm;

use crate::config::tree_bytes;
use crate::event::{Call, CallOp, HalSpace, Vendor, Workspace};
use crate::fast_hash::FastMap;
use crate::state::driver::allocation::{Allocation, Kind, add, take};
use crate::state::driver::home::{Home, resets};
use crate::state::driver::host::Host;
use crate::state::driver::vmm::Vmm;
use crate::state::scene::Scene;
use memscope_proto::v1::Failure;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of kinds of failure that are kept: pairs of function and status, of which there are few. Failures of
/// further kinds are only counted.
const FAILURE_KINDS: usize = 1024;
/// Maximum number of addresses whose overtaken frees are awaited, and of those whose frees the pool has announced; there are never more
/// than threads inside a free.
const OVERTAKEN: usize = 4096;

/// Number of calls that are remembered for readings of pools whose events do not report segments.
const RECENT: usize = 1 << 16;

/// Bytes of an entry that is kept by address or handle and is no allocation of the device.
const OTHER: u64 = 200;

/// Memory that came from the driver, or went back to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) time_ns: u64,
    pub(crate) addr: u64,
    /// Size in bytes; of memory that went back, only if it is known.
    pub(crate) size: Option<u64>,
    pub(crate) device: Option<i32>,
    pub(crate) came: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Driver {
    live: BTreeMap<u64, Allocation>,
    /// Number of allocations that are not known to be the pool's. While it is 0, no pool block has to look for its
    /// allocation.
    unclaimed: usize,
    pub(crate) host: Host,
    pub(crate) vmm: Vmm,
    ipc: FastMap<u64, Option<i32>>,
    /// How often imports were opened again while they were open, by address: CUDA counts, and each needs a close of its own.
    #[serde(default)]
    ipc_again: FastMap<u64, u64>,
    ipc_opened: u64,
    arrays: FastMap<u64, ()>,
    arrays_made: u64,
    /// The contexts of arrays, imports and page-locked memory of the program's own, by the address or handle of each.
    #[serde(default)]
    homes: FastMap<u64, Home>,
    failures: BTreeMap<(Arc<str>, i32), (u64, u64)>,
    /// Number of failed calls of further kinds, for which there was no room.
    #[serde(default)]
    failures_refused: u64,
    nested: u64,
    /// Number of allocations that turned out to be gone although their frees were not seen.
    found_gone: u64,
    /// Of these, the ones whose free may still come (see `overtaken_free`): how many, by address.
    overtaken: FastMap<u64, u32>,
    /// The devices of segments that were not seen to come and that the pool has said it gives back: the frees of their addresses come next.
    #[serde(default)]
    announced: FastMap<u64, i32>,
    /// torch_npu's own functions have reported a workspace.
    pub(crate) workspaces_seen: bool,
    /// The last calls, oldest first. They are needed only while a process runs, so a checkpoint does not contain them.
    #[serde(skip)]
    recent: VecDeque<Moved>,
}

impl Driver {
    /// Takes a call that has returned. Returns the range of addresses that the driver took back with it.
    pub(crate) fn call(&mut self, scene: &mut Scene<'_>, call: &Call) -> Option<(u64, u64)> {
        self.nested += u64::from(call.nested);
        if call.status != 0 {
            self.note_failure(call);
            return None;
        }
        let taken = match call.op {
            CallOp::Free | CallOp::AsyncFree => {
                let living = self.live.get(&call.ptr);
                living
                    .filter(|living| began_ns(scene, call) >= living.born_ns)
                    .map(|living| (call.ptr, call.ptr.saturating_add(living.size)))
            }
            CallOp::Unmap => {
                let size = self.unmapped_bytes(call);
                Some((call.ptr, call.ptr.saturating_add(size)))
            }
            _ => None,
        };
        self.remember(scene.time_ns, call);
        self.take_effect(scene, call);
        taken
    }

    fn remember(&mut self, time_ns: u64, call: &Call) {
        let of_host = call.hal.is_some_and(|hal| hal.space == HalSpace::Host);
        let (came, size, device) = match call.op {
            CallOp::Alloc if !of_host => (true, Some(call.size), call.device),
            CallOp::Free => {
                // The device of a call is the thread's, and any device's memory can be freed with it.
                let living = self.live.get(&call.ptr);
                let size = living.map(|living| living.size);
                (false, size, living.and_then(|living| living.device))
            }
            _ => return,
        };
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Moved {
            time_ns,
            addr: call.ptr,
            size,
            device,
            came,
        });
    }

    /// What came and went since a moment; `None` if not all of it is remembered.
    pub(crate) fn moved_since(&self, time_ns: u64) -> Option<impl Iterator<Item = &Moved>> {
        let full = self.recent.len() >= RECENT;
        let first = self.recent.front().map_or(0, |first| first.time_ns);
        (!full || first <= time_ns).then(|| {
            self.recent
                .iter()
                .filter(move |moved| moved.time_ns > time_ns)
        })
    }

    /// Bytes that a call unmaps and that are known to be a pool's.
    pub(crate) fn pooled_within(&self, call: &Call) -> u64 {
        let end = call.ptr.saturating_add(self.unmapped_bytes(call));
        let ranges = self.vmm.mapped().filter(|range| {
            range.allocation.pooled
                && range.addr >= call.ptr
                && range.addr.saturating_add(range.size) <= end
        });
        ranges.map(|range| range.size).sum()
    }

    /// How many bytes a call unmaps. Ascend's calls name an address only, and mean the mapping that begins there.
    pub(crate) fn unmapped_bytes(&self, call: &Call) -> u64 {
        match call.size {
            0 => self.vmm.mapped_from(call.ptr),
            size => size,
        }
    }

    fn take_effect(&mut self, scene: &mut Scene<'_>, call: &Call) {
        self.take_part(scene, call);
        for pinned in self.vmm.ended_of_host() {
            self.host.leave(scene, &pinned);
        }
    }

    fn take_part(&mut self, scene: &mut Scene<'_>, call: &Call) {
        // Ascend's driver has one function for memory of the device and of the host.
        let of_host = call.hal.is_some_and(|hal| hal.space == HalSpace::Host);
        match call.op {
            CallOp::Alloc if of_host => self.allocate_host(scene, call),
            CallOp::Alloc => self.allocate(scene, Kind::Plain, call),
            CallOp::AsyncAlloc if call.of_host => self.allocate_host(scene, call),
            CallOp::AsyncAlloc => self.allocate(scene, Kind::Async, call),
            CallOp::ManagedAlloc => self.allocate(scene, Kind::Managed, call),
            CallOp::Free | CallOp::AsyncFree => self.free(scene, call),
            CallOp::HostAlloc => self.allocate_host(scene, call),
            CallOp::HostFree => {
                if self.host.came_after(call.ptr, began_ns(scene, call)) {
                    return;
                }
                // Freeing device memory here is an error that the runtime has refused already,
                // but some simulated and older ones let it pass.
                if !self.host.free(scene, call.ptr) {
                    self.free_device(scene, call.ptr);
                }
            }
            CallOp::HostRegister if !call.is_page_locked() => {}
            CallOp::HostRegister => {
                self.host.register(call.ptr, call.size);
                self.homes.insert(call.ptr, Home::of(call));
            }
            CallOp::HostUnregister => {
                self.host.unregister(call.ptr);
                self.homes.remove(&call.ptr);
            }
            CallOp::Reserve => self.vmm.reserve(call.ptr, call.size),
            CallOp::ReserveFree => self.vmm.reserve_free(call.ptr),
            CallOp::Create if of_host => {
                self.host
                    .allocate(scene, call.handle, call.size, call.hal, None);
            }
            CallOp::Create if call.of_host => {
                let pinned = self.host.enter(scene, call.size, None, None);
                self.vmm.create_of_host(scene, call.handle, pinned);
            }
            CallOp::Create => {
                self.vmm
                    .create(scene, call.handle, call.size, call.device, call.hal);
            }
            CallOp::Release => {
                let began = began_ns(scene, call);
                // Ascend's driver makes physical memory of the host as well, and its handles are addresses.
                let is_host = call.vendor == Vendor::Ascend
                    && (self.host.came_after(call.handle, began)
                        || self.host.free(scene, call.handle));
                if !is_host {
                    self.vmm.release(scene, call.handle, began);
                }
            }
            CallOp::Map => self.vmm.map(scene, call.ptr, call.size, call.handle),
            CallOp::Unmap => {
                let size = self.unmapped_bytes(call);
                self.vmm.unmap(scene, call.ptr, size);
            }
            CallOp::Retain => self.vmm.retain(scene, call.ptr, call.handle),
            CallOp::Import => self.vmm.import(scene, call.handle, call.size, call.device),
            CallOp::IpcOpen => self.ipc_open(scene, call),
            CallOp::IpcClose => self.ipc_close(scene, call.ptr),
            // Ascend's call can also ask for one kind of memory or of pages (`handle`); 0 and 1 ask for all that the
            // device has.
            CallOp::MemInfo if call.vendor == Vendor::Ascend && call.handle > 1 => {}
            CallOp::MemInfo => {
                let device = scene.devices.at(call.device);
                if device.ordinal.is_none() {
                    // Of which of the devices this tells is not known, and each call may be about another one.
                    return;
                }
                device.total_bytes = Some(call.size);
                device.free_bytes = Some((call.extra, scene.time_ns));
            }
            CallOp::Reset => self.reset(scene, call),
            CallOp::ArrayAlloc => {
                self.arrays_made += 1;
                self.arrays.insert(call.handle, ());
                self.homes.insert(call.handle, Home::of(call));
            }
            CallOp::ArrayFree => {
                self.arrays.remove(&call.handle);
                self.homes.remove(&call.handle);
            }
        }
    }

    /// Takes a report of torch_npu's workspace allocator, and marks the allocation as a workspace. The report that a
    /// workspace went back changes nothing, because the free of its memory has come before.
    pub(crate) fn workspace(&mut self, scene: &mut Scene<'_>, workspace: &Workspace) {
        self.workspaces_seen = true;
        if workspace.size <= 0 {
            return;
        }
        if let Some(allocation) = self.live.get_mut(&workspace.ptr) {
            allocation.serve_as_workspace(scene);
        }
    }

    fn allocate_host(&mut self, scene: &mut Scene<'_>, call: &Call) {
        if call.ptr != 0 {
            // Stream-ordered memory goes with no context.
            let home = (call.op == CallOp::HostAlloc).then(|| Home::of(call));
            self.host
                .allocate(scene, call.ptr, call.size, call.hal, home);
        }
    }

    fn note_failure(&mut self, call: &Call) {
        let key = (Arc::clone(&call.function), call.status);
        if self.failures.len() >= FAILURE_KINDS && !self.failures.contains_key(&key) {
            self.failures_refused += 1;
            return;
        }
        let kind = self.failures.entry(key).or_default();
        kind.0 += 1;
        // The `size` of a memory query is its answer, not a request.
        if call.op != CallOp::MemInfo {
            kind.1 = kind.1.saturating_add(call.size);
        }
    }

    fn allocate(&mut self, scene: &mut Scene<'_>, kind: Kind, call: &Call) {
        // A request of 0 bytes succeeds with a null pointer.
        if call.ptr == 0 || call.size == 0 {
            return;
        }
        self.announced.remove(&call.ptr);
        let end = call.ptr.saturating_add(call.size);
        while let Some((&start, found)) = self.live.range(..end).next_back() {
            if start.saturating_add(found.size) <= call.ptr {
                break;
            }
            self.found_gone += 1;
            if self.overtaken.len() >= OVERTAKEN {
                self.overtaken.clear();
            }
            *self.overtaken.entry(start).or_default() += 1;
            self.remove(scene, start, false);
        }
        let mut new = Allocation::enter(scene, kind, call.size, call.device, call.stream, call.hal);
        new.context = call.context;
        self.live.insert(call.ptr, new);
        self.unclaimed += 1;
    }

    fn remove(&mut self, scene: &mut Scene<'_>, ptr: u64, seen: bool) -> bool {
        let Some(gone) = self.live.remove(&ptr) else {
            return false;
        };
        if !gone.pooled {
            self.unclaimed = self.unclaimed.saturating_sub(1);
        }
        gone.leave(scene, seen);
        true
    }

    /// The pool on `device` says that it gives the segment at this address back. The call that frees it comes next.
    pub(crate) fn announce_free(&mut self, device: i32, addr: u64) {
        if self.live.contains_key(&addr) {
            return;
        }
        if self.announced.len() >= OVERTAKEN {
            self.announced.clear();
        }
        self.announced.insert(addr, device);
    }

    fn free_device(&mut self, scene: &mut Scene<'_>, ptr: u64) -> bool {
        self.remove(scene, ptr, true)
    }

    /// Frees by address, whatever allocated it: the runtime accepts any of its pointers.
    fn free(&mut self, scene: &mut Scene<'_>, call: &Call) {
        if call.ptr == 0 || self.overtaken_free(scene, call) {
            return;
        }
        if self.free_device(scene, call.ptr)
            || self.host.came_after(call.ptr, began_ns(scene, call))
            || self.host.free(scene, call.ptr)
        {
            return;
        }
        if self.ipc.contains_key(&call.ptr) {
            // What cudaMemPoolImportPointer gave is freed as what cudaMallocAsync gives.
            self.ipc_close(scene, call.ptr);
            return;
        }
        // Where the memory was known to be says more than which device the thread has chosen.
        let announced = self.announced.remove(&call.ptr);
        let device = announced.or_else(|| scene.devices.of_segment(call.ptr));
        let row = scene.devices.driver(device.or(call.device));
        row.orphan_free_count += 1;
        row.free_count += 1;
        row.note_level(scene.time_ns, 0, 1);
    }

    /// Takes a free that was overtaken by another allocation; returns whether it was one. A free is reported when it
    /// returns. Between the driver's release inside it and that return, another thread may get the same address, and
    /// its allocation is reported first. Such a free began before the allocation that now lives there came, so it
    /// cannot be a free of that one.
    fn overtaken_free(&mut self, scene: &mut Scene<'_>, call: &Call) -> bool {
        let device = match self.live.get(&call.ptr) {
            Some(living) if began_ns(scene, call) >= living.born_ns => return false,
            Some(living) => living.device,
            None => call.device,
        };
        let Some(waiting) = self.overtaken.get_mut(&call.ptr) else {
            if !self.live.contains_key(&call.ptr) {
                return false;
            }
            // The allocation that it freed was not known either.
            let row = scene.devices.driver(device);
            row.orphan_free_count += 1;
            row.free_count += 1;
            row.note_level(scene.time_ns, 0, 1);
            return true;
        };
        *waiting -= 1;
        if *waiting == 0 {
            self.overtaken.remove(&call.ptr);
        }
        self.found_gone = self.found_gone.saturating_sub(1);
        let row = scene.devices.driver(device);
        row.free_count += 1;
        row.note_level(scene.time_ns, 0, 1);
        true
    }

    fn ipc_open(&mut self, scene: &mut Scene<'_>, call: &Call) {
        self.ipc_opened += 1;
        // Opening the same memory again gives the same address: still one import.
        if self.ipc.contains_key(&call.ptr) {
            *self.ipc_again.entry(call.ptr).or_default() += 1;
            return;
        }
        self.ipc.insert(call.ptr, call.device);
        add(&mut scene.devices.driver(call.device).imported, 0);
        self.homes.insert(call.ptr, Home::of(call));
    }

    fn ipc_close(&mut self, scene: &mut Scene<'_>, ptr: u64) {
        if let Some(again) = self.ipc_again.get_mut(&ptr) {
            *again -= 1;
            if *again == 0 {
                self.ipc_again.remove(&ptr);
            }
            return;
        }
        if let Some(device) = self.ipc.remove(&ptr) {
            take(&mut scene.devices.driver(device).imported, 0);
            self.homes.remove(&ptr);
        }
    }

    /// What belongs to the device's primary context, or to the context that is destroyed, goes with it. On CUDA physical and stream-ordered
    /// memory belongs to none. HIP's reset takes all that the device has.
    fn reset(&mut self, scene: &mut Scene<'_>, call: &Call) {
        if !resets(call) {
            return;
        }
        let whole = call.vendor != Vendor::Cuda && call.handle == 0;
        let goes = |allocation: &Allocation| match allocation.kind {
            Kind::Async | Kind::Physical => whole && allocation.device == call.device,
            Kind::Plain | Kind::Managed => {
                Home::on(allocation.device, allocation.context).goes_with(call)
            }
        };
        let gone = self.live.iter().filter(|(_, allocation)| goes(allocation));
        let gone: Vec<u64> = gone.map(|(ptr, _)| *ptr).collect();
        for ptr in gone {
            self.remove(scene, ptr, true);
        }
        self.host.reset(scene, |home| home.goes_with(call));
        let of_gone = self.homes.iter().filter(|(_, home)| home.goes_with(call));
        let gone: Vec<u64> = of_gone.map(|(at, _)| *at).collect();
        for at in gone {
            self.homes.remove(&at);
            self.host.unregister(at);
            self.arrays.remove(&at);
            self.ipc_again.remove(&at);
            self.ipc_close(scene, at);
        }
        if whole {
            self.vmm.reset(scene, call.device);
        }
    }

    /// The pool on `device` uses this range: the allocations in it are the pool's, and are on that device.
    pub(crate) fn claim(&mut self, scene: &mut Scene<'_>, device: i32, addr: u64, size: u64) {
        if self.unclaimed == 0 && self.vmm.direct_count() == 0 {
            return;
        }
        let end = addr.saturating_add(size.max(1));
        let mut limit = end;
        while let Some((&start, found)) = self.live.range_mut(..limit).next_back() {
            if start.saturating_add(found.size) <= addr {
                break;
            }
            if !found.pooled {
                found.claim(scene, device);
                self.unclaimed = self.unclaimed.saturating_sub(1);
            }
            limit = start;
        }
        self.vmm.claim(scene, device, addr, end);
    }

    /// A reading has everything that the pool on `device` held at `at_ns`. Allocations of the pool from before that
    /// moment that are not `explained` by the reading went back without being seen: removes them.
    pub(crate) fn keep_of_pool(
        &mut self,
        scene: &mut Scene<'_>,
        device: i32,
        at_ns: u64,
        explained: impl Fn(u64, u64) -> bool,
    ) {
        let gone: Vec<u64> = self
            .live
            .iter()
            .filter(|(ptr, a)| {
                a.pooled
                    && a.device == Some(device)
                    && a.born_ns <= at_ns
                    && !explained(**ptr, ptr.saturating_add(a.size))
            })
            .map(|(ptr, _)| *ptr)
            .collect();
        for ptr in gone {
            self.remove(scene, ptr, false);
        }
        self.vmm.keep_of_pool(scene, device, at_ns, explained);
    }

    /// The device of the allocation at this address, where it is known.
    pub(crate) fn device_at(&self, addr: u64) -> Option<i32> {
        let (&start, found) = self.live.range(..=addr).next_back()?;
        (addr < start.saturating_add(found.size))
            .then_some(found.device)
            .flatten()
    }

    /// When the allocation that lives at this address came, in nanoseconds; `None` if there is none.
    pub(crate) fn born_at(&self, addr: u64) -> Option<u64> {
        self.live.get(&addr).map(|allocation| allocation.born_ns)
    }

    /// Live allocations with an address of their own, by address.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.live.iter().map(|(ptr, allocation)| (*ptr, allocation))
    }

    /// Number of allocations and of everything else that is kept by address or handle.
    pub(crate) fn kept(&self) -> usize {
        self.live.len()
            + self.ipc.len()
            + self.ipc_again.len()
            + self.arrays.len()
            + self.failures.len()
            + self.host.kept()
            + self.vmm.kept()
    }

    /// Estimate of the bytes that all of it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let others = self.kept() - self.live.len();
        tree_bytes::<(u64, Allocation)>(self.live.len())
            + others as u64 * OTHER
            + (self.recent.capacity() * size_of::<Moved>()) as u64
    }

    /// Failed calls, by function.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failures
            .iter()
            .map(|((function, status), &(count, bytes))| Failure {
                function: function.to_string(),
                status: *status,
                count,
                bytes,
            })
            .collect()
    }

    /// Number of failed calls that are not among the failures, because there was no room for their kind.
    pub(crate) fn failures_refused(&self) -> u64 {
        self.failures_refused
    }

    /// Number of calls that were made inside other calls.
    pub(crate) fn nested(&self) -> u64 {
        self.nested
    }

    /// Number of IPC imports that were ever opened.
    pub(crate) fn ipc_opened(&self) -> u64 {
        self.ipc_opened
    }

    /// Number of arrays that were ever made, and of those that still live.
    pub(crate) fn arrays(&self) -> (u64, usize) {
        (self.arrays_made, self.arrays.len())
    }

    /// Number of allocations that turned out to be gone although their frees were not seen.
    pub(crate) fn found_gone(&self) -> u64 {
        self.found_gone
    }
}

/// When a call was entered.
fn began_ns(scene: &Scene<'_>, call: &Call) -> u64 {
    scene.time_ns.saturating_sub(call.duration_ns)
}
