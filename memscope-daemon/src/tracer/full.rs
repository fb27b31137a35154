//! Full tables of the programs: what is missing because of them is reported in the process's coverage. Also removes
//! the entries of processes that are no longer traced from those tables.

use std::collections::BTreeSet;

use memscope_common::DropReason;

use super::Tracer;

/// What is missing for a process because a table was full. `None` if the reason is not about a table.
fn meaning(reason: DropReason) -> Option<&'static str> {
    match reason {
        DropReason::InflightFull => Some(
            "the table of calls in flight was full: calls of some threads were not seen, and what they allocated or freed \
             is missing",
        ),
        DropReason::DeviceTableFull => Some(
            "the table of threads' devices was full: of some allocations the device is unknown",
        ),
        DropReason::CodeTableFull => Some(
            "the table of code objects was full, or the end of one could not be told: some frames of Python code have no name",
        ),
        _ => None,
    }
}

impl Tracer {
    /// Records for each process which tables had no room for it.
    pub(super) fn say_full(&mut self) {
        let mut new = Vec::new();
        for (pid, traced) in &mut self.traced {
            let full = traced.slot.full();
            if full == traced.full {
                continue;
            }
            for reason in DropReason::ALL {
                let bit = 1u64 << reason as u32;
                if full & bit & !traced.full != 0
                    && let Some(text) = meaning(reason)
                {
                    new.push((*pid, reason.name(), text));
                }
            }
            traced.full |= full;
        }
        for (pid, code, text) in new {
            tracing::warn!(pid, code, "a table of the programs was full");
            self.note(pid, code, text);
        }
    }

    /// Removes the entries of processes that are no longer traced from the tables.
    pub(super) fn forget_ended(&mut self) {
        let traced: BTreeSet<u32> = self.traced.values().map(|t| t.handle.0).collect();
        match self.kernel.keep_only(&traced) {
            // There is room again: stacks whose frames could not be named are sent once more, and can be named now.
            Ok(true) => {
                let bit = 1u64 << DropReason::CodeTableFull as u32;
                for traced in self.traced.values() {
                    if traced.slot.full() & bit != 0 {
                        traced.slot.resend_stacks();
                    }
                }
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    error = %crate::error_chain(&error),
                    "what ended processes left in the programs' tables could not be removed"
                );
            }
        }
    }
}
