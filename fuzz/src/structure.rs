//! PyTorch's allocator, read from the memory of a process.

use crate::Target;
use crate::memory::{self, Lying};
use crate::pieces::Pieces;
use memscope_structure::{find_in_device, find_layout, read as read_all};
use std::hint::black_box;

#[allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "the tests of crates/structure use all of it"
)]
#[path = "../../crates/structure/tests/synthetic/mod.rs"]
mod synthetic;

use synthetic::{BASE, NEW, OLD, SLOT, process, sample};

pub(crate) const TARGET: Target = Target {
    name: "structure",
    reads: "the structures of PyTorch's allocator in memory that lies and changes",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 1024,
    longest: 1 << 14,
};

/// The first byte says what is looked for, the rest is the memory.
fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    let asked = pieces.byte();
    let device = pieces.u32();
    let memory = Lying::new(BASE, &mut pieces);
    let layout = match asked % 2 {
        0 => find_layout(&memory, SLOT),
        _ => find_in_device(&memory, BASE + u64::from(device)),
    };
    if let Ok(layout) = layout {
        let _ = black_box(read_all(&memory, SLOT, &layout, 3));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for shape in [OLD, NEW] {
        let made = process(&shape, &[sample()]);
        for asked in [0, 1] {
            let device = (made.allocator - BASE) as u32;
            let mut seed = vec![asked];
            seed.extend_from_slice(&device.to_le_bytes());
            memory::write(&made.bytes.borrow(), &mut seed);
            seeds.push(seed);
        }
    }
    seeds
}
