//! The answer to `list`: all processes that the caller may see, in brief.
//!
//! Owns: what a list leaves out of a process. Refuses: the first moment of a process that can be asked for, and what
//! grows in it; the daemon adds those.

use super::affects::{Affects, Answer, effect};
use super::coverage::notes;
use super::question::Question;
use crate::Ledger;
use crate::event::ProcessHandle;
use crate::report::{AsOf, ProcessSummary};
use crate::state::process::Process;
use crate::wire::cut;
use memscope_proto::v1;

/// Most bytes of a command line that a list shows: a program given with `-c` may be long.
const CMDLINE: usize = 1024;
/// Environment variables that a list shows: the place of the process in its job.
const ENVIRONMENT: &[&str] = &["RANK", "LOCAL_RANK", "WORLD_SIZE"];

impl Question for v1::ListRequest {
    type Reply = v1::ListResponse;
    const KIND: Option<Answer> = None;

    fn pid(&self) -> Option<u32> {
        None
    }

    fn answer(&self, ledger: &Ledger, of: &[ProcessHandle], _: AsOf) -> Option<v1::ListResponse> {
        let listed = of.iter().filter(|handle| ledger.is_listed(**handle));
        let known = listed.filter_map(|handle| ledger.process(*handle));
        let processes = known.map(|process| {
            let mut one = brief(process.summary());
            if !are_totals_exact(process) {
                (one.allocated_bytes, one.reserved_bytes) = (None, None);
            }
            one
        });
        Some(v1::ListResponse {
            processes: processes.collect(),
        })
    }
}

/// Whether no note limits the totals of a process. A list has no notes, so what is inexact is not in it.
fn are_totals_exact(process: &Process) -> bool {
    let limits = |note: &v1::CoverageNote| effect(&note.code).affects.contains(&Affects::Totals);
    !notes(process).iter().any(limits)
}

/// A process with a shortened command line and few environment variables.
pub(super) fn brief(mut process: ProcessSummary) -> v1::Process {
    // Whose it is follows from all variables.
    let workload = process.facts.workload();
    let facts = &mut process.facts;
    facts.cmdline = cut(std::mem::take(&mut facts.cmdline), CMDLINE);
    facts
        .environment
        .retain(|(name, _)| ENVIRONMENT.contains(&name.as_str()));
    v1::Process {
        workload: Some(workload),
        ..process.into()
    }
}
