//! Keeps the daemon within its budget of memory: looks now and then at what the ledger takes, and writes into the log
//! what is given up.
//!
//! Owns: when it is looked, and what follows from giving up a part. Refuses: to choose what goes, which `crate::memory`
//! does, and to take anything out of the ledger without a record of it.

use memscope_ledger::event::{ProcessHandle, Shed, ShedPart};
use memscope_ledger::report::ProcessState;
use memscope_log::records::DaemonRecord;

use super::command::KeeperMessage;
use super::state::Keeper;
use super::status::MemoryStatus;
use crate::memory::{Holder, anonymous, choose, trim};

/// Longest time between two looks, in nanoseconds.
const LOOK_NS: u64 = 250_000_000;
/// Number of records after which it is looked although that time is not over: so many take a few megabytes.
const LOOK_RECORDS: u64 = 32_768;
/// Most parts that are given up at one look. Each is measured before the next one is chosen.
const AT_ONCE: usize = 8;

impl Keeper {
    /// Looks at the memory if it is time, and gives up what is too much.
    pub(super) fn keep_within_memory(&mut self, now_ns: u64) {
        let records = self.records;
        let Some(shedding) = &mut self.shedding else {
            return;
        };
        let is_time = now_ns.saturating_sub(shedding.looked_ns) >= LOOK_NS
            || records - shedding.looked_records >= LOOK_RECORDS;
        if !is_time {
            return;
        }
        shedding.looked_ns = now_ns;
        shedding.looked_records = records;
        let memory = shedding.memory.clone();
        for _ in 0..AT_ONCE {
            let taken = self.ledger.bytes();
            memory.expect_copy(match &self.journal {
                Some(journal) if !journal.is_writing_checkpoint() => taken,
                _ => 0,
            });
            let limit = memory.of_processes();
            // Where something else than the processes takes the room, it is not theirs to give.
            let is_full = taken > limit / 2 && memory.is_full();
            let limit = if is_full { limit.min(taken / 2) } else { limit };
            if taken <= limit {
                return;
            }
            let Some((process, part)) = choose(&self.holders(), limit) else {
                return;
            };
            self.give_up(process, part, memory.of_processes());
            trim();
        }
    }

    fn holders(&self) -> Vec<Holder> {
        let all = self.ledger.processes().into_iter();
        let holder = |one: memscope_ledger::report::ProcessSummary| {
            let gone = |part: &ShedPart| self.ledger.shed(one.handle, *part).is_some();
            Some(Holder {
                process: one.handle,
                ended: one.state != ProcessState::Attached,
                kept: self.ledger.kept_bytes(one.handle)?,
                gone: ShedPart::ALL.into_iter().filter(gone).collect(),
            })
        };
        all.filter_map(holder).collect()
    }

    fn give_up(&mut self, process: ProcessHandle, part: ShedPart, limit_bytes: u64) {
        let kept = self.ledger.kept_bytes(process).unwrap_or_default();
        let pid = self.ledger.summary(process).map_or(0, |one| one.facts.pid);
        tracing::warn!(
            pid,
            part = part.word(),
            bytes = kept.of(part),
            limit_bytes,
            "memory is short: a part of what is kept of a process was given up"
        );
        let shed = Shed {
            part,
            held_bytes: kept.all(),
            limit_bytes,
        };
        self.append(process, &DaemonRecord::Shed(shed));
        if let Some(count) = self
            .shedding
            .as_mut()
            .and_then(|shedding| shedding.counts.get_mut(part as usize))
        {
            *count += 1;
        }
        match part {
            ShedPart::Trace | ShedPart::History => {}
            ShedPart::Stacks => {
                self.native.forget(process);
                if let Some(watched) = self.watched.get(&process) {
                    watched.slot.resend_stacks();
                }
            }
            ShedPart::Process => {
                self.native.forget(process);
                self.hub.forget(process);
                self.calibrating.remove(&process);
                if let Some(watched) = self.watched.get(&process) {
                    // It sends nothing any more, even before its probes are gone.
                    watched.slot.set_flags(0);
                }
                self.tell(KeeperMessage::GivenUp { process });
            }
        }
    }

    /// The budget, what is taken of it, and what was given up.
    pub(super) fn memory_status(&self) -> Option<MemoryStatus> {
        let shedding = self.shedding.as_ref()?;
        let counts = ShedPart::ALL.into_iter().zip(shedding.counts);
        Some(MemoryStatus {
            limit: shedding.memory.limit(),
            used: anonymous(),
            of_processes: shedding.memory.of_processes(),
            processes: self.ledger.bytes(),
            shed: counts.collect(),
        })
    }
}
