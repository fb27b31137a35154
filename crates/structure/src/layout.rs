//! Offsets in the allocator's objects. They are found once for each library file.

use serde::{Deserialize, Serialize};

/// Offsets in bytes. All of them were found by evidence in a live process. Every reading proves them again, so a layout
/// from another library file is refused by its first reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The vector of pointers to the device allocators, in the object behind the exported pointer. `None` if the layout
    /// was found from one device allocator only.
    pub devices: Option<u32>,
    /// Number of bytes of a device allocator that are read. The following offsets lie within.
    pub object_len: u32,
    /// The object begins with a recursive mutex. A reading is only accepted if it is free.
    pub mutex: bool,
    /// The pool of large blocks, in a device allocator.
    pub large: u32,
    /// The pool of small blocks, in a device allocator.
    pub small: u32,
    /// Number of `std::set`s at the beginning of a pool. The flag "small" and the owner follow them.
    pub sets: u32,
    /// The hash table of active blocks, in a device allocator.
    pub active: u32,
    /// Offsets in a block.
    pub block: BlockLayout,
    /// Offsets of the statistics in a device allocator.
    pub stats: StatsLayout,
}

/// Offsets in a block's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockLayout {
    /// Handle of the stream.
    pub stream: u32,
    /// Rounded size in bytes.
    pub size: u32,
    /// Requested size in bytes.
    pub requested: u32,
    /// Pointer to the pool.
    pub pool: u32,
    /// Address on the device.
    pub ptr: u32,
    /// Flag: the block is handed out.
    pub allocated: u32,
    /// Flag: the address range is backed by memory.
    pub mapped: u32,
    /// Pointer to the previous block in the segment.
    pub prev: u32,
    /// Pointer to the next block in the segment.
    pub next: u32,
    /// Number of bytes up to the end of the last of these fields.
    pub len: u32,
}

/// Offsets of `StatArray`s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatsLayout {
    /// Number of blocks handed out.
    pub allocation: u32,
    /// Number of segments that were each taken with one call of the driver. Expandable segments are not counted.
    pub segment: u32,
    /// Number of blocks handed out or still in use by a stream.
    pub active: u32,
    /// Bytes handed out.
    pub allocated_bytes: u32,
    /// Bytes taken from the driver.
    pub reserved_bytes: u32,
    /// Bytes handed out or still in use by a stream.
    pub active_bytes: u32,
    /// Requested bytes of the active blocks.
    pub requested_bytes: u32,
}

impl Layout {
    /// Offset of the flag "small" in a pool.
    pub(crate) fn is_small(&self) -> usize {
        self.sets as usize * crate::shape::SET
    }

    /// Offset of the pointer to the private pool that owns a pool.
    pub(crate) fn owner(&self) -> usize {
        self.is_small() + 8
    }

    /// Number of bytes of a pool up to the end of its owner.
    pub(crate) fn pool_len(&self) -> usize {
        self.owner() + 8
    }

    /// Whether the offsets are within bounds and in the order that the reader relies on. A layout may come from a file,
    /// so this must be checked.
    pub(crate) fn is_sound(&self) -> bool {
        let block = &self.block;
        let fields = [
            block.stream,
            block.size,
            block.requested,
            block.pool,
            block.ptr,
            block.prev,
            block.next,
        ];
        let object = self.object_len as usize;
        let fits = |at: u32, len: usize| (at as usize).saturating_add(len) <= object;
        let stats = self.stats.all();
        block.len <= 1024
            && fields.iter().all(|at| at.saturating_add(8) <= block.len)
            && block.allocated < block.len
            && block.mapped < block.len
            && self.object_len <= 1 << 16
            && (2..=8).contains(&self.sets)
            && fits(self.large, self.pool_len())
            && fits(self.small, self.pool_len())
            && fits(self.active, crate::shape::TABLE)
            && stats.iter().all(|at| fits(*at, crate::shape::STAT_ARRAY))
    }
}

impl StatsLayout {
    /// All offsets, in the order of [`crate::segments::Sums::all`].
    pub(crate) fn all(&self) -> [u32; 7] {
        [
            self.allocation,
            self.segment,
            self.active,
            self.allocated_bytes,
            self.reserved_bytes,
            self.active_bytes,
            self.requested_bytes,
        ]
    }
}
