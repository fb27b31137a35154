//! Pools that tell of themselves through mstx: ATB's, MindSpore's, a program's own.
//!
//! Owns: their live regions and heaps, by domain. Refuses: to add any of it to the sums of a device (what a pool hands out
//! lies in memory that the driver gave), and to guess whose a domain is.

use crate::event::{Domain, Region, RegionChange};
use crate::fast_hash::FastMap;
use crate::report::{RegionPool, RegionsOnDevice};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Domains kept of a process; a library has one.
const DOMAINS: usize = 256;
/// Live regions kept of a process. Past this they count as untold.
const LIVE: usize = 1 << 20;
/// Live heaps kept of a pool.
const HEAPS: usize = 1 << 16;
/// Devices that a pool has rows of; what lies on others counts as on none that is known.
const DEVICES: usize = 256;
/// Live regions kept at one address.
const AT_ONE: usize = 64;
/// The name of the domain without a handle, which is always there.
const GLOBAL: &str = "global";

/// What the name of a domain says about how its pool speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Speaker {
    /// torch_npu's caching allocator.
    Caching,
    /// torch_npu's workspaces.
    Workspace,
    MindSpore,
    /// As the library's documentation has it.
    Any,
    /// One of these: what it says of heaps can be read in two ways.
    Unknown,
}

impl Speaker {
    fn of(name: Option<&str>) -> Speaker {
        match name {
            // The older name.
            Some("ptaCaching" | "msleaks") => Speaker::Caching,
            Some("ptaWorkspace") => Speaker::Workspace,
            Some("mindsporeMemPool") => Speaker::MindSpore,
            Some(_) => Speaker::Any,
            None => Speaker::Unknown,
        }
    }

    /// With each region it tells as a heap how much the pool has in all, and leaves handles unset.
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

/// One domain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Pool {
    last: u64,
    live: FastMap<u64, Live>,
    /// Numbers of live regions; several only where each has a handle of its own.
    by_ptr: FastMap<u64, Vec<u64>>,
    by_handle: FastMap<u64, u64>,
    /// Numbers of live regions by what they said of their heap.
    by_heap: FastMap<u64, BTreeSet<u64>>,
    /// By handle, or by address where they have none.
    heaps: BTreeMap<u64, Heap>,
    devices: BTreeMap<Option<i32>, RegionsOnDevice>,
    orphans: u64,
    untold: u64,
}

/// A region that came or went, and was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionStep {
    /// It came; otherwise it went.
    pub came: bool,
    /// Its address.
    pub ptr: u64,
    /// Its bytes; of one that was never seen to come they are not known.
    pub size: Option<u64>,
    /// Device ordinal, where known.
    pub device: Option<i32>,
    /// Its number within the domain, the same when it goes; `None`: it was never seen to come.
    pub number: Option<u64>,
}

/// What became of it, one after the other.
pub type RegionSink<'a> = dyn FnMut(RegionStep) + 'a;

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegionBook {
    names: FastMap<u64, Arc<str>>,
    /// Names of domains that were made without a handle.
    without_handle: HashSet<Arc<str>>,
    pools: BTreeMap<u64, Pool>,
}

impl RegionBook {
    /// A domain was made.
    pub fn domain(&mut self, domain: &Domain) {
        if domain.name.is_empty() {
            // It could not be read.
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

    /// The name of a domain, where it is known. `from_start`: all domains were seen to be made.
    pub fn name(&self, handle: u64, from_start: bool) -> Option<Arc<str>> {
        if handle != 0 {
            return self.names.get(&handle).cloned();
        }
        // Without a tool every domain is this one.
        (from_start && self.without_handle.is_empty()).then(|| Arc::from(GLOBAL))
    }

    /// Something happened in a pool. `pool_seen`: torch_npu's own functions tell of its blocks, and better.
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
            // Nothing was asked for, or was not given.
            RegionChange::Came { .. } | RegionChange::Went { ptr: 0 } => {}
            RegionChange::Went { ptr } => {
                // The one that came last, where several have handles.
                let last = pool.by_ptr.get(&ptr).and_then(|at| at.last().copied());
                pool.went(last, ptr, tell);
            }
            RegionChange::WentByHandle { handle } => {
                let number = pool.by_handle.get(&handle).copied();
                pool.went(number, 0, tell);
            }
        }
    }

    /// What a domain's pool has on a device now.
    pub fn on(&self, domain: u64, device: Option<i32>) -> Option<&RegionsOnDevice> {
        self.pools.get(&domain)?.devices.get(&device)
    }

    /// By the domains' names, unknown last. `pool_seen` and `workspaces_seen`: torch_npu's own functions tell of its blocks
    /// and its workspaces, so that what they say through mstx would be the same once more.
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

    /// Everything kept.
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
        // Its regions go with it, says the library.
        for number in self.by_heap.remove(&key).unwrap_or_default() {
            self.went(Some(number), 0, tell);
        }
    }

    fn came(&mut self, new: Live, room: bool, tell: &mut RegionSink<'_>) {
        // The same address again, or the same handle: that one went, and was not told of. Regions with handles of their
        // own may lie at one address, as long as all that goes is told of.
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
