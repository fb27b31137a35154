//! Readings of the structures of PyTorch's allocator: where they are looked for, and how often a reading is tried while the process goes on.
//!
//! Owns: the attempts. Refuses: to know who follows the process: what happened meanwhile and whether a reading is accepted is asked of
//! [`Outside`], since a reading is made by a reader process.

use std::io;
use std::time::{Duration, Instant};

use memscope_ledger::event::{HeldPart, HeldSegment, ReadingCost};
use memscope_log::records::held_parts;
use memscope_memory::ProcessMemory;
use memscope_structure::{
    BlockState, Change, DeviceReading, Layout, Reader, SegmentReading, StructureError,
};
use serde::{Deserialize, Serialize};

use crate::clock;

/// Number of attempts that may fail, and the time for them, before the failure is reported. Another reading follows
/// in any case.
const ATTEMPTS: u32 = 400;
const TIME: Duration = Duration::from_secs(20);
/// A reading that takes longer than this is unlikely to find a busy process at rest.
const SLOW: Duration = Duration::from_millis(20);
/// With more blocks than `LARGE`, a reading certainly takes longer than `SLOW`. With no more blocks than `SMALL`, a
/// look is not continued: the process comes to rest before a continued look would end, and continuing takes time from
/// the process and from the daemon.
const LARGE: u64 = 50_000;
const SMALL: u64 = 2_000;
/// Most passes of one look, and the longest time for which it is continued. A pass needs the ledger's events only
/// since the pass before it ended.
const PASSES: u32 = 100;
const LOOK: Duration = Duration::from_secs(30);
/// Pause between attempts, so that the process can get on.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of times that a reading is made again because the ledger did not accept it.
const AGAIN: u32 = 5;

/// Those who follow the process.
pub trait Outside {
    /// All changes on a device since a moment; `None` if records were lost meanwhile.
    fn changes(
        &mut self,
        device: i32,
        object: u64,
        since_ns: u64,
    ) -> io::Result<Option<Vec<Change>>>;

    /// Takes a part of a reading.
    fn hold(&mut self, part: HeldPart) -> io::Result<()>;

    /// Whether the ledger has accepted what was held.
    fn is_taken(&mut self) -> io::Result<bool>;
}

/// What is to be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Address of the exported pointer to the allocator.
    pub pointer: u64,
    /// Whether probes report what happens to blocks during the reading, which they do not at level `read`.
    pub told: bool,
    /// The layout that an earlier reading found for the same library.
    pub layout: Option<Layout>,
}

/// Sums of what was found.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Devices that hold memory.
    pub devices: u32,
    /// Segments that these devices have, of all pools together.
    pub segments: u64,
    /// Blocks that are handed out.
    pub blocks: u64,
    /// Bytes of these blocks, rounded as the allocator rounds them.
    pub allocated_bytes: u64,
    /// Bytes taken from the driver.
    pub reserved_bytes: u64,
}

/// How a reading ended.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The ledger has accepted the reading.
    Taken {
        /// Where the structures lie, so that the next reading is faster.
        layout: Layout,
        /// Sums of what was found.
        found: Found,
        /// What it cost.
        cost: ReadingCost,
    },
    /// The process does not hold anything yet from which a layout could be learned.
    NothingYet,
    /// There is no reading.
    Failed {
        /// The reason with its causes, as coverage notes show it.
        why: String,
        /// The layout, if it was found: the next attempt begins with it.
        layout: Option<Layout>,
    },
}

/// Progress of the attempts.
struct Pace {
    /// Number of attempts that failed.
    raced: u32,
    /// When the attempts began.
    since: Instant,
    /// Whether the last attempt to read the process at rest took longer than `SLOW`.
    slow: bool,
}

impl Pace {
    fn is_patient(&self) -> bool {
        self.raced < ATTEMPTS && self.since.elapsed() < TIME
    }
}

/// Reads the structures of a process, and tries again while that is of use.
pub fn read(memory: &ProcessMemory, wanted: Wanted, outside: &mut dyn Outside) -> Outcome {
    let failed = |why: String, layout| Outcome::Failed { why, layout };
    let began = Instant::now();
    let mut attempts = Attempts {
        memory,
        pointer: wanted.pointer,
        told: wanted.told,
        outside,
        pace: Pace {
            raced: 0,
            since: began,
            slow: false,
        },
    };
    let mut bytes_read = 0;
    let mut refused = 0;
    // What the attempts before have left for the next one.
    let mut layout = wanted.layout;
    let mut kept: Option<Reader> = None;
    loop {
        let remembered = layout.is_some() || kept.is_some();
        let reader = match (kept.take(), layout.take()) {
            (Some(reader), _) => Ok(reader),
            (None, Some(layout)) => Reader::new(layout),
            (None, None) => {
                memscope_structure::find_layout(memory, wanted.pointer).and_then(Reader::new)
            }
        };
        if !remembered && attempts.pace.raced == 0 {
            // The search for the layout takes long in a large process and does not count as an attempt.
            attempts.pace.since = Instant::now();
        }
        let outcome = reader.and_then(|mut reader| {
            let before = reader.bytes_read();
            let read = attempts.read_devices(&mut reader);
            bytes_read += reader.bytes_read() - before;
            read.map_err(|error| {
                // The attempt may only have come at a bad moment, so the layout is kept.
                if !matches!(error, StructureError::Contradicted { .. }) {
                    layout = Some(reader.layout().clone());
                }
                error
            })
            .map(|found| (reader, found))
        });
        match outcome {
            Ok((reader, (found, at_ns))) => match attempts.outside.is_taken() {
                Ok(true) => {
                    return Outcome::Taken {
                        layout: reader.layout().clone(),
                        found,
                        cost: ReadingCost {
                            at_ns,
                            duration_ns: began.elapsed().as_nanos() as u64,
                            bytes_read,
                            raced: attempts.pace.raced,
                        },
                    };
                }
                Ok(false) if refused < AGAIN => {
                    refused += 1;
                    kept = Some(reader);
                }
                Ok(false) => {
                    let why = "the readings did not fit to the events around them";
                    return failed(why.to_owned(), Some(reader.layout().clone()));
                }
                Err(error) => return failed(error.to_string(), Some(reader.layout().clone())),
            },
            Err(StructureError::NothingYet { .. }) => return Outcome::NothingYet,
            // The remembered layout is not that of this process after all.
            Err(StructureError::Contradicted { .. }) if remembered => {}
            // A layout cannot be found while the process changes the structures in which it is searched.
            Err(StructureError::LayoutNotFound { .. } | StructureError::Contradicted { .. })
                if attempts.pace.is_patient() =>
            {
                attempts.pace.raced += 1;
            }
            Err(error) => return failed(crate::error_chain(&error), layout),
        }
        std::thread::sleep(PAUSE);
    }
}

struct Attempts<'a> {
    memory: &'a ProcessMemory,
    pointer: u64,
    told: bool,
    outside: &'a mut dyn Outside,
    pace: Pace,
}

impl Attempts<'_> {
    /// Reads every device, and hands each accepted reading over. Returns the sums, and the moment of the last device.
    fn read_devices(&mut self, reader: &mut Reader) -> Result<(Found, u64), StructureError> {
        let mut found = Found::default();
        let mut last_ns = 0;
        let objects = reader.devices(self.memory, self.pointer)?;
        for (device, object) in (0i32..).zip(objects) {
            loop {
                match self.read_device(reader, object, device) {
                    Ok((at_ns, reading)) => {
                        last_ns = at_ns;
                        add(&mut found, &reading);
                        self.hold(at_ns, reading)?;
                        break;
                    }
                    Err(StructureError::Raced { .. }) if self.pace.is_patient() => {
                        self.pace.raced += 1;
                    }
                    Err(error) => return Err(error),
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok((found, last_ns))
    }

    /// One attempt at a device's allocator. A small allocator is read at a moment at which nothing changes. A large
    /// one in use has no such moment: it is looked at while it changes, and its state is computed with what happened
    /// since the look began.
    fn read_device(
        &mut self,
        reader: &mut Reader,
        object: u64,
        device: i32,
    ) -> Result<(u64, DeviceReading), StructureError> {
        let memory = self.memory;
        let blocks = reader.active_blocks(memory, object)?;
        if !(self.told && (blocks > LARGE || self.pace.slow)) {
            let began = Instant::now();
            // Events from here on may or may not be in the reading. The ledger applies them to it, and recognises
            // those that are in it already.
            let at_ns = clock::boot_ns();
            let read = reader.read_device(memory, object, device, 1);
            self.pace.slow = began.elapsed() > SLOW;
            return Ok((at_ns, read?));
        }
        // The next attempt is made at rest again: the last one may have been slow because the machine was.
        self.pace.slow = false;
        let clock = &mut clock::boot_ns;
        let mut look = reader.look(memory, object, clock)?;
        let began = Instant::now();
        let mut passes = 1;
        loop {
            let changes = if look.is_still() {
                Vec::new()
            } else {
                self.changes(device, object, look.began_ns())?
            };
            match reader.settle(&look, device, &changes) {
                Err(StructureError::Raced { .. })
                    if blocks > SMALL && passes < PASSES && began.elapsed() < LOOK => {}
                settled => return Ok((look.ended_ns(), settled?)),
            }
            passes += 1;
            reader.go_on(memory, &mut look, &changes, clock)?;
        }
    }

    fn changes(
        &mut self,
        device: i32,
        object: u64,
        since_ns: u64,
    ) -> Result<Vec<Change>, StructureError> {
        let changes = self.outside.changes(device, object, since_ns);
        changes
            .map_err(unanswered)?
            .ok_or_else(|| StructureError::Raced {
                attempts: 1,
                last: "records were lost meanwhile".to_owned(),
            })
    }

    fn hold(&mut self, at_ns: u64, device: DeviceReading) -> Result<(), StructureError> {
        let segments = device.segments.into_iter().map(held).collect();
        let parts = held_parts(HeldPart {
            at_ns,
            device: device.device,
            allocator: device.allocator,
            total_allocated: device.allocated_bytes,
            total_reserved: device.reserved_bytes,
            segments,
            ..HeldPart::default()
        });
        for part in parts {
            self.outside.hold(part).map_err(unanswered)?;
        }
        Ok(())
    }
}

/// The other side is gone.
fn unanswered(source: io::Error) -> StructureError {
    StructureError::Unreadable {
        what: "what happened meanwhile",
        address: 0,
        source,
    }
}

fn add(found: &mut Found, reading: &DeviceReading) {
    found.devices += u32::from(reading.reserved_bytes > 0);
    found.segments += reading.segments.len() as u64;
    found.allocated_bytes += reading.allocated_bytes;
    found.reserved_bytes += reading.reserved_bytes;
    found.blocks += reading
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(|block| block.state == BlockState::Allocated)
        .count() as u64;
}

fn held(segment: SegmentReading) -> HeldSegment {
    let rooms = segment
        .blocks
        .iter()
        .filter(|block| block.state == BlockState::Inactive && block.requested != 0)
        .map(|block| (block.addr, block.requested))
        .collect();
    HeldSegment {
        addr: segment.addr,
        size: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: segment.pool,
        pool_untold: false,
        expandable: segment.expandable,
        space: segment.space,
        rooms,
        holes: segment.holes,
        blocks: segment
            .blocks
            .into_iter()
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| {
                let pending = block.state == BlockState::PendingFree;
                (block.addr, block.size, block.requested, pending)
            })
            .collect(),
        // A block in the process's memory does not say who allocated it.
        stacks: Vec::new(),
    }
}
