//! Pools that report their own memory through mstx: ATB's, MindSpore's, a program's own.
//!
//! Owns: their live regions and heaps, by domain. Refuses: to add any of it to the sums of a device (what a pool hands
//! out lies in memory that is counted where the driver gave it), and to guess which library a domain belongs to.

use crate::event::{Domain, Region, RegionChange};
use crate::fast_hash::FastMap;
use crate::report::{RegionPool, RegionsOnDevice};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Maximum number of domains kept of a process; a library has one. Reports of further ones are only counted.
const DOMAINS: usize = 256;
/// Maximum number of live regions kept of a process. Further ones are only counted (`untold`).
const LIVE: usize = 1 << 20;
/// Maximum number of live heaps kept of a pool. Further ones are only counted (`untold`).
const HEAPS: usize = 1 << 16;
/// Maximum number of devices that a pool has rows of. Memory on further devices counts as on an unknown device.
const DEVICES: usize = 256;
/// Maximum number of live regions kept at one address.
const AT_ONE: usize = 64;
/// Name of the domain without a handle, which always exists.
const GLOBAL: &str = "global";

/// How a pool reports through mstx, as the name of its domain says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Speaker {
    /// torch_npu's caching allocator.
    Caching,
    /// torch_npu's workspaces.
    Workspace,
    MindSpore,
    /// Any other pool: it reports as mstx's documentation says.
    Any,
    /// The name is not known, so it may be any of these. What the pool reports about heaps can then be read in two
    /// ways.
    Unknown,
}

impl Speaker {
    fn of(name: Option<&str>) -> Speaker {
        match name {
            // `msleaks` is the older name.
            Some("ptaCaching" | "msleaks") => Speaker::Caching,
            Some("ptaWorkspace") => Speaker::Workspace,
            Some("mindsporeMemPool") => Speaker::MindSpore,
            Some(_) => Speaker::Any,
            None => Speaker::Unknown,
        }
    }

    /// Whether the pool reports with each region, as a heap, the sum of all that it has, and leaves handles unset.
    fn tells_sums(self) -> bool {
        !matches!(self, Speaker::Any | Speaker::Unknown)
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Live {
    ptr: u64,
    size: u64,
    device: Option<i32>,
    handle: u64,
    heap: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Heap {
    ptr: u64,
    size: u64,
    device: Option<i32>,
}

/// The pool of one domain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Pool {
    last: u64,
    live: FastMap<u64, Live>,
    /// Numbers of the live regions at an address. There are several only if each has its own handle.
    by_ptr: FastMap<u64, Vec<u64>>,
    by_handle: FastMap<u64, u64>,
    /// Numbers of live regions by the heap that they named.
    by_heap: FastMap<u64, BTreeSet<u64>>,
    /// Heaps by handle, or by address if they have no handle.
    heaps: BTreeMap<u64, Heap>,
    devices: BTreeMap<Option<i32>, RegionsOnDevice>,
    orphans: u64,
    untold: u64,
}

/// A region that a pool handed out or got back, as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionStep {
    /// Whether the region was handed out; otherwise it was given back.
    pub came: bool,
    /// Address of the region.
    pub ptr: u64,
    /// Size in bytes; `None` for a region that was given back without having been seen when it was handed out.
    pub size: Option<u64>,
    /// Ordinal of the device within the process, where it is known.
    pub device: Option<i32>,
    /// Number of the region within its domain, the same when it is handed out and given back; `None` if it was not seen
    /// when it was handed out.
    pub number: Option<u64>,
}

/// Receives the regions that one event hands out or gives back, one after the other.
pub type RegionSink<'a> = dyn FnMut(RegionStep) + 'a;

/// The pools of one process that report their own memory through mstx, with their live regions and heaps, by domain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegionBook {
    names: FastMap<u64, Arc<str>>,
    /// Names of domains that were made without a handle.
    without_handle: HashSet<Arc<str>>,
    pools: BTreeMap<u64, Pool>,
    /// Number of reports of pools for which there was no room.
    #[serde(default)]
    refused: u64,
}

impl RegionBook {
    /// Takes the name of a domain that was created.
    pub fn domain(&mut self, domain: &Domain) {
        if domain.name.is_empty() {
            // The name could not be read.
            return;
        }
        if domain.handle == 0 {
            if self.without_handle.len() < DOMAINS {
                self.without_handle.insert(Arc::clone(&domain.name));
            }
        } else if self.names.len() < DOMAINS || self.names.contains_key(&domain.handle) {
            self.names.insert(domain.handle, Arc::clone(&domain.name));
        }
    }

    /// The name of a domain, where it is known. `from_start` says that no creation of a domain was missed.
    pub fn name(&self, handle: u64, from_start: bool) -> Option<Arc<str>> {
        if handle != 0 {
            return self.names.get(&handle).cloned();
        }
        // Without an mstx tool every domain has handle 0, so the name is certain only if no domain was created that
        // way.
        (from_start && self.without_handle.is_empty()).then(|| Arc::from(GLOBAL))
    }

    /// Takes a report of a pool, and passes the regions that it hands out or gives back to `tell`. `pool_seen` says
    /// that the blocks of torch_npu's caching allocator are known from its own functions, which say more: its domain is
    /// then left out.
    pub fn apply(
        &mut self,
        region: &Region,
        from_start: bool,
        pool_seen: bool,
        tell: &mut RegionSink<'_>,
    ) {
        let speaker = Speaker::of(self.name(region.domain, from_start).as_deref());
        if speaker == Speaker::Caching && pool_seen {
            self.pools.remove(&region.domain);
            return;
        }
        if self.pools.len() >= DOMAINS && !self.pools.contains_key(&region.domain) {
            self.refused += 1;
            return;
        }
        let room = self
            .pools
            .values()
            .map(|pool| pool.live.len())
            .sum::<usize>()
            < LIVE;
        let pool = self.pools.entry(region.domain).or_default();
        pool.untold = pool.untold.saturating_add(u64::from(region.untold));
        match region.change {
            RegionChange::HeapCame {
                device,
                ptr,
                size,
                handle,
            } => pool.heap_came(speaker, Heap { ptr, size, device }, handle),
            RegionChange::HeapWent { handle } => pool.heap_went(speaker, handle, tell),
            RegionChange::Came {
                device,
                ptr,
                size,
                handle,
                heap,
            } if ptr != 0 => {
                let (handle, heap) = match speaker.tells_sums() {
                    true => (0, 0),
                    false => (handle, heap),
                };
                let new = Live {
                    ptr,
                    size,
                    device,
                    handle,
                    heap,
                };
                pool.came(new, room, tell);
            }
            // An address of 0: nothing was asked for, or nothing was handed out.
            RegionChange::Came { .. } | RegionChange::Went { ptr: 0 } => {}
            RegionChange::Went { ptr } => {
                // If several regions lie at the address, the last one is given back.
                let last = pool.by_ptr.get(&ptr).and_then(|at| at.last().copied());
                pool.went(last, ptr, tell);
            }
            RegionChange::WentByHandle { handle } => {
                let number = pool.by_handle.get(&handle).copied();
                pool.went(number, 0, tell);
            }
        }
    }

    /// What the pool of a domain has on a device now; `None` if it has reported nothing there.
    pub fn on(&self, domain: u64, device: Option<i32>) -> Option<&RegionsOnDevice> {
        self.pools.get(&domain)?.devices.get(&device)
    }

    /// All pools by the names of their domains, unknown names last. `pool_seen` and `workspaces_seen` say that
    /// torch_npu's blocks and workspaces are known from its own functions. Their domains are then left out, because
    /// they report the same memory.
    pub(crate) fn report(
        &self,
        from_start: bool,
        pool_seen: bool,
        workspaces_seen: bool,
    ) -> Vec<RegionPool> {
        let mut pools: Vec<RegionPool> = Vec::new();
        for (handle, pool) in &self.pools {
            let domain = self.name(*handle, from_start);
            let told_better = match Speaker::of(domain.as_deref()) {
                Speaker::Caching => pool_seen,
                Speaker::Workspace => workspaces_seen,
                Speaker::MindSpore | Speaker::Any | Speaker::Unknown => false,
            };
            if told_better {
                continue;
            }
            pools.push(RegionPool {
                domain,
                handle: *handle,
                devices: pool.devices.values().cloned().collect(),
                orphan_free_count: pool.orphans,
                untold_count: pool.untold,
            });
        }
        pools.sort_by_key(|pool| (pool.domain.is_none(), pool.domain.clone()));
        pools
    }

    /// Number of reports of pools for which there was no room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of names, live regions and heaps that are kept.
    pub(crate) fn kept(&self) -> usize {
        let pools = self.pools.values();
        self.names.len() + pools.map(|p| p.live.len() + p.heaps.len()).sum::<usize>()
    }
}

impl Pool {
    fn on(&mut self, device: Option<i32>) -> &mut RegionsOnDevice {
        let full = self.devices.len() >= DEVICES && !self.devices.contains_key(&device);
        let device = device.filter(|_| !full);
        self.devices
            .entry(device)
            .or_insert_with(|| RegionsOnDevice {
                device,
                ..RegionsOnDevice::default()
            })
    }

    fn heap_came(&mut self, speaker: Speaker, heap: Heap, handle: u64) {
        if speaker == Speaker::Unknown {
            return;
        }
        if speaker.tells_sums() {
            self.on(heap.device).heap_bytes = Some(heap.size);
            return;
        }
        let key = if handle == 0 { heap.ptr } else { handle };
        if self.heaps.len() >= HEAPS && !self.heaps.contains_key(&key) {
            self.untold += 1;
            return;
        }
        if let Some(old) = self.heaps.insert(key, heap) {
            self.less_heap(old);
        }
        let bytes = &mut self.on(heap.device).heap_bytes;
        *bytes = Some(bytes.unwrap_or(0).saturating_add(heap.size));
    }

    fn less_heap(&mut self, heap: Heap) {
        let bytes = &mut self.on(heap.device).heap_bytes;
        *bytes = bytes.map(|bytes| bytes.saturating_sub(heap.size));
    }

    fn heap_went(&mut self, speaker: Speaker, handle: u64, tell: &mut RegionSink<'_>) {
        if speaker != Speaker::Any || handle == 0 {
            return;
        }
        let by_address = || self.heaps.iter().find(|(_, heap)| heap.ptr == handle);
        let key = if self.heaps.contains_key(&handle) {
            Some(handle)
        } else {
            by_address().map(|(key, _)| *key)
        };
        let Some((key, heap)) = key.and_then(|key| self.heaps.remove_entry(&key)) else {
            return;
        };
        self.less_heap(heap);
        // By mstx's documentation its regions go with it.
        for number in self.by_heap.remove(&key).unwrap_or_default() {
            self.went(Some(number), 0, tell);
        }
    }

    fn came(&mut self, new: Live, room: bool, tell: &mut RegionSink<'_>) {
        // A region with the same address or the same handle must have been given back without a report. Regions with
        // handles of their own may lie at one address, but only while no report is missing (`untold`).
        let incomplete = self.untold > 0;
        let at: &[u64] = self.by_ptr.get(&new.ptr).map_or(&[], Vec::as_slice);
        let is_same = |number: &u64| {
            let old = self.live.get(number).map_or(0, |old| old.handle);
            incomplete || new.handle == 0 || old == 0 || old == new.handle
        };
        let mut gone: Vec<u64> = at.iter().copied().filter(is_same).collect();
        if gone.is_empty() && at.len() >= AT_ONE {
            gone.extend(at.first());
        }
        if new.handle != 0 {
            gone.extend(self.by_handle.get(&new.handle));
        }
        for number in gone {
            self.remove(number);
        }
        if !room {
            self.untold += 1;
            return;
        }
        self.last += 1;
        let number = self.last;
        self.live.insert(number, new);
        self.by_ptr.entry(new.ptr).or_default().push(number);
        if new.handle != 0 {
            self.by_handle.insert(new.handle, number);
        }
        if new.heap != 0 {
            self.by_heap.entry(new.heap).or_default().insert(number);
        }
        let row = self.on(new.device);
        row.alloc_count += 1;
        row.count += 1;
        row.bytes = row.bytes.saturating_add(new.size);
        row.peak_bytes = row.peak_bytes.max(row.bytes);
        tell(RegionStep {
            came: true,
            ptr: new.ptr,
            size: Some(new.size),
            device: new.device,
            number: Some(number),
        });
    }

    fn went(&mut self, number: Option<u64>, ptr: u64, tell: &mut RegionSink<'_>) {
        let gone = number.and_then(|number| self.remove(number));
        match gone {
            Some(gone) => self.on(gone.device).free_count += 1,
            None => self.orphans += 1,
        }
        tell(RegionStep {
            came: false,
            ptr: gone.map_or(ptr, |gone| gone.ptr),
            size: gone.map(|gone| gone.size),
            device: gone.and_then(|gone| gone.device),
            number: number.filter(|_| gone.is_some()),
        });
    }

    fn remove(&mut self, number: u64) -> Option<Live> {
        let gone = self.live.remove(&number)?;
        if let Some(at) = self.by_ptr.get_mut(&gone.ptr) {
            at.retain(|other| *other != number);
            if at.is_empty() {
                self.by_ptr.remove(&gone.ptr);
            }
        }
        if let Some(of) = self.by_heap.get_mut(&gone.heap) {
            of.remove(&number);
            if of.is_empty() {
                self.by_heap.remove(&gone.heap);
            }
        }
        if self.by_handle.get(&gone.handle) == Some(&number) {
            self.by_handle.remove(&gone.handle);
        }
        let row = self.on(gone.device);
        row.count = row.count.saturating_sub(1);
        row.bytes = row.bytes.saturating_sub(gone.size);
        Some(gone)
    }
}
