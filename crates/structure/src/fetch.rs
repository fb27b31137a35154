//! Reads many small places of another process's memory in few system calls.

use std::io;

use memscope_memory::{Memory, Part};

/// Places with a smaller gap between them are read as one part. The gap is smaller than a page, so that no page is
/// touched of which nothing is wanted.
const GAP: u64 = 1024;
/// Parts are not joined beyond this length in bytes, so that a part that cannot be read costs little.
const LONGEST: u64 = 1 << 16;
/// Number of bytes that are requested at once. It bounds the memory that is needed besides the result.
const AT_ONCE: u64 = 1 << 23;
/// Maximum number of bytes that one look may read. Without it, the contents of the other process's memory would decide
/// how much that is.
const MOST_BYTES: u64 = 1 << 32;

/// Reads memory, and counts the bytes.
pub(crate) struct Fetch<'m, M> {
    memory: &'m M,
    /// Bytes read so far.
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

    /// Reads these places right after one another. For the memory of a process this is one system call, which takes a
    /// microsecond or two.
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

    /// Passes `len` bytes of each place that can be read to `take`. `places` must be sorted and without duplicates.
    /// Places that cannot be read are left out: the memory was freed in the meantime, or the value never was an
    /// address.
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
                // Some place is not mapped any more. Read each part separately, and each place of a part that fails.
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

/// Joins the first places into parts. Returns the parts, and the number of places in them.
fn parts(places: &[u64], len: u64) -> (Vec<Part>, usize) {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let (mut used, mut bytes) = (0, 0);
    for &from in places {
        // At the end of the address space there is no memory, so the sum may saturate.
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
