//! Takes records into the journal and the ledger.

use std::sync::Arc;

use memscope_common::{KIND_STACK_COPY, ring_bytes};
use memscope_ledger::event::{Body, Event, ProcessHandle};
use memscope_log::records::{Outcome, RecordReader};
use memscope_log::{Folded, Journal, leading};
use memscope_rpc::EventItem;

use super::command::KeeperMessage;
use super::state::Keeper;
use super::status::KeeperStatus;
use super::thread::RETRY;
use crate::clock;
use crate::ingest::ring::{Drained, Ring};

/// A record's length has 16 bits.
const LARGEST_RECORD: u64 = 1 << 16;
/// A piece is at most this part of the ring: one in so many bytes.
const PIECES: u64 = 8;
/// A record becomes at most this many records of its length ([`super::frees`]).
const BECOMES: u64 = 2;

impl Keeper {
    /// Reads the records that are in the ring now, at most `limit` bytes.
    pub(super) fn read_now(&mut self, limit: u64) {
        if let Some(position) = self.ring.as_ref().map(Ring::producer_position) {
            self.read_to(position, limit);
            self.calibration_round();
        }
    }

    /// Reads up to a position of the ring, at most so many bytes.
    pub(super) fn read_to(&mut self, position: u64, limit: u64) -> Drained {
        let mut left = limit;
        loop {
            let Some(before) = self.ring.as_ref().map(Ring::consumer_position) else {
                return Drained::Reached;
            };
            let drained = self.read_piece(position, left);
            let after = self.ring.as_ref().map_or(before, Ring::consumer_position);
            left = left.saturating_sub(after - before);
            if drained == Drained::Busy || after >= position || left == 0 {
                return drained;
            }
        }
    }

    /// Reads one piece: its records go into the journal together, and after that their room in the ring is free. So a batch of the journal
    /// tells exactly up to where the ring was read, and a daemon that is killed in between loses no record and reads none twice.
    fn read_piece(&mut self, position: u64, limit: u64) -> Drained {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let most = self
            .journal
            .as_ref()
            .map_or(usize::MAX, Journal::most_bytes) as u64;
        let Some(ring) = &mut self.ring else {
            return Drained::Reached;
        };
        // The last record of a piece may lie beyond the limit.
        let room = most.saturating_sub(LARGEST_RECORD) / BECOMES;
        let piece = room.min(ring.capacity() / PIECES);
        let mut copies = Vec::new();
        let (shares, frees) = (&mut self.shares_read, &mut self.frees);
        // The next record is usually of the same process, so its share is looked up only when the process changes.
        let (mut of, mut run) = (0, 0);
        let drained = ring.drain(position, limit.min(piece.max(1)), |record| {
            let process = process_of(record);
            if process != of {
                if run > 0 {
                    *shares.entry(ProcessHandle(of)).or_default() += run;
                }
                (of, run) = (process, 0);
            }
            run += ring_bytes(record.len() as u64);
            // Pieces of stacks are of no use to anybody later.
            if is_kind(record, KIND_STACK_COPY) {
                copies.push(record.to_vec());
            } else {
                frees.take(process, record, &mut batch);
            }
        });
        if run > 0 {
            *self.shares_read.entry(ProcessHandle(of)).or_default() += run;
        }
        if !batch.is_empty() {
            self.take(&batch);
        }
        if let Some(ring) = &mut self.ring {
            ring.release();
        }
        for (process, bytes) in self.shares_read.drain() {
            if let Some(watched) = self.watched.get(&process) {
                watched.slot.ring_was_read(bytes);
            }
        }
        self.batch = batch;
        for copy in copies {
            self.stack_copied(copy);
        }
        self.name_code();
        drained
    }

    /// Journals whole records and applies them, a limited piece at a time, because a segment of the journal begins
    /// with the state after all records before it.
    pub(super) fn take(&mut self, mut records: &[u8]) {
        let most = self
            .journal
            .as_ref()
            .map_or(usize::MAX, Journal::most_bytes);
        while !records.is_empty() {
            let piece = if records.len() <= most {
                records
            } else {
                leading(records, most)
            };
            // Bytes that are no record are passed on too, and counted below.
            let piece = if piece.is_empty() { records } else { piece };
            records = records.get(piece.len()..).unwrap_or_default();
            self.take_piece(piece);
        }
    }

    fn take_piece(&mut self, records: &[u8]) {
        let position = self.ring.as_ref().map_or(0, Ring::consumer_position);
        if let Some(journal) = &mut self.journal {
            let state = Folded {
                decoder: &self.decoder,
                ledger: &self.ledger,
            };
            let appended = journal.append(records, position, Some(state));
            let goes_on = *journal.state() == memscope_log::State::Running;
            match appended {
                Err(error) => self.journal_stops(&error),
                Ok(_) if goes_on => self.journal_goes_on(),
                Ok(_) => {}
            }
        }
        for record in RecordReader::new(records) {
            match record {
                Ok(record) => self.apply(record),
                Err(error) => {
                    tracing::error!(%error, "the ring held bytes that are no record");
                    *self.skipped.entry("malformed").or_default() += 1;
                }
            }
        }
    }

    fn journal_stops(&mut self, error: &memscope_log::JournalError) {
        let text = crate::error_chain(error);
        if self.journal_problem.is_none() {
            tracing::error!(
                error = %text,
                "the journal has stopped; tracing goes on without it, and it is tried again every {} s",
                RETRY.as_secs()
            );
        }
        self.journal_problem = Some(text);
    }

    fn journal_goes_on(&mut self) {
        if self.journal_problem.take().is_none() {
            return;
        }
        let dropped = self.journal.as_ref().map_or(0, Journal::dropped);
        tracing::info!(
            dropped,
            "the journal goes on; it lacks the records that came meanwhile"
        );
    }

    fn apply(&mut self, record: &[u8]) {
        self.records += 1;
        match self.decoder.decode(record) {
            Outcome::Decoded(event) => {
                if let Body::CodeDied { .. } = event.body {
                    self.code_dies(&event, record);
                }
                self.event(event, record);
            }
            Outcome::Notice(notice) => {
                self.tell(KeeperMessage::Notice {
                    process: notice.process,
                    what: notice.what,
                });
            }
            Outcome::Skipped(why) => {
                if why.is_loss() {
                    *self.skipped.entry(why.code()).or_default() += 1;
                }
            }
            Outcome::Malformed(error) => {
                tracing::error!(%error, "a record could not be decoded");
                *self.skipped.entry("malformed").or_default() += 1;
            }
        }
    }

    fn event(&mut self, event: Event, record: &[u8]) {
        self.ledger.apply(&event);
        if let Body::Stack(seen) = &event.body {
            self.stack_came(&event, seen);
        }
        if let Body::Forked { child } = event.body {
            self.tell(KeeperMessage::Forked {
                process: event.process,
                child,
            });
        }
        self.look_at_triggers(&event);
        if self.calibrating.contains_key(&event.process) {
            self.calibration_event(&event, record);
        }
        if let Body::Finding(finding) = &event.body {
            self.findings.reported(&event, finding);
        }
        if self.hub.wants(&event) {
            self.hub.publish(&self.item(event));
        }
    }

    /// An event with what readers of events need to know of its process.
    pub(super) fn item(&self, event: Event) -> EventItem {
        let watched = self.watched.get(&event.process);
        EventItem {
            pid: watched.map(|w| w.pid),
            uids: watched.map(|w| w.uids),
            namespace: watched.and_then(|w| w.namespace.clone()),
            unix_ns: Some(self.ledger.unix_ns(event.time_ns)),
            event: Arc::new(event),
            missed: 0,
        }
    }

    pub(super) fn tell(&self, told: KeeperMessage) {
        if let Some(tracer) = &self.tracer {
            // The tracer ends before the keeper; if it is gone, nobody is left to act on the message.
            let _ = tracer.send(told);
        }
    }

    /// The message for `status` if the journal has no room for a checkpoint.
    fn too_small(&self) -> Option<String> {
        let too_small = self.journal.as_ref()?.too_small()?;
        Some(format!(
            "the journal is too small for what the traced processes hold (a checkpoint takes {} MiB): moments that have passed \
             cannot be asked for; --journal-mib {} of memscoped is enough",
            too_small.checkpoint_bytes.div_ceil(1 << 20),
            too_small.needed_bytes.div_ceil(1 << 20),
        ))
    }

    /// The message for `status` if a process with many records could not be made to give way.
    fn unshared(&self) -> Option<String> {
        let why = self.journal.as_ref()?.unshared()?;
        Some(format!(
            "a part of the journal could not be written anew without the processes that take the most of it, so all processes lose their \
             oldest part together: {why}"
        ))
    }

    pub(super) fn status(&self) -> KeeperStatus {
        let mut drops: Vec<(String, u64)> = self
            .skipped
            .iter()
            .map(|(cause, n)| ((*cause).to_owned(), *n))
            .collect();
        drops.sort();
        let (state, dir, dropped, sequence) = match &self.journal {
            Some(journal) => (
                Some(journal.state().clone()),
                journal.epoch_dir().to_owned(),
                journal.dropped(),
                journal.next_sequence().saturating_sub(1),
            ),
            None => (None, Default::default(), 0, 0),
        };
        KeeperStatus {
            records: self.records,
            skipped: drops,
            journal: state,
            journal_dir: dir,
            journal_dropped: dropped,
            journal_sequence: sequence,
            journal_problem: self
                .journal_problem
                .clone()
                .or_else(|| self.too_small())
                .or_else(|| self.unshared()),
            epoch: self.epoch,
            ring_bytes: self.ring.as_ref().map(Ring::capacity),
            ring_unread: self.ring.as_ref().map_or(0, |r| {
                r.producer_position().saturating_sub(r.consumer_position())
            }),
            calibrating: self
                .calibrating
                .values()
                .map(|c| (c.pid, c.search.progress()))
                .collect(),
            memory: self.memory_status(),
            boot_ns: clock::boot_ns(),
        }
    }
}

/// The process of a record; 0 if it is of none.
fn process_of(record: &[u8]) -> u32 {
    const AT: usize = std::mem::offset_of!(memscope_common::RecordHeader, process);
    match record.get(AT..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => u32::from_ne_bytes(*bytes),
        None => 0,
    }
}

fn is_kind(record: &[u8], kind: u16) -> bool {
    record.get(2..4) == Some(&kind.to_ne_bytes())
}
