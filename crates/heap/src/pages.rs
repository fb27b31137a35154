//! The memory of a process, a page at a time: each page is read once, however often it is looked at.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memscope_memory::Memory;

/// Bytes that are read at once. Objects that belong together lie close to one another, and a call costs as much as reading a few KiB.
const PAGE: u64 = 1 << 15;
/// Bytes that the kernel maps at once: where a page cannot be read as a whole, these are tried one by one.
const PIECE: u64 = 1 << 12;
/// Most pages that are kept at a time, 256 MiB.
const MOST_PAGES: usize = 8 << 10;
/// Pages whose places are found without looking into the map: those that were looked at last, by the lowest bits of their numbers.
const RECENT: usize = 4 << 10;
/// Most bytes that are read of a process in one reading.
pub const MOST_READ: u64 = 8 << 30;

/// A map whose keys are addresses. What someone who chooses addresses can do with it costs only the reading of their own process.
pub(crate) type ByAddress<T> = HashMap<u64, T, FixedState>;

/// A page, and which of its pieces could be read.
struct Page {
    bytes: Box<[u8]>,
    readable: u8,
}

/// A process's memory as it was when each page was first looked at.
pub(crate) struct Pages<'a, M: ?Sized> {
    memory: &'a M,
    pages: ByAddress<u32>,
    kept: Vec<Page>,
    /// Pages that were looked at, and their places in `kept`. References lead from anywhere to anywhere, so that the one that was looked
    /// at last is seldom enough.
    recent: Box<[(u64, u32)]>,
    /// Bytes that were read.
    pub read: u64,
}

impl<'a, M: Memory + ?Sized> Pages<'a, M> {
    pub fn new(memory: &'a M) -> Pages<'a, M> {
        Pages {
            memory,
            pages: ByAddress::default(),
            kept: Vec::new(),
            recent: vec![(u64::MAX, 0); RECENT].into(),
            read: 0,
        }
    }

    /// Forgets all pages, so that what is looked at next is read anew.
    pub fn forget(&mut self) {
        self.pages.clear();
        self.kept.clear();
        self.recent.fill((u64::MAX, 0));
    }

    /// Whether so much was read that the reading must end.
    pub fn is_spent(&self) -> bool {
        self.read > MOST_READ
    }

    fn page(&mut self, number: u64) -> Option<&Page> {
        let slot = number as usize % RECENT;
        let (known, at) = self.recent[slot];
        if known == number {
            return self.kept.get(at as usize);
        }
        let at = match self.pages.get(&number) {
            Some(at) => *at,
            None => self.fetch(number)?,
        };
        self.recent[slot] = (number, at);
        self.kept.get(at as usize)
    }

    fn fetch(&mut self, number: u64) -> Option<u32> {
        if self.is_spent() {
            return None;
        }
        if self.kept.len() >= MOST_PAGES {
            self.forget();
        }
        let address = number.checked_mul(PAGE)?;
        let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
        let mut readable = u8::MAX;
        if self.memory.read(address, &mut bytes).is_err() {
            readable = 0;
            for (piece, bytes) in bytes.chunks_mut(PIECE as usize).enumerate() {
                let at = address + piece as u64 * PIECE;
                if self.memory.read(at, bytes).is_ok() {
                    readable |= 1 << piece;
                }
            }
        }
        self.read += PAGE;
        let at = u32::try_from(self.kept.len()).ok()?;
        self.kept.push(Page { bytes, readable });
        self.pages.insert(number, at);
        Some(at)
    }

    /// Fills the buffer; `false` where not all of it can be read.
    pub fn bytes(&mut self, address: u64, buffer: &mut [u8]) -> bool {
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = at % PAGE;
            // No further than to the end of a piece, since the next one may not be readable.
            let room = (PIECE - at % PIECE).min(rest.len() as u64) as usize;
            let Some(page) = self.page(at / PAGE) else {
                return false;
            };
            if page.readable & (1 << (within / PIECE)) == 0 {
                return false;
            }
            let (now, later) = rest.split_at_mut(room);
            now.copy_from_slice(&page.bytes[within as usize..within as usize + room]);
            rest = later;
            let Some(next) = at.checked_add(room as u64) else {
                return rest.is_empty();
            };
            at = next;
        }
        true
    }

    /// The word at this address.
    pub fn word(&mut self, address: u64) -> Option<u64> {
        let within = address % PAGE;
        if within <= PAGE - 8 && address % PIECE <= PIECE - 8 {
            let page = self.page(address / PAGE)?;
            if page.readable & (1 << (within / PIECE)) == 0 {
                return None;
            }
            let within = within as usize;
            let bytes: [u8; 8] = page.bytes.get(within..within + 8)?.try_into().ok()?;
            return Some(u64::from_le_bytes(bytes));
        }
        let mut bytes = [0; 8];
        self.bytes(address, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }

    /// The words from this address on; fewer where not all can be read.
    pub fn words(&mut self, address: u64, count: usize) -> Vec<u64> {
        let mut words = Vec::with_capacity(count);
        for number in 0..count as u64 {
            match self.word(address.wrapping_add(number * 8)) {
                Some(word) => words.push(word),
                None => break,
            }
        }
        words
    }

    /// The text at this address up to its NUL, if it is one of at most `most` bytes.
    pub fn text(&mut self, address: u64, most: usize) -> Option<String> {
        let mut text = Vec::new();
        for number in 0..most as u64 {
            let mut byte = [0];
            if !self.bytes(address.checked_add(number)?, &mut byte) {
                return None;
            }
            match byte {
                [0] => return String::from_utf8(text).ok(),
                [byte] => text.push(byte),
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;

    use super::*;

    /// Memory of which only some pieces can be read; each byte there is the low byte of its piece's number.
    struct Holes(Vec<u64>);

    impl Memory for Holes {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            for (byte, at) in buffer.iter_mut().zip(address..) {
                if !self.0.contains(&(at / PIECE)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                *byte = (at / PIECE) as u8;
            }
            Ok(())
        }
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let holes = Holes(vec![2, 3, 5, 7, 8]);
        let mut pages = Pages::new(&holes);
        assert_eq!(pages.word(2 * PIECE), Some(0x0202_0202_0202_0202));
        assert_eq!(pages.word(3 * PIECE - 4), Some(0x0303_0303_0202_0202));
        assert_eq!(pages.word(4 * PIECE - 4), None);
        assert_eq!(pages.word(4 * PIECE), None);
        // Over the end of a page.
        assert_eq!(pages.word(8 * PIECE - 4), Some(0x0808_0808_0707_0707));
        assert_eq!(pages.word(u64::MAX - 3), None);
        assert_eq!(pages.words(8 * PIECE + 4080, 5).len(), 2);
        let mut all = [0; 2 * PIECE as usize];
        assert!(pages.bytes(7 * PIECE, &mut all));
        assert!(!pages.bytes(5 * PIECE, &mut all));
    }
}
