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

use memscope_ledger::Ledger;
use memscope_ledger::event::{Event, ProcessHandle};
use memscope_ledger::report::{AsOf, Baseline};

use super::state::Keeper;
use super::taking::{Picture, Taking};
use crate::snapshots::Job;

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
        let due = std::mem::take(&mut self.due);
        let Some(taking) = &mut self.taking else {
            return;
        };
        let made_before = self.pictures.len();
        for firing in due {
            if firing.paused.is_some() {
                taking.writer.paused(
                    &firing,
                    &name(&self.ledger, firing.process),
                    taking.pause_ns,
                );
                continue;
            }
            if !taking.writer.has_room() {
                taking.triggers.not_taken(&firing);
                taking
                    .writer
                    .busy(&firing, &name(&self.ledger, firing.process));
                continue;
            }
            // Several triggers may need the same picture.
            let mut made = self.pictures.iter_mut().skip(made_before);
            let made = made.find(|made| made.report.process.handle == firing.process);
            let baseline = self.ledger.baseline(firing.process);
            let baseline = baseline.unwrap_or(Baseline::Unknown);
            if let Some(picture) = made {
                taking.writer.hold(&firing, &picture.report);
                picture.firings.push((firing, baseline));
            } else if let Some((report, unnamed)) = self.ledger.picture(firing.process, as_of) {
                taking.writer.hold(&firing, &report);
                self.pictures.push(Picture {
                    report,
                    unnamed,
                    firings: vec![(firing, baseline)],
                });
            }
        }
        self.save_watching();
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

fn name(ledger: &Ledger, process: ProcessHandle) -> String {
    match ledger.summary(process) {
        Some(summary) => format!("process {} ({})", summary.facts.pid, summary.facts.comm),
        None => "a process".to_owned(),
    }
}
