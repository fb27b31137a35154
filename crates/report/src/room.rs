//! The free pieces of a pool, while it changes.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Free pieces, none of which reaches over the border of a segment that cannot grow. What contradicts what is known is left out.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// The end of each piece by its beginning.
    pieces: BTreeMap<u64, u64>,
    /// How many pieces have each size.
    sizes: BTreeMap<u64, u64>,
    /// Where such segments begin or end, and how many do there.
    borders: BTreeMap<u64, u32>,
    total: u64,
}

impl Room {
    /// A segment is here: no piece reaches over its beginning and its end.
    pub(crate) fn fence(&mut self, address: u64, size: u64) {
        for border in [address, address.saturating_add(size)] {
            *self.borders.entry(border).or_default() += 1;
        }
    }

    /// The segment is there no more. Its bytes are to be taken before.
    pub(crate) fn unfence(&mut self, address: u64, size: u64) {
        for border in [address, address.saturating_add(size)] {
            if let Some(count) = self.borders.get_mut(&border) {
                *count -= 1;
                if *count == 0 {
                    self.borders.remove(&border);
                }
            }
        }
    }

    /// What is free in all, bytes.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// The largest piece, bytes; 0 if nothing is free.
    pub(crate) fn largest(&self) -> u64 {
        self.sizes.last_key_value().map_or(0, |(size, _)| *size)
    }

    fn insert(&mut self, from: u64, to: u64) {
        if from < to {
            self.pieces.insert(from, to);
            *self.sizes.entry(to - from).or_default() += 1;
            self.total += to - from;
        }
    }

    fn remove(&mut self, from: u64) -> Option<u64> {
        let to = self.pieces.remove(&from)?;
        if let Some(count) = self.sizes.get_mut(&(to - from)) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&(to - from));
            }
        }
        self.total -= to - from;
        Some(to)
    }

    /// These bytes are free no more, or not there any more.
    pub(crate) fn take(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        // Nothing at all would cut the piece around it in two.
        if end == address {
            return;
        }
        loop {
            let before = self.pieces.range(..end).next_back();
            let Some((from, to)) = before.map(|(from, to)| (*from, *to)) else {
                return;
            };
            if to <= address || self.remove(from).is_none() {
                return;
            }
            self.insert(from, address.min(to));
            self.insert(end.max(from), to);
            if from <= address {
                return;
            }
        }
    }

    /// These bytes are free.
    pub(crate) fn give(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let mut from = address;
        while from < end {
            let mut inside = self
                .borders
                .range((Bound::Excluded(from), Bound::Excluded(end)));
            let to = inside.next().map_or(end, |(border, _)| *border);
            self.give_piece(from, to);
            from = to;
        }
    }

    /// These bytes, among which no segment begins, are free.
    fn give_piece(&mut self, mut from: u64, mut to: u64) {
        // What was free already, by contradicting events, must not count twice.
        self.take(from, to - from);
        let before = self.pieces.range(..from).next_back();
        if let Some((start, end)) = before.map(|(start, end)| (*start, *end))
            && end == from
            && !self.borders.contains_key(&from)
            && self.remove(start).is_some()
        {
            from = start;
        }
        if !self.borders.contains_key(&to)
            && let Some(end) = self.remove(to)
        {
            to = end;
        }
        self.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::Room;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn pieces_are_those_of_a_plain_list_of_bytes(
            changes in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..24), 0..40),
            segments in prop::collection::vec((0u64..64, 1u64..30), 0..4),
            gone in prop::collection::vec((0u64..64, 1u64..30), 0..3),
        ) {
            let mut room = Room::default();
            for (at, size) in segments.iter().chain(&gone) {
                room.fence(*at, *size);
            }
            for (at, size) in &gone {
                room.unfence(*at, *size);
            }
            let borders: BTreeSet<u64> = segments.iter().flat_map(|(at, size)| [*at, at + size]).collect();
            let mut bytes = [false; 100];
            for (is_free, at, size) in changes {
                match is_free {
                    true => room.give(at, size),
                    false => room.take(at, size),
                }
                for byte in at..at + size {
                    bytes[byte as usize] = is_free;
                }
                let (mut longest, mut run) = (0, 0);
                for (at, free) in bytes.iter().enumerate() {
                    if borders.contains(&(at as u64)) {
                        run = 0;
                    }
                    run = if *free { run + 1 } else { 0 };
                    longest = longest.max(run);
                }
                prop_assert_eq!(room.largest(), longest);
                prop_assert_eq!(room.total(), bytes.iter().filter(|free| **free).count() as u64);
            }
        }
    }
}
