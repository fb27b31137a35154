//! Page-locked host memory.
//!
//! Owns: allocations and registrations by address. Refuses: device memory.

use crate::event::HalFacts;
use crate::fast_hash::FastMap;
use crate::report::{Component, DriverBytes, Space};
use crate::state::driver::allocation::{add, take};
use crate::state::driver::component::{Components, told};
use crate::state::driver::home::Home;
use crate::state::membership::{GroupKey, Membership};
use crate::state::scene::Scene;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};

/// One allocation of page-locked host memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pinned {
    pub(crate) size: u64,
    /// Attributes with which Ascend's driver was asked for it.
    pub(crate) hal: Option<HalFacts>,
    pub(crate) born_ns: u64,
    pub(crate) place: Membership,
    /// Context that it goes with.
    #[serde(default)]
    pub(crate) home: Option<Home>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    allocated: FastMap<u64, Pinned>,
    registered: FastMap<u64, u64>,
    allocated_sum: DriverBytes,
    registered_sum: DriverBytes,
    /// On Ascend, the components that hold what was allocated.
    components: Components,
}

impl Host {
    /// The runtime or the driver gave host memory.
    pub(crate) fn allocate(
        &mut self,
        scene: &mut Scene<'_>,
        ptr: u64,
        size: u64,
        hal: Option<HalFacts>,
        home: Option<Home>,
    ) {
        self.free(scene, ptr); // the free of an earlier one was not seen
        let pinned = self.enter(scene, size, hal, home);
        self.allocated.insert(ptr, pinned);
    }

    /// Counts host memory that is kept elsewhere.
    pub(crate) fn enter(
        &mut self,
        scene: &mut Scene<'_>,
        size: u64,
        hal: Option<HalFacts>,
        home: Option<Home>,
    ) -> Pinned {
        let stack: StackIndex = scene.stack;
        let key = GroupKey {
            device: None,
            space: Space::Host,
            stream: None,
            size,
            stack,
        };
        let pinned = Pinned {
            size,
            hal,
            born_ns: scene.time_ns,
            place: scene.groups.join(scene.time_ns, key),
            home,
        };
        add(&mut self.allocated_sum, size);
        self.components.came(told(hal), size);
        pinned
    }

    /// Whether what is at this address came after a call had begun. Such a call cannot have freed it: it freed the one
    /// before, which went from the counters when this one came (see `Driver::overtaken_free`).
    pub(crate) fn came_after(&self, ptr: u64, began_ns: u64) -> bool {
        let pinned = self.allocated.get(&ptr);
        pinned.is_some_and(|pinned| pinned.born_ns > began_ns)
    }

    /// Takes an allocation out. Returns whether it was known.
    pub(crate) fn free(&mut self, scene: &mut Scene<'_>, ptr: u64) -> bool {
        let Some(pinned) = self.allocated.remove(&ptr) else {
            return false;
        };
        self.leave(scene, &pinned);
        true
    }

    /// Takes host memory that is kept elsewhere out of the counters.
    pub(crate) fn leave(&mut self, scene: &mut Scene<'_>, pinned: &Pinned) {
        scene.groups.leave(scene.time_ns, pinned.place, pinned.size);
        take(&mut self.allocated_sum, pinned.size);
        self.components.went(told(pinned.hal), pinned.size);
    }

    /// The contexts of which `is_gone` says so went, and what belongs to them.
    pub(crate) fn reset(&mut self, scene: &mut Scene<'_>, is_gone: impl Fn(&Home) -> bool) {
        let of_gone = |home: &Option<Home>| home.as_ref().is_some_and(&is_gone);
        let allocated = self.allocated.iter();
        let gone = allocated.filter(|(_, pinned)| of_gone(&pinned.home));
        let gone: Vec<u64> = gone.map(|(ptr, _)| *ptr).collect();
        for ptr in gone {
            self.free(scene, ptr);
        }
    }

    /// The program's own memory was page-locked.
    pub(crate) fn register(&mut self, ptr: u64, size: u64) {
        self.unregister(ptr);
        self.registered.insert(ptr, size);
        add(&mut self.registered_sum, size);
    }

    /// The program's own memory is not page-locked any more.
    pub(crate) fn unregister(&mut self, ptr: u64) {
        if let Some(size) = self.registered.remove(&ptr) {
            take(&mut self.registered_sum, size);
        }
    }

    /// Number of addresses that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.allocated.len() + self.registered.len()
    }

    /// Allocations with their addresses, in no order.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = (u64, &Pinned)> {
        self.allocated.iter().map(|(ptr, pinned)| (*ptr, pinned))
    }

    /// All page-locked memory.
    pub(crate) fn total(&self) -> DriverBytes {
        DriverBytes {
            count: self.allocated_sum.count + self.registered_sum.count,
            bytes: self
                .allocated_sum
                .bytes
                .saturating_add(self.registered_sum.bytes),
        }
    }

    /// On Ascend, the components that hold what was allocated.
    pub(crate) fn components(&self) -> Vec<Component> {
        self.components.held()
    }

    /// The program's own memory that is page-locked.
    pub(crate) fn registered(&self) -> DriverBytes {
        self.registered_sum
    }
}
