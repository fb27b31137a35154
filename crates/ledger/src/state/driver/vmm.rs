//! Physical memory, its handles, and where it is mapped.
//!
//! Owns: the life of physical memory: it ends when its last handle is released *and* its last
//! mapping is gone. Refuses: address ranges as memory; a reservation holds none.
//!
//! The driver may give a handle's number again while the memory behind the old one is still
//! mapped, and may give several numbers for one piece of memory. So memory has a number of ours,
//! and handles are names for it.

use crate::event::HalFacts;
use crate::fast_hash::FastMap;
use crate::report::DriverBytes;
use crate::state::driver::allocation::{Allocation, Kind, add, take};
use crate::state::driver::host::Pinned;
use crate::state::scene::Scene;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Memory {
    Own(Allocation),
    /// Of another process. CUDA's import does not tell the size, which is 0 until the memory is mapped.
    Imported {
        device: Option<i32>,
        size: u64,
        #[serde(default)]
        born_ns: u64,
    },
    /// Memory of the host.
    Host(Pinned),
}

impl Memory {
    /// When it came.
    fn born_ns(&self) -> u64 {
        match self {
            Memory::Own(allocation) => allocation.born_ns,
            Memory::Imported { born_ns, .. } => *born_ns,
            Memory::Host(pinned) => pinned.born_ns,
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Physical {
    memory: Memory,
    references: u32,
    mappings: u32,
}

/// One mapped range.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Mapping {
    size: u64,
    /// Number of the physical memory; `None` if it is from before the attach.
    physical: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Vmm {
    physicals: FastMap<u64, Physical>,
    last_number: u64,
    /// Handle → number of the memory, and references by this handle.
    names: FastMap<u64, (u64, u32)>,
    mappings: BTreeMap<u64, Mapping>,
    reservations: FastMap<u64, u64>,
    reserved: DriverBytes,
    /// Pieces of the process's own memory that the pool does not use.
    direct: usize,
    /// Number of calls that named a handle or a mapping from before the attach.
    unknown: u64,
    /// Memory of the host that has gone, and that nobody has taken out of the host's counters yet.
    #[serde(skip)]
    ended: Vec<Pinned>,
}

/// A mapped range of known memory, for the snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MappedRange {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) allocation: Allocation,
}

/// The process's own memory, for a picture that shows each byte once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// What is mapped, at its first address.
    pub(crate) mapped: Vec<MappedRange>,
    /// Number of further ranges of addresses at which such memory is mapped.
    pub(crate) again: usize,
    /// Bytes that are mapped nowhere, and what they are of.
    pub(crate) unmapped: Vec<(u64, Allocation)>,
}

impl Vmm {
    /// Address space was reserved, without memory.
    pub(crate) fn reserve(&mut self, ptr: u64, size: u64) {
        self.reserve_free(ptr);
        self.reservations.insert(ptr, size);
        add(&mut self.reserved, size);
    }

    /// Address space was given back.
    pub(crate) fn reserve_free(&mut self, ptr: u64) {
        if let Some(size) = self.reservations.remove(&ptr) {
            take(&mut self.reserved, size);
        }
    }

    /// Address space that is reserved.
    pub(crate) fn reserved(&self) -> DriverBytes {
        self.reserved
    }

    /// The process made physical memory.
    pub(crate) fn create(
        &mut self,
        scene: &mut Scene<'_>,
        handle: u64,
        size: u64,
        device: Option<i32>,
        hal: Option<HalFacts>,
    ) {
        let memory = Allocation::enter(scene, Kind::Physical, size, device, None, hal);
        self.direct += 1;
        self.name(scene, handle, Memory::Own(memory));
    }

    /// The process made physical memory of the host.
    pub(crate) fn create_of_host(&mut self, scene: &mut Scene<'_>, handle: u64, pinned: Pinned) {
        self.name(scene, handle, Memory::Host(pinned));
    }

    /// Memory of the host that has gone since this was asked for the last time.
    pub(crate) fn ended_of_host(&mut self) -> Vec<Pinned> {
        std::mem::take(&mut self.ended)
    }

    /// The process imported physical memory of another one.
    pub(crate) fn import(
        &mut self,
        scene: &mut Scene<'_>,
        handle: u64,
        size: u64,
        device: Option<i32>,
    ) {
        add(&mut scene.devices.driver(device).imported, size);
        let born_ns = scene.time_ns;
        let memory = Memory::Imported {
            device,
            size,
            born_ns,
        };
        self.name(scene, handle, memory);
    }

    fn name(&mut self, scene: &mut Scene<'_>, handle: u64, memory: Memory) {
        if let Some((number, references)) = self.names.remove(&handle) {
            // The driver has used the handle again, so the releases of the old one were not seen.
            self.unreference(scene, number, references, false);
        }
        self.last_number += 1;
        self.physicals.insert(
            self.last_number,
            Physical {
                memory,
                references: 1,
                mappings: 0,
            },
        );
        self.names.insert(handle, (self.last_number, 1));
    }

    /// A reference by this handle was released, by a call that began at this time.
    pub(crate) fn release(&mut self, scene: &mut Scene<'_>, handle: u64, began_ns: u64) {
        let Some((number, references)) = self.names.get_mut(&handle) else {
            self.unknown += 1;
            return;
        };
        let number = *number;
        let memory = self.physicals.get(&number).map(|one| &one.memory);
        if let Some(memory) = memory.filter(|memory| memory.born_ns() > began_ns) {
            // Another thread got the handle before the release returned: it was of the memory before, which went from
            // the counters when this memory came (see `Driver::overtaken_free`).
            if let Memory::Own(allocation) = memory {
                scene.devices.driver(allocation.device).free_count += 1;
            }
            return;
        }
        *references = references.saturating_sub(1);
        if *references == 0 {
            self.names.remove(&handle);
        }
        self.unreference(scene, number, 1, true);
    }

    fn unreference(&mut self, scene: &mut Scene<'_>, number: u64, references: u32, seen: bool) {
        if let Some(physical) = self.physicals.get_mut(&number) {
            physical.references = physical.references.saturating_sub(references);
        }
        self.end_if_unused(scene, number, seen);
    }

    fn end_if_unused(&mut self, scene: &mut Scene<'_>, number: u64, seen: bool) {
        let unused = self
            .physicals
            .get(&number)
            .is_some_and(|p| p.references == 0 && p.mappings == 0);
        if unused && let Some(physical) = self.physicals.remove(&number) {
            match physical.memory {
                Memory::Own(allocation) => {
                    self.direct -= usize::from(!allocation.pooled && self.direct > 0);
                    allocation.leave(scene, seen);
                }
                Memory::Imported { device, size, .. } => {
                    take(&mut scene.devices.driver(device).imported, size);
                }
                Memory::Host(pinned) => self.ended.push(pinned),
            }
        }
    }

    /// `cuMemRetainAllocationHandle`: a name for what is mapped at `ptr`.
    pub(crate) fn retain(&mut self, scene: &mut Scene<'_>, ptr: u64, handle: u64) {
        let number = self
            .mappings
            .range(..=ptr)
            .next_back()
            .filter(|(start, m)| ptr - **start < m.size)
            .and_then(|(_, mapping)| mapping.physical);
        // Memory from before the attach is counted when this handle is released.
        let Some(number) = number else {
            return;
        };
        match self.names.get(&handle).copied() {
            Some((named, references)) if named == number => {
                self.names.insert(handle, (number, references + 1));
            }
            other => {
                if let Some((named, references)) = other {
                    self.unreference(scene, named, references, false);
                }
                self.names.insert(handle, (number, 1));
            }
        }
        if let Some(physical) = self.physicals.get_mut(&number) {
            physical.references += 1;
        }
    }

    /// Memory was mapped at an address.
    pub(crate) fn map(&mut self, scene: &mut Scene<'_>, ptr: u64, size: u64, handle: u64) {
        // Mappings that overlap must have been unmapped without being seen.
        self.drop_overlapping(scene, ptr, ptr.saturating_add(size));
        let physical = self.names.get(&handle).map(|(number, _)| *number);
        if let Some(found) = physical.and_then(|number| self.physicals.get_mut(&number)) {
            found.mappings += 1;
            if let Memory::Imported {
                device,
                size: told @ 0,
                ..
            } = &mut found.memory
            {
                *told = size;
                let imported = &mut scene.devices.driver(*device).imported;
                imported.bytes = imported.bytes.saturating_add(size);
            }
        }
        self.mappings.insert(ptr, Mapping { size, physical });
    }

    /// Size of the mapping that begins at this address. Ascend's calls that unmap do not give a size.
    pub(crate) fn mapped_from(&self, ptr: u64) -> u64 {
        self.mappings.get(&ptr).map_or(0, |mapping| mapping.size)
    }

    /// Every mapping inside the range was unmapped.
    pub(crate) fn unmap(&mut self, scene: &mut Scene<'_>, ptr: u64, size: u64) {
        let end = ptr.saturating_add(size);
        let inside: Vec<u64> = self
            .mappings
            .range(ptr..end)
            .filter(|(start, mapping)| start.saturating_add(mapping.size) <= end)
            .map(|(start, _)| *start)
            .collect();
        if inside.is_empty() {
            self.unknown += 1;
        }
        for start in inside {
            self.drop_mapping(scene, start, true);
        }
    }

    fn drop_overlapping(&mut self, scene: &mut Scene<'_>, ptr: u64, end: u64) {
        while let Some((&start, mapping)) = self.mappings.range(..end).next_back() {
            if start.saturating_add(mapping.size) <= ptr {
                break;
            }
            self.drop_mapping(scene, start, false);
        }
    }

    fn drop_mapping(&mut self, scene: &mut Scene<'_>, start: u64, seen: bool) {
        let Some(Mapping {
            physical: Some(number),
            ..
        }) = self.mappings.remove(&start)
        else {
            return;
        };
        if let Some(physical) = self.physicals.get_mut(&number) {
            physical.mappings = physical.mappings.saturating_sub(1);
        }
        self.end_if_unused(scene, number, seen);
    }

    /// The pool on `device` uses this range: the memory behind it is the pool's.
    pub(crate) fn claim(&mut self, scene: &mut Scene<'_>, device: i32, addr: u64, end: u64) {
        let mut limit = end;
        while let Some((&start, mapping)) = self.mappings.range(..limit).next_back() {
            if start.saturating_add(mapping.size) <= addr {
                break;
            }
            let physical = mapping.physical.and_then(|n| self.physicals.get_mut(&n));
            if let Some(Memory::Own(allocation)) = physical.map(|p| &mut p.memory)
                && !allocation.pooled
            {
                allocation.claim(scene, device);
                self.direct = self.direct.saturating_sub(1);
            }
            limit = start;
        }
    }

    /// Removes the pool's memory from before `at_ns` that is not `explained` by a reading: it went back without being
    /// seen.
    pub(crate) fn keep_of_pool(
        &mut self,
        scene: &mut Scene<'_>,
        device: i32,
        at_ns: u64,
        explained: impl Fn(u64, u64) -> bool,
    ) {
        let is_pools = |physical: &Physical| {
            matches!(physical.memory, Memory::Own(a)
                if a.pooled && a.device == Some(device) && a.born_ns <= at_ns)
        };
        let mut used: FastMap<u64, ()> = FastMap::default();
        let mut gone = Vec::new();
        for (&start, mapping) in &self.mappings {
            let Some(number) = mapping.physical else {
                continue;
            };
            if explained(start, start.saturating_add(mapping.size)) {
                used.insert(number, ());
            } else if self.physicals.get(&number).is_some_and(is_pools) {
                gone.push((start, number));
            }
        }
        for (start, number) in gone {
            if !used.contains_key(&number) {
                // The pool keeps a handle no longer than its mapping.
                self.names.retain(|_, (named, _)| *named != number);
                if let Some(physical) = self.physicals.get_mut(&number) {
                    physical.references = 0;
                }
            }
            self.drop_mapping(scene, start, false);
        }
    }

    /// The device was reset, and its vendor's reset takes its physical memory away, too.
    pub(crate) fn reset(&mut self, scene: &mut Scene<'_>, device: Option<i32>) {
        let gone: Vec<u64> = self
            .physicals
            .iter()
            .filter(|(_, p)| matches!(p.memory, Memory::Own(a) if a.device == device))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.names.retain(|_, (named, _)| *named != number);
            self.mappings.retain(|_, m| m.physical != Some(number));
            if let Some(Physical {
                memory: Memory::Own(allocation),
                ..
            }) = self.physicals.remove(&number)
            {
                self.direct -= usize::from(!allocation.pooled && self.direct > 0);
                allocation.leave(scene, true);
            }
        }
    }

    /// Number of pieces of the process's own memory that the pool does not use.
    pub(crate) fn direct_count(&self) -> usize {
        self.direct
    }

    /// Physical memory of the process itself, mapped or not.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.physicals.values().filter_map(|p| match &p.memory {
            Memory::Own(allocation) => Some(allocation),
            Memory::Imported { .. } | Memory::Host(_) => None,
        })
    }

    /// Physical memory of the host, mapped or not.
    pub(crate) fn of_host(&self) -> impl Iterator<Item = &Pinned> {
        self.physicals.values().filter_map(|p| match &p.memory {
            Memory::Host(pinned) => Some(pinned),
            Memory::Own(_) | Memory::Imported { .. } => None,
        })
    }

    /// Mapped ranges of the process's own memory, by address.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = MappedRange> {
        self.mappings.iter().filter_map(|(&addr, mapping)| {
            let physical = self.physicals.get(&mapping.physical?)?;
            match physical.memory {
                Memory::Own(allocation) => Some(MappedRange {
                    addr,
                    size: mapping.size,
                    allocation,
                }),
                Memory::Imported { .. } | Memory::Host(_) => None,
            }
        })
    }

    /// The process's own memory, each piece at one address.
    pub(crate) fn placed(&self) -> Placed {
        let mut placed = Placed::default();
        let mut shown: FastMap<u64, u64> = FastMap::default();
        for (&addr, mapping) in &self.mappings {
            let number = mapping.physical.unwrap_or(0);
            let Some(Memory::Own(allocation)) = self.physicals.get(&number).map(|p| p.memory)
            else {
                continue;
            };
            let size = mapping.size.min(allocation.size);
            if shown.contains_key(&number) {
                placed.again += 1;
                continue;
            }
            shown.insert(number, size);
            placed.mapped.push(MappedRange {
                addr,
                size,
                allocation,
            });
        }
        let mut numbers: Vec<u64> = self.physicals.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let Some(Memory::Own(allocation)) = self.physicals.get(&number).map(|p| p.memory)
            else {
                continue;
            };
            let at_address = shown.get(&number).copied().unwrap_or(0);
            let rest = allocation.size.saturating_sub(at_address);
            if rest > 0 {
                placed.unmapped.push((rest, allocation));
            }
        }
        placed
    }

    /// Number of pieces of memory, handles, mappings and reservations that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.physicals.len() + self.names.len() + self.mappings.len() + self.reservations.len()
    }

    /// Number of calls that named a handle or a mapping from before the attach.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown
    }
}
