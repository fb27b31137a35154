//! Tables of unwinding, and names of functions by symbols and debugging information.

use crate::pieces::Pieces;
use crate::{Target, elf};
use memscope_native::{Image, Symbols};
use memscope_site::elf::FileBytes;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "unwind",
    reads: "rules of unwinding from .eh_frame, names and lines of functions from symbols and DWARF",
    read,
    seeds,
    held_mib: 32,
    held_per_byte: 1024,
    longest: 1 << 15,
};

/// A file that is gone with the last who has it open.
fn file(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// The first two words are addresses, the rest is the file.
fn read(input: &[u8]) {
    let mut pieces = Pieces(input);
    let addresses = [u64::from(pieces.u16()), u64::from(pieces.u32())];
    let bytes = FileBytes::new(file(pieces.0)).unwrap();
    let Ok(image) = Image::new(Path::new("/no/such/library.so"), bytes) else {
        return;
    };
    let around = (0..8).map(|n| addresses[0].wrapping_add(n * 4));
    for address in around.chain(addresses) {
        black_box(image.rule(address));
    }
    let image = Arc::new(image);
    let named = Symbols::default().name(&image, &addresses);
    assert_eq!(named.len(), addresses.len());
    assert!(named.iter().all(|named| !named.functions.is_empty()));
}

fn seeds() -> Vec<Vec<u8>> {
    let with =
        |file: &[u8], at: u16| [&at.to_le_bytes()[..], &u32::from(at).to_le_bytes(), file].concat();
    // Where the functions of these files lie.
    [(0, 0x4f0), (0, 0x510), (0, 0x560), (1, 0x500), (1, 0x520)]
        .map(|(file, at)| with(elf::FILES[file], at))
        .to_vec()
}
