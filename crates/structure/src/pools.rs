//! Finds the pools of a device's allocator: its own two, and the private ones.

use foldhash::HashMap;

use crate::layout::Layout;
use crate::shape::{self, Tree, byte, word};

/// Bytes that are read of a possible private pool. Its two pools of blocks lie within.
const PRIVATE: usize = 640;
/// Bytes of an entry of the table of private pools: distance, two words of id, pointer.
const PRIVATE_ENTRY: usize = 32;
/// Maximum number of slots of the table of private pools. They are few; a table with more slots is something else.
const MOST_PRIVATE: u64 = 1 << 14;

/// A pool of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawPool {
    pub small: bool,
    /// Id of the private pool; (0, 0): the pool is not private.
    pub id: (u64, u64),
}

/// All pools that were found.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub by_address: HashMap<u64, RawPool>,
    /// The trees of free blocks, each with the address of its pool.
    pub trees: Vec<(u64, Tree)>,
    /// The first thing that did not fit.
    pub flaw: Option<&'static str>,
}

/// Finds the pools of the device allocator at `object`. `bytes` is a copy of it; `read` reads more memory, if it can.
pub(crate) fn find(
    layout: &Layout,
    object: u64,
    bytes: &[u8],
    mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Pools {
    let mut pools = Pools::default();
    for (at, small) in [(layout.large, false), (layout.small, true)] {
        match pool_at(layout, bytes, object, at as usize) {
            Some((flag, 0, trees)) if flag == small => {
                let address = object.wrapping_add(u64::from(at));
                pools.add(address, RawPool { small, id: (0, 0) }, trees);
            }
            _ => pools.flaw("the allocator's own pools do not look like pools"),
        }
    }
    // Find the private pools, whichever table of the object lists them: its entries lead to objects with two pools that
    // point back to their owner.
    let from = layout.small as usize + layout.pool_len();
    for at in (from..bytes.len().saturating_sub(shape::TABLE)).step_by(8) {
        if at == layout.active as usize {
            continue;
        }
        let Some(table) = shape::table(bytes, at) else {
            continue;
        };
        if table.count == 0 || table.slots > MOST_PRIVATE {
            continue;
        }
        let len = table.slots as usize * PRIVATE_ENTRY;
        let Some(entries) = read(table.entries, len) else {
            continue;
        };
        let entries = entries.chunks_exact(PRIVATE_ENTRY);
        let used: Vec<&[u8]> = entries.filter(|entry| shape::in_use(entry)).collect();
        if used.len() as u64 != table.count {
            continue;
        }
        for entry in used {
            let (id, owner) = ((word(entry, 8), word(entry, 16)), word(entry, 24));
            if shape::is_pointer(owner)
                && let Some(bytes) = read(owner, PRIVATE)
            {
                pools.private(layout, id, owner, &bytes);
            }
        }
    }
    pools
}

impl Pools {
    fn flaw(&mut self, what: &'static str) {
        self.flaw.get_or_insert(what);
    }

    fn add(&mut self, address: u64, pool: RawPool, trees: Vec<Tree>) {
        // Private pools that are to be deleted are in two tables.
        match self.by_address.insert(address, pool) {
            None => self
                .trees
                .extend(trees.into_iter().map(|tree| (address, tree))),
            Some(before) if before.id != pool.id => self.flaw("a private pool has two ids"),
            Some(_) => {}
        }
    }

    fn private(&mut self, layout: &Layout, id: (u64, u64), owner: u64, bytes: &[u8]) {
        let found: Vec<_> = (0..PRIVATE)
            .step_by(8)
            .filter_map(|at| {
                let (small, of, trees) = pool_at(layout, bytes, owner, at)?;
                (of == owner).then_some((owner + at as u64, small, trees))
            })
            .collect();
        // A private pool has exactly one pool for large and one for small blocks.
        if let [(first, false, _), (second, true, _)] = &found[..]
            && first != second
        {
            for (address, small, trees) in found {
                self.add(address, RawPool { small, id }, trees);
            }
        }
    }
}

/// The flag "small", the owner and the trees of the pool at offset `at`, if there is one.
pub(crate) fn pool_at(
    layout: &Layout,
    bytes: &[u8],
    base: u64,
    at: usize,
) -> Option<(bool, u64, Vec<Tree>)> {
    bytes.get(at..at.checked_add(layout.pool_len())?)?;
    let trees: Vec<Tree> = (0..layout.sets as usize)
        .map_while(|i| shape::tree(bytes, base, at + i * shape::SET + 8))
        .collect();
    let small = byte(bytes, at + layout.is_small());
    let fits = trees.len() == layout.sets as usize && small <= 1;
    fits.then(|| (small == 1, word(bytes, at + layout.owner()), trees))
}
