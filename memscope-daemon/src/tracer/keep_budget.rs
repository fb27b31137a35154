//! Keeps the stacks of each traced process within their budget. The programs themselves measure what stacks cost. The
//! tracer adds it up, changes what the process's slot asks for, and records that in a coverage note.

use std::time::Instant;

use memscope_common::STACKS_OFF;
use memscope_rpc::{Share, StackKinds};

use super::Tracer;

fn words(kinds: StackKinds, asked: StackKinds) -> String {
    let sampled = || {
        format!(
            "one stack is taken for {} MiB of allocations",
            (1u64 << kinds.sampling) >> 20
        )
    };
    match (
        kinds.python || kinds.native,
        kinds.sampling > asked.sampling,
    ) {
        (false, _) => "none is taken".to_owned(),
        (true, true) if kinds.native != asked.native => {
            format!("{}, without its frames of compiled code", sampled())
        }
        (true, true) => sampled(),
        (true, false) => "no frames of compiled code are taken".to_owned(),
    }
}

impl Tracer {
    /// Checks what stacks cost, and changes how many of them are taken.
    pub(super) fn keep_to_budget(&mut self) {
        let of_all = self.stack_budget;
        let now = Instant::now();
        let mut changes = Vec::new();
        for (pid, traced) in &mut self.traced {
            let own = traced.options.stack_budget.map(Share::fraction);
            let Some(most) = own.or(of_all) else {
                continue;
            };
            let taken = traced.slot.stack_time();
            if let Some((kinds, share)) = traced.budget.look(now, taken, most) {
                traced.slot.set_native(kinds.native && traced.native);
                // The layout of Python stays set: code that dies meanwhile is in stacks that were taken before.
                let off = if kinds.python || kinds.native {
                    0
                } else {
                    STACKS_OFF
                };
                traced
                    .slot
                    .set_stack_sampling(u32::from(kinds.sampling) | off);
                changes.push((*pid, kinds, (share, most), traced.options.stacks));
            }
        }
        for (pid, kinds, (share, most), asked) in changes {
            let text = if kinds == asked {
                String::new()
            } else {
                format!(
                    "walking stacks took {:.1} % of a processor, and may take {:.1} %: until it is less, {}; \
                     sums by stack are estimates",
                    share * 100.0,
                    most * 100.0,
                    words(kinds, asked)
                )
            };
            tracing::info!(pid, ?kinds, share, "stacks within their budget");
            self.note(pid, "stacks_reduced", &text);
        }
    }
}
