//! Memory of pools that report themselves, and memory that a framework's other allocators report.

use std::sync::Arc;

/// A report of torch_npu's workspace allocator: scratch memory for operators, one allocation for each stream, outside
/// the caching allocator and its totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Ordinal of the device within the process, where it is reported.
    pub device: Option<i32>,
    /// Address of the memory that the runtime handed out.
    pub ptr: u64,
    /// Size in bytes; negative when the memory was given back.
    pub size: i64,
}

/// A domain of mstx was created. Its name says which pool reports its memory in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Handle that the domain's regions refer to. It is 0 for every domain where no mstx tool is loaded; then domains
    /// cannot be told apart.
    pub handle: u64,
    /// Name of the domain.
    pub name: Arc<str>,
}

/// What happened to a pool that reports its own memory through mstx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionChange {
    /// The pool has a heap, memory that it hands out. Some pools report here, with each region, the sum of all that
    /// they have.
    HeapCame {
        /// Ordinal of the device within the process, where it is reported.
        device: Option<i32>,
        /// Address of the heap.
        ptr: u64,
        /// Size in bytes.
        size: u64,
        /// Handle of the heap; 0 if it has none and is known by its address.
        handle: u64,
    },
    /// The pool gave a heap back, and with it all regions in the heap.
    HeapWent {
        /// Handle of the heap, or its address.
        handle: u64,
    },
    /// The pool handed out a region.
    Came {
        /// Ordinal of the device within the process, where it is reported.
        device: Option<i32>,
        /// Address of the region.
        ptr: u64,
        /// Size in bytes.
        size: u64,
        /// Handle of the region; 0 if it has only its address.
        handle: u64,
        /// Heap that the region is reported to lie in. Some pools leave this field unset, so that it has any value.
        heap: u64,
    },
    /// A region was given back, named by its address.
    Went {
        /// Address of the region.
        ptr: u64,
    },
    /// A region was given back, named by its handle.
    WentByHandle {
        /// Handle of the region.
        handle: u64,
    },
}

/// A change in a pool that reports its own memory through mstx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Handle of the pool's domain: see [`Domain`].
    pub domain: u64,
    /// What changed.
    pub change: RegionChange,
    /// Number of further regions that the same call named and of which nothing else is known.
    pub untold: u32,
}
