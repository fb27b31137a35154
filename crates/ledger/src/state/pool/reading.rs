//! Puts the parts of readings of a device's pool together.
//!
//! Owns: the parts that have come of readings that are not complete. Refuses: parts out of order, and readings that are
//! too large to be true. Such a reading is dropped as a whole and counted.

use crate::event::{HeldPart, HeldSegment};
use serde::{Deserialize, Serialize};

/// Maximum number of readings under way at one time; there is one per device.
const DEVICES: usize = 64;
/// Maximum number of blocks, segments and free rooms in one reading: several times that of the largest process that was
/// ever read.
pub(crate) const MOST: usize = 1 << 24;

/// A complete reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reading {
    pub(crate) at_ns: u64,
    pub(crate) device: i32,
    pub(crate) allocator: u64,
    pub(crate) total_allocated: u64,
    pub(crate) total_reserved: u64,
    pub(crate) segments: Vec<HeldSegment>,
}

/// What follows from a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Taken {
    /// Number of readings of this device that will never be complete.
    pub(crate) dropped: u64,
    /// The reading that this part completes.
    pub(crate) complete: Option<Reading>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Begun {
    next: u32,
    parts: u32,
    /// Number of segments, blocks and free rooms so far.
    kept: usize,
    reading: Reading,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Readings {
    begun: Vec<Begun>,
    /// The last reading that was dropped, so that its other parts do not count again.
    dropped: Option<(i32, u64)>,
}

impl Readings {
    /// Takes a part.
    pub(crate) fn take(&mut self, part: &HeldPart) -> Taken {
        let mut taken = Taken::default();
        let place = self
            .begun
            .iter()
            .position(|begun| begun.reading.device == part.device);
        let before = place.map(|place| self.begun.swap_remove(place));
        let begun = match before {
            Some(before) if before.continues(part) => Some(before),
            before => {
                if let Some(before) = before {
                    self.drop(&mut taken, before.reading.device, before.reading.at_ns);
                }
                let fresh = part.part == 0 && part.parts > 0 && self.begun.len() < DEVICES;
                fresh.then(|| Begun::new(part))
            }
        };
        match begun.and_then(|begun| begun.with(part)) {
            None => self.drop(&mut taken, part.device, part.at_ns),
            Some(begun) if begun.next == begun.parts => taken.complete = Some(begun.reading),
            Some(begun) => self.begun.push(begun),
        }
        taken
    }

    fn drop(&mut self, taken: &mut Taken, device: i32, at_ns: u64) {
        if self.dropped != Some((device, at_ns)) {
            self.dropped = Some((device, at_ns));
            taken.dropped += 1;
        }
    }

    /// Number of segments, blocks and free rooms kept of readings under way.
    pub(crate) fn kept(&self) -> usize {
        self.begun.iter().map(|begun| begun.kept).sum()
    }
}

impl Begun {
    fn new(part: &HeldPart) -> Begun {
        Begun {
            next: 0,
            parts: part.parts,
            kept: 0,
            reading: Reading {
                at_ns: part.at_ns,
                device: part.device,
                allocator: part.allocator,
                total_allocated: part.total_allocated,
                total_reserved: part.total_reserved,
                segments: Vec::new(),
            },
        }
    }

    fn continues(&self, part: &HeldPart) -> bool {
        let reading = &self.reading;
        (part.part, part.parts) == (self.next, self.parts)
            && (part.at_ns, part.total_allocated, part.total_reserved)
                == (
                    reading.at_ns,
                    reading.total_allocated,
                    reading.total_reserved,
                )
    }

    /// Adds a part; `None` if the reading becomes too large.
    fn with(mut self, part: &HeldPart) -> Option<Begun> {
        for segment in &part.segments {
            let pairs = segment.rooms.len() + segment.holes.len() + segment.stacks.len();
            let items = segment.blocks.len() + pairs;
            self.kept = self.kept.saturating_add(1 + items);
            if self.kept > MOST {
                return None;
            }
            match self.reading.segments.last_mut() {
                Some(last) if (last.addr, last.size) == (segment.addr, segment.size) => {
                    last.blocks.extend_from_slice(&segment.blocks);
                    last.rooms.extend_from_slice(&segment.rooms);
                    last.holes.extend_from_slice(&segment.holes);
                    last.stacks.extend_from_slice(&segment.stacks);
                }
                _ => self.reading.segments.push(segment.clone()),
            }
        }
        self.next += 1;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(device: i32, at_ns: u64, part: u32, parts: u32) -> HeldPart {
        HeldPart {
            at_ns,
            device,
            allocator: 0,
            part,
            parts,
            total_allocated: 512,
            total_reserved: 1024,
            segments: vec![HeldSegment {
                addr: 4096,
                size: 1024,
                stream: 0,
                large: false,
                pool: (0, 0),
                expandable: false,
                blocks: vec![(4096 + 512 * u64::from(part), 512, 100, false)],
                ..HeldSegment::default()
            }],
        }
    }

    fn dropped(taken: Taken) -> u64 {
        assert_eq!(taken.complete, None);
        taken.dropped
    }

    #[test]
    fn parts_of_two_devices_may_mingle() {
        let mut readings = Readings::default();
        assert_eq!(dropped(readings.take(&part(0, 5, 0, 2))), 0);
        assert_eq!(dropped(readings.take(&part(1, 6, 0, 2))), 0);
        let whole = readings.take(&part(0, 5, 1, 2)).complete;
        let segments = whole.map(|reading| reading.segments).unwrap_or_default();
        assert_eq!((segments.len(), segments[0].blocks.len()), (1, 2));
        assert!(readings.take(&part(1, 6, 1, 2)).complete.is_some());
        assert_eq!(readings.kept(), 0);
    }

    #[test]
    fn millions_of_blocks_are_taken() {
        const COUNT: u64 = 2_200_000;
        let mut readings = Readings::default();
        let mut whole = part(0, 5, 0, 1);
        let block = |i| (4096 + 512 * i, 512, 100, false);
        whole.segments[0].size = 512 * COUNT;
        whole.segments[0].blocks = (0..COUNT).map(block).collect();
        let taken = readings.take(&whole);
        assert_eq!((taken.dropped, taken.complete.is_some()), (0, true));
    }

    #[test]
    fn interrupted_ones_are_dropped_and_counted_once() {
        let mut readings = Readings::default();
        assert_eq!(dropped(readings.take(&part(0, 5, 0, 3))), 0);
        assert_eq!(dropped(readings.take(&part(0, 5, 2, 3))), 1, "a hole");
        assert_eq!(dropped(readings.take(&part(0, 5, 2, 3))), 0, "the same one");
        assert_eq!(dropped(readings.take(&part(0, 7, 1, 2))), 1, "no beginning");
        assert_eq!(dropped(readings.take(&part(0, 8, 0, 2))), 0);
        let over = readings.take(&part(0, 9, 0, 1));
        assert_eq!((over.dropped, over.complete.is_some()), (1, true));
        assert_eq!(dropped(readings.take(&part(0, 10, 0, 0))), 1, "of no parts");
    }
}
