//! Finds the layout, by evidence, in a process that has blocks.
//!
//! There are three steps: which element of which vector looks like a device allocator; what its pools, its table of
//! active blocks and the blocks themselves look like; and, once a whole picture can be taken, which statistics equal
//! the sums.

use crate::blocks;
use crate::error::StructureError;
use crate::layout::{BlockLayout, Layout, StatsLayout};
use crate::pools::{self, pool_at};
use crate::read::{Reader, Taken, elements, read_bytes, read_word};
use crate::segments::{self, Sums};
use crate::shape::{self, MUTEX, Mutex, STAT_ARRAY, TABLE, Tree, byte, word};
use memscope_memory::Memory;

/// Maximum number of bytes that are read of the object behind the exported pointer.
const ALLOCATOR: usize = 1 << 16;
/// Maximum number of bytes that are read of a device allocator.
const DEVICE: usize = 1 << 13;
/// How far behind the pools the table of active blocks can begin, in bytes.
const ACTIVE_REACH: usize = 1024;
/// Bytes that are read behind the table of active blocks if the length of the allocation is not known.
const TAIL: usize = 2048;
/// Size of a page of memory.
const PAGE: u64 = 4096;
/// Number of tries, because the process changes things in the meantime, and the number of blocks that each try reads. A
/// few blocks are less likely to change while they are read; many are more likely to have neighbours among them.
const TRIES: u32 = 400;
const SAMPLES: [usize; 3] = [256, 4096, 1024];
/// Maximum number of pictures in all tries together.
const PICTURES: u32 = 4000;
/// From more than this number of active blocks on, only `PICTURES_OF_LARGE` pictures are taken.
const LARGE: u64 = 5000;
const PICTURES_OF_LARGE: u32 = 3;
/// Maximum number of words between the statistics of reserved and of active bytes.
const MOST_WORDS: usize = 16;
/// Number of tries without evidence after which the search ends: an allocator that is empty stays empty.
const QUIET: u32 = 3;

/// Offsets of a device allocator's own two pools, and the number of sets in each.
#[derive(Debug, Clone, Copy)]
struct Pools {
    large: usize,
    small: usize,
    sets: usize,
}

/// Why a try failed.
enum Miss {
    /// Nothing is wrong, but there is no evidence yet.
    NothingYet(&'static str),
    /// The structures do not look as expected, or they changed in the meantime.
    NotFound(String),
}

/// Finds the layout in a live process. `allocator_pointer` is the address of the exported pointer
/// `c10::cuda::CUDACachingAllocator::allocator`.
///
/// This needs evidence: some block, in use or kept for later. The layout is valid for the library file that the process
/// has mapped. It is proven by a reading before it is returned; only for a process with thousands of blocks, the
/// statistics may be recognised by their shape alone, and the first reading proves them.
pub fn find_layout(memory: &impl Memory, allocator_pointer: u64) -> Result<Layout, StructureError> {
    let object = read_word(memory, allocator_pointer, "the allocator pointer")?;
    if !shape::is_pointer(object) {
        return Err(StructureError::NothingYet {
            what: "no allocator is chosen",
        });
    }
    let bytes = as_much(memory, object, ALLOCATOR);
    let mut miss = Miss::NothingYet("there is no list of device allocators");
    for at in (8..bytes.len().saturating_sub(16)).step_by(8) {
        let Some((list, count)) = elements(&bytes, at) else {
            continue;
        };
        let mut pointers = vec![0; count * 8];
        if memory.read(list, &mut pointers).is_err() {
            continue;
        }
        let devices: Vec<u64> = (0..count).map(|i| word(&pointers, i * 8)).collect();
        if !devices.iter().all(|device| looks_like_one(memory, *device)) {
            continue;
        }
        for device in devices.iter().copied() {
            match find_in_device(memory, device) {
                Ok(mut layout) => {
                    // The same things must be at the same places in every element, or the vector is not the list of
                    // devices.
                    if !devices.iter().all(|device| fits(memory, &layout, *device)) {
                        miss = Miss::NotFound("device allocators that are alike".to_owned());
                        continue;
                    }
                    layout.devices = Some(at as u32);
                    return Ok(layout);
                }
                Err(StructureError::NothingYet { what }) => {
                    if matches!(miss, Miss::NothingYet(_)) {
                        miss = Miss::NothingYet(what);
                    }
                }
                Err(StructureError::LayoutNotFound { what }) => miss = Miss::NotFound(what),
                Err(other) => return Err(other),
            }
        }
    }
    Err(miss.into())
}

/// Finds the layout from one device allocator, whose address a probe has seen as `this`.
pub fn find_in_device(memory: &impl Memory, device: u64) -> Result<Layout, StructureError> {
    let mut miss = Miss::NothingYet("no attempt");
    let mut quiet = 0;
    let mut pictures = PICTURES;
    for sample in SAMPLES.into_iter().cycle().take(TRIES as usize) {
        match try_device(memory, device, sample, &mut pictures) {
            Ok(layout) => return Ok(layout),
            Err(other) => {
                // An empty allocator stays empty; one that changes is tried again.
                quiet += u32::from(matches!(other, Miss::NothingYet(_)));
                miss = other;
            }
        }
        if quiet >= QUIET || pictures == 0 {
            break;
        }
    }
    Err(miss.into())
}

impl From<Miss> for StructureError {
    fn from(miss: Miss) -> StructureError {
        match miss {
            Miss::NothingYet(what) => StructureError::NothingYet { what },
            Miss::NotFound(what) => StructureError::LayoutNotFound { what },
        }
    }
}

/// Whether pools and statistics are where the layout says. It is tried several times, because the process goes on.
fn fits(memory: &impl Memory, layout: &Layout, device: u64) -> bool {
    (0..TRIES).any(|_| {
        let bytes = as_much(memory, device, layout.object_len as usize);
        let pool = |at: u32| pool_at(layout, &bytes, device, at as usize).is_some();
        let stat = |at: u32| shape::stat_array(&bytes, at as usize).is_some();
        pool(layout.large) && pool(layout.small) && layout.stats.all().into_iter().all(stat)
    })
}

/// A quick check: whether there are two pools of blocks.
fn looks_like_one(memory: &impl Memory, device: u64) -> bool {
    if !shape::is_pointer(device) {
        return false;
    }
    let mut before = Vec::new();
    for _ in 0..TRIES {
        let bytes = as_much(memory, device, DEVICE);
        if !pools(memory, device, &bytes).is_empty() {
            return true;
        }
        // Bytes that do not change and are not a device allocator will not become one.
        if bytes == before {
            return false;
        }
        before = bytes;
    }
    false
}

fn try_device(
    memory: &impl Memory,
    device: u64,
    sample: usize,
    pictures: &mut u32,
) -> Result<Layout, Miss> {
    let whole = allocation(memory, device);
    let len = whole.unwrap_or(DEVICE);
    let bytes = as_much(memory, device, len);
    // Take the first pair: further pairs may belong to the allocator of the next device, which follows in memory.
    let pools = pools(memory, device, &bytes)
        .into_iter()
        .next()
        .ok_or_else(|| Miss::NotFound("two pools of blocks".to_owned()))?;
    // All blocks may be in private pools.
    let known = Layout {
        devices: None,
        object_len: bytes.len() as u32,
        mutex: bytes.get(..MUTEX).and_then(shape::mutex).is_some(),
        large: pools.large as u32,
        small: pools.small as u32,
        sets: pools.sets as u32,
        active: 0,
        block: BlockLayout::default(),
        stats: StatsLayout::default(),
    };
    let all = pools::find(&known, device, &bytes, |at, len| {
        let mut bytes = vec![0; len];
        memory.read(at, &mut bytes).ok().map(|()| bytes)
    });
    let addresses: Vec<u64> = all.by_address.keys().copied().collect();
    let mut miss = Miss::NothingYet("no block is allocated");
    let from = pools.small + pools.sets * shape::SET;
    let to = bytes.len().saturating_sub(TABLE).min(from + ACTIVE_REACH);
    let tables = || {
        (from..to)
            .step_by(8)
            .filter_map(|at| Some((at, shape::table(&bytes, at)?)))
    };
    let filled = tables().filter(|(_, table)| table.count > 0);
    // If nothing is allocated, take the first table that has grown, which means that it had entries once: the table of
    // active blocks comes before all other tables.
    let grown = tables().find(|(_, table)| table.grown);
    let rest = grown.filter(|(_, table)| table.count == 0);
    for (at, table) in filled.chain(rest) {
        let Some(sample) = blocks::sample(memory, &table, &all.trees, &addresses, sample) else {
            continue;
        };
        let block = match blocks::layout(&sample, &addresses) {
            Ok(block) => block,
            Err(what) => {
                miss = Miss::NotFound(what.to_owned());
                continue;
            }
        };
        let object_len = whole.unwrap_or(at + TABLE + TAIL).min(bytes.len());
        let layout = Layout {
            object_len: object_len as u32,
            active: at as u32,
            block,
            ..known.clone()
        };
        if table.count > LARGE {
            // During a picture of so many blocks, something always changes. So the statistics are recognised by their
            // shape, and the first reading will prove them.
            if let Some(stats) = stats_by_shape(&bytes, pools.large, table.count) {
                return Ok(Layout { stats, ..layout });
            }
            *pictures = (*pictures).min(PICTURES_OF_LARGE);
        }
        match prove(memory, device, layout.clone(), pictures) {
            Ok(layout) => return Ok(layout),
            Err(other) => miss = other,
        }
    }
    let busy = matches!(shape::mutex(&bytes), Some(Mutex::Held(_)));
    if matches!(miss, Miss::NothingYet(_)) && (busy || as_much(memory, device, len) != bytes) {
        return Err(Miss::NotFound("the state changed meanwhile".to_owned()));
    }
    Err(miss)
}

/// Length of the heap allocation that an object is in, if glibc's malloc made it: the word before it contains the size,
/// and three bits for other purposes. If another malloc made it, the word can have any value. Then more or less is read
/// than the object has, but everything that is needed of the object must still be found.
fn allocation(memory: &impl Memory, object: u64) -> Option<usize> {
    let mut bytes = [0; 8];
    memory.read(object.wrapping_sub(8), &mut bytes).ok()?;
    let size = usize::try_from(u64::from_le_bytes(bytes) & !7).ok()?;
    let fits = size.is_multiple_of(16) && (1024..=DEVICE).contains(&size);
    fits.then(|| size - 8)
}

/// Takes pictures until nothing changes during one of them, finds the statistics in it, and then reads once as any
/// reader does.
fn prove(
    memory: &impl Memory,
    device: u64,
    mut layout: Layout,
    pictures: &mut u32,
) -> Result<Layout, Miss> {
    let not = |what: &dyn std::fmt::Display| Miss::NotFound(what.to_string());
    let mut reader = Reader::new(layout.clone()).map_err(|error| not(&error))?;
    let (bytes, state) = loop {
        let taken = reader.take(memory, device).map_err(|error| not(&error))?;
        *pictures = pictures.saturating_sub(1);
        match taken {
            Taken::Changed(why) if *pictures == 0 => return Err(Miss::NotFound(why)),
            Taken::Changed(_) => {}
            Taken::Still {
                flaw: Some(why), ..
            } => return Err(Miss::NotFound(why)),
            Taken::Still { bytes, state, .. } => break (bytes, state),
        }
    };
    segments::segments(&state).map_err(|what| not(&what))?;
    layout.stats = stats(&bytes, layout.large as usize, &segments::sums(&state))?;
    let mut reader = Reader::new(layout.clone()).map_err(|error| not(&error))?;
    let read = reader.read_device(memory, device, 0, *pictures);
    *pictures = pictures.saturating_sub(reader.attempts());
    read.map_err(|error| not(&error))?;
    Ok(layout)
}

/// Finds the statistics that equal the sums. Several may be equal, if nothing is pending or rounded. They are in the
/// order in which PyTorch declares them, and a wrong choice is contradicted by the first reading in which they differ.
fn stats(bytes: &[u8], end: usize, sums: &Sums) -> Result<StatsLayout, Miss> {
    let mut from = 8;
    let mut next = |sum: [u64; 3], name: &str| {
        let end = end.saturating_sub(STAT_ARRAY);
        let at = (from..=end)
            .step_by(8)
            .find(|at| shape::stat_array(bytes, *at) == Some(sum))
            .ok_or_else(|| Miss::NotFound(format!("{name}: nothing equals the sums {sum:?}")))?;
        from = at + STAT_ARRAY;
        Ok(at as u32)
    };
    if sums.allocation[0] == 0 {
        return stats_at_rest(bytes, end, sums).ok_or(Miss::NothingYet("no block is allocated"));
    }
    let allocation = next(sums.allocation, "allocation")?;
    let segment = next(sums.segment, "segment")?;
    let active = next(sums.active, "active")?;
    let allocated_bytes = next(sums.allocated_bytes, "allocated_bytes")?;
    let reserved_bytes = next(sums.reserved_bytes, "reserved_bytes")?;
    let active_bytes = next(sums.active_bytes, "active_bytes")?;
    // Between these and the requested bytes are those of the free rests of blocks that were split. They may equal the sum
    // of the requested ones: one tensor of 1 MiB leaves a rest of 1 MiB.
    let requested = active_bytes as usize + 2 * STAT_ARRAY;
    if requested > end.saturating_sub(STAT_ARRAY)
        || shape::stat_array(bytes, requested) != Some(sums.requested_bytes)
    {
        return Err(Miss::NotFound(format!(
            "requested_bytes: the sums {:?} are not behind those of active_bytes",
            sums.requested_bytes
        )));
    }
    Ok(StatsLayout {
        allocation,
        segment,
        active,
        allocated_bytes,
        reserved_bytes,
        active_bytes,
        requested_bytes: requested as u32,
    })
}

/// Finds the statistics if nothing is allocated. Then most sums are zero, and many words that are zero look like them.
/// The reserved bytes are not zero, and the others are around them in PyTorch's order. A statistic that was not zero
/// once has a peak.
fn stats_at_rest(bytes: &[u8], end: usize, sums: &Sums) -> Option<StatsLayout> {
    let held_once = |at: usize, sum: [u64; 3]| {
        shape::stat_array(bytes, at) == Some(sum) && word(bytes, at + 8) > 0
    };
    let reserved = (8..end.saturating_sub(STAT_ARRAY))
        .step_by(8)
        .filter(|_| sums.reserved_bytes[0] > 0)
        .find(|at| shape::stat_array(bytes, *at) == Some(sums.reserved_bytes))?;
    let before = |arrays: usize| reserved.checked_sub(arrays * STAT_ARRAY);
    // Between these and the allocated bytes are the number of blocks that were split and are not in use, and their
    // bytes.
    let (allocation, segment, active) = (before(5)?, before(4)?, before(3)?);
    let allocated = before(1)?;
    let active_bytes = (reserved + STAT_ARRAY..end.saturating_sub(3 * STAT_ARRAY))
        .step_by(8)
        .find(|at| held_once(*at, sums.active_bytes))?;
    let requested = active_bytes + 2 * STAT_ARRAY;
    let fits = held_once(allocation, sums.allocation)
        && shape::stat_array(bytes, segment) == Some(sums.segment)
        && held_once(active, sums.active)
        && held_once(allocated, sums.allocated_bytes)
        && held_once(requested, sums.requested_bytes);
    let [
        allocation,
        segment,
        active,
        allocated,
        reserved,
        active_bytes,
        requested,
    ] = [
        allocation,
        segment,
        active,
        allocated,
        reserved,
        active_bytes,
        requested,
    ]
    .map(|at| at as u32);
    fits.then_some(StatsLayout {
        allocation,
        segment,
        active,
        allocated_bytes: allocated,
        reserved_bytes: reserved,
        active_bytes,
        requested_bytes: requested,
    })
}

/// Recognises the statistics by their shape. PyTorch declares them one after the other: numbers (blocks handed out,
/// segments, active blocks, free rests of blocks that were split), then bytes (handed out, reserved, and, in newer
/// versions after some other words, active, free rests, requested). The number of active blocks must equal the count in
/// the table, and a part must not be larger than its whole.
fn stats_by_shape(bytes: &[u8], end: usize, active: u64) -> Option<StatsLayout> {
    let last = end.checked_sub(9 * STAT_ARRAY)?;
    let within = |part: [u64; 3], whole: [u64; 3]| (0..3).all(|i| part[i] <= whole[i]);
    let both =
        |count: [u64; 3], bytes: [u64; 3]| (0..3).all(|i| (count[i] == 0) == (bytes[i] == 0));
    // The value was not zero at some time: it has a peak.
    let stat = |at: usize| shape::stat_array(bytes, at).filter(|_| word(bytes, at + 8) > 0);
    (8..=last).step_by(8).find_map(|at| {
        let place = |i: usize| at + i * STAT_ARRAY;
        let blocks = stat(place(0))?;
        let actives = stat(place(2)).filter(|actives| actives[0] == active)?;
        // Expandable segments are not counted, and perhaps nothing was ever split, so these two may have no peak.
        let segments = shape::stat_array(bytes, place(1))?;
        shape::stat_array(bytes, place(3))?;
        let (allocated, reserved) = (stat(place(4))?, stat(place(5))?);
        let fits = reserved[0] > 0
            && within(blocks, actives)
            && within(segments, reserved)
            && within(allocated, reserved)
            && both(blocks, allocated)
            && [allocated, reserved]
                .iter()
                .all(|bytes| bytes[0].is_multiple_of(512));
        let found = (0..=MOST_WORDS).filter(|_| fits).find_map(|words| {
            let at = place(6) + 8 * words;
            let active_bytes = stat(at)?;
            shape::stat_array(bytes, at + STAT_ARRAY)?;
            let requested = stat(at + 2 * STAT_ARRAY)?;
            let fits = within(allocated, active_bytes)
                && within(active_bytes, reserved)
                && within(requested, active_bytes)
                && both(actives, active_bytes)
                && both(actives, requested)
                && active_bytes[0].is_multiple_of(512);
            fits.then_some(at)
        })?;
        let [allocation, segment, active, allocated_bytes, reserved_bytes] =
            [0, 1, 2, 4, 5].map(|i| place(i) as u32);
        Some(StatsLayout {
            allocation,
            segment,
            active,
            allocated_bytes,
            reserved_bytes,
            active_bytes: found as u32,
            requested_bytes: (found + 2 * STAT_ARRAY) as u32,
        })
    })
}

/// Finds all pairs of offsets that look like the pools of large and of small blocks.
fn pools(memory: &impl Memory, device: u64, bytes: &[u8]) -> Vec<Pools> {
    // Runs of sets that follow one another: the offset of the first, and their number.
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for at in (0..bytes.len().saturating_sub(shape::SET)).step_by(8) {
        if shape::tree(bytes, device, at + 8).is_none_or(|tree| !rooted(memory, &tree)) {
            continue;
        }
        match rows.last_mut() {
            Some((start, sets)) if *start + *sets * shape::SET == at => *sets += 1,
            _ => rows.push((at, 1)),
        }
    }
    let mut found = Vec::new();
    for pair in rows.windows(2) {
        let [(large, a), (small, b)] = pair else {
            continue;
        };
        let sets = *a;
        let flag = |at: &usize| byte(bytes, at + sets * shape::SET);
        let owner = |at: &usize| word(bytes, at + sets * shape::SET + 8);
        let fits = (2..=8).contains(&sets)
            && *b == sets
            && (flag(large), flag(small)) == (0, 1)
            && (owner(large), owner(small)) == (0, 0);
        if fits {
            found.push(Pools {
                large: *large,
                small: *small,
                sets,
            });
        }
    }
    found
}

/// Whether the root's parent is the header.
fn rooted(memory: &impl Memory, tree: &Tree) -> bool {
    let mut node = [0; shape::NODE];
    tree.count == 0 || (memory.read(tree.root, &mut node).is_ok() && word(&node, 8) == tree.header)
}

/// Reads up to `most` bytes, page by page, as far as they can be read.
fn as_much(memory: &impl Memory, address: u64, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let at = address.wrapping_add(bytes.len() as u64);
        let len = (PAGE - at % PAGE).min((most - bytes.len()) as u64) as usize;
        let mut page = vec![0; len];
        if read_bytes(memory, at, &mut page, "an object").is_err() {
            break;
        }
        bytes.append(&mut page);
    }
    bytes
}
