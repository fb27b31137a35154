//! Acts on triggers that fire: makes the picture of the moment, and hands it to the thread that writes it.
//!
//! An out-of-memory report is handled right after its own event. That is the moment of PyTorch's report: PyTorch has
//! released the segments that no block used and tried again. So these segments are not in the picture any more, and
//! their release is in its trace before the report. Every block is as it was when the request came, since PyTorch
//! holds its lock from then on.
//!
//! Names of code that is new are read after the records at hand, and code that runs out of memory often is. So a picture waits for them
//! before it is handed over.

use std::sync::Arc;

use memscope_ledger::event::{Event, ProcessHandle};
use memscope_ledger::report::{AsOf, Baseline, SnapshotReport};
use memscope_ledger::{Ledger, Unnamed};

use super::state::Keeper;
use super::taking::{Picture, Taking};
use crate::snapshots::Job;
use crate::triggers::Firing;

impl Keeper {
    /// Checks the triggers after an event that the ledger has applied.
    pub(super) fn look_at_triggers(&mut self, event: &Event) {
        let Some(taking) = &mut self.taking else {
            return;
        };
        taking.triggers.after(event, &self.ledger, &mut self.due);
        if !self.due.is_empty() {
            let as_of = AsOf {
                boot_ns: event.time_ns,
                unix_ns: self.ledger.unix_ns(event.time_ns),
                event: event.id,
            };
            self.take_due(as_of);
        }
    }

    /// Checks the triggers from time to time, for conditions that come true without an event. Everything up to
    /// `now_ns` has been read.
    pub(super) fn tick_triggers(&mut self, now_ns: u64) {
        let Some(taking) = &mut self.taking else {
            return;
        };
        taking.triggers.tick(now_ns, &self.ledger, &mut self.due);
        if !self.due.is_empty() {
            self.take_due(self.as_of());
        }
    }

    fn take_due(&mut self, as_of: AsOf) {
        self.take_due_by(as_of, Ledger::picture);
    }

    /// `picture` makes the picture of a process, for all its firings.
    pub(super) fn take_due_by(
        &mut self,
        as_of: AsOf,
        picture: impl Fn(&Ledger, ProcessHandle, AsOf) -> Option<(SnapshotReport, Unnamed)>,
    ) {
        let due = std::mem::take(&mut self.due);
        for of_one in due.chunk_by(|one, other| one.process == other.process) {
            let firings = self.hold(of_one, as_of);
            // Before the picture is made, which takes long where a process has much: whoever is killed over it has it written down.
            self.save_watching();
            let process = firings.first().map(|(firing, _)| firing.process);
            let made = process.and_then(|process| picture(&self.ledger, process, as_of));
            if let (Some((report, unnamed)), Some(taking)) = (made, &self.taking) {
                taking.writer.weigh(&report, firings.len());
                self.pictures.push(Picture {
                    report,
                    unnamed,
                    firings,
                });
            }
        }
    }

    /// Notes the firings of one process whose snapshots are taken, and gives them with whether the process's baseline is known.
    fn hold(&mut self, due: &[Firing], as_of: AsOf) -> Vec<(Firing, Baseline)> {
        let mut held = Vec::new();
        let Some(taking) = &mut self.taking else {
            return held;
        };
        for firing in due {
            let summary = self.ledger.summary(firing.process);
            let name = match &summary {
                Some(summary) => format!("process {} ({})", summary.facts.pid, summary.facts.comm),
                None => "a process".to_owned(),
            };
            if firing.paused.is_some() {
                taking.writer.paused(firing, &name, taking.pause_ns);
            } else if !taking.writer.has_room() {
                taking.triggers.not_taken(firing);
                taking.writer.busy(firing, &name);
            } else if let Some(summary) = summary {
                taking.writer.hold(firing, as_of, &summary.facts);
                let baseline = self.ledger.baseline(firing.process);
                held.push((firing.clone(), baseline.unwrap_or(Baseline::Unknown)));
            }
        }
        held
    }

    /// Hands the pictures that were made to the thread that writes them, with the names that are known by now.
    pub(super) fn hand_over_pictures(&mut self) {
        let Some(taking) = &self.taking else {
            return;
        };
        for mut picture in self.pictures.drain(..) {
            self.ledger.name(&mut picture.report, &picture.unnamed);
            let report = Arc::new(picture.report);
            for (firing, baseline) in picture.firings {
                taking.writer.take(Job {
                    report: Arc::clone(&report),
                    baseline,
                    firing,
                });
            }
        }
    }

    /// Writes down triggers and findings, if they have changed.
    pub(super) fn save_watching(&mut self) {
        if let Some(watching) = &mut self.watching {
            let taking = self.taking.as_ref().map(Taking::kept);
            watching.save(taking, &self.findings.said);
        }
    }

    /// Ends the triggers of processes that ended while they were not traced.
    pub(super) fn end_triggers(&mut self) {
        let Some(taking) = &mut self.taking else {
            return;
        };
        for (pid, start) in taking.triggers.waiting() {
            let now = memscope_site::process::alive(pid).map(|stat| stat.start_ticks);
            if !matches!(now, Ok(ticks) if ticks == start) {
                taking.triggers.end(pid, start);
            }
        }
    }
}
