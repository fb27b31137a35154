//! Pools that report their own memory through mstx.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The memory of such a pool on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsOnDevice {
    /// Ordinal of the device within the process; `None` where it is not reported.
    pub device: Option<i32>,
    /// Number of live regions.
    pub count: u64,
    /// Bytes of all live regions.
    pub bytes: u64,
    /// Largest value of `bytes` since the attach.
    pub peak_bytes: u64,
    /// Bytes of the pool's heaps; `None` if it reported no heap.
    pub heap_bytes: Option<u64>,
    /// Number of regions that were handed out since the attach.
    pub alloc_count: u64,
    /// Number of those regions that were given back.
    pub free_count: u64,
}

/// A pool that reports its own memory through mstx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPool {
    /// Name of the pool's domain; `None` if the domain was created before the attach, or without a handle of its own.
    pub domain: Option<Arc<str>>,
    /// The domain's handle.
    pub handle: u64,
    /// The pool's memory by device, ordered by ordinal; memory on an unknown device comes first.
    pub devices: Vec<RegionsOnDevice>,
    /// Number of regions that were given back without having been seen when they were handed out.
    pub orphan_free_count: u64,
    /// Number of regions that are missing in the numbers, because their calls named more than one record holds or
    /// because the ledger had no room for them.
    pub untold_count: u64,
}

impl RegionPool {
    /// The name by which people know the pool.
    pub fn title(&self) -> String {
        match self.domain.as_deref() {
            Some("atb") => "ATB".to_owned(),
            Some("mindsporeMemPool") => "MindSpore".to_owned(),
            Some("ptaCaching" | "msleaks") => "torch_npu's caching allocator".to_owned(),
            Some("ptaWorkspace") => "torch_npu's workspaces".to_owned(),
            Some(name) => name.to_owned(),
            None => format!("a domain whose name is not known ({:#x})", self.handle),
        }
    }
}
