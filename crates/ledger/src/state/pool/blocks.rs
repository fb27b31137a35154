//! The blocks of a process by address.
//!
//! Owns: where the blocks are in memory, and how a checkpoint has them. Refuses: what a block means.
//!
//! A hash table with blocks in it is between 7/16 and 7/8 full, and has everything twice while it grows. So the blocks
//! are kept in pieces that never move, and the table has only their numbers. A checkpoint has them in the order of their
//! addresses, so that the differences between two of them are small.

use crate::fast_hash::FoldHasher;
use crate::state::columns::{self, Row};
use crate::state::labels::LabelSet;
use crate::state::membership::Membership;
use crate::state::pool::block::{Block, Known, Origin};
use crate::state::pool::totals::Sized;
use crate::state::stacks::{NOT_TAKEN, StackIndex};
use hashbrown::HashTable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::hash::Hasher;

/// Blocks in one piece.
const PIECE: usize = 1024;
/// So many blocks stay in a processor's cache by themselves.
const CACHED: usize = 20_000;
/// Places that are fetched from memory at once.
const AT_ONCE: usize = 32;
/// The number that stands for no place.
const NOWHERE: u32 = u32::MAX;

/// A place for a block: one line of the processor's cache, so that a block is fetched from memory at once.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Place {
    /// The block's address. Where there is no block, the number of the next free place.
    addr: u64,
    rounded: u64,
    requested: Known,
    born_ns: u64,
    serial: u64,
    membership: Membership,
    size: Sized,
    stack: StackIndex,
    /// Number of the block's device and stream in the list of them; `NOWHERE` where there is no block.
    lane: u32,
    labels: LabelSet,
    origin: Origin,
    pending: bool,
}

impl Place {
    /// A place without a block.
    fn free(next: u32) -> Place {
        Place {
            addr: u64::from(next),
            rounded: 0,
            requested: None.into(),
            born_ns: 0,
            serial: 0,
            membership: Membership::NOWHERE,
            size: Sized::EXACT,
            stack: NOT_TAKEN,
            lane: NOWHERE,
            labels: 0,
            origin: Origin::Seen,
            pending: false,
        }
    }
}

/// A device and a stream on which there are blocks.
type Lane = (i32, Known);

/// The devices and streams of blocks, each pair once: a process has few of them, and each block has one.
#[derive(Clone, Debug, Default)]
struct Lanes {
    all: Vec<Lane>,
    /// Their numbers, by what they are.
    numbers: HashTable<u32>,
    /// Number of the one that was asked for last.
    last: u32,
}

impl Lanes {
    fn get(&self, number: u32) -> Option<Lane> {
        self.all.get(number as usize).copied()
    }

    /// The number of a lane, if it has one.
    fn find(&mut self, lane: Lane) -> Option<u32> {
        if self.get(self.last) != Some(lane) {
            let all = &self.all;
            let known = self.numbers.find(hash_lane(lane), |number| {
                all.get(*number as usize) == Some(&lane)
            });
            self.last = *known?;
        }
        Some(self.last)
    }

    /// Adds a lane that has no number yet.
    fn add(&mut self, lane: Lane) -> u32 {
        let number = self.all.len() as u32;
        self.all.push(lane);
        let all = &self.all;
        self.numbers.insert_unique(hash_lane(lane), number, |one| {
            all.get(*one as usize).map_or(0, |one| hash_lane(*one))
        });
        self.last = number;
        number
    }
}

fn hash_lane((device, stream): Lane) -> u64 {
    let mut hasher = FoldHasher::default();
    hasher.write_i32(device);
    hasher.write_u64(stream.packed());
    hasher.finish()
}

/// Blocks by address.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pieces: Vec<Vec<Place>>,
    lanes: Lanes,
    /// Number of the first free place that had a block before.
    free: u32,
    /// Numbers of the places with a block, by the block's address.
    numbers: HashTable<u32>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            pieces: Vec::new(),
            lanes: Lanes::default(),
            free: NOWHERE,
            numbers: HashTable::new(),
        }
    }
}

fn hash(addr: u64) -> u64 {
    let mut hasher = FoldHasher::default();
    hasher.write_u64(addr);
    hasher.finish()
}

fn place(pieces: &[Vec<Place>], number: u32) -> Option<&Place> {
    pieces
        .get(number as usize / PIECE)?
        .get(number as usize % PIECE)
}

/// The address of the block at a place that has one.
fn addr_at(pieces: &[Vec<Place>], number: u32) -> u64 {
    place(pieces, number).map_or(0, |place| place.addr)
}

impl Blocks {
    fn find(&self, addr: u64) -> Option<u32> {
        let found = self
            .numbers
            .find(hash(addr), |number| addr_at(&self.pieces, *number) == addr);
        found.copied()
    }

    fn place_mut(&mut self, number: u32) -> Option<&mut Place> {
        self.pieces
            .get_mut(number as usize / PIECE)?
            .get_mut(number as usize % PIECE)
    }

    /// The block at a place, if there is one.
    fn block(&self, place: &Place) -> Option<Block> {
        let (device, stream) = self.lanes.get(place.lane)?;
        Some(Block {
            device,
            pending: place.pending,
            origin: place.origin,
            labels: place.labels,
            rounded: place.rounded,
            size: place.size,
            requested: place.requested,
            stream,
            born_ns: place.born_ns,
            serial: place.serial,
            stack: place.stack,
            place: place.membership,
        })
    }

    /// The reverse of [`Blocks::block`].
    fn place_of(&mut self, addr: u64, block: Block) -> Place {
        Place {
            addr,
            rounded: block.rounded,
            requested: block.requested,
            born_ns: block.born_ns,
            serial: block.serial,
            membership: block.place,
            size: block.size,
            stack: block.stack,
            lane: self.lane((block.device, block.stream)),
            labels: block.labels,
            origin: block.origin,
            pending: block.pending,
        }
    }

    /// The number of a device and stream.
    fn lane(&mut self, lane: Lane) -> u32 {
        if let Some(known) = self.lanes.find(lane) {
            return known;
        }
        // A program may take ever new streams. So once the list is longer than twice what there is room for in the pieces, it is
        // made anew of what blocks are on now, which is at most half of that.
        if self.lanes.all.len() >= (self.pieces.len() + 1) * 2 * PIECE {
            let old = std::mem::take(&mut self.lanes);
            for place in self.pieces.iter_mut().flatten() {
                if let Some(lane) = old.get(place.lane) {
                    place.lane = match self.lanes.find(lane) {
                        Some(known) => known,
                        None => self.lanes.add(lane),
                    };
                }
            }
        }
        self.lanes.add(lane)
    }

    /// The block at this address.
    pub(crate) fn get(&self, addr: &u64) -> Option<Block> {
        self.block(place(&self.pieces, self.find(*addr)?)?)
    }

    /// Brings the block at this address into the processor's cache, if there are so many blocks that they do not stay there by themselves.
    pub(crate) fn prefetch(&self, addr: u64) {
        if self.len() > CACHED {
            // What is compared on the way is in the block's own line.
            std::hint::black_box(self.find(addr));
        }
    }

    /// Whether there is a block at this address.
    pub(crate) fn contains_key(&self, addr: &u64) -> bool {
        self.find(*addr).is_some()
    }

    /// Enters a block at this address, in place of one that was there.
    pub(crate) fn insert(&mut self, addr: u64, block: Block) {
        let new = self.place_of(addr, block);
        if let Some(known) = self.find(addr) {
            if let Some(place) = self.place_mut(known) {
                *place = new;
            }
            return;
        }
        let number = self.free;
        let number = match self.place_mut(number) {
            Some(place) => {
                let next = place.addr;
                *place = new;
                self.free = next as u32;
                number
            }
            None => self.push(new),
        };
        let pieces = &self.pieces;
        self.numbers
            .insert_unique(hash(addr), number, |number| hash(addr_at(pieces, *number)));
    }

    /// Adds a place behind all others; returns its number.
    fn push(&mut self, new: Place) -> u32 {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            // Processes with few blocks are the rule.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        let full = (self.pieces.len() - 1) * PIECE;
        let last = self.pieces.last_mut().map_or(0, |piece| {
            piece.push(new);
            piece.len() - 1
        });
        (full + last) as u32
    }

    /// Makes the table for places that have just been filled, in which no address comes twice.
    fn number(&mut self) {
        let all: usize = self.pieces.iter().map(Vec::len).sum();
        let hasher = |number: &u32| hash(addr_at(&self.pieces, *number));
        self.numbers.reserve(all, hasher);
        for (number, place) in (0u32..).zip(self.pieces.iter().flatten()) {
            self.numbers.insert_unique(hash(place.addr), number, hasher);
        }
    }

    /// Takes out the block at this address.
    pub(crate) fn remove(&mut self, addr: &u64) {
        let pieces = &self.pieces;
        let found = self
            .numbers
            .find_entry(hash(*addr), |number| addr_at(pieces, *number) == *addr);
        let Ok(found) = found else {
            return;
        };
        let (number, _) = found.remove();
        let next = self.free;
        if let Some(place) = self.place_mut(number) {
            *place = Place::free(next);
            self.free = number;
        }
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// All blocks with their addresses, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Block)> {
        let places = self.pieces.iter().flatten();
        places.filter_map(|place| Some((place.addr, self.block(place)?)))
    }

    /// The blocks of the wanted devices with their addresses, ordered by address.
    pub(crate) fn by_address(
        &self,
        wanted: impl Fn(i32) -> bool,
    ) -> impl Iterator<Item = (u64, Block)> {
        let mut order: Vec<(u64, u32)> = Vec::with_capacity(self.len());
        for (at, piece) in (0u32..).zip(&self.pieces) {
            let numbers = at * PIECE as u32..;
            let of_device = |place: &Place| {
                self.lanes
                    .get(place.lane)
                    .is_some_and(|(device, _)| wanted(device))
            };
            let places = numbers.zip(piece).filter(|(_, place)| of_device(place));
            order.extend(places.map(|(number, place)| (place.addr, number)));
        }
        // After a checkpoint was read, most of them are in order already.
        order.sort_by_key(|(addr, _)| *addr);
        (0..order.len()).filter_map(move |at| {
            if at.is_multiple_of(AT_ONCE) {
                // The order of addresses is none of memory. So the next places are fetched at once: one after the other, the
                // processor would wait for each.
                let next = order.iter().skip(at).take(AT_ONCE);
                let places = next.filter_map(|(_, number)| place(&self.pieces, *number));
                std::hint::black_box(places.fold(0, |all, place| all ^ place.lane));
            }
            let (addr, number) = *order.get(at)?;
            Some((addr, self.block(place(&self.pieces, number)?)?))
        })
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> u64 {
        let places: usize = self.pieces.iter().map(Vec::capacity).sum();
        let places = places * size_of::<Place>() + self.pieces.capacity() * size_of::<Vec<Place>>();
        let lanes =
            self.lanes.all.capacity() * size_of::<Lane>() + self.lanes.numbers.allocation_size();
        (places + lanes + self.numbers.allocation_size()) as u64
    }
}

impl Row for (u64, Block) {
    type Numbers = [u64; 11];

    fn numbers(&self) -> [u64; 11] {
        let (addr, block) = self;
        let origin = match block.origin {
            Origin::Seen => 0,
            Origin::Baseline => 1,
            Origin::Found => 2,
        };
        let (exact, tick) = block.place.packed();
        [
            *addr,
            block.rounded,
            block.requested.packed(),
            block.stream.packed(),
            block.born_ns,
            block.serial,
            u64::from(block.device as u32),
            u64::from(block.stack),
            u64::from(exact),
            u64::from(tick),
            u64::from(block.size.packed()) << 32
                | u64::from(block.labels) << 16
                | origin << 1
                | u64::from(block.pending),
        ]
    }

    fn of(numbers: &[u64; 11]) -> Option<(u64, Block)> {
        let [
            addr,
            rounded,
            requested,
            stream,
            born_ns,
            serial,
            device,
            stack,
            exact,
            tick,
            rest,
        ] = *numbers;
        let narrow = |number: u64| u32::try_from(number).ok();
        let origin = match (rest >> 1) & 0x7fff {
            0 => Origin::Seen,
            1 => Origin::Baseline,
            2 => Origin::Found,
            _ => return None,
        };
        let block = Block {
            device: narrow(device)? as i32,
            pending: rest & 1 != 0,
            origin,
            labels: (rest >> 16) as u16,
            rounded,
            size: Sized::unpacked((rest >> 32) as u32),
            requested: Known::unpacked(requested),
            stream: Known::unpacked(stream),
            born_ns,
            serial,
            stack: narrow(stack)?,
            place: Membership::unpacked(narrow(exact)?, narrow(tick)?),
        };
        Some((addr, block))
    }
}

impl Serialize for Blocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        columns::write(self.by_address(|_| true), self.len(), serializer)
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blocks, D::Error> {
        let mut blocks = Blocks::default();
        let mut last = None;
        let mut in_order = true;
        columns::read_map(deserializer, |addr, block| {
            in_order &= last < Some(addr);
            last = Some(addr);
            let place = blocks.place_of(addr, block);
            blocks.push(place);
        })?;
        if in_order {
            blocks.number();
            return Ok(blocks);
        }
        // An older checkpoint has them in no order, and one that was forged may have an address twice.
        let mut again = Blocks::default();
        for (addr, block) in blocks.iter() {
            again.insert(addr, block);
        }
        Ok(again)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_block_takes_few_bytes() {
        assert_eq!(size_of::<Place>(), 64);
    }

    #[test]
    fn ever_new_streams_take_a_bounded_room() {
        let block = |stream| Block {
            device: 0,
            pending: false,
            origin: Origin::Seen,
            labels: 0,
            rounded: 512,
            size: Sized::EXACT,
            requested: Some(1).into(),
            stream: Some(stream).into(),
            born_ns: 1,
            serial: stream,
            stack: NOT_TAKEN,
            place: Membership::NOWHERE,
        };
        let mut blocks = Blocks::default();
        let lasting = |number: u64| number.is_multiple_of(500);
        for number in 0..100_000 {
            blocks.insert(number, block(number));
            if !lasting(number) {
                blocks.remove(&number);
            }
            assert!(blocks.lanes.all.len() <= 4 * PIECE);
        }
        let expected: Vec<(u64, Block)> = (0..100_000)
            .filter(|number| lasting(*number))
            .map(|number| (number, block(number)))
            .collect();
        assert!(blocks.by_address(|_| true).eq(expected));
    }

    fn any_block() -> impl Strategy<Value = Block> {
        let numbers = any::<[u64; 6]>();
        let rest = (
            any::<[u32; 4]>(),
            any::<i32>(),
            any::<bool>(),
            0..3u8,
            any::<u16>(),
        );
        (numbers, rest).prop_map(|(numbers, rest)| {
            let [rounded, requested, stream, born_ns, serial, _] = numbers;
            let ([size, stack, exact, tick], device, pending, origin, labels) = rest;
            let known = |number: u64| (!number.is_multiple_of(3)).then_some(number).into();
            Block {
                // Often the same ones.
                device: if size.is_multiple_of(2) {
                    device % 3
                } else {
                    device
                },
                pending,
                origin: match origin {
                    0 => Origin::Seen,
                    1 => Origin::Baseline,
                    _ => Origin::Found,
                },
                labels,
                rounded,
                size: Sized::unpacked(size),
                requested: known(requested),
                stream: known(if size.is_multiple_of(2) {
                    stream % 5
                } else {
                    stream
                }),
                born_ns,
                serial,
                stack,
                place: Membership::unpacked(exact, tick),
            }
        })
    }

    #[derive(Clone, Debug)]
    enum Call {
        Insert(u64, Block),
        Remove(u64),
        Change(u64, u64),
    }

    fn any_call() -> impl Strategy<Value = Call> {
        let addr = || (0..400u64).prop_map(|number| number * 512);
        prop_oneof![
            3 => (addr(), any_block()).prop_map(|(addr, block)| Call::Insert(addr, block)),
            2 => addr().prop_map(Call::Remove),
            1 => (addr(), any::<u64>()).prop_map(|(addr, rounded)| Call::Change(addr, rounded)),
        ]
    }

    /// Blocks as a checkpoint has them, in any order.
    struct Rows(Vec<(u64, Block)>);

    impl Serialize for Rows {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            columns::write(self.0.iter().copied(), self.0.len(), serializer)
        }
    }

    proptest! {
        /// In no order, or forged with an address that comes twice.
        #[test]
        fn blocks_in_no_order_are_read(rows in proptest::collection::vec((0..40u64, any_block()), 0..60)) {
            let written = rmp_serde::to_vec_named(&Rows(rows.clone())).unwrap();
            let blocks: Blocks = memscope_messagepack::from_slice(&written).unwrap();
            let model: BTreeMap<u64, Block> = rows.into_iter().collect();
            prop_assert_eq!(blocks.len(), model.len());
            prop_assert!(blocks.by_address(|_| true).eq(model.iter().map(|(addr, block)| (*addr, *block))));
        }

        /// Against a map of the standard library, with a checkpoint now and then.
        #[test]
        fn as_a_map_of_blocks(calls in proptest::collection::vec(any_call(), 0..2000), every in 1..500usize) {
            let mut model: BTreeMap<u64, Block> = BTreeMap::new();
            let mut blocks = Blocks::default();
            for (number, call) in calls.into_iter().enumerate() {
                match call {
                    Call::Insert(addr, block) => {
                        model.insert(addr, block);
                        blocks.insert(addr, block);
                    }
                    Call::Remove(addr) => {
                        model.remove(&addr);
                        blocks.remove(&addr);
                    }
                    Call::Change(addr, rounded) => {
                        let (known, block) = (model.get_mut(&addr), blocks.get(&addr));
                        prop_assert_eq!(known.as_deref().copied(), block);
                        if let (Some(known), Some(mut block)) = (known, block) {
                            known.rounded = rounded;
                            block.rounded = rounded;
                            blocks.insert(addr, block);
                        }
                    }
                }
                if number % every == 0 {
                    let written = rmp_serde::to_vec_named(&blocks).unwrap();
                    blocks = memscope_messagepack::from_slice(&written).unwrap();
                }
                prop_assert_eq!(blocks.len(), model.len());
            }
            prop_assert!(blocks.by_address(|_| true).eq(model.iter().map(|(addr, block)| (*addr, *block))));
            let mut all: Vec<u64> = blocks.iter().map(|(addr, _)| addr).collect();
            all.sort_unstable();
            prop_assert!(all.iter().eq(model.keys()));
            for addr in (0..400).map(|number| number * 512) {
                prop_assert_eq!(blocks.get(&addr), model.get(&addr).copied());
                prop_assert_eq!(blocks.contains_key(&addr), model.contains_key(&addr));
            }
        }
    }
}
