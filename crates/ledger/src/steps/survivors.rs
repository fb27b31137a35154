//! Blocks that outlive their step, by msMemScope's rule.
//!
//! Owns: which blocks came in which step, and those that still lived at the end of a later one. A block of step A is a
//! survivor at the end of step S if A is neither 0 nor 1 (before the first step, and the first step, which warms up)
//! and S - A is at least 1. Once found, a survivor stays in the list, even if it is freed later. Refuses: a verdict;
//! see `growth::trend`.

use crate::state::columns::{self, Row};
use crate::state::pool::blocks::Blocks;
use serde::{Deserialize, Serialize};

/// Maximum number of survivors in the list; further ones are only counted.
const MOST: usize = 100_000;

/// Maximum number of blocks that wait for the end of a step; further ones are not checked.
const WAITING: usize = 1 << 20;

/// A block that waits for the end of a later step than its own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Came {
    step: u64,
    addr: u64,
    serial: u64,
    launches: u64,
}

/// A block that was still there at the end of a later step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Survivor {
    /// Ordinal of the block's device.
    pub(crate) device: i32,
    pub(crate) addr: u64,
    /// Rounded size in bytes.
    pub(crate) size: u64,
    /// Step in which the block came.
    pub(crate) step: u64,
    /// Kernels launched before the block came; 0 where they are not counted.
    pub(crate) launches_before: u64,
}

impl Row for Came {
    type Numbers = [u64; 4];

    fn numbers(&self) -> [u64; 4] {
        [self.step, self.addr, self.serial, self.launches]
    }

    fn of(numbers: &[u64; 4]) -> Option<Came> {
        let [step, addr, serial, launches] = *numbers;
        Some(Came {
            step,
            addr,
            serial,
            launches,
        })
    }
}

impl Row for Survivor {
    type Numbers = [u64; 5];

    fn numbers(&self) -> [u64; 5] {
        [
            u64::from(self.device as u32),
            self.addr,
            self.size,
            self.step,
            self.launches_before,
        ]
    }

    fn of(numbers: &[u64; 5]) -> Option<Survivor> {
        let [device, addr, size, step, launches_before] = *numbers;
        Some(Survivor {
            device: u32::try_from(device).ok()? as i32,
            addr,
            size,
            step,
            launches_before,
        })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Survivors {
    /// Blocks that wait, in the order in which they came.
    #[serde(
        serialize_with = "columns::write_all",
        deserialize_with = "columns::read_all"
    )]
    waiting: Vec<Came>,
    #[serde(
        serialize_with = "columns::write_all",
        deserialize_with = "columns::read_all"
    )]
    pub(crate) found: Vec<Survivor>,
    /// Number of survivors that found no room in the list, and their bytes.
    pub(crate) more: (u64, u64),
    /// Blocks that were not checked because too many waited.
    pub(crate) unchecked: u64,
}

impl Survivors {
    /// A block came in step `step` (0: before the first step).
    pub(crate) fn came(&mut self, step: u64, addr: u64, serial: u64, launches: u64) {
        if step <= 1 {
            return;
        }
        if self.waiting.len() >= WAITING {
            self.unchecked += 1;
            return;
        }
        self.waiting.push(Came {
            step,
            addr,
            serial,
            launches,
        });
    }

    /// Bytes that the lists take.
    pub(crate) fn bytes(&self) -> u64 {
        let waiting = self.waiting.capacity() * size_of::<Came>();
        (waiting + self.found.capacity() * size_of::<Survivor>()) as u64
    }

    /// Has none wait that came in a step after this one: checkpoints of older versions counted ticks, which may be more.
    pub(crate) fn not_after(&mut self, step: u64) {
        for one in &mut self.waiting {
            one.step = one.step.min(step);
        }
    }

    /// Step `step` has ended: finds the blocks of earlier steps that still live.
    pub(crate) fn end(&mut self, step: u64, blocks: &Blocks) {
        let due = self.waiting.partition_point(|one| one.step < step);
        for one in self.waiting.drain(..due) {
            let block = blocks.get(&one.addr);
            let Some(block) = block.filter(|b| b.serial == one.serial && !b.pending) else {
                continue;
            };
            if self.found.len() >= MOST {
                self.more.0 += 1;
                self.more.1 = self.more.1.saturating_add(block.rounded);
                continue;
            }
            self.found.push(Survivor {
                device: block.device,
                addr: one.addr,
                size: block.rounded,
                step: one.step,
                launches_before: one.launches,
            });
        }
    }
}
