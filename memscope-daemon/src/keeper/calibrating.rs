//! Passes events from the ring to the search for the allocator's layout.

use memscope_common::PLACE_STACK;
use memscope_ledger::event::{Body, Event, ProcessHandle, TraceAction};

use super::command::KeeperMessage;
use super::state::{Calibrating, Keeper};
use crate::probe::calibrate::{CalibrationStep, Calibrator, Layout, Places, ReportSeen, TraceSeen};
use crate::works::Hurried;

impl Places for Option<Hurried> {
    fn read(&self, addresses: &[u64], length: usize) -> Vec<Option<Vec<u8>>> {
        let read = self
            .as_ref()
            .and_then(|memory| memory.places(addresses, length).ok());
        read.unwrap_or_else(|| vec![None; addresses.len()])
    }
}

impl Keeper {
    pub(super) fn calibrate(&mut self, process: ProcessHandle, known: Option<Layout>) {
        let Some(watched) = self.watched.get(&process) else {
            return;
        };
        watched.slot.set_on_trial(true);
        watched.slot.set_frees_at_once(false);
        watched.slot.set_layout(known.as_ref());
        // Without access to the memory, a layout that is known already can still be proven.
        let memory = Hurried::open(watched.pid).ok();
        let mut search = Calibrating {
            pid: watched.pid,
            search: Calibrator::new(known),
            memory,
            slot: watched.slot.clone(),
        };
        search.slot.want_registers(search.search.wants_registers());
        // A layout that is known is on trial from here on. What was sent before has no reading of it, which says nothing against it.
        search.search.trial_began(crate::clock::boot_ns());
        self.frees.prove(process.0, false);
        self.calibrating.insert(process, search);
    }

    pub(super) fn calibration_event(&mut self, event: &Event, record: &[u8]) {
        let Some(one) = self.calibrating.get_mut(&event.process) else {
            return;
        };
        let step = match &event.body {
            Body::Trace(trace) => {
                let action = match trace.action {
                    TraceAction::Alloc => 0,
                    TraceAction::FreeRequested => 1,
                    TraceAction::FreeCompleted => 2,
                    _ => return,
                };
                // Records that were sent before or after the registers were wanted have none.
                let candidates: Vec<(u8, u64)> = match memscope_log::records::calibration(record) {
                    Some(seen) => (0u8..)
                        .zip(seen.registers)
                        .chain((PLACE_STACK..).zip(seen.stack))
                        .collect(),
                    None => Vec::new(),
                };
                one.search.trace(&TraceSeen {
                    time_ns: event.time_ns,
                    tid: event.tid,
                    allocator: trace.allocator,
                    action,
                    addr: trace.addr,
                    size: trace.size,
                    candidates: &candidates,
                    block_size: trace.block_size,
                    totals: memscope_log::records::totals_on_trial(record),
                    completes: memscope_log::records::is_expected_to_complete(record),
                    lost: event.lost_before,
                });
                return;
            }
            Body::Report(report) => one.search.report(&ReportSeen {
                tid: event.tid,
                ptr: report.ptr,
                size: report.size,
                allocated: report.total_allocated,
                reserved: report.total_reserved,
            }),
            _ => return,
        };
        self.follow(event.process, step);
    }

    /// Lets each search go on after a batch of records.
    pub(super) fn calibration_round(&mut self) {
        let steps: Vec<(ProcessHandle, CalibrationStep)> = self
            .calibrating
            .iter_mut()
            .map(|(process, one)| {
                let step = one.search.round(&one.memory);
                one.slot.want_registers(one.search.wants_registers());
                (*process, step)
            })
            .collect();
        for (process, step) in steps {
            self.follow(process, step);
        }
    }

    fn follow(&mut self, process: ProcessHandle, step: CalibrationStep) {
        match step {
            CalibrationStep::Wait => {}
            CalibrationStep::Try(layout) => {
                if let Some(one) = self.calibrating.get_mut(&process) {
                    one.slot.set_layout(Some(&layout));
                    one.search.trial_began(crate::clock::boot_ns());
                }
            }
            CalibrationStep::Proven(layout) => {
                if let Some(one) = self.calibrating.remove(&process) {
                    one.slot.want_registers(false);
                    one.slot.set_on_trial(false);
                }
                if layout.frees_at_once {
                    self.frees.prove(process.0, true);
                }
                self.tell(KeeperMessage::Proven { process, layout });
            }
            CalibrationStep::GiveUp(reason) => {
                if let Some(one) = self.calibrating.remove(&process) {
                    // What is read stays on trial: a program may have the refuted layout in hand at this moment.
                    one.slot.set_layout(None);
                    one.slot.want_registers(false);
                }
                self.tell(KeeperMessage::NotCalibrated { process, reason });
            }
        }
    }
}
