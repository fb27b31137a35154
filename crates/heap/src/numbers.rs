//! The numbers of vertices by their addresses.
//!
//! Objects that were made one after the other lie beside each other, and mostly refer to one another: so their numbers lie beside each other
//! as well, in a table for each piece of memory, and a search seldom waits for memory that is not in the processor's cache.

use crate::pages::ByAddress;

/// Bytes of memory that one table is for, as a power of two.
const PIECE: u32 = 15;
/// Objects begin at multiples of so many bytes, as a power of two; numbers of those that do not are in a map.
const APART: u32 = 4;
/// Numbers in a table.
const SLOTS: usize = 1 << (PIECE - APART);
/// Most tables, 128 MiB; numbers of further pieces are in the map.
const MOST_TABLES: usize = 16 << 10;
/// Tables whose places are found without looking into the map, by the lowest bits of their numbers.
const RECENT: usize = 4 << 10;
/// Stands in a table for an address at which no vertex is known.
const NONE: u32 = u32::MAX;

/// Numbers of vertices.
pub(crate) struct Numbers {
    tables: Vec<Box<[u32]>>,
    places: ByAddress<u32>,
    /// Pieces that were looked at, and the places of their tables.
    recent: Box<[(u64, u32)]>,
    others: ByAddress<u32>,
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers {
            tables: Vec::new(),
            places: ByAddress::default(),
            recent: vec![(u64::MAX, 0); RECENT].into(),
            others: ByAddress::default(),
        }
    }
}

impl Numbers {
    /// The number at an address.
    pub fn get(&mut self, address: u64) -> Option<u32> {
        let number = match self.table(address) {
            Some(place) => self.tables[place as usize][slot(address)],
            None => *self.others.get(&address)?,
        };
        (number != NONE).then_some(number)
    }

    /// The number at an address, without keeping its place for the next time.
    pub fn find(&self, address: u64) -> Option<u32> {
        let place = match is_apart(address) {
            true => self.places.get(&(address >> PIECE)),
            false => None,
        };
        let number = match place {
            Some(place) => self.tables[*place as usize][slot(address)],
            None => *self.others.get(&address)?,
        };
        (number != NONE).then_some(number)
    }

    /// Gives an address a number.
    pub fn insert(&mut self, address: u64, number: u32) {
        if self.table(address).is_none() && is_apart(address) && self.tables.len() < MOST_TABLES {
            self.places
                .insert(address >> PIECE, self.tables.len() as u32);
            self.tables.push(vec![NONE; SLOTS].into());
        }
        match self.table(address) {
            Some(place) => self.tables[place as usize][slot(address)] = number,
            None => {
                self.others.insert(address, number);
            }
        }
    }

    fn table(&mut self, address: u64) -> Option<u32> {
        if !is_apart(address) {
            return None;
        }
        let piece = address >> PIECE;
        let at = piece as usize % RECENT;
        let (known, place) = self.recent[at];
        if known == piece {
            return Some(place);
        }
        let place = *self.places.get(&piece)?;
        self.recent[at] = (piece, place);
        Some(place)
    }
}

const fn is_apart(address: u64) -> bool {
    address.is_multiple_of(1 << APART)
}

const fn slot(address: u64) -> usize {
    (address >> APART) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_number() {
        let mut numbers = Numbers::default();
        let mut plain = std::collections::HashMap::new();
        // Objects of all alignments, in more pieces than have tables.
        let addresses = (0..60_000_u64).map(|it| {
            let within = if it % 5 == 0 { 8 } else { it % 256 * 16 };
            ((it % 30_000) << PIECE) + within
        });
        for (address, number) in addresses.zip(0..) {
            assert_eq!(numbers.get(address), plain.get(&address).copied());
            numbers.insert(address, number);
            plain.insert(address, number);
        }
        assert_eq!(numbers.tables.len(), MOST_TABLES);
        assert!(
            plain
                .iter()
                .all(|(address, number)| numbers.get(*address) == Some(*number)
                    && numbers.find(*address) == Some(*number))
        );
        assert_eq!(numbers.get(0x7000_0000_0000), None);
        assert_eq!(numbers.find(0x7000_0000_0000), None);
    }
}
