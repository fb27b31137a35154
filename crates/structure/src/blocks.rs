//! Finds the layout of a block from samples: blocks in the table of active blocks, and free ones in the pools' trees.

use foldhash::HashMap;

use crate::layout::BlockLayout;
use crate::shape::{self, NODE, Table, Tree, byte, word};
use memscope_memory::Memory;

/// Bytes that are read of a block. If the heap ends before, `LEAST` bytes are tried.
const SPAN: usize = 256;
const LEAST: usize = 160;

/// The bytes of a block, and where it was found.
#[derive(PartialEq, Eq)]
pub(crate) struct Seen {
    bytes: Vec<u8>,
    /// The pool in whose tree it was found; `None`: in the table of active blocks.
    of: Option<u64>,
}

/// Blocks by the address of the block's object.
pub(crate) type Sample = HashMap<u64, Seen>;

/// Reads up to `most` blocks of the table and of each tree twice, and returns those that are the same both times,
/// because the process goes on. `None` if the entries of the table do not lead to blocks of the pools.
pub(crate) fn sample(
    memory: &impl Memory,
    table: &Table,
    trees: &[(u64, Tree)],
    pools: &[u64],
    most: usize,
) -> Option<Sample> {
    let mut sample = collect(memory, table, trees, most)?;
    let again = collect(memory, table, trees, most)?;
    sample.retain(|address, seen| again.get(address) == Some(seen));
    let points = |seen: &Seen| {
        (0..seen.bytes.len())
            .step_by(8)
            .any(|at| pools.contains(&word(&seen.bytes, at)))
    };
    let mut active = sample.values().filter(|seen| seen.of.is_none());
    if table.count > 0 && !active.any(points) {
        return None;
    }
    (!sample.is_empty()).then_some(sample)
}

fn collect(
    memory: &impl Memory,
    table: &Table,
    trees: &[(u64, Tree)],
    most: usize,
) -> Option<Sample> {
    let mut sample = Sample::default();
    // At most half of the slots are in use, and at least an eighth.
    let slots = usize::try_from(table.slots).ok()?;
    let some = slots.min(most.checked_mul(16)?);
    let mut entries = vec![0; some * 16];
    memory.read(table.entries, &mut entries).ok()?;
    let used: Vec<u64> = entries
        .chunks_exact(16)
        .filter(|entry| shape::in_use(entry))
        .map(|entry| word(entry, 8))
        .collect();
    if some == slots && used.len() as u64 != table.count {
        return None;
    }
    for address in used.iter().copied().take(most) {
        // Skip blocks that were freed in the meantime.
        if let Some(bytes) = block(memory, address) {
            sample.insert(address, Seen { bytes, of: None });
        }
    }
    for (pool, tree) in trees {
        let mut open = vec![tree.root];
        let mut steps = 0;
        while let Some(node) = open.pop() {
            let mut bytes = [0; NODE];
            steps += 1;
            if node == 0 || steps > most {
                continue;
            }
            if memory.read(node, &mut bytes).is_err() {
                continue;
            }
            open.extend([word(&bytes, 16), word(&bytes, 24)]);
            let address = word(&bytes, 32);
            if let Some(bytes) = block(memory, address) {
                let of = Some(*pool);
                sample.insert(address, Seen { bytes, of });
            }
        }
    }
    Some(sample)
}

fn block(memory: &impl Memory, address: u64) -> Option<Vec<u8>> {
    if !shape::is_pointer(address) {
        return None;
    }
    [SPAN, LEAST].into_iter().find_map(|len| {
        let mut bytes = vec![0; len];
        memory.read(address, &mut bytes).ok().map(|()| bytes)
    })
}

/// Finds the offsets for which all blocks of the sample are plausible.
pub(crate) fn layout(sample: &Sample, pools: &[u64]) -> Result<BlockLayout, &'static str> {
    let free = || sample.values().filter(|seen| seen.of.is_some());
    let active = || sample.values().filter(|seen| seen.of.is_none());
    // The pool: a free block points to the pool in whose tree it is, an active block to any of the pools.
    let votes = |at: usize| {
        sample
            .values()
            .filter(|seen| {
                let pool = word(&seen.bytes, at);
                seen.of.map_or(pools.contains(&pool), |of| of == pool)
            })
            .count()
    };
    let pool = (24..LEAST)
        .step_by(8)
        .filter(|at| free().all(|seen| seen.of == Some(word(&seen.bytes, *at))))
        .max_by_key(|at| (votes(*at), std::cmp::Reverse(*at)))
        .filter(|at| votes(*at) > 0)
        .ok_or("the pool's pointer in a block")?;
    // The fields around it, in the order in which PyTorch declares them: size, requested, pool, address.
    let (size, requested, ptr) = (pool - 16, pool - 8, pool + 8);
    let sized = |seen: &Seen| {
        let (size, requested) = (word(&seen.bytes, size), word(&seen.bytes, requested));
        size > 0 && size.is_multiple_of(512) && (seen.of.is_some() || requested <= size)
    };
    if !sample.values().all(sized) {
        return Err("the sizes in a block");
    }
    let (prev, next) = links(sample, size, ptr)
        .or_else(|| no_links(sample, ptr))
        .ok_or("links between neighbours")?;
    let between = ptr + 8..prev.min(next);
    let flag = |seen: &Seen, at: usize, allowed: &[u8]| allowed.contains(&byte(&seen.bytes, at));
    let allocated = between
        .clone()
        .find(|at| {
            free().all(|seen| flag(seen, *at, &[0]))
                && active().all(|seen| flag(seen, *at, &[0, 1]))
                && (active().next().is_none() || active().any(|seen| flag(seen, *at, &[1])))
        })
        .ok_or("the flag of allocated blocks")?;
    let mapped = between
        .clone()
        .find(|at| {
            *at != allocated
                && active().all(|seen| flag(seen, *at, &[1]))
                && free().all(|seen| flag(seen, *at, &[0, 1]))
                && (free().next().is_none() || free().any(|seen| flag(seen, *at, &[1])))
        })
        .ok_or("the flag of blocks with memory")?;
    // A block contains a table of the streams that used it. The word before that table is the block's own stream.
    let uses = (16..size)
        .step_by(8)
        .find(|at| {
            let is_table = |seen: &Seen| shape::table(&seen.bytes, *at).is_some();
            sample.values().all(is_table)
        })
        .ok_or("the table of streams in a block")?;
    let len = prev.max(next) + 8;
    let [
        stream,
        size,
        requested,
        pool,
        ptr,
        allocated,
        mapped,
        prev,
        next,
        len,
    ] = [
        uses - 8,
        size,
        requested,
        pool,
        ptr,
        allocated,
        mapped,
        prev,
        next,
        len,
    ]
    .map(|at| at as u32);
    Ok(BlockLayout {
        stream,
        size,
        requested,
        pool,
        ptr,
        allocated,
        mapped,
        prev,
        next,
        len,
    })
}

/// The offsets of the links if no block has a neighbour, because nothing was split. Then the links are zero in all
/// blocks, and follow the address and the flags, as PyTorch declares them. The first reading in which something is
/// split would reveal wrong offsets, because the allocator counts its segments.
fn no_links(sample: &Sample, ptr: usize) -> Option<(usize, usize)> {
    let (prev, next) = (ptr + 16, ptr + 24);
    let empty = |seen: &Seen| word(&seen.bytes, prev) == 0 && word(&seen.bytes, next) == 0;
    sample.values().all(empty).then_some((prev, next))
}

/// The offsets of the links to the neighbours: two words by which two blocks point at each other, if one of them begins
/// where the other ends.
fn links(sample: &Sample, size: usize, ptr: usize) -> Option<(usize, usize)> {
    let mut votes: HashMap<(usize, usize), usize> = HashMap::default();
    let words = || (ptr + 8..LEAST).step_by(8);
    for (address, seen) in sample {
        for next in words() {
            let Some(other) = sample.get(&word(&seen.bytes, next)) else {
                continue;
            };
            let end = word(&seen.bytes, ptr).checked_add(word(&seen.bytes, size));
            if end != Some(word(&other.bytes, ptr)) {
                continue;
            }
            for prev in words().filter(|prev| word(&other.bytes, *prev) == *address) {
                *votes.entry((prev, next)).or_default() += 1;
            }
        }
    }
    let best = votes
        .into_iter()
        .max_by_key(|(at, count)| (*count, std::cmp::Reverse(*at)));
    best.map(|(at, _)| at)
}
