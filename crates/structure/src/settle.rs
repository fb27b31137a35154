//! Computes the state at the end of a look, as a database computes its state from a fuzzy checkpoint, which was written
//! while the database worked, and from its log.
//!
//! A block without any change since the look began was seen as it still is, at whatever time it was read. For an
//! address with changes, the last change says what is there. The proof comes after that: the result must tile the
//! segments and add up, in number and bytes, for small and for large pools, to the allocator's own statistics at the
//! end of the look. If it does not, another look is needed.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::look::Look;
use crate::pools::RawPool;
use crate::segments::{BlockReading, BlockState, NAMES, SegmentReading, Sums};
use crate::shape;
use crate::walk::RawBlock;

/// Kinds of changes to an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// A block was handed out.
    Alloc,
    /// A block was freed by the program. A stream may still use it.
    FreeRequested,
    /// The streams have finished with a freed block.
    FreeCompleted,
    /// Memory was taken from the driver in one piece.
    SegmentAlloc,
    /// Such memory was given back to the driver.
    SegmentFree,
    /// Memory of an expandable segment was mapped or unmapped.
    SegmentMapped,
}

/// A change to the allocator while a look was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Time of the change, by the clock of the look.
    pub at_ns: u64,
    /// What happened to the block or segment.
    pub kind: ChangeKind,
    /// Address on the device.
    pub addr: u64,
    /// Bytes of a segment, or requested bytes of a block, if known.
    pub bytes: Option<u64>,
    /// Rounded bytes, for an [`ChangeKind::Alloc`], if known.
    pub rounded: Option<u64>,
    /// Handle of the stream, if known.
    pub stream: Option<u64>,
    /// For a segment: id of the private pool that it belongs to ((0, 0): none), if known.
    pub pool: Option<(u64, u64)>,
}

/// Memory that one chain of blocks covers: a segment, or the address space of an expandable one.
struct Space {
    addr: u64,
    end: u64,
    /// Stream of the space, unless a block in it says otherwise.
    stream: Option<u64>,
    pool: RawPool,
    /// Ranges without memory by address: their end, and the requested bytes of their last use.
    unmapped: BTreeMap<u64, (u64, u64)>,
}

/// A block that is handed out, or that a stream still uses.
#[derive(Clone, Copy)]
struct Active {
    addr: u64,
    size: u64,
    /// Requested bytes, if known.
    requested: Option<u64>,
    pending: bool,
    /// Stream, if known. All blocks of a segment have the same one.
    stream: Option<u64>,
}

/// Computes the segments at the end of the look and proves them. An error says what does not fit. `changes` are all
/// changes of this device since the look began; those after its end are ignored.
pub(crate) fn settle(
    layout: &Layout,
    look: &Look,
    changes: &[Change],
) -> Result<Vec<SegmentReading>, String> {
    let mut changes: Vec<Change> = changes.to_vec();
    changes.retain(|change| change.at_ns > look.began_ns() && change.at_ns <= look.ended_ns());
    // The sort must be stable: the two halves of one report have the same time.
    changes.sort_by_key(|change| change.at_ns);
    let changed = Changed::of(&changes);
    let still = look.is_still();
    if still && let Some(flaw) = look.flaw {
        return Err(flaw.to_owned());
    }
    let blocks = in_pools(look, still)?;
    let spaces = spaces(look, &blocks, &changes)?;
    let active = active(&blocks, &changed)?;
    let free = blocks
        .iter()
        .filter(|block| block.mapped && !block.active && !block.allocated);
    let mut state = Tiles {
        sums: Sums::default(),
        segments: Vec::new(),
        rest: &active,
        free: free
            .map(|block| (block.ptr, (block.ptr + block.size, block.requested)))
            .collect(),
        changed: &changed,
        still,
        certain: &look.sure.starts,
        streams: active.iter().filter_map(|block| block.stream).collect(),
    };
    for space in &spaces {
        state.space(space)?;
    }
    if let Some(left) = state.rest.first() {
        return Err(format!("the block at {:#x} is in no segment", left.addr));
    }
    let unknown = active.iter().any(|block| block.requested.is_none());
    let sums = layout.stats.all().into_iter().zip(state.sums.all());
    for ((at, sum), name) in sums.zip(NAMES) {
        let stat = shape::stat_array(&look.ended.bytes, at as usize)
            .ok_or_else(|| format!("{name} is no statistic"))?;
        let not_known = unknown && name == "requested_bytes";
        if stat != sum && !not_known {
            return Err(format!(
                "{name} is {stat:?} (all, small, large), the blocks give {sum:?}"
            ));
        }
    }
    Ok(state.segments)
}

/// The blocks that belong to known pools.
fn in_pools(look: &Look, still: bool) -> Result<Vec<RawBlock>, String> {
    let known = |block: &&RawBlock| look.pools.contains_key(&block.pool);
    let blocks: Vec<RawBlock> = look.blocks.values().filter(known).copied().collect();
    if still && blocks.len() != look.blocks.len() {
        return Err("a block is in a pool that is not known".to_owned());
    }
    Ok(blocks)
}

/// Changes of blocks, by address.
struct Changed {
    /// Kind of the last change, and the last allocation at the address.
    last: HashMap<u64, (ChangeKind, Option<Change>)>,
    /// All changed addresses, sorted.
    addresses: Vec<u64>,
}

impl Changed {
    fn of(changes: &[Change]) -> Changed {
        let mut last: HashMap<u64, (ChangeKind, Option<Change>)> = HashMap::default();
        for change in changes {
            use ChangeKind::{Alloc, FreeCompleted, FreeRequested};
            let entry = last.entry(change.addr).or_insert((change.kind, None));
            match change.kind {
                Alloc => *entry = (Alloc, Some(*change)),
                FreeRequested | FreeCompleted => entry.0 = change.kind,
                _ => {
                    // This is a change of a segment. Its address is also the address of a block, so free room there is
                    // not known any more.
                }
            }
        }
        let mut addresses: Vec<u64> = last.keys().copied().collect();
        addresses.sort_unstable();
        Changed { last, addresses }
    }

    /// Whether there was a change at an address from `from` to `to`, both included.
    fn within(&self, from: u64, to: u64) -> bool {
        let at = self.addresses.partition_point(|addr| *addr < from);
        self.addresses.get(at).is_some_and(|addr| *addr <= to)
    }
}

/// The blocks that are handed out or pending, by address.
fn active(blocks: &[RawBlock], changed: &Changed) -> Result<Vec<Active>, String> {
    use ChangeKind::{Alloc, FreeRequested};
    let mut active = Vec::new();
    for block in blocks
        .iter()
        .filter(|block| block.active || block.allocated)
    {
        let of = |pending| Active {
            addr: block.ptr,
            size: block.size,
            requested: Some(block.requested),
            pending,
            stream: Some(block.stream),
        };
        match changed.last.get(&block.ptr) {
            None => active.push(of(!block.allocated)),
            // The block existed when the look began, and its sizes do not change as long as it exists.
            Some((FreeRequested, None)) => active.push(of(true)),
            Some(_) => {}
        }
    }
    for (addr, (kind, came)) in &changed.last {
        let (Alloc | FreeRequested, Some(came)) = (kind, came) else {
            continue;
        };
        let size = came
            .rounded
            .ok_or_else(|| format!("the rounded size of the block at {addr:#x} is not known"))?;
        active.push(Active {
            addr: *addr,
            size,
            requested: came.bytes,
            pending: *kind == FreeRequested,
            stream: came.stream,
        });
    }
    active.sort_unstable_by_key(|block| block.addr);
    Ok(active)
}

/// Computes where chains of blocks begin and end.
fn spaces(look: &Look, blocks: &[RawBlock], changes: &[Change]) -> Result<Vec<Space>, String> {
    // The stream in a first block may have been read when the block did not exist any more.
    let starts = look.edges.starts.iter();
    let mut starts: BTreeMap<u64, (u64, Option<u64>)> = starts
        .map(|(at, (pool, stream))| (*at, (*pool, Some(*stream))))
        .collect();
    let mut ends = look.edges.ends.clone();
    for change in changes {
        let came = change.kind == ChangeKind::SegmentAlloc;
        match change.kind {
            ChangeKind::SegmentAlloc | ChangeKind::SegmentFree => {
                let first = change.addr.saturating_add(1);
                let end = match change.bytes {
                    Some(bytes) => change.addr.saturating_add(bytes),
                    None => ends.range(first..).next().copied().unwrap_or(first),
                };
                // Whatever was seen at these addresses: now there is one segment, or none.
                let is_known = came || change.bytes.is_some() || starts.contains_key(&change.addr);
                if !is_known || end < first {
                    continue;
                }
                let within: Vec<u64> = starts.range(change.addr..end).map(|(at, _)| *at).collect();
                let seen = within.iter().filter_map(|at| starts.remove(at)).next();
                let within: Vec<u64> = ends.range(first..=end).copied().collect();
                for at in within {
                    ends.remove(&at);
                }
                if came {
                    let pool = pool_of(look, change).or(seen.map(|(pool, _)| pool));
                    let stream = change.stream.or(seen.and_then(|(_, stream)| stream));
                    let pool = pool.ok_or("a segment came for a pool that is not known")?;
                    starts.insert(change.addr, (pool, stream));
                    ends.insert(end);
                }
            }
            ChangeKind::SegmentMapped => {
                return Err("memory of an expandable segment came or went".to_owned());
            }
            _ => {}
        }
    }
    let mut unmapped: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for block in blocks.iter().filter(|block| !block.mapped) {
        unmapped.insert(block.ptr, (block.ptr + block.size, block.requested));
    }
    if starts.len() != ends.len() {
        return Err("the beginning or the end of a segment was not seen".to_owned());
    }
    let mut spaces = Vec::with_capacity(starts.len());
    for ((addr, (pool, stream)), end) in starts.into_iter().zip(ends) {
        let before = spaces.last().map_or(0, |space: &Space| space.end);
        if addr < before || end <= addr {
            return Err("segments overlap".to_owned());
        }
        // The pools are read anew with each pass, and a busy process may show a part of them only.
        let pool = look.pools.get(&pool).copied();
        spaces.push(Space {
            addr,
            end,
            stream,
            pool: pool.ok_or("a segment is in a pool that was not seen")?,
            unmapped: unmapped
                .range(addr..end)
                .map(|(at, to)| (*at, *to))
                .collect(),
        });
    }
    Ok(spaces)
}

/// The pool of a segment that was taken after its addresses had been read. Segments for small blocks have one size only
/// (`kSmallBuffer` in PyTorch's CUDACachingAllocator).
pub(crate) fn pool_of(look: &Look, change: &Change) -> Option<u64> {
    let small = change.bytes == Some(2 << 20);
    let private = look.pools.values().any(|pool| pool.id != (0, 0));
    let id = change.pool.or((!private).then_some((0, 0)))?;
    let mut pools = look.pools.iter();
    let found = pools.find(|(_, pool)| **pool == RawPool { small, id });
    found.map(|(address, _)| *address)
}

/// The result so far.
struct Tiles<'a> {
    sums: Sums,
    segments: Vec<SegmentReading>,
    /// Active blocks of the spaces that have not been processed yet.
    rest: &'a [Active],
    /// Free room as it was seen, by address: its end, and the requested bytes of its last use.
    free: HashMap<u64, (u64, u64)>,
    changed: &'a Changed,
    still: bool,
    /// Beginnings of segments that are certain.
    certain: &'a BTreeMap<u64, (u64, u64)>,
    /// Streams of the active blocks.
    streams: HashSet<u64>,
}

impl Tiles<'_> {
    fn space(&mut self, space: &Space) -> Result<(), String> {
        let add = |to: &mut [u64; 3], amount: u64| add(to, amount, space.pool);
        // The address space of an expandable segment is larger than the memory of the device, so it always ends with a
        // block without memory.
        let expandable = !space.unmapped.is_empty();
        if !expandable {
            add(&mut self.sums.segment, 1);
        }
        // Holes before the first run belong to that run; every other hole belongs to the run before it.
        let mut holes: Vec<(u64, u64)> = Vec::new();
        let began = self.segments.len();
        let mut at = space.addr;
        let mut inside = self.rest.iter().take_while(|block| block.addr < space.end);
        let stream = inside.find_map(|block| block.stream);
        // A freed block object can contain anything: the C library keeps its free lists in the first words of freed
        // memory.
        let said = space.stream.filter(|said| {
            self.still || self.certain.contains_key(&space.addr) || self.streams.contains(said)
        });
        let stream = stream.or(said).ok_or_else(|| {
            format!(
                "the stream of the segment at {:#x} is not known",
                space.addr
            )
        })?;
        let over = (space.end, (space.end, 0));
        let unmapped = space.unmapped.iter().map(|(at, to)| (*at, *to));
        for (hole, (end, requested)) in unmapped.chain([over]) {
            if hole < at || end > space.end {
                return Err("room without memory overlaps".to_owned());
            }
            if hole > at {
                let blocks = self.run(at, hole, space.pool)?;
                add(&mut self.sums.reserved_bytes, hole - at);
                self.segments.push(SegmentReading {
                    addr: at,
                    size: hole - at,
                    stream,
                    large: !space.pool.small,
                    pool: space.pool.id,
                    expandable,
                    space: space.addr,
                    holes: std::mem::take(&mut holes),
                    blocks,
                });
            }
            if requested != 0 {
                let before = self
                    .segments
                    .get_mut(began..)
                    .and_then(|some| some.last_mut());
                before
                    .map_or(&mut holes, |before| &mut before.holes)
                    .push((hole, requested));
            }
            at = end;
        }
        Ok(())
    }

    /// The blocks from `at` to `end`, including free ones.
    fn run(&mut self, mut at: u64, end: u64, pool: RawPool) -> Result<Vec<BlockReading>, String> {
        let mut blocks: Vec<BlockReading> = Vec::new();
        while at < end {
            let next = self.rest.first().filter(|block| block.addr < end).copied();
            let upto = next.map_or(end, |block| block.addr);
            if upto < at {
                return Err(format!("blocks overlap at {upto:#x}"));
            }
            if upto > at {
                // Use what was seen of this free room only if it has not changed. Free room changes when it is split
                // and when a neighbour is joined with it, and each of these comes with a change at an address between
                // the block before it and its end.
                let before = blocks.last().map_or(at, |before| before.addr);
                let seen = self.free.get(&at).filter(|room| room.0 == upto);
                if seen.is_none() && self.still {
                    return Err(format!("the free room at {at:#x} was not seen"));
                }
                let room = seen.filter(|_| !self.changed.within(before, upto));
                blocks.push(BlockReading {
                    addr: at,
                    size: upto - at,
                    requested: room.map_or(0, |room| room.1),
                    state: BlockState::Inactive,
                });
                at = upto;
                continue;
            }
            let Some(block) = next else { break };
            self.rest = &self.rest[1..];
            at = block.addr + block.size;
            if at > end {
                return Err(format!(
                    "the block at {:#x} goes beyond its segment",
                    block.addr
                ));
            }
            let sums = &mut self.sums;
            let requested = block.requested.unwrap_or(0);
            add(&mut sums.active, 1, pool);
            add(&mut sums.active_bytes, block.size, pool);
            add(&mut sums.requested_bytes, requested, pool);
            if !block.pending {
                add(&mut sums.allocation, 1, pool);
                add(&mut sums.allocated_bytes, block.size, pool);
            }
            blocks.push(BlockReading {
                addr: block.addr,
                size: block.size,
                requested,
                state: if block.pending {
                    BlockState::PendingFree
                } else {
                    BlockState::Allocated
                },
            });
        }
        Ok(blocks)
    }
}

fn add(to: &mut [u64; 3], amount: u64, pool: RawPool) {
    to[0] = to[0].wrapping_add(amount);
    let which = if pool.small { 1 } else { 2 };
    to[which] = to[which].wrapping_add(amount);
}
