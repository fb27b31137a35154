//! Many small places of another process's memory, read in few calls.

use std::io;

use memscope_memory::{Memory, Part};

/// Places with a smaller gap between them are read as one. Below a page, so that no page is touched
/// in which nothing was wanted.
const GAP: u64 = 1024;
/// A part is not joined with others beyond this length, so that a failing one costs little.
const LONGEST: u64 = 1 << 16;
/// Bytes asked for at once, so that little is held beside what is kept.
const AT_ONCE: u64 = 1 << 23;
/// Most bytes that one look may read: what lies in the other process's memory decides how much there is.
const MOST_BYTES: u64 = 1 << 32;

/// Reads, and counts what it reads.
pub(crate) struct Fetch<'m, M> {
    memory: &'m M,
    /// Bytes so far.
    pub bytes: u64,
}

impl<'m, M: Memory> Fetch<'m, M> {
    pub fn new(memory: &'m M) -> Fetch<'m, M> {
        Fetch { memory, bytes: 0 }
    }

    /// Reads `len` bytes at one address.
    pub fn one(&mut self, address: u64, len: usize) -> io::Result<Vec<u8>> {
        self.count(len as u64)?;
        let mut bytes = vec![0; len];
        self.memory.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// These places, one right after the other: with a process's memory in one call, which takes a microsecond or two.
    pub fn at_once(&mut self, places: &[(u64, usize)]) -> io::Result<Vec<Vec<u8>>> {
        self.count(places.iter().map(|(_, len)| *len as u64).sum())?;
        let mut parts: Vec<Part> = places
            .iter()
            .map(|(address, len)| Part {
                address: *address,
                bytes: vec![0; *len],
            })
            .collect();
        self.memory.read_many(&mut parts)?;
        Ok(parts.into_iter().map(|part| part.bytes).collect())
    }

    /// Hands over `len` bytes of each place that can be read. `places` are in order, none twice. What cannot
    /// be read is left out: it was given back meanwhile, or never was an address.
    pub fn each(
        &mut self,
        places: &[u64],
        len: usize,
        mut take: impl FnMut(u64, &[u8]),
    ) -> io::Result<()> {
        let mut rest = places;
        while !rest.is_empty() {
            let (mut parts, used) = parts(rest, len as u64);
            let (now, later) = rest.split_at(used);
            rest = later;
            self.count(parts.iter().map(|part| part.bytes.len() as u64).sum())?;
            let whole = self.memory.read_many(&mut parts).is_ok();
            let mut wanted = now.iter().copied().peekable();
            for part in &mut parts {
                // Some place is gone. Each for itself then.
                let good = whole || self.memory.read(part.address, &mut part.bytes).is_ok();
                let end = part.address + part.bytes.len() as u64;
                while let Some(place) = wanted.next_if(|place| *place < end) {
                    let from = (place - part.address) as usize;
                    if good {
                        take(place, &part.bytes[from..from + len]);
                    } else if self.memory.read(place, &mut part.bytes[..len]).is_ok() {
                        take(place, &part.bytes[..len]);
                    }
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MOST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the structures are larger than this reader's bound",
            ));
        }
        Ok(())
    }
}

/// The first places, those that lie near one another in one part; and how many they are.
fn parts(places: &[u64], len: u64) -> (Vec<Part>, usize) {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let (mut used, mut bytes) = (0, 0);
    for &from in places {
        // Nothing is at the end of all addresses.
        let to = from.saturating_add(len);
        match spans.last_mut() {
            Some((start, end))
                if from <= end.saturating_add(GAP)
                    && (from < *end || to.saturating_sub(*start) <= LONGEST) =>
            {
                bytes += to.saturating_sub(*end);
                *end = to.max(*end);
            }
            _ if bytes >= AT_ONCE => break,
            _ => {
                bytes += to - from;
                spans.push((from, to));
            }
        }
        used += 1;
    }
    let parts = spans.into_iter().map(|(from, to)| Part {
        address: from,
        bytes: vec![0; (to - from) as usize],
    });
    (parts.collect(), used)
}
