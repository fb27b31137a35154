//! The memory of a process, a page at a time: each page is read once, however often it is looked at.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memscope_memory::Memory;

/// Bytes that are read at once. Objects that belong together lie close to one another, and a call costs as much as reading a few KiB.
const PAGE: u64 = 1 << 15;
/// Bytes that the kernel maps at once: where a page cannot be read as a whole, these are tried one by one.
const PIECE: u64 = 1 << 12;
/// Most pages that are kept at a time, 512 MiB.
const MOST_PAGES: usize = 16 << 10;
/// Most pages that are known, with those of which nothing can be read.
const MOST_PLACES: usize = 8 * MOST_PAGES;
/// The place of a page of which nothing can be read. Many words of objects lead to none, because they are no addresses.
const NOWHERE: u32 = u32::MAX;
/// Pages in a slab, 8 MiB.
const PAGES_OF_SLAB: usize = 256;
/// Pages whose places are found without looking into the map: those that were looked at last, by the lowest bits of their numbers.
const RECENT: usize = 4 << 10;
/// Most bytes that are read of a process in one reading.
pub const MOST_READ: u64 = 8 << 30;

/// A map whose keys are addresses. What someone who chooses addresses can do with it costs only the reading of their own process.
pub(crate) type ByAddress<T> = HashMap<u64, T, FixedState>;

/// A process's memory as it was when each page was first looked at.
pub(crate) struct Pages<'a, M: ?Sized> {
    memory: &'a M,
    places: ByAddress<u32>,
    /// The pages, many in one piece: large pieces come zeroed from the kernel, and it can give them huge pages. They are used again when
    /// what is in them was forgotten.
    slabs: Vec<Box<[u8]>>,
    /// Of each page that is kept, which of its pieces could be read.
    readable: Vec<u8>,
    /// Pages that were looked at, and their places. References lead from anywhere to anywhere, so that to remember only
    /// the one that was looked at last would seldom help.
    recent: Box<[(u64, u32)]>,
    /// Bytes that were read.
    pub read: u64,
}

impl<'a, M: Memory + ?Sized> Pages<'a, M> {
    pub fn new(memory: &'a M) -> Pages<'a, M> {
        Pages {
            memory,
            places: ByAddress::default(),
            slabs: Vec::new(),
            readable: Vec::new(),
            recent: vec![(u64::MAX, 0); RECENT].into(),
            read: 0,
        }
    }

    /// Forgets all pages, so that what is looked at next is read anew.
    pub fn forget(&mut self) {
        self.places.clear();
        self.readable.clear();
        self.recent.fill((u64::MAX, 0));
    }

    /// Reads what lies in this range anew, if it was read before.
    pub fn renew(&mut self, address: u64, bytes: u64) {
        let last = address.saturating_add(bytes.saturating_sub(1)) / PAGE;
        for number in address / PAGE..=last {
            let Some(place) = self.places.get(&number).copied() else {
                continue;
            };
            self.recent[number as usize % RECENT] = (u64::MAX, 0);
            if place == NOWHERE {
                self.places.remove(&number);
                continue;
            }
            self.read += PAGE;
            let readable = self.read_page(number, place);
            if let (Some(known), Some(readable)) = (self.readable.get_mut(place as usize), readable)
            {
                *known = readable;
            }
        }
    }

    /// The word at this address as it is in the process now, whatever was read there before.
    pub fn word_now(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read += 8;
        self.memory.read(address, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Whether so much was read that the reading must end.
    pub fn is_spent(&self) -> bool {
        self.read > MOST_READ
    }

    /// The place of a page.
    fn place(&mut self, number: u64) -> Option<u32> {
        let slot = number as usize % RECENT;
        let (known, place) = self.recent[slot];
        if known == number {
            return Some(place);
        }
        let place = match self.places.get(&number) {
            Some(place) => *place,
            None => self.fetch(number)?,
        };
        self.recent[slot] = (number, place);
        Some(place)
    }

    /// The bytes of the page at a place from an offset on, if its piece there could be read.
    fn part(&self, place: u32, within: u64) -> Option<&[u8]> {
        let place = place as usize;
        if self.readable.get(place)? & (1 << (within / PIECE)) == 0 {
            return None;
        }
        let begins = place % PAGES_OF_SLAB * PAGE as usize;
        let slab = self.slabs.get(place / PAGES_OF_SLAB)?;
        slab.get(begins + within as usize..begins + PAGE as usize)
    }

    fn fetch(&mut self, number: u64) -> Option<u32> {
        if self.is_spent() {
            return None;
        }
        if self.readable.len() >= MOST_PAGES || self.places.len() >= MOST_PLACES {
            self.forget();
        }
        let place = self.readable.len();
        let slab = place / PAGES_OF_SLAB;
        if self.slabs.len() <= slab {
            self.slabs
                .push(vec![0; PAGES_OF_SLAB * PAGE as usize].into());
        }
        let place = u32::try_from(place).ok()?;
        let readable = self.read_page(number, place)?;
        self.read += PAGE;
        let place = match readable {
            0 => NOWHERE,
            _ => {
                self.readable.push(readable);
                place
            }
        };
        self.places.insert(number, place);
        Some(place)
    }

    /// Reads a page into its place. Returns which of its pieces could be read.
    fn read_page(&mut self, number: u64, place: u32) -> Option<u8> {
        let address = number.checked_mul(PAGE)?;
        let place = place as usize;
        let begins = place % PAGES_OF_SLAB * PAGE as usize;
        let bytes = self.slabs.get_mut(place / PAGES_OF_SLAB)?;
        let bytes = bytes.get_mut(begins..begins + PAGE as usize)?;
        let mut readable = u8::MAX;
        if self.memory.read(address, bytes).is_err() {
            readable = 0;
            for (piece, bytes) in bytes.chunks_mut(PIECE as usize).enumerate() {
                let at = address + piece as u64 * PIECE;
                if self.memory.read(at, bytes).is_ok() {
                    readable |= 1 << piece;
                }
            }
        }
        Some(readable)
    }

    /// Fills the buffer; `false` where not all of it can be read.
    pub fn bytes(&mut self, address: u64, buffer: &mut [u8]) -> bool {
        let mut at = address;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = at % PAGE;
            // No further than to the end of a piece, since the next one may not be readable.
            let room = (PIECE - at % PIECE).min(rest.len() as u64) as usize;
            let place = self.place(at / PAGE);
            let Some(page) = place.and_then(|place| self.part(place, within)) else {
                return false;
            };
            let (now, later) = rest.split_at_mut(room);
            now.copy_from_slice(&page[..room]);
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
            let place = self.place(address / PAGE)?;
            let bytes = self.part(place, within)?.first_chunk()?;
            return Some(u64::from_le_bytes(*bytes));
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

    /// Memory whose words are the number of readings so far.
    struct Changing(std::cell::Cell<u8>);

    impl Memory for Changing {
        fn read(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.0.set(self.0.get() + 1);
            buffer.fill(self.0.get());
            Ok(())
        }
    }

    #[test]
    fn what_is_renewed_is_read_again() {
        let changing = Changing(std::cell::Cell::new(0));
        let mut pages = Pages::new(&changing);
        assert_eq!(pages.word(PAGE), Some(0x0101_0101_0101_0101));
        assert_eq!(pages.word(PAGE), Some(0x0101_0101_0101_0101));
        assert_eq!(pages.word_now(PAGE), Some(0x0202_0202_0202_0202));
        // What was not read yet needs no renewal.
        pages.renew(2 * PAGE, 2 * PAGE);
        assert_eq!(pages.word(PAGE), Some(0x0101_0101_0101_0101));
        pages.renew(2 * PAGE - 8, 16);
        assert_eq!(pages.word(PAGE), Some(0x0303_0303_0303_0303));
        assert_eq!(pages.word(2 * PAGE), Some(0x0404_0404_0404_0404));
        // What could not be read may be there now.
        let holes = Holes(vec![2]);
        let mut pages = Pages::new(&holes);
        assert_eq!(pages.word(8 * PAGE), None);
        pages.renew(0, 9 * PAGE);
        assert_eq!(pages.word(8 * PAGE), None);
        assert_eq!(pages.word(2 * PIECE), Some(0x0202_0202_0202_0202));
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
