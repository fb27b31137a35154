//! The inputs that are kept, and further ones that follow from them.

use crate::Target;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The folder in which a target's inputs are kept. An input that once was a finding has a name that says what it shows.
pub fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

/// The inputs that are kept for a target, with their names, in the order of these.
///
/// # Errors
/// The folder or a file in it cannot be read.
pub fn kept(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder(target))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        inputs.push((name.into_owned(), fs::read(&path)?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Inputs that follow from others by small changes: `number` of them, always the same for one seed.
pub fn changed<'a>(
    inputs: &'a [Vec<u8>],
    seed: u64,
    number: usize,
    longest: usize,
) -> impl Iterator<Item = Vec<u8>> + 'a {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..number).map(move |_| {
        let mut input = random.choice(inputs).cloned().unwrap_or_default();
        for _ in 0..random.usize(1..6) {
            change(&mut input, inputs, &mut random);
        }
        input.truncate(longest);
        input
    })
}

/// Numbers at which readers go wrong.
const EDGES: [u64; 8] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    u64::MAX >> 1,
    u64::MAX,
];

fn change(input: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut fastrand::Rng) {
    if input.is_empty() {
        input.push(random.u8(..));
    }
    let at = random.usize(..input.len());
    let len = random.usize(1..=16).min(input.len() - at);
    match random.u8(..6) {
        0 => input[at] ^= 1 << random.u8(..8),
        1 => input[at] = random.u8(..),
        2 => {
            let edge = random.choice(EDGES).unwrap_or(0).to_le_bytes();
            let len = len.min(edge.len());
            input[at..at + len].copy_from_slice(&edge[..len]);
        }
        3 => drop(input.drain(at..at + len)),
        4 => {
            let again = input[at..at + len].to_vec();
            input.splice(at..at, again);
        }
        _ => {
            let other = random.choice(inputs).map_or(&[][..], Vec::as_slice);
            let from = random.usize(..=other.len());
            let end = other.len().min(from + random.usize(1..=64));
            input.splice(at..at, other[from..end].iter().copied());
        }
    }
}
