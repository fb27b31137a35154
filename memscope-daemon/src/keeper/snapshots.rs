//! Acts on triggers that fire: makes the picture of the moment, and hands it to the thread that writes it.
//!
//! An out-of-memory report is handled right after its own event. That is the moment of PyTorch's report: PyTorch has
//! released the segments that no block used and tried again. So these segments are not in the picture any more, and
//! their release is in its trace before the report. Every block is as it was when the request came, since PyTorch
//! holds its lock from then on.

use std::sync::Arc;

use memscope_ledger::Ledger;
use memscope_ledger::event::{Event, ProcessHandle};
use memscope_ledger::report::{AsOf, Baseline, SnapshotReport};

use super::state::Keeper;
use super::taking::Taking;
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
        // Several triggers may need the same picture.
        let mut made: Option<(ProcessHandle, Arc<SnapshotReport>)> = None;
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
            let report = match &made {
                Some((process, report)) if *process == firing.process => Arc::clone(report),
                _ => match self.ledger.snapshot(firing.process, as_of) {
                    Some(report) => Arc::new(report),
                    None => continue,
                },
            };
            made = Some((firing.process, Arc::clone(&report)));
            let baseline = self.ledger.baseline(firing.process);
            taking.writer.take(Job {
                report,
                baseline: baseline.unwrap_or(Baseline::Unknown),
                firing,
            });
        }
        self.save_watching();
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
