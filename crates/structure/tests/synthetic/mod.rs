//! Synthetic memory of a process: an allocator object, device allocators, trees, tables and blocks, in shapes like
//! those of PyTorch's versions.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;

use memscope_memory::Memory;
use memscope_structure::{BlockState, DeviceReading};

pub const BASE: u64 = 0x5555_0000_0000;
pub const SLOT: u64 = BASE + 0x100;
const OBJECT: u64 = BASE + 0x1000;

/// The differences between versions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub vector: u64,
    pub sets: u64,
    /// Number of words between the table of streams and the size.
    pub extra: u64,
    /// Number of words between the reserved and the active bytes.
    pub gap: u64,
    pub private: u64,
}

pub const OLD: Shape = Shape {
    vector: 0x57f0,
    sets: 2,
    extra: 0,
    gap: 0,
    private: 200,
};
pub const NEW: Shape = Shape {
    vector: 0x5838,
    sets: 3,
    extra: 1,
    gap: 4,
    private: 1104,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Allocated,
    Pending,
    Inactive,
    Unmapped,
}

#[derive(Clone, Debug)]
pub struct Segment {
    pub addr: u64,
    pub stream: u64,
    pub small: bool,
    /// Id of the private pool, if it is one.
    pub pool: Option<u64>,
    pub blocks: Vec<(u64, u64, Kind)>,
}

/// The bytes, and changes that happen while they are read.
pub struct Synthetic {
    pub bytes: RefCell<Vec<u8>>,
    next: Cell<u64>,
    pub reads: Cell<u64>,
    /// A word, and the number of reads up to which each read adds 1 to it.
    pub changing: Cell<(u64, u64)>,
    pub allocator: u64,
    /// Addresses of words that a test may damage.
    pub nodes: Vec<u64>,
    pub blocks: Vec<u64>,
}

impl Memory for Synthetic {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let hole = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let from = address.checked_sub(BASE).ok_or_else(hole)? as usize;
        let end = from.checked_add(buffer.len()).ok_or_else(hole)?;
        buffer.copy_from_slice(self.bytes.borrow().get(from..end).ok_or_else(hole)?);
        self.reads.set(self.reads.get() + 1);
        let (word, until) = self.changing.get();
        if self.reads.get() <= until {
            self.put(word, self.get(word) + 1);
        }
        Ok(())
    }
}

/// Places entries in a table with `slots` slots, by Fibonacci hashing of their first words. Returns the slot of each
/// entry, and its distance from the first slot that it could have; `None` if an entry is further away than `reach`.
fn hashed(entries: &[Vec<u64>], slots: u64, reach: u64) -> Option<Vec<(u64, u64)>> {
    let shift = 64 - slots.trailing_zeros();
    let mut taken = HashSet::new();
    let place = |entry: &Vec<u64>| {
        let first = entry[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
        let distance = (0..reach).find(|distance| taken.insert(first + distance))?;
        Some((first + distance, distance))
    };
    entries.iter().map(place).collect()
}

impl Synthetic {
    pub fn get(&self, address: u64) -> u64 {
        let at = (address - BASE) as usize;
        u64::from_le_bytes(self.bytes.borrow()[at..at + 8].try_into().unwrap())
    }

    pub fn put(&self, address: u64, value: u64) {
        let at = (address - BASE) as usize;
        self.bytes.borrow_mut()[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Allocates as glibc does: a word with the size comes before the memory.
    fn take(&self, len: u64) -> u64 {
        let size = (len + 8).next_multiple_of(16);
        let at = self.next.get();
        self.next.set(at + size);
        self.put(at + 8, size | 1);
        at + 16
    }

    fn table(&self, at: u64, entries: &[Vec<u64>]) {
        let width = entries.first().map_or(1, Vec::len) as u64 * 8 + 8;
        let reach = 4;
        let mut slots = (entries.len() as u64 * 2).next_power_of_two().max(4);
        let places = loop {
            match hashed(entries, slots, reach) {
                Some(places) => break places,
                None => slots *= 2,
            }
        };
        let list = self.take((slots + reach) * width);
        for slot in 0..slots + reach - 1 {
            self.put(list + slot * width, 0xff);
        }
        for (entry, (slot, distance)) in entries.iter().zip(places) {
            let slot = list + slot * width;
            self.put(slot, distance);
            for (j, word) in entry.iter().enumerate() {
                self.put(slot + 8 + 8 * j as u64, *word);
            }
        }
        self.put(at, list);
        self.put(at + 8, slots - 1);
        let shift = 64 - u64::from(slots.trailing_zeros());
        self.put(at + 16, 0x3f00_0000 << 32 | reach << 8 | shift);
        self.put(at + 24, entries.len() as u64);
    }

    /// Address range of the entries of the table of active blocks.
    #[allow(dead_code, reason = "one of the tests only")]
    pub fn active_table(&self, shape: &Shape) -> std::ops::Range<u64> {
        let at = self.allocator + active_offset(shape);
        let mut header = [0; 16];
        self.read(at, &mut header).unwrap();
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().unwrap());
        word(0)..word(0) + (word(8) + 1) * 16
    }

    fn empty_table(&self, at: u64) {
        self.put(at, BASE + 0x200);
        self.put(at + 16, 0x3f00_0000 << 32 | 3 << 8 | 63);
    }

    fn tree(&mut self, at: u64, values: &[u64]) {
        self.put(at, 0x7fff_1234_5670);
        let header = at + 8;
        let root = self.nodes_of(values, header);
        for side in [header + 16, header + 24] {
            self.put(side, if root == 0 { header } else { root });
        }
        self.put(header + 8, root);
        self.put(header + 32, values.len() as u64);
    }

    fn nodes_of(&mut self, values: &[u64], parent: u64) -> u64 {
        let Some(middle) = values.get(values.len() / 2) else {
            return 0;
        };
        let node = self.take(40);
        self.nodes.push(node);
        self.put(node, 1);
        self.put(node + 8, parent);
        self.put(node + 32, *middle);
        let left = self.nodes_of(&values[..values.len() / 2], node);
        let right = self.nodes_of(&values[values.len() / 2 + 1..], node);
        self.put(node + 16, left);
        self.put(node + 24, right);
        node
    }
}

/// A process with one device for each list of segments.
pub fn process(shape: &Shape, devices: &[Vec<Segment>]) -> Synthetic {
    let mut memory = Synthetic {
        bytes: RefCell::new(vec![0; 1 << 19]),
        next: Cell::new(BASE + 0x10000),
        reads: Cell::new(0),
        changing: Cell::new((0, 0)),
        allocator: 0,
        nodes: Vec::new(),
        blocks: Vec::new(),
    };
    memory.put(SLOT, OBJECT);
    let list = memory.take(devices.len() as u64 * 8);
    for (i, segments) in devices.iter().enumerate() {
        let device = device(&mut memory, shape, segments);
        memory.put(list + i as u64 * 8, device);
        memory.allocator = device;
    }
    if !devices.is_empty() {
        let end = list + devices.len() as u64 * 8;
        for (i, word) in [list, end, end].into_iter().enumerate() {
            memory.put(OBJECT + shape.vector + 8 * i as u64, word);
        }
    }
    memory
}

fn pool_len(shape: &Shape) -> u64 {
    shape.sets * 48 + 24
}

/// Offset of the table of active blocks in a device's allocator.
fn active_offset(shape: &Shape) -> u64 {
    1032 + 2 * pool_len(shape)
}

fn device(memory: &mut Synthetic, shape: &Shape, segments: &[Segment]) -> u64 {
    let pool_len = pool_len(shape);
    let (large, small, active) = (1032, 1032 + pool_len, active_offset(shape));
    let object = memory.take(2800);
    memory.put(object + 16, 1);
    let mut owners: Vec<(u64, u64)> = Vec::new();
    for id in segments.iter().filter_map(|segment| segment.pool) {
        if !owners.iter().any(|(known, _)| *known == id) {
            owners.push((id, memory.take(32 + 2 * pool_len)));
        }
    }
    let mut pools: Vec<(u64, bool, u64)> =
        vec![(object + large, false, 0), (object + small, true, 0)];
    for (_, owner) in &owners {
        pools.push((owner + 24, false, *owner));
        pools.push((owner + 24 + pool_len, true, *owner));
    }
    let mut stats = [[0u64; 3]; 9];
    let mut live = Vec::new();
    let mut free: Vec<(u64, u64, bool)> = Vec::new();
    let ptr = 72 + 8 * shape.extra;
    for segment in segments {
        let owner = segment
            .pool
            .and_then(|id| owners.iter().find(|(known, _)| *known == id))
            .map_or(0, |(_, owner)| *owner);
        let pool = pools
            .iter()
            .find(|pool| pool.1 == segment.small && pool.2 == owner);
        let pool = pool.unwrap().0;
        let mut add = |which: usize, amount: u64| {
            stats[which][0] += amount;
            stats[which][if segment.small { 1 } else { 2 }] += amount;
        };
        let (mut addr, mut prev) = (segment.addr, 0);
        if segment.blocks.iter().all(|block| block.2 != Kind::Unmapped) {
            add(1, 1);
        }
        for (size, requested, kind) in &segment.blocks {
            let block = memory.take(176);
            memory.blocks.push(block);
            memory.put(block, 0xabcd_ef00);
            memory.put(block + 8, segment.stream);
            memory.empty_table(block + 16);
            let (allocated, mapped) = (*kind == Kind::Allocated, *kind != Kind::Unmapped);
            let flags = u64::from(allocated) | u64::from(mapped) << 8 | 0x7777_0000;
            let fields = [*size, *requested, pool, addr, flags, prev, 0];
            for (i, word) in fields.into_iter().enumerate() {
                memory.put(block + ptr - 24 + 8 * i as u64, word);
            }
            if prev != 0 {
                memory.put(prev + ptr + 24, block);
            }
            prev = block;
            addr += size;
            match kind {
                Kind::Allocated | Kind::Pending => live.push(vec![block]),
                Kind::Inactive => free.push((pool, block, false)),
                Kind::Unmapped => free.push((pool, block, true)),
            }
            if allocated {
                add(0, 1);
                add(3, *size);
            }
            if mapped {
                add(4, *size);
            }
            if *kind == Kind::Inactive && segment.blocks.len() > 1 {
                add(7, 1);
                add(8, *size);
            }
            if allocated || *kind == Kind::Pending {
                add(2, 1);
                add(5, *size);
                add(6, *requested);
            }
        }
    }
    for (address, is_small, owner) in pools {
        for set in 0..shape.sets {
            let unmapped = set + 1 == shape.sets;
            let values: Vec<u64> = free
                .iter()
                .filter(|block| block.0 == address && block.2 == unmapped)
                .map(|block| block.1)
                .collect();
            memory.tree(address + set * 48, &values);
        }
        let end = address + shape.sets * 48;
        memory.put(end, u64::from(is_small) | 0x4455_6600);
        memory.put(end + 8, owner);
    }
    memory.table(object + active, &live);
    for at in [active + 56, active + 88] {
        memory.empty_table(object + at);
    }
    let listed: Vec<Vec<u64>> = owners
        .iter()
        .map(|(id, owner)| vec![0, *id, *owner])
        .collect();
    if !listed.is_empty() {
        memory.table(object + active + shape.private, &listed);
    }
    // The last two are the free rests of blocks that were split, which are not read: their number and their bytes.
    let gap = 8 * shape.gap;
    let places = [40, 136, 232, 424, 520, 616 + gap, 808 + gap, 328, 712 + gap];
    for (at, values) in places.into_iter().zip(stats) {
        for (i, value) in values.into_iter().enumerate() {
            let stat = object + at + 32 * i as u64;
            // The peak is higher than the current value.
            for (j, word) in [value, value + 4096, value, 0].into_iter().enumerate() {
                memory.put(stat + 8 * j as u64, word);
            }
        }
    }
    object
}

/// Blocks of all kinds.
#[allow(dead_code, reason = "one of the two test programs needs it")]
pub fn sample() -> Vec<Segment> {
    use Kind::{Allocated, Inactive, Pending, Unmapped};
    let segment = |addr, stream, small, pool, blocks: &[(u64, u64, Kind)]| Segment {
        addr,
        stream,
        small,
        pool,
        blocks: blocks.to_vec(),
    };
    vec![
        segment(
            0x7f00_0000_0000,
            0,
            true,
            None,
            &[
                (512, 100, Allocated),
                (1024, 1000, Inactive),
                (512, 512, Pending),
                (0x1f_f800, 7, Inactive),
            ],
        ),
        segment(
            0x7f00_4000_0000,
            0,
            false,
            None,
            &[(0x200_0000, 0x1ff_ffff, Allocated)],
        ),
        segment(
            0x7f00_5000_0000,
            0x9990,
            false,
            None,
            &[(0x60_0000, 0x60_0000, Allocated), (0xe0_0000, 0, Inactive)],
        ),
        segment(
            0x7f10_0000_0000,
            0,
            false,
            None,
            &[
                (0x140_0000, 0x130_0000, Allocated),
                (0x140_0000, 0, Unmapped),
                (0x100_0000, 12, Inactive),
                (0x40_0000, 0x40_0000, Allocated),
                (0x1_0000_0000, 0, Unmapped),
            ],
        ),
        segment(
            0x7f20_0000_0000,
            0,
            true,
            Some(7),
            &[(2048, 2000, Allocated), (0x1f_f800, 0, Inactive)],
        ),
        segment(
            0x7f20_1000_0000,
            0,
            false,
            Some(8),
            &[(0x140_0000, 5, Inactive)],
        ),
    ]
}

/// (address, size, stream, large, pool, expandable, blocks).
pub type Row = (
    u64,
    u64,
    u64,
    bool,
    (u64, u64),
    bool,
    Vec<(u64, u64, u64, BlockState)>,
);

/// The rows that a reading must have.
pub fn expected(segments: &[Segment]) -> Vec<Row> {
    let mut rows = Vec::new();
    for segment in segments {
        let expandable = segment.blocks.iter().any(|block| block.2 == Kind::Unmapped);
        let mut addr = segment.addr;
        let mut blocks: Vec<(u64, u64, u64, BlockState)> = Vec::new();
        let end = (0, 0, Kind::Unmapped);
        for (size, requested, kind) in segment.blocks.iter().chain([&end]) {
            let state = match kind {
                Kind::Allocated => BlockState::Allocated,
                Kind::Pending => BlockState::PendingFree,
                Kind::Inactive => BlockState::Inactive,
                Kind::Unmapped => {
                    let some = std::mem::take(&mut blocks);
                    if let Some((first, ..)) = some.first().copied() {
                        let pool = (0, segment.pool.unwrap_or(0));
                        let large = !segment.small;
                        let row = (
                            first,
                            addr - first,
                            segment.stream,
                            large,
                            pool,
                            expandable,
                            some,
                        );
                        rows.push(row);
                    }
                    addr += size;
                    continue;
                }
            };
            blocks.push((addr, *size, *requested, state));
            addr += size;
        }
    }
    rows.sort_by_key(|row| row.0);
    rows
}

/// The rows of a reading.
pub fn rows(reading: &DeviceReading) -> Vec<Row> {
    let segments = reading.segments.iter().map(|segment| {
        let blocks = segment.blocks.iter();
        (
            segment.addr,
            segment.size,
            segment.stream,
            segment.large,
            segment.pool,
            segment.expandable,
            blocks
                .map(|b| (b.addr, b.size, b.requested, b.state))
                .collect(),
        )
    });
    segments.collect()
}
