//! One look at a device allocator: everything that its table, trees and links lead to, read while the process
//! goes on.
//!
//! What is read is of different moments. That no harm comes of it is `settle`'s business, which knows what
//! changed between the beginning and the end of the look. Both are moments at which nobody was in the allocator: its mutex was
//! free and its object the same, byte for byte, before and after the clock was read.

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
/// Looks at one place for the first or the last block of a segment, and times that all such places are gone through.
const TRIES: u32 = 12;
/// Blocks from which the end of a chain is looked for, and steps towards it.
const ANCHORS: usize = 4;
const STEPS: usize = 64;
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
    /// In no order.
    pub(crate) blocks: Vec<RawBlock>,
    pub(crate) edges: Edges,
    /// By address.
    pub(crate) pools: HashMap<u64, RawPool>,
    /// What was seen and fits into no allocator that stands still.
    pub(crate) flaw: Option<&'static str>,
    pub(crate) bytes_read: u64,
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

    /// With what these blocks say.
    fn and<'a>(&self, blocks: impl Iterator<Item = &'a RawBlock>) -> Edges {
        let mut edges = Edges {
            starts: self.starts.clone(),
            ends: self.ends.clone(),
        };
        blocks.for_each(|block| edges.see(block));
        edges
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
        let unreadable = |source: io::Error| StructureError::Unreadable {
            what: "the device allocator",
            address: object,
            source,
        };
        let mut fetch = Fetch::new(memory);
        let began = still(&mut fetch, layout, object, clock, LOOKS)?;
        let mut eye = Eye {
            layout,
            fetch,
            pools: HashMap::new(),
            trees: Vec::new(),
            most: SLACK,
            known: HashSet::new(),
            blocks: HashMap::new(),
            edges: HashMap::new(),
            sure: Edges::default(),
            flaw: None,
        };
        eye.all(object, &began.bytes).map_err(unreadable)?;
        eye.find_edges(object).map_err(unreadable)?;
        eye.confirm_pending(object).map_err(unreadable)?;
        let Eye {
            mut fetch,
            pools,
            blocks,
            edges,
            sure,
            flaw,
            ..
        } = eye;
        let ended = still(&mut fetch, layout, object, clock, LOOKS)?;
        Ok(Look {
            object,
            began,
            ended,
            blocks: blocks.into_values().collect(),
            edges: sure.and(edges.values()),
            pools,
            flaw,
            bytes_read: fetch.bytes,
        })
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

struct Eye<'a, M> {
    layout: &'a Layout,
    fetch: Fetch<'a, M>,
    pools: HashMap<u64, RawPool>,
    trees: Vec<Tree>,
    /// Most blocks that there can be.
    most: u64,
    /// Addresses of blocks that were read, or cannot be.
    known: HashSet<u64>,
    /// As they were when they were read last, by address.
    blocks: HashMap<u64, RawBlock>,
    /// Of them, the first and the last of their segments.
    edges: HashMap<u64, RawBlock>,
    /// Edges that were seen while nobody was in the allocator: they stay true when their blocks are no more.
    sure: Edges,
    flaw: Option<&'static str>,
}

impl<M: Memory> Eye<'_, M> {
    fn all(&mut self, object: u64, bytes: &[u8]) -> io::Result<()> {
        for (at, small) in [(self.layout.large, false), (self.layout.small, true)] {
            match pool_at(self.layout, bytes, object, at as usize) {
                Some((flag, 0, trees)) if flag == small => {
                    let address = object.wrapping_add(u64::from(at));
                    self.pools.insert(address, RawPool { small, id: (0, 0) });
                    self.trees.extend(trees);
                }
                _ => self.flaw("the allocator's own pools do not look like pools"),
            }
        }
        self.private_pools(bytes)?;
        let trees = self.trees.iter().map(|tree| tree.count).sum::<u64>();
        self.most = self.most.saturating_add(trees);
        let active = self.active(bytes)?;
        self.read_blocks(active, true)?;
        let free = self.free()?;
        self.read_blocks(free, false)?;
        // Neighbours: what was in neither place while it was looked at is beside something that was.
        let links = self
            .blocks
            .values()
            .flat_map(|block| [block.prev, block.next]);
        let links = links.collect();
        self.follow(links)
    }

    /// Reads what links lead to, and what the links there lead to, and so on.
    fn follow(&mut self, mut links: Vec<u64>) -> io::Result<()> {
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

    fn links(&self, of: &[u64]) -> Vec<u64> {
        let blocks = of.iter().filter_map(|address| self.blocks.get(address));
        blocks.flat_map(|block| [block.prev, block.next]).collect()
    }

    /// Where the first or the last block of a segment was not seen, because it made room for another just then, or was seen in
    /// the middle of a change, looks there again until it fits.
    fn find_edges(&mut self, object: u64) -> io::Result<()> {
        let mut order = BTreeSet::new();
        for _ in 0..TRIES {
            let missing = self.sure.and(self.edges.values()).missing();
            if missing.is_empty() {
                return Ok(());
            }
            if order.is_empty() {
                let blocks = self.blocks.iter();
                order = blocks.map(|(at, block)| (block.ptr, *at)).collect();
            }
            for (from, to) in missing {
                self.find_edge(object, &mut order, from, to)?;
            }
        }
        Ok(())
    }

    /// Follows the chain of blocks between two addresses towards both ends, and looks again at the blocks that are said to begin or
    /// end there. What it sees is believed at a moment at which nobody is in the allocator: then every link is true.
    fn find_edge(
        &mut self,
        object: u64,
        order: &mut BTreeSet<(u64, u64)>,
        from: u64,
        to: u64,
    ) -> io::Result<()> {
        let address = |found: &(u64, u64)| found.1;
        let within = || order.range((from, 0)..(to, 0)).map(address);
        let first: Vec<u64> = within().take(ANCHORS).collect();
        let last: Vec<u64> = within().rev().take(ANCHORS).collect();
        let mut said: Vec<u64> = order.range((to, 0)..=(to, u64::MAX)).map(address).collect();
        said.extend(order.range(..(from, 0)).next_back().map(address));
        let mut read = HashSet::new();
        for _ in 0..TRIES {
            let before = self.unlocked(object)?;
            let again = [&said[..], &first[..], &last[..]].concat();
            let mut now: HashSet<u64> = self.read_again(again)?.into_iter().collect();
            for (anchors, forward) in [(&first, false), (&last, true)] {
                for anchor in anchors {
                    if self.walk(*anchor, forward, &mut now)? {
                        break;
                    }
                }
            }
            let quiet = self.fetch.one(object, self.layout.object_len as usize)? == before;
            if quiet {
                let edges = now.iter().filter_map(|address| self.edges.get(address));
                edges.for_each(|block| self.sure.see(block));
            }
            read.extend(now);
            if quiet {
                break;
            }
        }
        let blocks = read
            .iter()
            .filter_map(|at| Some((self.blocks.get(at)?.ptr, *at)));
        order.extend(blocks);
        Ok(())
    }

    /// The object's bytes once nobody is in the allocator, if that is soon. A thread can be taken from its processor in the middle of a
    /// change; then no chain is sound until it is back.
    fn unlocked(&mut self, object: u64) -> io::Result<Vec<u8>> {
        for look in 0..SHORT_LOOKS {
            let bytes = self.fetch.one(object, self.layout.object_len as usize)?;
            if !self.layout.mutex || shape::mutex(&bytes) == Some(Mutex::Free) {
                return Ok(bytes);
            }
            if look > 20 {
                std::thread::sleep(WAIT);
            }
        }
        self.fetch.one(object, self.layout.object_len as usize)
    }

    /// A block that is not handed out but in the table of active blocks waits for a stream. The table was read before
    /// the blocks: those that only have been in it meanwhile are not in it now, or are no longer where they were.
    fn confirm_pending(&mut self, object: u64) -> io::Result<()> {
        let blocks = self.blocks.iter();
        let waiting = blocks.filter(|(_, block)| block.active && !block.allocated);
        let before: Vec<(u64, u64)> = waiting.map(|(at, block)| (*at, block.ptr)).collect();
        if before.is_empty() {
            return Ok(());
        }
        let bytes = self.unlocked(object)?;
        let active: HashSet<u64> = self.active(&bytes)?.into_iter().collect();
        self.read_again(before.iter().map(|(address, _)| *address).collect())?;
        for (address, ptr) in before {
            if let Some(block) = self.blocks.get_mut(&address) {
                block.active = active.contains(&address) && block.ptr == ptr;
            }
        }
        Ok(())
    }

    /// Follows one chain from a block on. Says whether it came to its end.
    fn walk(&mut self, from: u64, forward: bool, now: &mut HashSet<u64>) -> io::Result<bool> {
        let mut at = from;
        for _ in 0..STEPS {
            let Some(block) = self.blocks.get(&at).copied() else {
                return Ok(false);
            };
            let link = if forward { block.next } else { block.prev };
            if link == 0 {
                return Ok(self.pools.contains_key(&block.pool));
            }
            if now.insert(link) {
                self.read_again(vec![link])?;
            }
            // A block that is no more can lead anywhere.
            let touches = self.blocks.get(&link).is_some_and(|other| {
                let (left, right) = if forward {
                    (&block, other)
                } else {
                    (other, &block)
                };
                left.ptr + left.size == right.ptr
            });
            if !touches {
                return Ok(false);
            }
            at = link;
        }
        Ok(false)
    }

    fn read_again(&mut self, places: Vec<u64>) -> io::Result<Vec<u64>> {
        for place in &places {
            self.known.remove(place);
        }
        self.read_blocks(places, false)
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
        let (edges, pools) = (&mut self.edges, &self.pools);
        let mut read = 0;
        self.fetch
            .each(&places, layout.len as usize, |address, bytes| {
                let Some(mut block) = RawBlock::at(layout, bytes).filter(RawBlock::is_placed)
                else {
                    return;
                };
                read += 1;
                let before = blocks.get(&address);
                block.active = active || before.is_some_and(|before| before.active);
                if pools.contains_key(&block.pool) && (block.prev == 0 || block.next == 0) {
                    edges.insert(address, block);
                } else if before.is_some() {
                    edges.remove(&address);
                }
                blocks.insert(address, block);
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
