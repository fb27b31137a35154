//! Pools that tell of themselves through mstx.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What such a pool has on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsOnDevice {
    /// Ordinal within the process; `None`: not told.
    pub device: Option<i32>,
    /// Live regions.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Most bytes at a time since the attach.
    pub peak_bytes: u64,
    /// Bytes of its heaps; `None`: it told of none.
    pub heap_bytes: Option<u64>,
    /// Regions that came since the attach.
    pub alloc_count: u64,
    /// Regions that went since the attach.
    pub free_count: u64,
}

/// A pool that tells of itself through mstx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPool {
    /// Name of its domain; `None`: the domain was made before the attach, or without a handle of its own.
    pub domain: Option<Arc<str>>,
    /// The domain's handle.
    pub handle: u64,
    /// By ordinal, unknown first.
    pub devices: Vec<RegionsOnDevice>,
    /// Regions that went and were never seen to come.
    pub orphan_free_count: u64,
    /// Regions that were told of in calls of too many.
    pub untold_count: u64,
}

impl RegionPool {
    /// What people call it.
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
