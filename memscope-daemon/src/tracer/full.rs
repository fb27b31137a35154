//! Tables of the programs that had no room for something of a process: what that means is told in its coverage. And what
//! the programs remember of processes that are no longer traced, which is removed from those tables.

use std::collections::BTreeSet;

use memscope_common::DropReason;

use super::Tracer;

/// What is missing of a process where a table was full; `None`: the reason is not one of a table.
fn meaning(reason: DropReason) -> Option<&'static str> {
    match reason {
        DropReason::InflightFull => Some(
            "the table of calls in flight was full: calls of some threads were not seen, and what they allocated or freed \
             is missing",
        ),
        DropReason::DeviceTableFull => Some(
            "the table of threads' devices was full: of some allocations the device is unknown",
        ),
        DropReason::CodeTableFull => {
            Some("the table of code objects was full: some frames of Python code have no name")
        }
        _ => None,
    }
}

impl Tracer {
    /// Says of each process which tables had no room for it.
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

    /// Removes from the tables what is of no traced process any more.
    pub(super) fn forget_ended(&mut self) {
        let traced: BTreeSet<u32> = self.traced.values().map(|t| t.handle.0).collect();
        match self.kernel.keep_only(&traced) {
            // There is room again: stacks whose frames could not be named are sent once more, and then can be.
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
