//! Makes segments from blocks, and the sums that must equal the allocator's statistics.

use serde::Serialize;

use foldhash::HashMap;

use crate::walk::{RawBlock, State};

/// State of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Handed out (`active_allocated`).
    Allocated,
    /// Freed by the program, still in use by a stream (`active_pending_free`).
    PendingFree,
    /// Free room (`inactive`).
    Inactive,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlockReading {
    /// Address on the device.
    pub addr: u64,
    /// Rounded size in bytes.
    pub size: u64,
    /// Requested bytes. For an inactive block these are the bytes of its last use, as in PyTorch's snapshot. 0 if a
    /// look could not find them out: for free room that changed during the look, and for blocks that only reports
    /// named.
    pub requested: u64,
    /// State of the block.
    pub state: BlockState,
}

/// A segment. Of an expandable segment, each contiguous range that has memory is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentReading {
    /// Address on the device.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Handle of the stream.
    pub stream: u64,
    /// The segment is in a pool of large blocks; otherwise in one of small blocks.
    pub large: bool,
    /// Private pool id; (0, 0) is the default pool.
    pub pool: (u64, u64),
    /// The segment is a range of an expandable segment.
    pub expandable: bool,
    /// Beginning of the address space in which the range is mapped. If the segment is not expandable, its own address.
    pub space: u64,
    /// Ranges without memory before and after the segment, as pairs of address and requested bytes at the last use of
    /// the block that was unmapped there. Only those whose bytes are not 0 are listed, and each only for one segment.
    /// PyTorch gives these bytes to the free block that is mapped there next.
    pub holes: Vec<(u64, u64)>,
    /// Blocks by address; together they cover the segment.
    pub blocks: Vec<BlockReading>,
}

/// Sums over all, small and large pools, in this order, which is that of `StatArray`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums {
    pub allocation: [u64; 3],
    pub segment: [u64; 3],
    pub active: [u64; 3],
    pub allocated_bytes: [u64; 3],
    pub reserved_bytes: [u64; 3],
    pub active_bytes: [u64; 3],
    pub requested_bytes: [u64; 3],
}

/// Names of the sums, in the order of [`Sums::all`].
pub(crate) const NAMES: [&str; 7] = [
    "allocation",
    "segment",
    "active",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
];

impl Sums {
    pub fn all(&self) -> [[u64; 3]; 7] {
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

/// Adds up the blocks.
pub(crate) fn sums(state: &State) -> Sums {
    let mut sums = Sums::default();
    for block in state.blocks.values() {
        let small = state.pools.get(&block.pool).is_some_and(|pool| pool.small);
        let add = |to: &mut [u64; 3], amount: u64| {
            to[0] = to[0].wrapping_add(amount);
            let which = if small { 1 } else { 2 };
            to[which] = to[which].wrapping_add(amount);
        };
        if block.prev == 0 && is_plain(&state.blocks, block) {
            add(&mut sums.segment, 1);
        }
        if block.mapped {
            add(&mut sums.reserved_bytes, block.size);
        }
        if block.active {
            add(&mut sums.active, 1);
            add(&mut sums.active_bytes, block.size);
            add(&mut sums.requested_bytes, block.requested);
        }
        if block.allocated {
            add(&mut sums.allocation, 1);
            add(&mut sums.allocated_bytes, block.size);
        }
    }
    sums
}

/// Whether all blocks from this one on have memory. An expandable segment ends with a block that has none.
fn is_plain(blocks: &HashMap<u64, RawBlock>, head: &RawBlock) -> bool {
    let mut block = head;
    for _ in 0..blocks.len() {
        if !block.mapped {
            return false;
        }
        match blocks.get(&block.next) {
            Some(next) => block = next,
            None => break,
        }
    }
    block.mapped
}

/// Follows the blocks' links from each first block on, and returns the segments. An error says what does not fit.
pub(crate) fn segments(state: &State) -> Result<Vec<SegmentReading>, &'static str> {
    let mut made: Vec<SegmentReading> = Vec::new();
    let mut seen = 0;
    for (address, head) in &state.blocks {
        if head.prev != 0 {
            continue;
        }
        let chain = chain(&state.blocks, *address, head)?;
        seen += chain.len();
        let pool = state
            .pools
            .get(&head.pool)
            .ok_or("a block is in a pool that is not known")?;
        // The address space of an expandable segment is larger than the memory of the device, so it always ends with a
        // block without memory.
        let expandable = chain.iter().any(|block| !block.mapped);
        // Holes before the first run belong to that run; every other hole belongs to the run before it.
        let mut holes = Vec::new();
        let began = made.len();
        for run in chain.chunk_by(|a, b| a.mapped == b.mapped) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            if !first.mapped {
                let known = run.iter().filter(|block| block.requested != 0);
                let known = known.map(|block| (block.ptr, block.requested));
                match made.get_mut(began..).and_then(|made| made.last_mut()) {
                    Some(before) => before.holes.extend(known),
                    None => holes.extend(known),
                }
                continue;
            }
            made.push(SegmentReading {
                addr: first.ptr,
                // Neighbours touch, and no block ends beyond the address space.
                size: (last.ptr - first.ptr) + last.size,
                stream: first.stream,
                large: !pool.small,
                pool: pool.id,
                expandable,
                space: head.ptr,
                holes: std::mem::take(&mut holes),
                blocks: run.iter().map(|block| reading(block)).collect(),
            });
        }
    }
    // Each block has only one block before it and so is in one chain. If the numbers are equal, all blocks are in a
    // chain.
    if seen != state.blocks.len() {
        return Err("blocks are in no segment");
    }
    made.sort_by_key(|segment| segment.addr);
    let apart = made.windows(2).all(|pair| {
        let [a, b] = pair else { return true };
        a.addr.checked_add(a.size).is_some_and(|end| end <= b.addr)
    });
    if !apart {
        return Err("segments overlap");
    }
    Ok(made)
}

fn chain<'a>(
    blocks: &'a HashMap<u64, RawBlock>,
    address: u64,
    head: &'a RawBlock,
) -> Result<Vec<&'a RawBlock>, &'static str> {
    let mut chain = vec![head];
    let (mut at, mut block) = (address, head);
    while block.next != 0 {
        let next = blocks
            .get(&block.next)
            .ok_or("a block's neighbour is in no tree and no table")?;
        if next.prev != at {
            return Err("two neighbours do not agree");
        }
        if block.end() != Some(next.ptr) {
            return Err("neighbours do not touch");
        }
        if next.pool != block.pool || next.stream != block.stream {
            return Err("neighbours are of different pools or streams");
        }
        at = block.next;
        block = next;
        chain.push(block);
        if chain.len() > blocks.len() {
            return Err("a segment goes in a circle");
        }
    }
    let sound = |block: &&RawBlock| block.size > 0 && block.ptr > 0 && block.end().is_some();
    if !chain.iter().all(sound) {
        return Err("a block has no address or no size");
    }
    Ok(chain)
}

fn reading(block: &RawBlock) -> BlockReading {
    BlockReading {
        addr: block.ptr,
        size: block.size,
        requested: block.requested,
        state: match (block.active, block.allocated) {
            (true, true) => BlockState::Allocated,
            (true, false) => BlockState::PendingFree,
            (false, _) => BlockState::Inactive,
        },
    }
}
