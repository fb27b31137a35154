//! Page-locked host memory.
//!
//! Owns: allocations and registrations by address. Refuses: device memory.

use crate::allocation::{add, take};
use crate::fast_hash::FastMap;
use crate::report::DriverBytes;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    allocated: FastMap<u64, u64>,
    registered: FastMap<u64, u64>,
    allocated_sum: DriverBytes,
    registered_sum: DriverBytes,
}

impl Host {
    /// The runtime gave host memory.
    pub(crate) fn allocate(&mut self, ptr: u64, size: u64) {
        self.free(ptr); // its free went unseen
        self.allocated.insert(ptr, size);
        add(&mut self.allocated_sum, size);
    }

    /// Went; says whether it was known.
    pub(crate) fn free(&mut self, ptr: u64) -> bool {
        let Some(size) = self.allocated.remove(&ptr) else {
            return false;
        };
        take(&mut self.allocated_sum, size);
        true
    }

    /// The program's own memory was page-locked.
    pub(crate) fn register(&mut self, ptr: u64, size: u64) {
        self.unregister(ptr);
        self.registered.insert(ptr, size);
        add(&mut self.registered_sum, size);
    }

    /// … and released.
    pub(crate) fn unregister(&mut self, ptr: u64) {
        if let Some(size) = self.registered.remove(&ptr) {
            take(&mut self.registered_sum, size);
        }
    }

    /// Addresses kept.
    pub(crate) fn kept(&self) -> usize {
        self.allocated.len() + self.registered.len()
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

    /// Of it, the program's own.
    pub(crate) fn registered(&self) -> DriverBytes {
        self.registered_sum
    }
}
