//! One look at a device allocator: everything that its table, trees and links lead to, read while the process
//! goes on.
//!
//! What is read is of different moments. That no harm comes of it is `settle`'s business, which knows what
//! changed between the beginning and the end of the look. Both are moments at which nobody was in the allocator: its mutex was
//! free and its object the same, byte for byte, before and after the clock was read.
//!
//! A look that does not settle is gone on with: the tables are read again, and of the blocks only those that changed. Each pass takes less
//! time than the one before, so that less changes meanwhile, as when a running machine is copied to another host.

use std::io;
use std::time::Duration;

use foldhash::{HashMap, HashSet};

use crate::edges::{Edges, SegmentChange};
use crate::error::StructureError;
use crate::fetch::Fetch;
use crate::layout::Layout;
use crate::pools::{self, RawPool};
use crate::shape::{self, Mutex, NODE, Tree, byte, word};
use crate::walk::{ACTIVE_ENTRY, RawBlock};
use memscope_memory::Memory;

/// Looks for a moment at which nobody is in the allocator: some tenths of a second.
const LOOKS: u32 = 100_000;
/// The same in the middle of a look, and the pause between two of them.
const SHORT_LOOKS: u32 = 500;
const WAIT: Duration = Duration::from_micros(50);
/// Times that one block is looked for at a moment at which nobody is in the allocator.
const MOMENTS: u32 = 16;
/// Entries of the table of active blocks by which it is seen where an entry lies.
const SOME: usize = 64;
/// Rounds in which links are followed, and levels of a tree: more than any real one has.
const ROUNDS: u32 = 96;
/// Blocks beyond those that tables and trees say they have: what changes meanwhile can be seen twice.
const SLACK: u64 = 4096;

/// The allocator's object at a moment at which nobody was in it.
#[derive(Debug, Clone)]
pub(crate) struct Still {
    /// The caller's clock.
    pub at_ns: u64,
    pub bytes: Vec<u8>,
}

/// Everything that one look saw.
#[derive(Debug)]
pub struct Look {
    pub(crate) object: u64,
    pub(crate) began: Still,
    pub(crate) ended: Still,
    /// All blocks that were read, by the address of the block's object.
    pub(crate) blocks: HashMap<u64, RawBlock>,
    pub(crate) edges: Edges,
    /// Of them, those that are certain: they are true for as long as their segments are there.
    pub(crate) sure: Edges,
    /// All pools, by the address of the pool's object.
    pub(crate) pools: HashMap<u64, RawPool>,
    /// What was seen and fits into no allocator that stands still.
    pub(crate) flaw: Option<&'static str>,
    pub(crate) bytes_read: u64,
}

impl Look {
    /// When it began: what happened up to here was seen as it came out.
    pub fn began_ns(&self) -> u64 {
        self.began.at_ns
    }

    /// When it ended: the moment that the reading will be of.
    pub fn ended_ns(&self) -> u64 {
        self.ended.at_ns
    }

    /// Nothing changed meanwhile: the allocator's counters, which grow with every change, are the same.
    pub fn is_still(&self) -> bool {
        self.began.bytes == self.ended.bytes
    }

    /// Looks at the allocator at `object`. `clock` gives the moments.
    pub(crate) fn take<M: Memory>(
        memory: &M,
        layout: &Layout,
        object: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<Look, StructureError> {
        let mut fetch = Fetch::new(memory);
        let began = still(&mut fetch, layout, object, clock, LOOKS)?;
        let mut look = Look {
            object,
            ended: began.clone(),
            began,
            blocks: HashMap::default(),
            edges: Edges::default(),
            sure: Edges::default(),
            pools: HashMap::default(),
            flaw: None,
            bytes_read: fetch.bytes,
        };
        let bytes = look.began.bytes.clone();
        look.pass(memory, layout, Some(bytes), HashMap::default(), clock)?;
        Ok(look)
    }

    /// Goes on with it: from its end, which becomes its beginning, up to a later moment. `changed` are the addresses on the device at which
    /// something happened since it began, `segments` the segments that came and went.
    pub(crate) fn go_on<M: Memory>(
        &mut self,
        memory: &M,
        layout: &Layout,
        changed: &HashSet<u64>,
        segments: &[SegmentChange],
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<(), StructureError> {
        // What was kept was true at the last pass's end, and all else is read after it.
        self.began = self.ended.clone();
        for segment in segments {
            self.sure.change(segment);
        }
        // Free blocks are joined and cut without a word of their own.
        let mut kept = std::mem::take(&mut self.blocks);
        kept.retain(|_, block| block.active && block.allocated && !changed.contains(&block.ptr));
        self.pass(memory, layout, None, kept, clock)
    }

    fn pass<M: Memory>(
        &mut self,
        memory: &M,
        layout: &Layout,
        bytes: Option<Vec<u8>>,
        kept: HashMap<u64, RawBlock>,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<(), StructureError> {
        let object = self.object;
        let unreadable = |source: io::Error| StructureError::Unreadable {
            what: "the device allocator",
            address: object,
            source,
        };
        let mut eye = Eye {
            layout,
            object,
            fetch: Fetch::new(memory),
            pools: HashMap::default(),
            trees: Vec::new(),
            most: SLACK,
            kept,
            known: HashSet::default(),
            blocks: HashMap::default(),
            sure: std::mem::take(&mut self.sure),
            joints: HashSet::default(),
            is_hashed: false,
            flaw: None,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => eye.unlocked().map_err(unreadable)?,
        };
        eye.all(&bytes).map_err(unreadable)?;
        eye.find_edges().map_err(unreadable)?;
        eye.confirm_pending().map_err(unreadable)?;
        self.ended = still(&mut eye.fetch, layout, object, clock, LOOKS)?;
        self.edges = eye.edges();
        self.sure = eye.sure;
        self.bytes_read += eye.fetch.bytes;
        self.blocks = eye.blocks;
        self.pools = eye.pools;
        self.flaw = eye.flaw;
        Ok(())
    }
}

/// The object at a moment at which nobody is in it.
pub(crate) fn still<M: Memory>(
    fetch: &mut Fetch<'_, M>,
    layout: &Layout,
    object: u64,
    clock: &mut dyn FnMut() -> u64,
    looks: u32,
) -> Result<Still, StructureError> {
    let len = layout.object_len as usize;
    let mut read = |len| {
        let read = fetch.one(object, len);
        read.map_err(|source| StructureError::Unreadable {
            what: "the device allocator",
            address: object,
            source,
        })
    };
    let is_free = |bytes: &[u8]| !layout.mutex || shape::mutex(bytes) == Some(Mutex::Free);
    for _ in 0..looks {
        if layout.mutex && !is_free(&read(shape::MUTEX)?) {
            std::hint::spin_loop();
            continue;
        }
        let before = read(len)?;
        let at_ns = clock();
        if is_free(&before) && read(len)? == before {
            return Ok(Still {
                at_ns,
                bytes: before,
            });
        }
    }
    Err(StructureError::Raced {
        attempts: looks,
        last: "the allocator was locked, or changed, whenever it was looked at".to_owned(),
    })
}

/// What was in memory at one moment at which nobody was in the allocator.
pub(crate) struct Guarded {
    /// The allocator's object.
    pub(crate) object: Vec<u8>,
    /// What was asked for, in the order in which it was.
    pub(crate) places: Vec<Vec<u8>>,
}

/// What one pass over the allocator has read so far, and what it reads with.
pub(crate) struct Eye<'a, M> {
    pub(crate) layout: &'a Layout,
    pub(crate) object: u64,
    pub(crate) fetch: Fetch<'a, M>,
    pub(crate) pools: HashMap<u64, RawPool>,
    pub(crate) trees: Vec<Tree>,
    /// Most blocks that there can be.
    pub(crate) most: u64,
    /// Active blocks that an earlier pass read and to which nothing happened since, by address.
    pub(crate) kept: HashMap<u64, RawBlock>,
    /// Addresses of blocks that were read, or cannot be.
    pub(crate) known: HashSet<u64>,
    /// As they were when they were read last, by address.
    pub(crate) blocks: HashMap<u64, RawBlock>,
    /// Edges that were seen while nobody was in the allocator: they stay true when their blocks are no more.
    pub(crate) sure: Edges,
    /// The table of active blocks has its entries where this reader looks for one.
    pub(crate) is_hashed: bool,
    /// Where one block follows another, seen likewise: no edges, whatever was read there before.
    pub(crate) joints: HashSet<u64>,
    pub(crate) flaw: Option<&'static str>,
}

impl<M: Memory> Eye<'_, M> {
    fn all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.all_pools(bytes);
        let trees = self.trees.iter().map(|tree| tree.count).sum::<u64>();
        self.most = self.most.saturating_add(trees);
        let mut active = self.active(bytes)?;
        let mut kept = std::mem::take(&mut self.kept);
        self.known.reserve(active.len());
        active.retain(|place| {
            let is_kept = kept.contains_key(place);
            if is_kept {
                self.known.insert(*place);
            }
            !is_kept
        });
        kept.retain(|place, _| self.known.contains(place));
        self.blocks = kept;
        let active = self.read_blocks(active, true)?;
        let free = self.free()?;
        let free = self.read_blocks(free, false)?;
        // Neighbours: what was in neither place while it was looked at is beside something that was.
        let mut links = self.links(&[active, free].concat());
        for _ in 0..ROUNDS {
            let read = self.read_blocks(links, false)?;
            if read.is_empty() {
                return Ok(());
            }
            links = self.links(&read);
        }
        self.flaw("the blocks' links have no end");
        Ok(())
    }

    pub(crate) fn all_pools(&mut self, bytes: &[u8]) {
        let (layout, fetch) = (self.layout, &mut self.fetch);
        let found = pools::find(layout, self.object, bytes, |at, len| {
            fetch.one(at, len).ok()
        });
        self.pools = found.by_address;
        self.trees = found.trees.into_iter().map(|(_, tree)| tree).collect();
        if let Some(flaw) = found.flaw {
            self.flaw(flaw);
        }
    }

    fn links(&self, of: &[u64]) -> Vec<u64> {
        let blocks = of.iter().filter_map(|address| self.blocks.get(address));
        blocks.flat_map(|block| [block.prev, block.next]).collect()
    }

    pub(crate) fn read_one(&mut self, at: u64) -> Option<RawBlock> {
        if !shape::is_pointer(at) {
            return None;
        }
        let bytes = self.fetch.one(at, self.layout.block.len as usize).ok()?;
        self.block_of(&bytes)
    }

    pub(crate) fn block_of(&self, bytes: &[u8]) -> Option<RawBlock> {
        RawBlock::at(&self.layout.block, bytes)
            .filter(RawBlock::is_placed)
            .filter(|block| self.pools.contains_key(&block.pool))
    }

    /// The object's bytes once nobody is in the allocator, if that is soon. A thread can be taken from its processor in the middle of a
    /// change; then no chain is sound until it is back.
    pub(crate) fn unlocked(&mut self) -> io::Result<Vec<u8>> {
        for look in 0..SHORT_LOOKS {
            let bytes = self
                .fetch
                .one(self.object, self.layout.object_len as usize)?;
            if !self.layout.mutex || shape::mutex(&bytes) == Some(Mutex::Free) {
                return Ok(bytes);
            }
            if look > 20 {
                std::thread::sleep(WAIT);
            }
        }
        self.fetch.one(self.object, self.layout.object_len as usize)
    }

    /// A block that is not handed out but in the table of active blocks waits for a stream. The table was read before the blocks, so
    /// that those which seem to wait are looked at again, each together with its place in the table.
    fn confirm_pending(&mut self) -> io::Result<()> {
        if !self.is_hashed {
            return Ok(());
        }
        let blocks = self.blocks.iter();
        let waiting = blocks.filter(|(_, block)| block.active && !block.allocated);
        let waiting: Vec<u64> = waiting.map(|(at, _)| *at).collect();
        for at in waiting {
            match self.at_a_still_moment(at)? {
                Some(Some(block)) => self.blocks.insert(at, block),
                Some(None) => self.blocks.remove(&at),
                None => None,
            };
        }
        Ok(())
    }

    /// A block and whether it is active, both of one moment at which nobody was in the allocator. None inside: there is no block
    /// any more. None: there was no such moment.
    fn at_a_still_moment(&mut self, at: u64) -> io::Result<Option<Option<RawBlock>>> {
        let place = self.layout.active as usize;
        for _ in 0..MOMENTS {
            let bytes = self.unlocked()?;
            let Some(table) = shape::table(&bytes, place) else {
                continue;
            };
            let entries = table.entries + table.place(at) * ACTIVE_ENTRY as u64;
            let entries = (entries, table.reach as usize * ACTIVE_ENTRY);
            let block = (at, self.layout.block.len as usize);
            let Some(read) = self.guarded(&[entries, block])? else {
                continue;
            };
            let now = shape::table(&read.object, place);
            let is_same =
                |now: shape::Table| (now.entries, now.slots) == (table.entries, table.slots);
            let ([entries, block], true) = (&read.places[..], now.is_some_and(is_same)) else {
                continue;
            };
            let mut entries = entries.chunks_exact(ACTIVE_ENTRY);
            let active = entries.any(|entry| shape::in_use(entry) && word(entry, 8) == at);
            let block = self.block_of(block);
            return Ok(Some(block.map(|block| RawBlock { active, ..block })));
        }
        Ok(None)
    }

    /// Places, read in one call between two equal states of the allocator with nobody in it. `None`: somebody was in it, or a
    /// place cannot be read.
    pub(crate) fn guarded(&mut self, places: &[(u64, usize)]) -> io::Result<Option<Guarded>> {
        let guard = (self.object, self.layout.object_len as usize);
        let places: Vec<_> = [guard]
            .into_iter()
            .chain(places.iter().copied())
            .chain([guard])
            .collect();
        // A block may lie where nothing is any more.
        let Ok(mut read) = self.fetch.at_once(&places) else {
            return Ok(None);
        };
        let after = read.pop();
        let before = read.remove(0);
        let is_free = !self.layout.mutex || shape::mutex(&before) == Some(Mutex::Free);
        let is_still = is_free && after.as_ref() == Some(&before);
        Ok(is_still.then_some(Guarded {
            object: before,
            places: read,
        }))
    }

    fn flaw(&mut self, what: &'static str) {
        self.flaw.get_or_insert(what);
    }

    /// The addresses in the table of active blocks.
    fn active(&mut self, bytes: &[u8]) -> io::Result<Vec<u64>> {
        let Some(table) = shape::table(bytes, self.layout.active as usize) else {
            self.flaw("the table of active blocks does not look like a table");
            return Ok(Vec::new());
        };
        self.most = self.most.saturating_add(2 * table.count);
        if table.count == 0 {
            return Ok(Vec::new());
        }
        let len = table.slots as usize * ACTIVE_ENTRY;
        let Ok(entries) = self.fetch.one(table.entries, len) else {
            // It has grown meanwhile, and the old one was given back.
            self.flaw("the table of active blocks cannot be read");
            return Ok(Vec::new());
        };
        let entries = (0..).zip(entries.chunks_exact(ACTIVE_ENTRY));
        let used = entries.filter(|(_, entry)| shape::in_use(entry));
        let mut some = used.clone().take(SOME);
        self.is_hashed = some.all(|(at, entry)| {
            let place = table.place(word(entry, 8));
            place.checked_add(u64::from(byte(entry, 0))) == Some(at)
        });
        let used: Vec<u64> = used.map(|(_, entry)| word(entry, 8)).collect();
        if used.len() as u64 != table.count {
            self.flaw("the table of active blocks has another number of entries than it says");
        }
        Ok(used)
    }

    /// The addresses in all trees, level by level.
    pub(crate) fn free(&mut self) -> io::Result<Vec<u64>> {
        let roots = self.trees.iter().filter(|tree| tree.root != 0);
        let mut level: Vec<u64> = roots.map(|tree| tree.root).collect();
        let count: u64 = self.trees.iter().map(|tree| tree.count).sum();
        let mut found = Vec::new();
        let mut seen = 0;
        for _ in 0..ROUNDS {
            level.retain(|node| shape::is_pointer(*node));
            level.sort_unstable();
            level.dedup();
            seen += level.len() as u64;
            if level.is_empty() {
                if seen != count {
                    self.flaw("the trees have another number of nodes than they say");
                }
                return Ok(found);
            }
            // Whatever the pointers say, not many more steps than there are nodes.
            if seen > count.saturating_add(SLACK) {
                break;
            }
            let mut below = Vec::new();
            self.fetch.each(&level, NODE, |_, bytes| {
                let children = [word(bytes, 16), word(bytes, 24)];
                below.extend(children.into_iter().filter(|child| *child != 0));
                found.push(word(bytes, 32));
            })?;
            level = below;
        }
        self.flaw("a tree has more nodes than it says");
        Ok(found)
    }

    /// Reads the blocks that are not known yet, and says which these were. `active`: the table of active blocks has them.
    pub(crate) fn read_blocks(
        &mut self,
        mut places: Vec<u64>,
        active: bool,
    ) -> io::Result<Vec<u64>> {
        let known = &mut self.known;
        places.retain(|place| shape::is_pointer(*place) && known.insert(*place));
        if known.len() as u64 > self.most {
            self.flaw("there are more blocks than the allocator says");
            return Ok(Vec::new());
        }
        places.sort_unstable();
        let (blocks, layout) = (&mut self.blocks, &self.layout.block);
        let mut read = 0;
        blocks.reserve(places.len());
        self.fetch
            .each(&places, layout.len as usize, |address, bytes| {
                let block = RawBlock::at(layout, bytes).filter(RawBlock::is_placed);
                if let Some(block) = block {
                    read += 1;
                    blocks.insert(address, RawBlock { active, ..block });
                }
            })?;
        if read != places.len() {
            self.flaw("a block is none, or cannot be read");
        }
        Ok(places)
    }
}
