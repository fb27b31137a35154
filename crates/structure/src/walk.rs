//! Finds the allocator's blocks in a picture: follows trees, tables and pools, within bounds, and notes what does not
//! fit.
//!
//! The walk goes on after a flaw, because it also finds out which places the next picture must contain.

use foldhash::{HashMap, HashSet};

use crate::image::{Fetched, Image};
use crate::layout::{BlockLayout, Layout};
use crate::pools::{self, RawPool};
use crate::shape::{self, NODE, Tree, byte, word};

/// Bytes of an entry of the table of active blocks: distance, pointer.
pub(crate) const ACTIVE_ENTRY: usize = 16;
/// A block as it is in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawBlock {
    pub stream: u64,
    pub size: u64,
    pub requested: u64,
    pub pool: u64,
    pub ptr: u64,
    pub allocated: bool,
    pub mapped: bool,
    pub prev: u64,
    pub next: u64,
    /// The block was found in the table of active blocks, and not in a tree.
    pub active: bool,
}

impl RawBlock {
    /// Reads the block at `bytes`. `None` if one of its flags is neither 0 nor 1.
    pub fn at(layout: &BlockLayout, bytes: &[u8]) -> Option<RawBlock> {
        let at = |offset: u32| word(bytes, offset as usize);
        let flag = |offset: u32| match byte(bytes, offset as usize) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Some(RawBlock {
            stream: at(layout.stream),
            size: at(layout.size),
            requested: at(layout.requested),
            pool: at(layout.pool),
            ptr: at(layout.ptr),
            allocated: flag(layout.allocated)?,
            mapped: flag(layout.mapped)?,
            prev: at(layout.prev),
            next: at(layout.next),
            active: false,
        })
    }

    /// Whether the block has an address and a size, and its end does not overflow.
    pub fn is_placed(&self) -> bool {
        self.size > 0 && self.ptr > 0 && self.end().is_some()
    }

    /// Address at which the next block begins.
    pub fn end(&self) -> Option<u64> {
        self.ptr.checked_add(self.size)
    }
}

/// All blocks and pools in a picture.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// By the address of the block's object.
    pub blocks: HashMap<u64, RawBlock>,
    /// By the address of the pool's object.
    pub pools: HashMap<u64, RawPool>,
}

/// One pass over a picture.
pub(crate) struct Walk<'a> {
    image: &'a Image,
    layout: &'a Layout,
    object: u64,
    /// The bytes of the device allocator's object.
    bytes: &'a [u8],
    /// Places that the walk needed, with their lengths.
    pub wanted: HashMap<u64, usize>,
    /// Needed places that the picture lacks.
    pub missing: HashMap<u64, usize>,
    /// Needed places that cannot be read.
    pub holes: HashSet<u64>,
    /// The first thing that did not fit.
    pub flaw: Option<String>,
    pub state: State,
}

impl<'a> Walk<'a> {
    /// Walks the device allocator at `object`. `bytes` is a copy of the object.
    pub fn new(image: &'a Image, layout: &'a Layout, object: u64, bytes: &'a [u8]) -> Walk<'a> {
        let mut walk = Walk {
            image,
            layout,
            object,
            bytes,
            wanted: HashMap::default(),
            missing: HashMap::default(),
            holes: HashSet::default(),
            flaw: None,
            state: State::default(),
        };
        walk.all();
        walk
    }

    fn all(&mut self) {
        let (layout, object, bytes) = (self.layout, self.object, self.bytes);
        let pools = pools::find(layout, object, bytes, |at, len| {
            self.get(at, len).map(<[u8]>::to_vec)
        });
        self.state.pools = pools.by_address;
        if let Some(flaw) = pools.flaw {
            self.flaw(flaw);
        }
        self.active();
        for (pool, tree) in pools.trees {
            self.tree(pool, &tree);
        }
    }

    fn flaw(&mut self, what: &str) {
        self.flaw.get_or_insert_with(|| what.to_owned());
    }

    fn get(&mut self, address: u64, len: usize) -> Option<&'a [u8]> {
        // If two things have the same address, the greater length is read.
        let known = self.wanted.entry(address).or_default();
        *known = (*known).max(len);
        let len_wanted = *known;
        match self.image.get(address, len) {
            Fetched::Bytes(bytes) => Some(bytes),
            Fetched::Hole => {
                self.holes.insert(address);
                None
            }
            Fetched::Missing => {
                self.missing.insert(address, len_wanted);
                None
            }
        }
    }

    fn active(&mut self) {
        let Some(table) = shape::table(self.bytes, self.layout.active as usize) else {
            return self.flaw("the table of active blocks does not look like a table");
        };
        if table.count == 0 {
            return;
        }
        let Some(entries) = self.get(table.entries, table.slots as usize * ACTIVE_ENTRY) else {
            return self.unread(table.entries, "the table of active blocks");
        };
        let mut seen = 0;
        for entry in entries.chunks_exact(ACTIVE_ENTRY) {
            if !shape::in_use(entry) {
                continue;
            }
            seen += 1;
            self.block(word(entry, 8), None);
        }
        if seen != table.count {
            self.flaw("the table of active blocks has another number of entries than it says");
        }
    }

    fn tree(&mut self, pool: u64, tree: &Tree) {
        let mut open = Vec::new();
        if tree.root != 0 {
            open.push((tree.root, tree.header));
        }
        let mut seen = 0;
        let mut complete = true;
        while let Some((node, parent)) = open.pop() {
            if !shape::is_pointer(node) {
                return self.flaw("a node of a tree is at no address");
            }
            seen += 1;
            // Whatever the pointers say, take no more steps than the tree has nodes.
            if seen > tree.count {
                return self.flaw("a tree has more nodes than it says");
            }
            let Some(bytes) = self.get(node, NODE) else {
                complete = false;
                self.unread(node, "a node of a tree");
                continue;
            };
            if word(bytes, 8) != parent {
                self.flaw("a node of a tree has another parent");
                continue;
            }
            for child in [word(bytes, 16), word(bytes, 24)] {
                if child != 0 {
                    open.push((child, node));
                }
            }
            self.block(word(bytes, 32), Some(pool));
        }
        if complete && seen != tree.count {
            self.flaw("a tree has fewer nodes than it says");
        }
    }

    fn unread(&mut self, address: u64, what: &str) {
        if self.holes.contains(&address) {
            self.flaw(&format!("{what} cannot be read"));
        }
    }

    /// Adds a block that was found in a tree of the pool `of`, or in the table of active blocks if `of` is `None`.
    fn block(&mut self, address: u64, of: Option<u64>) {
        let layout = &self.layout.block;
        if !shape::is_pointer(address) {
            return self.flaw("a block is at no address");
        }
        let Some(bytes) = self.get(address, layout.len as usize) else {
            return self.unread(address, "a block");
        };
        let Some(block) = RawBlock::at(layout, bytes) else {
            return self.flaw("a block's flag is no flag");
        };
        let block = RawBlock {
            active: of.is_none(),
            ..block
        };
        match of {
            Some(pool) if pool != block.pool => self.flaw("a block is in another pool's tree"),
            Some(_) if block.allocated => self.flaw("an allocated block is in a tree"),
            None if !block.mapped => self.flaw("an active block has no memory"),
            None if !self.state.pools.contains_key(&block.pool) => {
                self.flaw("an active block is in a pool that is not known");
            }
            _ => {}
        }
        let before = self.state.blocks.insert(address, block);
        // Newer versions keep free blocks in two trees of the same pool, in different orders. So a free block may be
        // found twice.
        if before.is_some_and(|before| before.active != block.active || block.active) {
            self.flaw("a block is both active and free, or active twice");
        }
    }
}
