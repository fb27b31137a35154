//! Readings: pictures are taken again and again until one is proven.

use std::time::{Duration, Instant};

use serde::Serialize;

use foldhash::HashMap;

use crate::edges::SegmentChange;
use crate::error::StructureError;
use crate::image::Image;
use crate::layout::Layout;
use crate::look::Look;
use crate::segments::{self, NAMES, SegmentReading, Sums};
use crate::settle::{Change, ChangeKind, pool_of, settle};
use crate::shape::{self, Mutex, word};
use crate::walk::{State, Walk};
use memscope_memory::Memory;

/// Maximum number of rounds in which one picture is completed: one for each level of the deepest tree, and some more.
const ROUNDS: u32 = 96;
/// Number of checks of the mutex before a picture is taken although the mutex is held.
const LOOKS: u32 = 200;
/// Number of contradictions in a row, while nothing changed, after which the layout is called wrong.
const CONTRADICTIONS: u32 = 4;
/// Maximum number of devices.
const DEVICES: usize = 256;

/// The state of one device's allocator at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceReading {
    /// Ordinal within the process.
    pub device: i32,
    /// Address of the device allocator's object: `this` in its methods.
    pub allocator: u64,
    /// Bytes of the blocks that are handed out, rounded as the allocator rounds them.
    pub allocated_bytes: u64,
    /// Bytes taken from the driver.
    pub reserved_bytes: u64,
    /// Bytes handed out or still in use by a stream.
    pub active_bytes: u64,
    /// Requested bytes of the active blocks.
    pub requested_bytes: u64,
    /// Segments by address.
    pub segments: Vec<SegmentReading>,
}

/// The state of all devices. Each device is exact at a moment of its own, as in PyTorch's snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Devices by ordinal.
    pub devices: Vec<DeviceReading>,
    /// Number of pictures that were taken of all devices together. It equals the number of devices if none had to be
    /// repeated.
    pub attempts: u32,
    /// Bytes read from the process.
    pub bytes_read: u64,
    /// Time that the reading took.
    pub duration: Duration,
}

/// Reads once. Repeated readings with a [`Reader`] are faster.
///
/// `allocator_pointer` is the address of `c10::cuda::CUDACachingAllocator::allocator`. `attempts` is the maximum number
/// of pictures for each device.
pub fn read(
    memory: &impl Memory,
    allocator_pointer: u64,
    layout: &Layout,
    attempts: u32,
) -> Result<Reading, StructureError> {
    Reader::new(layout.clone())?.read(memory, allocator_pointer, attempts)
}

/// Reads one process again and again. It remembers which places were needed, and reads all of them at once, which
/// leaves the process less time to change them in the meantime.
#[derive(Debug)]
pub struct Reader {
    layout: Layout,
    /// Needed places and their lengths, by device allocator.
    known: HashMap<u64, HashMap<u64, usize>>,
    attempts: u32,
    /// The allocator whose last pictures did not fit although nothing changed, and their number. They are counted across
    /// calls, since a caller may allow one attempt at a time.
    contradictions: (u64, u32),
    bytes_read: u64,
}

impl Reader {
    /// Makes a reader for a layout.
    ///
    /// # Errors
    /// [`StructureError::LayoutNotFound`] if no process can have this layout.
    pub fn new(layout: Layout) -> Result<Reader, StructureError> {
        if !layout.is_sound() {
            return Err(StructureError::LayoutNotFound {
                what: "the layout given lies out of its own bounds".to_owned(),
            });
        }
        Ok(Reader {
            layout,
            known: HashMap::default(),
            attempts: 0,
            contradictions: (0, 0),
            bytes_read: 0,
        })
    }

    /// The layout that this reader uses.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of pictures taken so far, refused ones included.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Bytes read from the process so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads all devices. `allocator_pointer` is the address of the exported pointer, and `attempts` the maximum number
    /// of pictures for each device.
    pub fn read(
        &mut self,
        memory: &impl Memory,
        allocator_pointer: u64,
        attempts: u32,
    ) -> Result<Reading, StructureError> {
        let began = Instant::now();
        let before = (self.attempts, self.bytes_read);
        let mut devices = Vec::new();
        for (ordinal, object) in self.devices(memory, allocator_pointer)?.iter().enumerate() {
            devices.push(self.read_device(memory, *object, ordinal as i32, attempts)?);
        }
        Ok(Reading {
            devices,
            attempts: self.attempts - before.0,
            bytes_read: self.bytes_read - before.1,
            duration: began.elapsed(),
        })
    }

    /// Addresses of the device allocators, by ordinal.
    pub fn devices(
        &mut self,
        memory: &impl Memory,
        allocator_pointer: u64,
    ) -> Result<Vec<u64>, StructureError> {
        let Some(at) = self.layout.devices else {
            return Err(StructureError::LayoutNotFound {
                what: "the list of device allocators: the layout was learned from one of them"
                    .to_owned(),
            });
        };
        let object = read_word(memory, allocator_pointer, "the allocator pointer")?;
        let mut bytes = [0; 24];
        if !shape::is_pointer(object) {
            return Err(StructureError::NothingYet {
                what: "no allocator is chosen",
            });
        }
        read_bytes(
            memory,
            object.wrapping_add(u64::from(at)),
            &mut bytes,
            "the list of device allocators",
        )?;
        self.bytes_read += 32;
        let list = elements(&bytes, 0).ok_or(StructureError::NothingYet {
            what: "the list of device allocators is empty",
        })?;
        let mut bytes = vec![0; list.1 * 8];
        read_bytes(memory, list.0, &mut bytes, "the list of device allocators")?;
        self.bytes_read += bytes.len() as u64;
        Ok((0..list.1).map(|i| word(&bytes, i * 8)).collect())
    }

    /// Reads one device. `object` is the address of its allocator: an element of [`Reader::devices`], or the `this`
    /// that a probe saw. `device` is the ordinal that it belongs to.
    pub fn read_device(
        &mut self,
        memory: &impl Memory,
        object: u64,
        device: i32,
        attempts: u32,
    ) -> Result<DeviceReading, StructureError> {
        let mut last = "no attempt was allowed".to_owned();
        if self.contradictions.0 != object {
            self.contradictions = (object, 0);
        }
        for _ in 0..attempts {
            let taken = self.take(memory, object)?;
            let refused = match taken {
                Taken::Changed(why) => {
                    last = why;
                    self.contradictions.1 = 0;
                    continue;
                }
                Taken::Still {
                    flaw: Some(why), ..
                } => why,
                Taken::Still { bytes, state, .. } => match self.prove(&bytes, &state) {
                    Ok(segments) => {
                        self.contradictions.1 = 0;
                        return Ok(self.reading(device, object, &bytes, segments));
                    }
                    Err(why) => why,
                },
            };
            self.contradictions.1 += 1;
            if self.contradictions.1 >= CONTRADICTIONS {
                self.contradictions.1 = 0;
                return Err(StructureError::Contradicted { what: refused });
            }
            last = refused;
        }
        Err(StructureError::Raced { attempts, last })
    }

    /// Number of active blocks according to a device's allocator, which may be in the middle of a change.
    pub fn active_blocks(&self, memory: &impl Memory, object: u64) -> Result<u64, StructureError> {
        let mut bytes = [0; shape::TABLE];
        let at = object.wrapping_add(u64::from(self.layout.active));
        read_bytes(memory, at, &mut bytes, "the table of active blocks")?;
        Ok(shape::table(&bytes, 0).map_or(0, |table| table.count))
    }

    /// Takes one look at a device's allocator, whatever the process does in the meantime. `clock` returns the moments
    /// at which the look begins and ends. With the changes between them, [`Reader::settle`] makes a reading of the
    /// look.
    pub fn look(
        &mut self,
        memory: &impl Memory,
        object: u64,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<Look, StructureError> {
        self.attempts = self.attempts.saturating_add(1);
        let look = Look::take(memory, &self.layout, object, clock)?;
        self.bytes_read += look.bytes_read;
        Ok(look)
    }

    /// Continues a look that did not settle, from its end, which becomes its new beginning, to a later moment. What has
    /// changed since the beginning is read again. `changes` are the changes for which it did not settle; none before
    /// its end may be missing.
    pub fn go_on(
        &mut self,
        memory: &impl Memory,
        look: &mut Look,
        changes: &[Change],
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<(), StructureError> {
        self.attempts = self.attempts.saturating_add(1);
        let before = look.bytes_read;
        let changed = changes.iter().map(|change| change.addr).collect();
        let segments = changes.iter().filter_map(|change| {
            let came = match change.kind {
                ChangeKind::SegmentAlloc => pool_of(look, change).zip(change.stream),
                ChangeKind::SegmentFree | ChangeKind::SegmentMapped => None,
                _ => return None,
            };
            Some(SegmentChange {
                addr: change.addr,
                bytes: change.bytes,
                came,
            })
        });
        let segments: Vec<SegmentChange> = segments.collect();
        look.go_on(memory, &self.layout, &changed, &segments, clock)?;
        self.bytes_read += look.bytes_read - before;
        Ok(())
    }

    /// Computes the state of the device at the end of the look. `changes` are all changes on the device since the look
    /// began; those after its end are ignored. They are not needed if the look [is still](Look::is_still).
    ///
    /// # Errors
    /// [`StructureError::Raced`] if too much changed at places that were not seen in time: take another look.
    /// [`StructureError::Contradicted`] if nothing changed and the structures do not fit all the same: the layout is
    /// not that of this process.
    pub fn settle(
        &self,
        look: &Look,
        device: i32,
        changes: &[Change],
    ) -> Result<DeviceReading, StructureError> {
        let segments = settle(&self.layout, look, changes).map_err(|what| {
            if look.is_still() {
                StructureError::Contradicted { what }
            } else {
                StructureError::Raced {
                    attempts: 1,
                    last: what,
                }
            }
        })?;
        Ok(self.reading(device, look.object, &look.ended.bytes, segments))
    }

    fn prove(&self, bytes: &[u8], state: &State) -> Result<Vec<SegmentReading>, String> {
        let sums: Sums = segments::sums(state);
        let found = self.layout.stats.all().into_iter().zip(sums.all());
        for ((at, sum), name) in found.zip(NAMES) {
            let stat = shape::stat_array(bytes, at as usize)
                .ok_or_else(|| format!("{name} is no statistic"))?;
            if stat != sum {
                return Err(format!(
                    "{name} is {stat:?} (all, small, large), the blocks give {sum:?}"
                ));
            }
        }
        Ok(segments::segments(state)?)
    }

    fn reading(
        &self,
        device: i32,
        allocator: u64,
        bytes: &[u8],
        segments: Vec<SegmentReading>,
    ) -> DeviceReading {
        let stats = &self.layout.stats;
        DeviceReading {
            device,
            allocator,
            allocated_bytes: word(bytes, stats.allocated_bytes as usize),
            reserved_bytes: word(bytes, stats.reserved_bytes as usize),
            active_bytes: word(bytes, stats.active_bytes as usize),
            requested_bytes: word(bytes, stats.requested_bytes as usize),
            segments,
        }
    }

    /// Takes one picture.
    pub(crate) fn take(
        &mut self,
        memory: &impl Memory,
        object: u64,
    ) -> Result<Taken, StructureError> {
        self.attempts = self.attempts.saturating_add(1);
        self.wait_for_mutex(memory, object);
        let place = (object, self.layout.object_len as usize);
        let known = self.known.entry(object).or_default();
        let mut image = Image::default();
        let unreadable = |source| StructureError::Unreadable {
            what: "the device allocator",
            address: object,
            source,
        };
        let (before, mut after) = image.fetch(memory, place, known).map_err(unreadable)?;
        let mut rounds = 0;
        let taken = loop {
            let walk = Walk::new(&image, &self.layout, object, &before);
            rounds += 1;
            if walk.missing.is_empty() || rounds > ROUNDS {
                // Places that were needed in earlier pictures are likely to be needed again. Their number is bounded.
                if known.len() > 2 * walk.wanted.len() + 1024 {
                    known.clear();
                }
                known.extend(&walk.wanted);
                known.retain(|address, _| !walk.holes.contains(address));
                let late = (!walk.missing.is_empty()).then(|| "no end was found".to_owned());
                break (walk.flaw.or(late), walk.state);
            }
            let missing = walk.missing;
            (_, after) = image.fetch(memory, place, &missing).map_err(unreadable)?;
        };
        self.bytes_read += image.fetched;
        // The mutex was free at both ends, and no byte of the object changed. Its counters only grow, and whatever
        // changes blocks also counts, so no call changed anything in between.
        if before != after {
            return Ok(Taken::Changed("the state changed meanwhile".to_owned()));
        }
        if self.layout.mutex && shape::mutex(&before) != Some(Mutex::Free) {
            return Ok(Taken::Changed("the allocator was locked".to_owned()));
        }
        let (flaw, state) = taken;
        Ok(Taken::Still {
            bytes: before,
            state,
            flaw,
        })
    }

    fn wait_for_mutex(&mut self, memory: &impl Memory, object: u64) {
        if !self.layout.mutex {
            return;
        }
        let mut bytes = [0; shape::MUTEX];
        for _ in 0..LOOKS {
            self.bytes_read += bytes.len() as u64;
            if memory.read(object, &mut bytes).is_err() || shape::mutex(&bytes) == Some(Mutex::Free)
            {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

/// Result of taking a picture.
pub(crate) enum Taken {
    /// The picture is of no use, because something changed or the allocator was locked.
    Changed(String),
    /// Nothing changed while the picture was taken.
    Still {
        bytes: Vec<u8>,
        state: State,
        flaw: Option<String>,
    },
}

/// Address and number of the elements of a vector of pointers at offset `at`.
pub(crate) fn elements(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let [begin, end, room] = [0, 8, 16].map(|i| word(bytes, at + i));
    let fits = shape::is_pointer(begin) && begin < end && end <= room && end.is_multiple_of(8);
    let count = usize::try_from(end.wrapping_sub(begin) / 8).ok()?;
    (fits && count <= DEVICES && room.is_multiple_of(8)).then_some((begin, count))
}

pub(crate) fn read_word(
    memory: &impl Memory,
    address: u64,
    what: &'static str,
) -> Result<u64, StructureError> {
    let mut bytes = [0; 8];
    read_bytes(memory, address, &mut bytes, what)?;
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn read_bytes(
    memory: &impl Memory,
    address: u64,
    bytes: &mut [u8],
    what: &'static str,
) -> Result<(), StructureError> {
    memory
        .read(address, bytes)
        .map_err(|source| StructureError::Unreadable {
            what,
            address,
            source,
        })
}
