//! Memory of pools that tell of themselves, or that a framework's other allocators report.

use std::sync::Arc;

/// What torch_npu's workspace allocator reports: scratch memory for operators, one allocation for each stream, outside
/// the caching allocator and its totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Device ordinal, where told.
    pub device: Option<i32>,
    /// Address, the runtime's.
    pub ptr: u64,
    /// Bytes; negative when it was given back.
    pub size: i64,
}

/// A domain of mstx was made: what a pool calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The handle that regions of it come with. 0 where no tool takes part; then it tells nothing apart.
    pub handle: u64,
    /// Its name.
    pub name: Arc<str>,
}

/// What happened to a pool that tells of itself through mstx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionChange {
    /// The pool has memory to hand out. Some pools tell the sum of all that they have with each region.
    HeapCame {
        /// Device ordinal, where told.
        device: Option<i32>,
        /// Address.
        ptr: u64,
        /// Bytes.
        size: u64,
        /// What it goes by; 0: its address.
        handle: u64,
    },
    /// It gave it back, and all regions in it.
    HeapWent {
        /// Its handle, or its address.
        handle: u64,
    },
    /// It handed out a part.
    Came {
        /// Device ordinal, where told.
        device: Option<i32>,
        /// Address.
        ptr: u64,
        /// Bytes.
        size: u64,
        /// What it goes by besides its address; 0: nothing.
        handle: u64,
        /// The heap that it is said to be of. Pools may leave it unset, and it is anything then.
        heap: u64,
    },
    /// A part came back.
    Went {
        /// Its address.
        ptr: u64,
    },
    /// A part came back.
    WentByHandle {
        /// Its handle.
        handle: u64,
    },
}

/// A pool that tells of itself through mstx had something happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Handle of the domain: see [`Domain`].
    pub domain: u64,
    /// What happened.
    pub change: RegionChange,
    /// Further regions of which the same call told, and that are not known.
    pub untold: u32,
}
