//! Takes looks at an allocator that goes on in the meantime: between any two reads blocks and segments may come and go,
//! and with each change everything in the process's memory is at another place. A settled look must be the state at its
//! end.

#![allow(clippy::unwrap_used)]

mod synthetic;

use std::cell::{Cell, RefCell};
use std::io;

use memscope_memory::{Memory, Part};
use memscope_structure::{
    BlockState, Change, ChangeKind, DeviceReading, Reader, StructureError, find_layout,
};
use proptest::prelude::*;
use synthetic::{Kind, NEW, OLD, Row, SLOT, Segment, Shape, Synthetic, expected, process, rows};

/// A word of the allocator's object that counts the changes.
const COUNTER: u64 = 2700;
const CHUNK: u64 = 0x20_0000;
const START: u64 = 0x7f00_0000_0000;

/// Maximum number of blocks of a segment, so that all of them fit into the process's memory.
const MOST_BLOCKS: usize = 60;

/// A process that goes on while it is read.
struct Living {
    shape: Shape,
    memory: RefCell<Synthetic>,
    segments: RefCell<Vec<Segment>>,
    changes: RefCell<Vec<Change>>,
    /// The states of the past, each with the time from which on it was valid.
    past: RefCell<Vec<(u64, Vec<Row>)>>,
    clock: Cell<u64>,
    dice: Cell<u64>,
    /// A change happens at one of this number of reads.
    rarely: Cell<u64>,
    /// There are only reports, which contain rounded bytes only.
    reports: bool,
}

impl Memory for Living {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.borrow().read(address, buffer)?;
        if self.roll(self.rarely.get()) == 0 {
            self.happen();
        }
        Ok(())
    }
}

impl Living {
    fn new(shape: Shape, segments: Vec<Segment>, dice: u64, reports: bool) -> Living {
        let living = Living {
            shape,
            memory: RefCell::new(process(&shape, std::slice::from_ref(&segments))),
            segments: RefCell::new(segments),
            changes: RefCell::default(),
            past: RefCell::default(),
            clock: Cell::new(1),
            dice: Cell::new(dice | 1),
            rarely: Cell::new(u64::MAX),
            reports,
        };
        living.told();
        living
    }

    fn roll(&self, sides: u64) -> u64 {
        let mut x = self.dice.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.dice.set(x);
        (x >> 11) % sides
    }

    fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn change(&self, kind: ChangeKind, addr: u64, bytes: u64, rounded: u64) {
        let of_segment = matches!(kind, ChangeKind::SegmentAlloc | ChangeKind::SegmentFree);
        self.changes.borrow_mut().push(Change {
            at_ns: self.now(),
            kind,
            addr,
            bytes: (of_segment || !self.reports).then_some(bytes),
            rounded: Some(rounded),
            stream: Some(0),
            pool: None,
        });
    }

    fn told(&self) {
        let rows = expected(&self.segments.borrow());
        self.past.borrow_mut().push((self.clock.get(), rows));
    }

    fn happen(&self) {
        match self.roll(12) {
            0..5 => self.alloc(),
            5..10 => self.free(),
            10 if self.segments.borrow().len() < 12 => {
                let mut segments = self.segments.borrow_mut();
                let addr = segments.iter().map(|segment| segment.addr).max().unwrap() + CHUNK;
                segments.push(Segment {
                    addr,
                    stream: 0,
                    small: true,
                    pool: None,
                    blocks: vec![(CHUNK, 0, Kind::Inactive)],
                });
                self.change(ChangeKind::SegmentAlloc, addr, CHUNK, 0);
            }
            _ => {
                let mut segments = self.segments.borrow_mut();
                let whole =
                    |segment: &Segment| matches!(segment.blocks[..], [(CHUNK, _, Kind::Inactive)]);
                if segments.len() > 1
                    && let Some(at) = segments.iter().position(whole)
                {
                    let segment = segments.remove(at);
                    self.change(ChangeKind::SegmentFree, segment.addr, CHUNK, 0);
                }
            }
        }
        let memory = process(&self.shape, &[self.segments.borrow().clone()]);
        memory.put(memory.allocator + COUNTER, self.now());
        *self.memory.borrow_mut() = memory;
        self.told();
    }

    fn alloc(&self) {
        let mut segments = self.segments.borrow_mut();
        let at = self.roll(segments.len() as u64) as usize;
        let segment = &mut segments[at];
        let free = segment
            .blocks
            .iter()
            .filter(|block| block.2 == Kind::Inactive)
            .count();
        if free == 0 || segment.blocks.len() > MOST_BLOCKS {
            return;
        }
        let nth = self.roll(free as u64) as usize;
        let mut places =
            (0..segment.blocks.len()).filter(|place| segment.blocks[*place].2 == Kind::Inactive);
        let place = places.nth(nth).unwrap();
        let (room, before, _) = segment.blocks[place];
        let rounded = 512 * (1 + self.roll(8));
        let rounded = if rounded > room { room } else { rounded };
        let requested = rounded - self.roll(512);
        segment.blocks[place] = (rounded, requested, Kind::Allocated);
        if room > rounded {
            let rest = (room - rounded, before, Kind::Inactive);
            segment.blocks.insert(place + 1, rest);
        }
        let addr = addr_of(segment, place);
        self.change(ChangeKind::Alloc, addr, requested, rounded);
    }

    fn free(&self) {
        let mut segments = self.segments.borrow_mut();
        let at = self.roll(segments.len() as u64) as usize;
        let segment = &mut segments[at];
        let place = self.roll(segment.blocks.len() as u64) as usize;
        let (size, requested, kind) = segment.blocks[place];
        let addr = addr_of(segment, place);
        match kind {
            // Without trace entries nothing reports when a stream has finished with a block.
            Kind::Allocated if self.roll(4) == 0 && !self.reports => {
                segment.blocks[place].2 = Kind::Pending;
                return self.change(ChangeKind::FreeRequested, addr, requested, 0);
            }
            Kind::Allocated => self.change(ChangeKind::FreeRequested, addr, requested, 0),
            Kind::Pending if !self.reports => {}
            _ => return,
        }
        self.change(ChangeKind::FreeCompleted, addr, requested, 0);
        // The block that was freed stays, with its requested bytes, and its free neighbours are joined with it.
        segment.blocks[place] = (size, requested, Kind::Inactive);
        for other in [place + 1, place.wrapping_sub(1)] {
            if segment
                .blocks
                .get(other)
                .is_some_and(|block| block.2 == Kind::Inactive)
            {
                let joined = segment.blocks[other].0;
                let stays = place.min(other);
                segment.blocks[stays] =
                    (segment.blocks[place].0 + joined, requested, Kind::Inactive);
                segment.blocks.remove(stays + 1);
            }
        }
    }

    fn at(&self, time: u64) -> Vec<Row> {
        let past = self.past.borrow();
        let last = past.iter().rev().find(|(since, _)| *since <= time);
        last.unwrap().1.clone()
    }
}

fn addr_of(segment: &Segment, place: usize) -> u64 {
    let before = segment.blocks[..place].iter().map(|block| block.0);
    segment.addr + before.sum::<u64>()
}

fn begin(dice: u64, reports: bool, shape: Shape, rarely: u64) -> (Living, Reader) {
    let segments = (0..3)
        .map(|i| Segment {
            addr: START + i * 16 * CHUNK,
            stream: 0,
            small: true,
            pool: None,
            blocks: vec![(CHUNK, 0, Kind::Inactive)],
        })
        .collect();
    let living = Living::new(shape, segments, dice, reports);
    for _ in 0..120 {
        living.happen();
    }
    let layout = find_layout(&living, SLOT);
    living.rarely.set(rarely);
    (living, Reader::new(layout.unwrap()).unwrap())
}

/// Maximum number of passes of one look.
const PASSES: u32 = 5;

fn look(living: &Living, reader: &mut Reader) -> Result<(DeviceReading, Vec<Row>), StructureError> {
    let object = living.memory.borrow().allocator;
    let clock = &mut || living.now();
    let mut look = reader.look(living, object, clock)?;
    let mut passes = 1;
    loop {
        let changes = living.changes.borrow().clone();
        match reader.settle(&look, 0, &changes) {
            Err(StructureError::Raced { .. }) if passes < PASSES => {}
            settled => return Ok((settled?, living.at(look.ended_ns()))),
        }
        passes += 1;
        reader.go_on(living, &mut look, &changes, clock)?;
    }
}

/// Checks that what was found is the truth. Only the last use of free room, and the requested bytes where there are
/// only reports, may be unknown, and are 0 then.
fn check(found: &[Row], truth: &[Row], reports: bool) -> Result<usize, TestCaseError> {
    prop_assert_eq!(found.len(), truth.len());
    let mut unknown = 0;
    for (found, truth) in found.iter().zip(truth) {
        let bare = |row: &Row| (row.0, row.1, row.2, row.3, row.4, row.5);
        prop_assert_eq!(bare(found), bare(truth));
        prop_assert_eq!(found.6.len(), truth.6.len());
        for (found, truth) in found.6.iter().zip(&truth.6) {
            prop_assert_eq!((found.0, found.1, found.3), (truth.0, truth.1, truth.3));
            let may_be_unknown = reports || found.3 == BlockState::Inactive;
            if found.2 == 0 && may_be_unknown {
                unknown += usize::from(truth.2 != 0);
            } else {
                prop_assert_eq!(found.2, truth.2);
            }
        }
    }
    Ok(unknown)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn settled_is_true(
        dice in any::<u64>(),
        reports in any::<bool>(),
        new in any::<bool>(),
        rarely in 3u64..60,
    ) {
        let (living, mut reader) = begin(dice, reports, if new { NEW } else { OLD }, rarely);
        for _ in 0..3 {
            match look(&living, &mut reader) {
                Ok((reading, truth)) => {
                    check(&rows(&reading), &truth, reports)?;
                }
                Err(StructureError::Raced { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}

/// Most looks succeed at a process that changes too often to be read while it stands still.
#[test]
fn looks_succeed_while_it_goes_on() {
    let (mut settled, mut moved, mut known, mut unknown) = (0, 0, 0, 0);
    for dice in 1..200 {
        let (living, mut reader) = begin(dice * 7919, false, NEW, 8);
        let before = living.changes.borrow().len();
        if let Ok((reading, truth)) = look(&living, &mut reader) {
            settled += 1;
            moved += living.changes.borrow().len() - before;
            unknown += check(&rows(&reading), &truth, false).unwrap();
            known += truth.iter().map(|row| row.6.len()).sum::<usize>();
        }
    }
    assert!(settled > 80, "{settled} of 199 settled");
    assert!(
        moved > settled,
        "{moved} changes while {settled} looks were taken"
    );
    assert!(unknown * 10 < known, "{unknown} of {known} rooms unknown");
}

/// A process that changes once, right after the first read of its table of active blocks. A reader that reads that
/// table by itself sees it as it was before, as if a block had come back to it and gone again.
struct Twice {
    before: Synthetic,
    after: Synthetic,
    table: std::ops::Range<u64>,
    changed: Cell<bool>,
}

impl Memory for Twice {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.table.contains(&address) {
            self.changed.set(true);
            return self.before.read(address, buffer);
        }
        self.now().read(address, buffer)
    }

    fn read_many(&self, parts: &mut [Part]) -> io::Result<()> {
        self.now().read_many(parts)
    }
}

impl Twice {
    fn now(&self) -> &Synthetic {
        if self.changed.get() {
            &self.after
        } else {
            &self.before
        }
    }
}

#[test]
fn a_block_between_two_uses_does_not_wait_for_a_stream() {
    use ChangeKind::{Alloc, FreeCompleted, FreeRequested};
    use Kind::{Allocated, Inactive};
    let segment = |blocks: [(u64, Kind); 4]| {
        let blocks = blocks.map(|(size, kind)| (size, size, kind)).to_vec();
        let filled: u64 = blocks.iter().map(|block| block.0).sum();
        let rest = [(CHUNK - filled, 0, Inactive)];
        Segment {
            addr: START,
            stream: 0,
            small: true,
            pool: None,
            blocks: [blocks, rest.to_vec()].concat(),
        }
    };
    let before = segment([
        (1024, Allocated),
        (512, Allocated),
        (512, Inactive),
        (512, Allocated),
    ]);
    // The second block's object has moved to a place without a reported change.
    let after = segment([
        (512, Allocated),
        (1024, Inactive),
        (512, Allocated),
        (512, Allocated),
    ]);
    let events = [
        (FreeRequested, 1024, 512),
        (FreeCompleted, 1024, 512),
        (FreeRequested, 0, 1024),
        (FreeCompleted, 0, 1024),
        (Alloc, 0, 512),
        (Alloc, 1536, 512),
    ];
    let changes = events.map(|(kind, at, bytes)| Change {
        at_ns: 0,
        kind,
        addr: START + at,
        bytes: Some(bytes),
        rounded: Some(bytes),
        stream: Some(0),
        pool: None,
    });
    let memory = |segment: &Segment| process(&NEW, &[vec![segment.clone()]]);
    let living = Twice {
        before: memory(&before),
        after: memory(&after),
        table: 0..0,
        changed: Cell::new(false),
    };
    let object = living.after.allocator;
    living.after.put(object + COUNTER, 1);
    let layout = find_layout(&living, SLOT).unwrap();
    let mut reader = Reader::new(layout).unwrap();
    let table = living.after.active_table(&NEW);
    let living = Twice { table, ..living };
    let mut time = 0;
    let clock = &mut || {
        time += 10;
        time
    };
    let look = reader.look(&living, object, clock).unwrap();
    assert!(living.changed.get() && !look.is_still());
    let changes = changes.map(|change| Change {
        at_ns: look.began_ns() + 1,
        ..change
    });
    let reading = reader.settle(&look, 0, &changes).unwrap();
    check(&rows(&reading), &expected(&[after]), false).unwrap();
}
