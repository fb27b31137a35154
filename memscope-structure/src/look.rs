//! One look at a device allocator: everything that its table, trees and links lead to, read while the process
//! goes on.
//!
//! What is read is of different moments. That no harm comes of it is `settle`'s business, which knows what
//! changed between the beginning and the end of the look. Both are moments at which nobody was in the allocator: its mutex was
//! free and its object the same, byte for byte, before and after the clock was read.
//!
//! A look that does not settle is gone on with: the tables are read again, and of the blocks only those that changed. Each pass takes less
//! time than the one before, so that less changes meanwhile, as when a running machine is copied to another host.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::time::Duration;

use crate::error::StructureError;
use crate::fetch::Fetch;
use crate::layout::Layout;
use crate::memory::Memory;
use crate::shape::{self, Mutex, NODE, Tree, word};
use crate::walk::{ACTIVE_ENTRY, MOST_PRIVATE, PRIVATE, PRIVATE_ENTRY, RawBlock, RawPool, pool_at};

/// Looks for a moment at which nobody is in the allocator: some tenths of a second.
const LOOKS: u32 = 100_000;
/// The same in the middle of a look, and the pause between two of them.
const SHORT_LOOKS: u32 = 500;
const WAIT: Duration = Duration::from_micros(50);
/// Rounds in which links are followed, and levels of a tree: more than any real one has.
const ROUNDS: u32 = 96;
/// Times that all places are looked at at which the first or the last block of a segment was not seen.
const TURNS: u32 = 8;
/// Blocks from which such an edge is looked for, steps towards it at once, and moments at which they are tried.
const ANCHORS: usize = 3;
const STEPS: usize = 16;
const MOMENTS: u32 = 8;
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
    /// By address.
    pub(crate) blocks: HashMap<u64, RawBlock>,
    pub(crate) edges: Edges,
    /// Of them, those that are certain: they are true for as long as their segments are there.
    sure: Edges,
    /// By address.
    pub(crate) pools: HashMap<u64, RawPool>,
    /// What was seen and fits into no allocator that stands still.
    pub(crate) flaw: Option<&'static str>,
    pub(crate) bytes_read: u64,
}

/// A segment that came or went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentChange {
    pub addr: u64,
    /// Its length, where known.
    pub bytes: Option<u64>,
    /// The pool's address and the stream of one that came, where known.
    pub came: Option<(u64, u64)>,
}

/// Where chains of blocks begin and end. This stays as it is while the segment is there, however its blocks
/// are split and joined.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// The pool and the stream, by the first block's address on the device.
    pub starts: BTreeMap<u64, (u64, u64)>,
    pub ends: BTreeSet<u64>,
}

impl Edges {
    fn see(&mut self, block: &RawBlock) {
        if block.prev == 0 {
            self.starts.insert(block.ptr, (block.pool, block.stream));
        }
        if block.next == 0 {
            self.ends.insert(block.ptr + block.size);
        }
    }

    /// Where this segment is, is another one now, or none.
    fn change(&mut self, segment: &SegmentChange) {
        let (at, first) = (segment.addr, segment.addr.saturating_add(1));
        let end = match segment.bytes {
            Some(bytes) => at.saturating_add(bytes),
            None => self.ends.range(first..).next().copied().unwrap_or(first),
        };
        self.starts.retain(|edge, _| !(at..end).contains(edge));
        self.ends.retain(|edge| !(first..=end).contains(edge));
        if let (Some(came), Some(_)) = (segment.came, segment.bytes) {
            self.starts.insert(at, came);
            self.ends.insert(end);
        }
    }

    /// Stretches of addresses, from a beginning or an end to the next one, in which an edge was not seen; or one of the two
    /// is none.
    fn missing(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, bool)> = self.starts.keys().map(|at| (*at, true)).collect();
        all.extend(self.ends.iter().map(|at| (*at, false)));
        // An end comes before the beginning at the same address.
        all.sort_unstable();
        let mut missing = Vec::new();
        let (mut last, mut open) = (0, false);
        for (at, begins) in all.into_iter().chain([(u64::MAX, true)]) {
            if begins == open {
                missing.push((last, at));
            }
            (last, open) = (at, begins);
        }
        missing
    }
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
            blocks: HashMap::new(),
            edges: Edges::default(),
            sure: Edges::default(),
            pools: HashMap::new(),
            flaw: None,
            bytes_read: fetch.bytes,
        };
        let bytes = look.began.bytes.clone();
        look.pass(memory, layout, Some(bytes), HashMap::new(), clock)?;
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
            pools: HashMap::new(),
            trees: Vec::new(),
            most: SLACK,
            kept,
            known: HashSet::new(),
            blocks: HashMap::new(),
            sure: std::mem::take(&mut self.sure),
            joints: HashSet::new(),
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

/// The neighbour of a block.
fn link(block: &RawBlock, forward: bool) -> u64 {
    if forward { block.next } else { block.prev }
}

struct Eye<'a, M> {
    layout: &'a Layout,
    object: u64,
    fetch: Fetch<'a, M>,
    pools: HashMap<u64, RawPool>,
    trees: Vec<Tree>,
    /// Most blocks that there can be.
    most: u64,
    /// Active blocks that an earlier pass read and to which nothing happened since, by address.
    kept: HashMap<u64, RawBlock>,
    /// Addresses of blocks that were read, or cannot be.
    known: HashSet<u64>,
    /// As they were when they were read last, by address.
    blocks: HashMap<u64, RawBlock>,
    /// Edges that were seen while nobody was in the allocator: they stay true when their blocks are no more.
    sure: Edges,
    /// Where one block follows another, seen likewise: no edges, whatever was read there before.
    joints: HashSet<u64>,
    flaw: Option<&'static str>,
}

impl<M: Memory> Eye<'_, M> {
    fn all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.all_pools(bytes)?;
        let trees = self.trees.iter().map(|tree| tree.count).sum::<u64>();
        self.most = self.most.saturating_add(trees);
        let mut active = self.active(bytes)?;
        let kept = std::mem::take(&mut self.kept);
        active.retain(|place| match kept.get(place) {
            Some(block) => {
                self.known.insert(*place);
                self.blocks.insert(*place, *block);
                false
            }
            None => true,
        });
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

    fn all_pools(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.trees.clear();
        self.pools.clear();
        for (at, small) in [(self.layout.large, false), (self.layout.small, true)] {
            match pool_at(self.layout, bytes, self.object, at as usize) {
                Some((flag, 0, trees)) if flag == small => {
                    let address = self.object.wrapping_add(u64::from(at));
                    self.pools.insert(address, RawPool { small, id: (0, 0) });
                    self.trees.extend(trees);
                }
                _ => self.flaw("the allocator's own pools do not look like pools"),
            }
        }
        self.private_pools(bytes)
    }

    fn links(&self, of: &[u64]) -> Vec<u64> {
        let blocks = of.iter().filter_map(|address| self.blocks.get(address));
        blocks.flat_map(|block| [block.prev, block.next]).collect()
    }

    /// All edges that were seen and are not known to be none.
    fn edges(&self) -> Edges {
        let mut edges = Edges::default();
        let known = |block: &&RawBlock| self.pools.contains_key(&block.pool);
        for block in self.blocks.values().filter(known) {
            edges.see(block);
        }
        edges.starts.retain(|at, _| !self.joints.contains(at));
        edges.ends.retain(|at| !self.joints.contains(at));
        edges.starts.extend(&self.sure.starts);
        edges.ends.extend(&self.sure.ends);
        edges
    }

    /// Where the first or the last block of a segment was not seen, because it made room for another just then, or was seen in
    /// the middle of a change, looks there again: from blocks near it outwards.
    fn find_edges(&mut self) -> io::Result<()> {
        let mut order: BTreeSet<(u64, u64)> = BTreeSet::new();
        for turn in 0..TURNS {
            let missing = self.edges().missing();
            if missing.is_empty() {
                return Ok(());
            }
            let fresh = match turn {
                0 => Vec::new(),
                // What was read before is no more where blocks live for microseconds.
                _ => self.free_again()?,
            };
            if turn == 0 {
                let blocks = self.blocks.iter();
                order = blocks.map(|(at, block)| (block.ptr, *at)).collect();
            }
            let blocks = |places: &[u64]| -> BTreeSet<(u64, u64)> {
                let found = places
                    .iter()
                    .filter_map(|at| Some((*at, self.blocks.get(at)?)));
                found.map(|(at, block)| (block.ptr, at)).collect()
            };
            let fresh = blocks(&fresh);
            order.extend(&fresh);
            for (from, to) in missing {
                for forward in [false, true] {
                    let mut anchors = self.anchors(&fresh, from, to, forward);
                    anchors.extend(self.anchors(&order, from, to, forward));
                    for anchor in anchors {
                        let chain = self.follow(anchor, forward)?;
                        order.extend(chain.iter().map(|(at, block)| (block.ptr, *at)));
                        if chain
                            .last()
                            .is_some_and(|(_, last)| link(last, forward) == 0)
                        {
                            break;
                        }
                    }
                }
            }
        }
        self.leave_out_what_does_not_fit();
        Ok(())
    }

    /// Blocks of a stretch of addresses that are near its beginning or its end, the nearest first. Those that are said to begin or
    /// end there are among them: they may be no edges.
    fn anchors(&self, order: &BTreeSet<(u64, u64)>, from: u64, to: u64, forward: bool) -> Vec<u64> {
        let is_there = |(ptr, at): &&(u64, u64)| {
            let block = self.blocks.get(at);
            block.is_some_and(|block| block.ptr == *ptr)
        };
        let inside = order.range((from, 0)..(to, 0)).filter(is_there);
        let found: Vec<&(u64, u64)> = if forward {
            let before = order.range(..(from, 0)).next_back();
            inside.rev().take(ANCHORS).chain(before).collect()
        } else {
            let after = order.range((to, 0)..).next();
            inside.take(ANCHORS).chain(after).collect()
        };
        found.into_iter().map(|(_, at)| *at).collect()
    }

    /// Reads the trees and the free blocks again, and says where these are.
    fn free_again(&mut self) -> io::Result<Vec<u64>> {
        let bytes = self.unlocked()?;
        self.all_pools(&bytes)?;
        let free = self.free()?;
        for place in &free {
            self.known.remove(place);
        }
        self.read_blocks(free, false)
    }

    /// What is certain counts for more than what was read in passing: an edge of the latter kind that fits to nothing is none.
    fn leave_out_what_does_not_fit(&mut self) {
        for (from, to) in self.edges().missing() {
            for at in [from, to] {
                if !self.sure.starts.contains_key(&at) && !self.sure.ends.contains(&at) {
                    self.joints.insert(at);
                }
            }
        }
    }

    /// Follows the chain of blocks from one of them towards an end, and looks at all of it once more in one go: if nobody was in
    /// the allocator then, two blocks that lead to each other are there. What it saw, or nothing where there was no such moment or the
    /// block is no more.
    fn follow(&mut self, anchor: u64, forward: bool) -> io::Result<Vec<(u64, RawBlock)>> {
        let guard = (self.object, self.layout.object_len as usize);
        let len = self.layout.block.len as usize;
        for _ in 0..MOMENTS {
            let mut chain = self.chain(anchor, forward, STEPS);
            if let [(at, block)] = chain[..]
                && link(&block, forward) == 0
                && link(&block, !forward) != 0
            {
                // It says to be an edge: whoever is on its other side must say so as well.
                chain = self.chain(at, !forward, 2);
                chain.reverse();
                if chain.len() < 2 {
                    return Ok(Vec::new());
                }
            }
            if chain.is_empty() {
                return Ok(chain);
            }
            let blocks = chain.iter().map(|(at, _)| (*at, len));
            let places: Vec<_> = [guard].into_iter().chain(blocks).chain([guard]).collect();
            // A block may lie where nothing is any more.
            let Ok(read) = self.fetch.at_once(&places) else {
                continue;
            };
            let [before, blocks @ .., after] = &read[..] else {
                continue;
            };
            let free = !self.layout.mutex || shape::mutex(before) == Some(Mutex::Free);
            if !free || before != after {
                continue;
            }
            let now = blocks.iter().map(|bytes| self.block_of(bytes));
            let is_same = now.zip(&chain).all(|(now, (_, seen))| {
                now.is_some_and(|now| {
                    (now.ptr, now.size, now.prev, now.next)
                        == (seen.ptr, seen.size, seen.prev, seen.next)
                })
            });
            if is_same {
                self.believe(&chain, forward);
                return Ok(chain);
            }
        }
        Ok(Vec::new())
    }

    /// A block, and those that follow it and lead back, at most so many.
    fn chain(&mut self, mut at: u64, forward: bool, most: usize) -> Vec<(u64, RawBlock)> {
        let mut chain: Vec<(u64, RawBlock)> = Vec::new();
        while chain.len() < most
            && let Some(block) = self.read_one(at)
        {
            let fits = chain.last().is_none_or(|(last, other)| {
                let (left, right) = if forward {
                    (other, &block)
                } else {
                    (&block, other)
                };
                link(&block, !forward) == *last && left.end() == Some(right.ptr)
            });
            if !fits {
                break;
            }
            chain.push((at, block));
            at = link(&block, forward);
        }
        chain
    }

    /// Takes over a chain that was seen while nobody was in the allocator.
    fn believe(&mut self, chain: &[(u64, RawBlock)], forward: bool) {
        for pair in chain.windows(2) {
            let [(_, one), (_, other)] = pair else {
                continue;
            };
            self.joints.insert(one.ptr.max(other.ptr));
        }
        if let Some((_, last)) = chain.last().filter(|(_, last)| link(last, forward) == 0) {
            if forward {
                self.sure.ends.insert(last.ptr + last.size);
            } else {
                self.sure.starts.insert(last.ptr, (last.pool, last.stream));
            }
        }
        for (at, block) in chain {
            let active = self.blocks.get(at).is_some_and(|before| {
                before.active && before.ptr == block.ptr && before.size == block.size
            });
            self.known.insert(*at);
            self.blocks.insert(*at, RawBlock { active, ..*block });
        }
    }

    fn read_one(&mut self, at: u64) -> Option<RawBlock> {
        if !shape::is_pointer(at) {
            return None;
        }
        let bytes = self.fetch.one(at, self.layout.block.len as usize).ok()?;
        self.block_of(&bytes)
    }

    fn block_of(&self, bytes: &[u8]) -> Option<RawBlock> {
        RawBlock::at(&self.layout.block, bytes)
            .filter(RawBlock::is_placed)
            .filter(|block| self.pools.contains_key(&block.pool))
    }

    /// The object's bytes once nobody is in the allocator, if that is soon. A thread can be taken from its processor in the middle of a
    /// change; then no chain is sound until it is back.
    fn unlocked(&mut self) -> io::Result<Vec<u8>> {
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

    /// A block that is not handed out but in the table of active blocks waits for a stream. The table was read before
    /// the blocks: those that only have been in it meanwhile are not in it now, or are no longer where they were.
    fn confirm_pending(&mut self) -> io::Result<()> {
        let blocks = self.blocks.iter();
        let waiting = blocks.filter(|(_, block)| block.active && !block.allocated);
        let before: Vec<(u64, u64)> = waiting.map(|(at, block)| (*at, block.ptr)).collect();
        if before.is_empty() {
            return Ok(());
        }
        let bytes = self.unlocked()?;
        let active: HashSet<u64> = self.active(&bytes)?.into_iter().collect();
        for (address, ptr) in before {
            let now = self.read_one(address);
            if let (Some(block), Some(now)) = (self.blocks.get_mut(&address), now) {
                let active = active.contains(&address) && now.ptr == ptr;
                *block = RawBlock { active, ..now };
            }
        }
        Ok(())
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
        let entries = entries.chunks_exact(ACTIVE_ENTRY);
        let used = entries.filter(|entry| shape::in_use(entry));
        let used: Vec<u64> = used.map(|entry| word(entry, 8)).collect();
        if used.len() as u64 != table.count {
            self.flaw("the table of active blocks has another number of entries than it says");
        }
        Ok(used)
    }

    /// The addresses in all trees, level by level.
    fn free(&mut self) -> io::Result<Vec<u64>> {
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
    fn read_blocks(&mut self, mut places: Vec<u64>, active: bool) -> io::Result<Vec<u64>> {
        let known = &mut self.known;
        places.retain(|place| shape::is_pointer(*place) && known.insert(*place));
        if known.len() as u64 > self.most {
            self.flaw("there are more blocks than the allocator says");
            return Ok(Vec::new());
        }
        places.sort_unstable();
        let (blocks, layout) = (&mut self.blocks, &self.layout.block);
        let mut read = 0;
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

    /// The private pools, whichever of the object's tables lists them: its entries lead to objects
    /// with two pools that point back to their owner.
    fn private_pools(&mut self, bytes: &[u8]) -> io::Result<()> {
        let from = self.layout.small as usize + self.layout.pool_len();
        for at in (from..bytes.len().saturating_sub(shape::TABLE)).step_by(8) {
            if at == self.layout.active as usize {
                continue;
            }
            let Some(table) = shape::table(bytes, at) else {
                continue;
            };
            if table.count == 0 || table.slots > MOST_PRIVATE {
                continue;
            }
            let len = table.slots as usize * PRIVATE_ENTRY;
            let Ok(entries) = self.fetch.one(table.entries, len) else {
                continue;
            };
            let entries = entries.chunks_exact(PRIVATE_ENTRY);
            let used: Vec<&[u8]> = entries.filter(|entry| shape::in_use(entry)).collect();
            if used.len() as u64 != table.count {
                continue;
            }
            for entry in used {
                let (id, owner) = ((word(entry, 8), word(entry, 16)), word(entry, 24));
                if shape::is_pointer(owner) {
                    self.private_pool(id, owner);
                }
            }
        }
        Ok(())
    }

    fn private_pool(&mut self, id: (u64, u64), owner: u64) {
        let Ok(bytes) = self.fetch.one(owner, PRIVATE) else {
            return;
        };
        let pools = (0..PRIVATE).step_by(8).filter_map(|at| {
            let (small, of, trees) = pool_at(self.layout, &bytes, owner, at)?;
            (of == owner).then_some((owner + at as u64, small, trees))
        });
        let found: Vec<_> = pools.collect();
        // A large and a small one, or it is no private pool.
        if let [(first, false, _), (second, true, _)] = &found[..]
            && first != second
        {
            for (address, small, trees) in found {
                // Pools that wait for their end are listed twice.
                match self.pools.insert(address, RawPool { small, id }) {
                    None => self.trees.extend(trees),
                    Some(before) if before.id != id => self.flaw("a private pool has two ids"),
                    Some(_) => {}
                }
            }
        }
    }
}
