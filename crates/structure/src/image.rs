//! A picture: a copy of the memory that matters, taken in few system calls. Everything else is computed from it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use foldhash::HashMap;

use memscope_memory::{Memory, Part};

/// Places with a smaller gap between them are read as one part. The gap is smaller than a page, so that no page is
/// touched of which nothing is wanted.
const GAP: u64 = 1024;
/// Parts are not joined beyond this length in bytes, so that a part that cannot be read costs little.
const LONGEST: u64 = 1 << 20;
/// Maximum number of bytes in one picture.
pub(crate) const MOST_BYTES: u64 = 1 << 29;

/// The copied bytes, by address.
#[derive(Debug, Default)]
pub(crate) struct Image {
    chunks: BTreeMap<u64, Vec<u8>>,
    holes: BTreeSet<u64>,
    /// Bytes fetched so far.
    pub fetched: u64,
}

/// What the picture contains at an address.
pub(crate) enum Fetched<'a> {
    Bytes(&'a [u8]),
    /// Not fetched yet.
    Missing,
    Hole,
}

impl Image {
    pub fn get(&self, address: u64, len: usize) -> Fetched<'_> {
        if self.holes.contains(&address) {
            return Fetched::Hole;
        }
        let found = self.chunks.range(..=address).next_back();
        found
            .and_then(|(start, bytes)| {
                let from = usize::try_from(address - start).ok()?;
                bytes.get(from..from.checked_add(len)?)
            })
            .map_or(Fetched::Missing, Fetched::Bytes)
    }

    /// Reads the wanted places; places that are close together are read as one part. `object` is read first and once
    /// more at the end. Both copies of it are returned.
    pub fn fetch(
        &mut self,
        memory: &impl Memory,
        object: (u64, usize),
        wanted: &HashMap<u64, usize>,
    ) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut parts = vec![part(object.0, object.1 as u64)];
        join(wanted, &mut parts);
        parts.push(part(object.0, object.1 as u64));
        let bytes: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
        self.fetched = self.fetched.saturating_add(bytes);
        if self.fetched > MOST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the structures are larger than this reader's bound",
            ));
        }
        if memory.read_many(&mut parts).is_err() {
            // Some place is not mapped any more. Read each part separately; places that cannot be read become holes.
            let last = parts.len() - 1;
            let mut kept = Vec::new();
            for (i, mut part) in parts.into_iter().enumerate() {
                match memory.read(part.address, &mut part.bytes) {
                    Ok(()) => kept.push(part),
                    Err(error) if i == 0 || i == last => return Err(error),
                    Err(_) => self.one_by_one(memory, &part, wanted, &mut kept),
                }
            }
            parts = kept;
        }
        let after = parts.pop().map(|part| part.bytes).unwrap_or_default();
        let mut parts = parts.into_iter();
        let before = parts.next().map(|part| part.bytes).unwrap_or_default();
        for part in parts {
            self.chunks.insert(part.address, part.bytes);
        }
        Ok((before, after))
    }

    fn one_by_one(
        &mut self,
        memory: &impl Memory,
        joined: &Part,
        wanted: &HashMap<u64, usize>,
        kept: &mut Vec<Part>,
    ) {
        let end = joined.address.saturating_add(joined.bytes.len() as u64);
        for (address, len) in wanted {
            if *address < joined.address || *address >= end {
                continue;
            }
            let mut single = part(*address, *len as u64);
            match memory.read(*address, &mut single.bytes) {
                Ok(()) => kept.push(single),
                Err(_) => {
                    self.holes.insert(*address);
                }
            }
        }
    }
}

fn part(address: u64, len: u64) -> Part {
    Part {
        address,
        bytes: vec![0; len as usize],
    }
}

fn join(wanted: &HashMap<u64, usize>, parts: &mut Vec<Part>) {
    let mut sorted: Vec<(u64, u64)> = wanted
        .iter()
        .map(|(address, len)| (*address, address.saturating_add(*len as u64)))
        .collect();
    sorted.sort_unstable();
    let mut open: Option<(u64, u64)> = None;
    for (from, to) in sorted {
        match &mut open {
            Some((start, end))
                if from <= end.saturating_add(GAP)
                    && (from < *end || to.saturating_sub(*start) <= LONGEST) =>
            {
                *end = (*end).max(to);
            }
            _ => {
                if let Some((start, end)) = open.replace((from, to)) {
                    parts.push(part(start, end - start));
                }
            }
        }
    }
    if let Some((start, end)) = open {
        parts.push(part(start, end - start));
    }
}
