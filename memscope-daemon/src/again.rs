//! Pictures of moments that have passed, from the journal: for snapshots that an earlier daemon was killed over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use memscope_ledger::event::ProcessHandle;
use memscope_ledger::report::Baseline;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::{Journal, Recording};

use crate::error_chain;
use crate::memory::Memory;
use crate::replay::{Bounds, ReplayError, Until, replay_within, time_of};
use crate::snapshots::{Job, Waiting};

/// What is needed to make the pictures.
pub struct Again {
    /// Directory of the journal, and the number of the last record in it; `None` without one.
    journal: Option<(PathBuf, u64)>,
    /// Epoch of the journal.
    epoch: u64,
    config: LedgerConfig,
    memory: Memory,
    /// Bytes that each of the processes takes in the ledger.
    held: HashMap<ProcessHandle, u64>,
}

impl Again {
    /// For these firings, as long as nobody writes into the journal yet.
    pub fn new<'a>(
        waiting: impl Iterator<Item = &'a Waiting>,
        (journal, ledger): (Option<&Journal>, &Ledger),
        epoch: u64,
        config: LedgerConfig,
        memory: Memory,
    ) -> Again {
        let held = waiting.filter_map(|one| {
            let kept = ledger.kept_bytes(one.firing.process)?;
            Some((one.firing.process, kept.all()))
        });
        Again {
            journal: journal.map(|journal| {
                let last = journal.next_sequence().saturating_sub(1);
                (journal.epoch_dir().to_owned(), last)
            }),
            epoch,
            config,
            memory,
            held: held.collect(),
        }
    }

    /// Makes the picture of a firing again, or says why it cannot be made.
    ///
    /// # Errors
    /// Why, in words.
    pub fn job(&self, one: &Waiting) -> Result<Job, String> {
        let event = one.as_of.event;
        let journal = self.journal.as_ref();
        let journal = journal.filter(|_| event.epoch == self.epoch);
        let (path, last) =
            journal.ok_or("no journal was written, or memscoped has begun a new one since then")?;
        let bytes = self.held.get(&one.firing.process).copied();
        let room = self.memory.fold(bytes.unwrap_or(0));
        let room = room.map_err(|why| why.to_string())?;
        let bounds = Bounds {
            wanted: &|| true,
            room: Some(&room),
            last: Some(*last),
        };
        let (until, config) = (Until::Event(event.sequence), self.config.clone());
        let folded = Recording::open(path)
            .and_then(|recording| time_of(&recording, event.sequence))
            .map_err(ReplayError::from)
            .and_then(|found| {
                let is_there = found.is_some();
                let fold = || replay_within(path, config, until, one.pid, &bounds, None);
                is_there.then(fold).transpose()
            })
            .map_err(|error| error_chain(&error))?
            .ok_or("its moment is not in the journal")?;
        if folded.not_there(one.pid).is_some() {
            return Err("the process was not traced at that moment".to_owned());
        }
        let process = one.firing.process;
        let report = folded.ledger.snapshot(process, one.as_of);
        let report = report.ok_or("the process is not in the journal")?;
        Ok(Job {
            report: Arc::new(report),
            firing: one.firing.clone(),
            baseline: folded.ledger.baseline(process).unwrap_or(Baseline::Unknown),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use memscope_ledger::event::{EventId, ProcessFacts};
    use memscope_ledger::report::{AsOf, ProcessState};
    use memscope_log::records::{DaemonRecord, Decoder, Outcome, Stamp};
    use memscope_log::{ClockPair, Config, Folded};

    use crate::triggers::Firing;

    const EPOCH: u64 = 5;

    fn waiting(epoch: u64, sequence: u64) -> Waiting {
        Waiting {
            firing: Firing {
                trigger: 1,
                condition: "oom".parse().unwrap(),
                process: ProcessHandle(1),
                device: Some(0),
                reason: "it ran out of memory".to_owned(),
                paused: None,
                paused_before: 0,
                last_before_ns: None,
            },
            as_of: AsOf {
                boot_ns: 1500,
                unix_ns: 1500,
                event: EventId { epoch, sequence },
            },
            pid: 41,
            start_ticks: 0,
            comm: String::new(),
            again: true,
        }
    }

    /// The process is attached and detached. The picture is of the moment between.
    #[test]
    fn the_picture_is_of_the_moment_that_has_passed() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(EPOCH, [7; 16], ClockPair::default());
        let mut journal = Journal::create(folder.path(), config).unwrap();
        let (mut decoder, mut ledger) = (Decoder::new(EPOCH), Ledger::new(LedgerConfig::default()));
        let facts = ProcessFacts {
            pid: 41,
            ..ProcessFacts::default()
        };
        let attached = DaemonRecord::Attached(Box::new(facts));
        for (number, record) in [(1, attached), (2, DaemonRecord::Detached)] {
            let stamp = Stamp {
                process: ProcessHandle(1),
                tid: 1,
                time_ns: number * 1000,
                lost_before: 0,
            };
            let bytes = record.encode(stamp).unwrap();
            let state = Folded {
                decoder: &decoder,
                ledger: &ledger,
            };
            journal.append(&bytes, 0, Some(state)).unwrap();
            if let Outcome::Decoded(event) = decoder.decode(&bytes) {
                ledger.apply(&event);
            }
        }
        let of = |journal: Option<&Journal>| {
            Again::new(
                [waiting(EPOCH, 1)].iter(),
                (journal, &ledger),
                EPOCH,
                LedgerConfig::default(),
                Memory::new(1 << 40),
            )
        };
        let again = of(Some(&journal));
        let made = again.job(&waiting(EPOCH, 1)).unwrap();
        assert_eq!(made.report.process.facts.pid, 41);
        assert_eq!(made.report.process.state, ProcessState::Attached);
        assert_eq!(made.report.as_of, waiting(EPOCH, 1).as_of);
        let why = |again: &Again, epoch, sequence| again.job(&waiting(epoch, sequence)).err();
        let why = |again, epoch, sequence| why(again, epoch, sequence).unwrap_or_default();
        assert!(why(&again, EPOCH, 3).contains("is not in the journal"));
        assert!(why(&again, EPOCH + 1, 1).contains("has begun a new one"));
        assert!(why(&of(None), EPOCH, 1).contains("no journal was written"));
    }
}
