//! Where things lie in the allocator's objects: what is found once for a library file.

use serde::{Deserialize, Serialize};

/// Offsets in bytes. Everything in it was found by evidence in a live process, and every reading made with it
/// is proven again; one from another file is refused by its first reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// In the object behind the exported pointer: the vector of pointers to the device allocators.
    /// `None` if the layout was learned from one device allocator only.
    pub devices: Option<u32>,
    /// How much of a device allocator is read; all that follows lies within.
    pub object_len: u32,
    /// The object begins with a recursive mutex, which is then asked to be free.
    pub mutex: bool,
    /// The pool of large blocks, in a device allocator.
    pub large: u32,
    /// The pool of small blocks.
    pub small: u32,
    /// `std::set`s that a pool begins with; the flag "small" and the owner follow them.
    pub sets: u32,
    /// The hash table of active blocks, in a device allocator.
    pub active: u32,
    /// In a block.
    pub block: BlockLayout,
    /// In a device allocator.
    pub stats: StatsLayout,
}

/// Offsets in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockLayout {
    /// The stream's handle.
    pub stream: u32,
    /// Rounded bytes.
    pub size: u32,
    /// Requested bytes.
    pub requested: u32,
    /// Pointer to the pool.
    pub pool: u32,
    /// Device address.
    pub ptr: u32,
    /// Flag: handed out.
    pub allocated: u32,
    /// Flag: there is memory behind the address.
    pub mapped: u32,
    /// Block before it in its segment.
    pub prev: u32,
    /// Block after it.
    pub next: u32,
    /// Bytes up to the end of the last of these.
    pub len: u32,
}

/// Offsets of `StatArray`s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatsLayout {
    /// Number of blocks handed out.
    pub allocation: u32,
    /// Number of segments taken with one call of the driver each; expandable ones do not count.
    pub segment: u32,
    /// Number of blocks handed out or still in use by a stream.
    pub active: u32,
    /// Bytes handed out.
    pub allocated_bytes: u32,
    /// Bytes taken from the driver.
    pub reserved_bytes: u32,
    /// Bytes handed out or still in use by a stream.
    pub active_bytes: u32,
    /// Bytes that were asked for, of active blocks.
    pub requested_bytes: u32,
}

impl Layout {
    /// The flag "small" in a pool.
    pub(crate) fn is_small(&self) -> usize {
        self.sets as usize * crate::shape::SET
    }

    /// The pointer to the private pool that owns a pool.
    pub(crate) fn owner(&self) -> usize {
        self.is_small() + 8
    }

    /// Bytes of a pool up to the end of its owner.
    pub(crate) fn pool_len(&self) -> usize {
        self.owner() + 8
    }

    /// Whether the offsets lie in bounds and in the order that the reader relies on: a layout may come from a
    /// file.
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
    /// All of them, in the order of [`crate::segments::Sums::all`].
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
