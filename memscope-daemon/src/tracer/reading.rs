//! Readings: what a process held before the attach, and after a loss, out of its allocator's own
//! structures. Each runs in a thread of its own, since a busy process makes it try again.

use std::sync::mpsc::Sender;
use std::time::Duration;

use memscope_decode::{DaemonRecord, held_parts};
use memscope_ledger::event::{Backend, HeldSegment, ProcessHandle};
use memscope_structure::{
    BlockState, DeviceReading, Layout, ProcessMemory, Reader, SegmentReading, StructureError,
};

use super::{Order, Tracer};
use crate::clock;
use crate::keeper::{Command, KeeperHandle};

/// Attempts to find a moment in which nothing changes, each a few milliseconds.
const ATTEMPTS: u32 = 400;
/// Pause between attempts: the process is to get on.
const PAUSE: Duration = Duration::from_millis(2);
/// How often a reading is made again that the ledger did not take.
const AGAIN: u32 = 5;
/// What the ledger says of readings that it did not take.
const NOT_TAKEN: [&str; 2] = ["reading_too_old", "reading_contradicted"];

/// How a reading ended.
#[derive(Debug)]
pub enum Outcome {
    /// The ledger has it; the layout serves the next one.
    Taken {
        /// Where things lie.
        layout: Box<Layout>,
        /// Attempts that raced with the process.
        raced: u32,
    },
    /// The process holds nothing from which a layout could be learned.
    NothingYet,
    /// There is none, and why.
    Failed(String),
}

impl Tracer {
    /// Begins a reading, unless one is under way or the process has no pool to read.
    pub(super) fn start_reading(&mut self, pid: u32) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        if traced.reading {
            traced.read_again = true;
            return;
        }
        let (Some(pointer), Backend::Native, true) = (
            traced.allocator_address,
            &traced.backend,
            traced.sees_pool(),
        ) else {
            return;
        };
        traced.reading = true;
        let job = Job {
            pid,
            process: traced.handle,
            pointer,
            keeper: self.keeper.clone(),
        };
        let file = traced.trace_file.as_ref();
        let known = traced
            .structure
            .clone()
            .or_else(|| file.and_then(|file| self.structures.get(file)).cloned());
        let orders: Sender<Order> = self.orders.clone();
        let spawned = std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || {
                let process = job.process;
                let outcome = job.run(known);
                // A tracer that has ended needs no answer.
                let _ = orders.send(Order::Read {
                    pid,
                    process,
                    outcome,
                });
            });
        if let Err(error) = spawned {
            traced.reading = false;
            tracing::warn!(pid, %error, "no thread for a reading");
        }
    }

    pub(super) fn reading_ended(&mut self, pid: u32, process: ProcessHandle, outcome: Outcome) {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return;
        };
        if traced.handle != process {
            return;
        }
        traced.reading = false;
        let again = std::mem::take(&mut traced.read_again);
        match outcome {
            Outcome::Taken { layout, raced } => {
                tracing::info!(pid, raced, "the allocator's structures were read");
                if let Some(file) = &traced.trace_file {
                    self.structures.insert(file.clone(), (*layout).clone());
                }
                traced.structure = Some(*layout);
                self.note(pid, "baseline_not_read", "");
            }
            Outcome::NothingYet => {}
            Outcome::Failed(why) => {
                tracing::info!(pid, why, "the allocator's structures were not read");
                self.note(
                    pid,
                    "baseline_not_read",
                    &format!(
                        "what was there before is known as a sum only; the allocator's structures \
                         could not be read: {why}"
                    ),
                );
            }
        }
        if again {
            self.start_reading(pid);
        }
    }
}

struct Job {
    pid: u32,
    process: ProcessHandle,
    pointer: u64,
    keeper: KeeperHandle,
}

impl Job {
    fn run(&self, mut known: Option<Layout>) -> Outcome {
        let memory = match ProcessMemory::open(self.pid) {
            Ok(memory) => memory,
            Err(source) => {
                return Outcome::Failed(format!("its memory cannot be opened: {source}"));
            }
        };
        let (mut raced, mut refused) = (0, 0);
        loop {
            let reader = match &known {
                Some(layout) => Reader::new(layout.clone()),
                None => {
                    memscope_structure::find_layout(&memory, self.pointer).and_then(Reader::new)
                }
            };
            let outcome = reader.and_then(|mut reader| {
                self.read_devices(&memory, &mut reader, &mut raced)
                    .map(|()| reader)
            });
            match outcome {
                Ok(reader) if self.taken() => {
                    return Outcome::Taken {
                        layout: Box::new(reader.layout().clone()),
                        raced,
                    };
                }
                Ok(_) if refused < AGAIN => refused += 1,
                Ok(_) => {
                    return Outcome::Failed(
                        "the readings did not fit to the events around them".to_owned(),
                    );
                }
                Err(StructureError::NothingYet { .. }) => return Outcome::NothingYet,
                // A layout that was remembered is not this file's after all.
                Err(StructureError::Contradicted { .. }) if known.is_some() => known = None,
                // A layout cannot be found while the process changes what it is looked for in.
                Err(StructureError::Raced { .. } | StructureError::LayoutNotFound { .. })
                    if raced < ATTEMPTS =>
                {
                    raced += 1;
                }
                Err(error) => return Outcome::Failed(crate::error_chain(&error)),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Reads every device and hands what is accepted to the keeper.
    fn read_devices(
        &self,
        memory: &ProcessMemory,
        reader: &mut Reader,
        raced: &mut u32,
    ) -> Result<(), StructureError> {
        let objects = reader.devices(memory, self.pointer)?;
        for (device, object) in (0i32..).zip(objects) {
            loop {
                // Events from here on may or may not be in the reading: the ledger applies them to it,
                // and knows those that are in it already.
                let at_ns = clock::boot_ns();
                match reader.read_device(memory, object, device, 1) {
                    Ok(reading) => {
                        self.append(at_ns, reading);
                        break;
                    }
                    Err(StructureError::Raced { .. }) if *raced < ATTEMPTS => *raced += 1,
                    Err(error) => return Err(error),
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    fn append(&self, at_ns: u64, device: DeviceReading) {
        let segments = device.segments.into_iter().map(held).collect();
        let parts = held_parts(
            at_ns,
            device.device,
            device.allocated_bytes,
            device.reserved_bytes,
            segments,
        );
        for part in parts {
            // The keeper ends last.
            let _ = self.keeper.send(Command::Append {
                process: self.process,
                record: DaemonRecord::Held(part),
            });
        }
    }

    /// Whether the ledger took the reading.
    fn taken(&self) -> bool {
        let process = self.process;
        self.keeper
            .ask_blocking(move |ledger, as_of| {
                ledger.stats(process, as_of).is_none_or(|stats| {
                    !stats
                        .coverage
                        .iter()
                        .any(|note| NOT_TAKEN.contains(&note.code.as_str()))
                })
            })
            .unwrap_or(true)
    }
}

fn held(segment: SegmentReading) -> HeldSegment {
    HeldSegment {
        addr: segment.addr,
        size: segment.size,
        stream: segment.stream,
        large: segment.large,
        pool: segment.pool,
        expandable: segment.expandable,
        blocks: segment
            .blocks
            .into_iter()
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| {
                let pending = block.state == BlockState::PendingFree;
                (block.addr, block.size, block.requested, pending)
            })
            .collect(),
    }
}
