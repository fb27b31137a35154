//! Gives up parts of a process because the daemon's memory is short, and estimates how much memory they take.
//!
//! Owns: what each part consists of. Refuses: to choose what goes; the log says so.

use crate::config::KeptBytes;
use crate::event::{Shed, ShedPart};
use crate::report::ProcessState;
use crate::state::device::Devices;
use crate::state::driver::Driver;
use crate::state::labels::Labels;
use crate::state::marks::Marks;
use crate::state::pool::Pool;
use crate::state::pool::reading::Readings;
use crate::state::process::Process;
use crate::state::regions::RegionBook;
use crate::state::stacks::Stacks;
use crate::steps::Steps;

/// Bytes of an entry of the tables for threads, losses, readings and marks.
const LOOSE: u64 = 100;
/// Bytes of a block of which only its place tells that it outlived a loss: an address and a size in a map that is three quarters full.
const STAYED: u64 = 24;
/// Bytes of a piece of free room in a segment.
const ROOM: u64 = 120;
/// Bytes that a process takes in any case: its facts, its environment, its steps.
const ALONE: u64 = 64 << 10;
/// Bytes of a text beside its characters.
const TEXT: u64 = 40;

impl Process {
    /// Gives up a part of what is kept. The process may have ended before.
    pub(crate) fn shed(&mut self, shed: &Shed, time_ns: u64) {
        match shed.part {
            ShedPart::Trace => self.devices.give_up_trace(),
            ShedPart::History => {
                self.groups.give_up();
                for row in self.devices.iter_mut() {
                    row.pool.series = Default::default();
                    row.driver.series = Default::default();
                }
            }
            ShedPart::Stacks => self.stacks.give_up(),
            ShedPart::Process => {
                self.end(ProcessState::GivenUp, time_ns);
                self.devices = Devices::new(0);
                self.groups.give_up();
                self.pool = Pool::default();
                self.driver = Driver::default();
                self.regions = RegionBook::default();
                self.stacks = Stacks::default();
                self.steps = Steps::new(self.attached_ns);
                self.marks = Marks::default();
                self.labels = Labels::default();
                self.readings = Readings::default();
            }
        }
        self.shed.note(shed);
    }

    /// See [`crate::Ledger::kept_bytes`].
    pub(crate) fn kept_bytes(&self) -> KeptBytes {
        if self.shed.of(ShedPart::Process).is_some() {
            return KeptBytes {
                rest: self.left_bytes(),
                ..KeptBytes::default()
            };
        }
        let (_, loose) = self.pool.kept();
        let (stayed, _) = self.pool.stayed_by_place();
        let loose = loose + self.readings.kept() + self.marks.kept();
        let rooms: usize = self.devices.iter().map(|row| row.pool.rooms.len()).sum();
        let of_devices = |bytes: fn(&crate::state::device::Device) -> u64| -> u64 {
            self.devices.iter().map(bytes).sum()
        };
        KeptBytes {
            trace: of_devices(|row| row.pool.ring.bytes()),
            history: self.groups.bytes()
                + of_devices(|row| row.pool.series.bytes() + row.driver.series.bytes()),
            stacks: self.stacks.bytes(),
            rest: ALONE
                + self.pool.blocks.bytes()
                + self.steps.bytes()
                + loose as u64 * LOOSE
                + stayed as u64 * STAYED
                + rooms as u64 * ROOM
                + self.driver.bytes()
                + self.regions.kept() as u64 * LOOSE
                + of_devices(|row| row.own_bytes()),
        }
    }

    /// Bytes of what is left of a process that was given up: who it was, and where it had probes. There may be many of them, and
    /// whatever is counted of them has to be given up by those that run.
    fn left_bytes(&self) -> u64 {
        let facts = &self.facts;
        let environment = facts.environment.iter();
        let texts = environment
            .flat_map(|(name, value)| [name, value])
            .chain(&facts.cmdline)
            .chain(&self.placement.libraries);
        let texts = texts.map(|text| text.len() as u64 + TEXT);
        size_of::<Process>() as u64 * 2 + texts.sum::<u64>()
    }
}
