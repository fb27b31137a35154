//! A look at a device allocator: everything that its table, trees and links lead to, read while the process goes on.
//!
//! What is read comes from different moments. `settle` corrects that, because it knows what changed between the
//! beginning and the end of the look. Both are *still moments*: no thread was inside the allocator, because its mutex
//! was free and its object the same, byte for byte, before and after the clock was read.
//!
//! A look that does not settle is continued: the tables are read again, and of the blocks only those that changed. Each
//! pass is shorter than the one before, so less changes in the meantime, as when a running virtual machine is copied to
//! another host.

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

/// Number of attempts to find a still moment. They take some tenths of a second.
const LOOKS: u32 = 100_000;
/// Number of attempts in the middle of a look to find the mutex free, and the pause between two of them.
const SHORT_LOOKS: u32 = 500;
const WAIT: Duration = Duration::from_micros(50);
/// Number of attempts to read one block at a still moment.
const MOMENTS: u32 = 16;
/// Number of entries of the table of active blocks that are examined to find out whether elements are where we
/// expect them.
const SOME: usize = 64;
/// Maximum number of rounds in which links are followed, and of levels of a tree: more than any real one needs.
const ROUNDS: u32 = 96;
/// Number of blocks that may be seen beyond those in tables and trees: blocks that change in the meantime can be seen
/// twice.
const SLACK: u64 = 4096;

/// The allocator's object at a still moment.
#[derive(Debug, Clone)]
pub(crate) struct Still {
    /// The moment, by the caller's clock.
    pub at_ns: u64,
    pub bytes: Vec<u8>,
}

/// Everything that one look has read.
#[derive(Debug)]
pub struct Look {
    pub(crate) object: u64,
    pub(crate) began: Still,
    pub(crate) ended: Still,
    /// All blocks that were read, by the address of the block's object.
    pub(crate) blocks: HashMap<u64, RawBlock>,
    pub(crate) edges: Edges,
    /// Edges that are certain: they stay true as long as their segments exist.
    pub(crate) sure: Edges,
    /// All pools, by the address of the pool's object.
    pub(crate) pools: HashMap<u64, RawPool>,
    /// Something that was seen and that does not fit an allocator that stands still.
    pub(crate) flaw: Option<&'static str>,
    pub(crate) bytes_read: u64,
}

impl Look {
    /// Time of the beginning. The effect of all changes up to then is in the look.
    pub fn began_ns(&self) -> u64 {
        self.began.at_ns
    }

    /// Time of the end, which is the moment of the reading.
    pub fn ended_ns(&self) -> u64 {
        self.ended.at_ns
    }

    /// Whether nothing changed between beginning and end: the allocator's counters, which grow with every change, are
    /// the same.
    pub fn is_still(&self) -> bool {
        self.began.bytes == self.ended.bytes
    }

    /// Takes a look at the allocator at `object`. `clock` returns the current time.
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

    /// Continues the look from its end, which becomes its new beginning, to a later moment. `changed` are the device
    /// addresses with changes since the look began, `segments` the segments that were taken or given back.
    pub(crate) fn go_on<M: Memory>(
        &mut self,
        memory: &M,
        layout: &Layout,
        changed: &HashSet<u64>,
        segments: &[SegmentChange],
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<(), StructureError> {
        // The blocks that are kept were right at the end of the last pass, and all others are read after it.
        self.began = self.ended.clone();
        for segment in segments {
            self.sure.change(segment);
        }
        // Free blocks are joined and split without a report, so only allocated blocks are kept.
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

/// Waits for a still moment, and returns the object at that moment.
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

/// Memory that was read at a still moment.
pub(crate) struct Guarded {
    /// The allocator's object.
    pub(crate) object: Vec<u8>,
    /// The requested places, in the order of the request.
    pub(crate) places: Vec<Vec<u8>>,
}

/// What one pass over the allocator has read so far, and what it reads with.
pub(crate) struct Eye<'a, M> {
    pub(crate) layout: &'a Layout,
    pub(crate) object: u64,
    pub(crate) fetch: Fetch<'a, M>,
    pub(crate) pools: HashMap<u64, RawPool>,
    pub(crate) trees: Vec<Tree>,
    /// Maximum number of blocks that there can be.
    pub(crate) most: u64,
    /// Active blocks without changes since an earlier pass read them, by the address of the block's object.
    pub(crate) kept: HashMap<u64, RawBlock>,
    /// Addresses of block objects that were read, or that cannot be read.
    pub(crate) known: HashSet<u64>,
    /// The blocks as they were when they were last read, by the address of the block's object.
    pub(crate) blocks: HashMap<u64, RawBlock>,
    /// Edges that were seen at a still moment. They stay true even if their blocks do not exist any more.
    pub(crate) sure: Edges,
    /// The entries of the table of active blocks are where this reader expects them.
    pub(crate) is_hashed: bool,
    /// Addresses at which one block follows another, seen at a still moment. These are no edges, whatever was read
    /// there before.
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
        // Follow the links: a block that was in neither table nor tree while they were read is next to one that was.
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

    /// Returns the object's bytes as soon as the mutex is free, or after a short wait as they are. A thread can lose
    /// its processor in the middle of a change; until it runs again, no chain is sound.
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

    /// A block that is in the table of active blocks but not handed out waits for a stream. The table was read before
    /// the blocks, so each block that seems to wait is read again, together with its entry in the table.
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

    /// Reads a block at a still moment, and whether it is active at that moment. The inner `None` means that the block
    /// does not exist any more, the outer one that no still moment was found.
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

    /// Reads places in one call between two copies of the allocator's object. `None` if these differ, if the mutex was
    /// held, or if a place cannot be read.
    pub(crate) fn guarded(&mut self, places: &[(u64, usize)]) -> io::Result<Option<Guarded>> {
        let guard = (self.object, self.layout.object_len as usize);
        let places: Vec<_> = [guard]
            .into_iter()
            .chain(places.iter().copied())
            .chain([guard])
            .collect();
        // The memory of a block may have been unmapped.
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

    /// The addresses of block objects in the table of active blocks.
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
            // The table has grown in the meantime, and the old one was freed.
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

    /// The addresses of block objects in all trees, read level by level.
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
            // Whatever the pointers say, take not many more steps than there are nodes.
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

    /// Reads the blocks that are not known yet, and returns their addresses. `active`: they are from the table of
    /// active blocks.
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
