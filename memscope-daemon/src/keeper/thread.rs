//! The keeper's thread: it starts, reads the ring, executes commands, and does the housekeeping.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, TryRecvError};
use std::time::Duration;

use memscope_ledger::Ledger;
use memscope_ledger::event::{EventId, ProcessHandle};
use memscope_ledger::report::AsOf;
use memscope_log::records::{Clock, DaemonRecord, Decoder, Stamp};
use memscope_log::{Journal, State};
use memscope_rpc::EventHub;

use super::command::{Command, KeeperMessage};
use super::frees::Frees;
use super::handle::{KeeperHandle, QUEUE};
use super::rest::{Rest, TICK};
use super::shedding::Shedding;
use super::state::{Findings, Keeper, Naming, Natives, Watched};
use super::taking::Taking;
use super::watching::{LeftWatching, Watching};
use crate::clock;
use crate::ingest::ring::{Drained, Ring};
use crate::memory::Memory;
use crate::snapshots::PATIENCE;
use crate::watchdog::Pulse;

/// How long a question, or a record of the daemon's own, waits for a record that another processor is still writing. A thread that loses
/// its processor meanwhile comes back to it within some tens of milliseconds, and what lies behind its record cannot be read before.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// The same of work that can be done the next time.
const SHORT_PATIENCE: Duration = Duration::from_millis(20);
/// Pause between two looks at such a record, once it has taken as long as it may take on a processor.
const BUSY_PAUSE: Duration = Duration::from_micros(200);
const BUSY_ON_PROCESSOR: Duration = Duration::from_millis(1);
/// Number of bytes that are read from the ring at once, so that commands are handled in between.
const BATCH_BYTES: u64 = 4 << 20;
/// How often, and with which pauses, the records that a process has sent are compared with those that came.
const MISSED_LOOKS: u32 = 10;
const MISSED_PAUSE: Duration = Duration::from_millis(5);
/// Time between two rounds of housekeeping, in which the clocks are paired, ended processes expire, and a journal that
/// has stopped tries to go on.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// The same while the journal has stopped.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What the keeper begins with.
pub struct Start {
    /// Where records are kept; `None`: nowhere.
    pub journal: Option<Journal>,
    /// Decodes the records that come.
    pub decoder: Decoder,
    /// The state that all records before have led to.
    pub ledger: Ledger,
    /// Epoch of the events.
    pub epoch: u64,
    /// Readers of events.
    pub hub: Arc<EventHub>,
    /// Who is told of what has to be acted on.
    pub tracer: Option<Sender<KeeperMessage>>,
    /// What takes snapshots by itself.
    pub taking: Option<Taking>,
    /// Writes down triggers and findings, and what was written down before.
    pub watching: Option<(Watching, LeftWatching)>,
    /// How much memory the daemon may take; `None`: as much as it needs, for a recording.
    pub memory: Option<Memory>,
    /// Beats as the thread goes on.
    pub pulse: Pulse,
}

impl Keeper {
    /// Starts the thread. It reads no ring before [`Command::Ring`] comes. Without a tracer it serves a recording.
    pub fn start(start: Start) -> std::io::Result<(KeeperHandle, std::thread::JoinHandle<()>)> {
        let (handle, mut keeper) = Keeper::new(start)?;
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || keeper.run())?;
        Ok((handle, thread))
    }

    fn new(start: Start) -> std::io::Result<(KeeperHandle, Keeper)> {
        let Start {
            journal,
            decoder,
            ledger,
            epoch,
            hub,
            tracer,
            taking,
            watching,
            memory,
            pulse,
        } = start;
        let (mut watching, left) = watching.unzip();
        let mut left = left.unwrap_or_default();
        if let (Some(watching), (Some(triggers), counts)) = (&mut watching, left.take_triggers()) {
            watching.hand_on(triggers, counts);
        }
        let (sender, commands) = std::sync::mpsc::sync_channel(QUEUE);
        let wake = Arc::new(rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?);
        let epoll = watch(&wake)?;
        let handle = KeeperHandle::new(sender, Arc::clone(&wake), Arc::clone(&hub));
        let waits_for = journal.as_ref().and_then(|journal| match journal.state() {
            State::Running => None,
            State::Stopped { reason, .. } => Some(reason.clone()),
        });
        let mut keeper = Keeper {
            commands,
            pulse,
            wake,
            epoll,
            ring: None,
            journal,
            journal_problem: waits_for,
            decoder,
            ledger,
            hub,
            tracer,
            taking,
            due: Vec::new(),
            pictures: Vec::new(),
            watched: HashMap::new(),
            shares_read: HashMap::new(),
            frees: Frees::default(),
            calibrating: HashMap::new(),
            rest: Rest::default(),
            naming: Naming::default(),
            native: Natives::default(),
            findings: Findings {
                said: left.findings,
                ..Findings::default()
            },
            shedding: memory.map(Shedding::new),
            records: 0,
            obeyed: 0,
            skipped: HashMap::new(),
            batch: Vec::new(),
            last_housekeeping: 0,
            watching,
            epoch,
        };
        // That snapshots are taken again is written down, so that none of them ends one daemon after the other.
        keeper.save_watching();
        Ok((handle, keeper))
    }

    /// Starts a keeper for a recording, with the ledger that was read from it.
    pub fn for_replay(
        ledger: Ledger,
        epoch: u64,
        hub: Arc<EventHub>,
    ) -> std::io::Result<(KeeperHandle, std::thread::JoinHandle<()>)> {
        Keeper::start(Start {
            journal: None,
            decoder: Decoder::new(epoch),
            ledger,
            epoch,
            hub,
            tracer: None,
            taking: None,
            watching: None,
            memory: None,
            pulse: Pulse::default(),
        })
    }

    fn run(&mut self) {
        loop {
            crate::panics::if_a_test_wants_it("keeper");
            self.pulse.beat();
            if !self.is_behind() {
                self.wait();
            }
            let now = clock::boot_ns();
            self.read_now(BATCH_BYTES);
            // A recording needs nothing of what is looked at by itself. Before a daemon has its ring, what lies in there belongs before
            // anything that is said now.
            if self.ring.is_some() {
                self.keep_within_memory(now);
                if !self.is_behind() {
                    self.tick_triggers(now);
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                        self.ask_to_wake(false);
                        self.read_everything();
                        self.hand_over_pictures();
                        if let Some(taking) = &mut self.taking {
                            taking.writer.finish(PATIENCE);
                        }
                        self.save_watching();
                        self.hub.close();
                        return;
                    }
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                }
            }
            // Those that the daemon's own records or the time have brought.
            self.hand_over_pictures();
            self.tell_losses();
            let now = clock::boot_ns();
            if self.ring.is_some() {
                if !self.is_behind() {
                    self.look_for_findings(now);
                }
                let pause = self.housekeeping_pause().as_nanos() as u64;
                if now.saturating_sub(self.last_housekeeping) > pause {
                    self.housekeeping(now);
                }
            }
            self.trim_at_rest(now);
        }
    }

    fn housekeeping_pause(&self) -> Duration {
        let stopped = self.journal_problem.is_some();
        if stopped { RETRY } else { HOUSEKEEPING }
    }

    /// Whether so much is unread that there is no time to sleep.
    fn is_behind(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| {
            ring.producer_position() - ring.consumer_position() > ring.capacity() / 4
        })
    }

    /// Sleeps until a command comes, the programs wake it, or the next tick.
    ///
    /// The ring is polled for edges: a level-triggered poll reports it as readable whenever it holds anything, which
    /// under load is always, and the batches would shrink to single records.
    fn wait(&mut self) {
        // If no process is watched, only the housekeeping needs a timer.
        let pause = if self.watched.is_empty() {
            self.housekeeping_pause()
        } else {
            self.pause()
        };
        let timeout = rustix::event::Timespec {
            tv_sec: pause.as_secs() as i64,
            tv_nsec: pause.subsec_nanos().into(),
        };
        let mut events: [rustix::event::epoll::Event; 2] = [rustix::event::epoll::Event {
            flags: rustix::event::epoll::EventFlags::empty(),
            data: rustix::event::epoll::EventData::new_u64(0),
        }; 2];
        // If the wait is interrupted or fails, the ring is only read earlier.
        let _ = rustix::event::epoll::wait(&self.epoll, &mut events, Some(&timeout));
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        if !self.is_empty() {
            self.ask_to_wake(false);
        }
    }

    /// How long the keeper may sleep while processes are watched.
    fn pause(&mut self) -> Duration {
        let position = self.ring.as_ref().map_or(0, Ring::consumer_position);
        let ticks = self.taking.as_ref().is_some_and(|one| one.triggers.ticks());
        let is_quiet = self.rest.is_quiet(clock::boot_ns(), position) && !ticks;
        self.ask_to_wake(is_quiet);
        self.rest.pause(self.is_empty())
    }

    /// Whether nothing is in the ring that was not read.
    fn is_empty(&self) -> bool {
        let mut ring = self.ring.iter();
        ring.all(|ring| ring.producer_position() == ring.consumer_position())
    }

    /// Sets whether the next record of each process wakes the keeper.
    fn ask_to_wake(&mut self, wake: bool) {
        if std::mem::replace(&mut self.rest.asked_to_wake, wake) != wake {
            for watched in self.watched.values() {
                watched.slot.set_wake(wake);
            }
            // Each process reads this after its record is in the ring; the ring is looked at after it is set.
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn obey(&mut self, command: Command) {
        self.pulse.beat();
        self.obeyed += 1;
        match command {
            Command::Ring {
                ring,
                position,
                untraced,
                done,
            } => {
                self.read_from_now_on(*ring, position, &untraced);
                // Nobody may be waiting any more.
                let _ = done.send(());
            }
            Command::Append { process, record } => match record {
                DaemonRecord::Exited | DaemonRecord::Detached | DaemonRecord::Replaced => {
                    self.end(process, &record);
                }
                _ => self.append(process, &record),
            },
            Command::Define { records, done } => {
                let records = records.into_iter();
                self.append_all(records.map(|one| (ProcessHandle(0), one)).collect());
                // It is no error if nobody waits any more.
                let _ = done.send(());
            }
            Command::Watch {
                process,
                pid,
                uids,
                namespace,
                slot,
            } => {
                // Of a process that was traced before, losses are known that were told of then.
                let known = self.ledger.summary(process);
                // An earlier daemon may have slept when it was killed.
                slot.set_wake(self.rest.asked_to_wake);
                self.rest.stir(clock::boot_ns());
                let lost_told = known.as_ref().map_or(0, |known| known.lost_records);
                if let (Some(known), Some(taking)) = (known, &mut self.taking) {
                    let triggers = &mut taking.triggers;
                    triggers.attached(process, &known.facts, known.attached_ns);
                    // An older daemon did not write down what its level hides.
                    triggers.look_at_level(process, &self.ledger);
                }
                let before = self.watched.insert(
                    process,
                    Watched {
                        pid,
                        uids,
                        namespace,
                        slot,
                        lost_told,
                        names: None,
                        native: None,
                    },
                );
                if before.is_none() {
                    self.stand_again(process);
                }
            }
            Command::Python { process, names } => {
                if let Some(watched) = self.watched.get_mut(&process) {
                    watched.names = Some(names);
                }
            }
            Command::Native { process, jobs } => {
                if let Some(watched) = self.watched.get_mut(&process) {
                    watched.native = Some(jobs);
                }
            }
            Command::Unwound {
                process,
                stack,
                frames,
                whole,
            } => self.unwound(process, stack, &frames, whole),
            Command::Named { process, names } => {
                let names = names.into_iter().map(DaemonRecord::Native);
                self.append_all(names.map(|name| (process, name)).collect());
            }
            Command::Unnamed { process, addresses } => self.put_off_names(process, &addresses),
            Command::NoRule => *self.skipped.entry("unwind_rules_full").or_default() += 1,
            Command::Moved { process, ranges } => self.moved(process, &ranges),
            Command::Calibrate { process, known } => self.calibrate(process, known),
            Command::FreesSettled { process } => {
                self.read_everything();
                let mut untold = Vec::new();
                self.frees.settle(process.0, clock::boot_ns(), &mut untold);
                self.take(&untold);
            }
            Command::FreesUnsettled { process } => self.frees.unsettle(process.0),
            Command::Unwatch { process, done } => {
                self.read_everything();
                self.tell_losses();
                self.watched.remove(&process);
                self.calibrating.remove(&process);
                self.frees.forget(process.0);
                self.native.forget(process);
                self.findings.forget(process);
                self.judge_ended(process);
                // It is no error if nobody waits any more.
                let _ = done.send(());
            }
            Command::Ask(question) => {
                let all = self.read_everything();
                self.tell_losses();
                let as_of = match all {
                    true => self.as_of(),
                    // The answer is as old as what could be read.
                    false => self.as_of_boot(self.ledger.last_ns()),
                };
                question(&mut self.ledger, as_of);
            }
            Command::Triggers(work) => {
                // Triggers that fired before the command must be counted as fired.
                self.read_everything();
                work(self.taking.as_mut());
                self.save_watching();
            }
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Stop => {}
        }
    }

    /// Takes the ring, and reads what lies in it already.
    fn read_from_now_on(
        &mut self,
        mut ring: Ring,
        position: Option<u64>,
        untraced: &[(ProcessHandle, u64)],
    ) {
        self.rest.programs_were_left = position.is_some();
        if let Some(position) = position {
            ring.skip_to(position);
        }
        let watched = rustix::event::epoll::add(
            &self.epoll,
            ring.poll_fd(),
            rustix::event::epoll::EventData::new_u64(1),
            rustix::event::epoll::EventFlags::IN | rustix::event::epoll::EventFlags::ET,
        );
        if let Err(error) = watched {
            tracing::error!(%error, "the ring cannot be watched; it is read every {} ms", TICK.as_millis());
        }
        self.ring = Some(ring);
        // A fold up to an earlier moment ends at the first record that is later, and must have these by then. So what lies in the ring of
        // such a process is not counted any more.
        for (process, last_ns) in untraced {
            self.write(*process, *last_ns, &DaemonRecord::Detached);
        }
        let taken: Vec<(ProcessHandle, u64)> = self
            .watched
            .iter()
            .map(|(process, watched)| (*process, watched.slot.ring_taken()))
            .collect();
        self.read_everything();
        for (process, taken) in taken {
            if let Some(watched) = self.watched.get(&process) {
                watched.slot.ring_was_read_to(taken);
            }
        }
        if position.is_some() {
            // An earlier daemon may have read records that its journal did not take, as on a full disk.
            self.count_missed();
        }
        self.tell_losses();
        // What an earlier daemon has reported of processes that ended before this one came.
        let watched = &self.watched;
        self.findings
            .said
            .retain(|process, _| watched.contains_key(process));
    }

    /// Counts the records that were sent but came into no log as lost, so that they are told as a gap and the state is
    /// read anew.
    fn count_missed(&mut self) {
        let processes: Vec<ProcessHandle> = self.watched.keys().copied().collect();
        for process in processes {
            let mut missed = u64::MAX;
            // A record that is sent just now may have its number already, and was not read yet. So the least that is
            // missing at any look is what is missing for good.
            for look in 0..MISSED_LOOKS {
                if look > 0 {
                    std::thread::sleep(MISSED_PAUSE);
                }
                let Some(slot) = self.watched.get(&process).map(|one| one.slot.clone()) else {
                    break;
                };
                self.read_everything();
                let (lost, sent) = (slot.lost(), slot.sequence());
                missed = missed.min(sent.saturating_sub(lost + self.decoder.came(process)));
                if missed == 0 {
                    break;
                }
            }
            if let Some(watched) = self.watched.get(&process)
                && missed > 0
                && missed < u64::MAX
            {
                watched.slot.add_lost(missed);
            }
        }
    }

    pub(super) fn as_of(&self) -> AsOf {
        self.as_of_boot(clock::boot_ns())
    }

    fn as_of_boot(&self, boot_ns: u64) -> AsOf {
        AsOf {
            boot_ns,
            // Computed from the last pair of clock readings in the log, as a replay computes it.
            unix_ns: match self.ledger.unix_ns(boot_ns) {
                0 => clock::pair().1,
                unix_ns => unix_ns,
            },
            event: EventId {
                epoch: self.epoch,
                sequence: self.decoder.next_sequence().saturating_sub(1),
            },
        }
    }

    /// Reads everything that was submitted up to now. Returns whether it could: a record that another processor is still writing holds
    /// up those behind it. If it holds them up for longer than [`BUSY_PATIENCE`], that is counted.
    pub(super) fn read_everything(&mut self) -> bool {
        let all = self.read_everything_within(BUSY_PATIENCE);
        if !all {
            *self.skipped.entry("records_held_up").or_default() += 1;
        }
        all
    }

    /// The same for work that can be done the next time, so that nobody has to wait for it.
    pub(super) fn read_everything_soon(&mut self) -> bool {
        self.read_everything_within(SHORT_PATIENCE)
    }

    fn read_everything_within(&mut self, patience: Duration) -> bool {
        let Some(target) = self.ring.as_ref().map(Ring::producer_position) else {
            return true;
        };
        let started = std::time::Instant::now();
        loop {
            let drained = self.read_to(target, u64::MAX);
            let there = self
                .ring
                .as_ref()
                .is_none_or(|r| r.consumer_position() >= target);
            let waited = started.elapsed();
            if there || waited > patience && drained == Drained::Busy {
                return there;
            }
            match waited > BUSY_ON_PROCESSOR {
                true => std::thread::sleep(BUSY_PAUSE),
                false => std::thread::yield_now(),
            }
        }
    }

    /// Reports processes that lost records. The record in the log comes first, so that a reading that begins
    /// afterwards is newer than the loss for everyone who reads the log. Then the tracer gets a message and makes
    /// that reading.
    ///
    /// What was sent before the loss has to come before it in the log as well, or its totals would be taken for those of now, and no
    /// reading would ever fit to them. So if a record that is still being written holds those up, this is done the next time.
    fn tell_losses(&mut self) {
        let lost: Vec<(ProcessHandle, u64)> = self
            .watched
            .iter()
            .filter_map(|(process, watched)| {
                let now = watched.slot.lost();
                (now > watched.lost_told).then_some((*process, now))
            })
            .collect();
        if lost.is_empty() || self.ring.is_none() || !self.read_everything_soon() {
            return;
        }
        for (process, now) in lost {
            if let Some(watched) = self.watched.get_mut(&process) {
                watched.lost_told = now;
            }
            self.append(process, &DaemonRecord::Lost);
            self.tell(KeeperMessage::Lost { process });
        }
    }

    fn housekeeping(&mut self, now: u64) {
        self.last_housekeeping = now;
        // The record must have exactly the time of the pair, because the times of all other records are computed from
        // it.
        let (boot_ns, unix_ns) = clock::pair();
        self.read_everything();
        if let Some(journal) = &mut self.journal {
            // There may be room on the disk again.
            journal.resume();
        }
        let record = DaemonRecord::Clock(Clock { unix_ns });
        self.write(ProcessHandle(0), boot_ns, &record);
        for process in self.ledger.expire(now) {
            self.hub.forget(process);
        }
        // Those that an earlier daemon has followed to their end.
        for process in self.ledger.processes() {
            if self.hub.verdict(process.handle).is_none()
                && !self.watched.contains_key(&process.handle)
            {
                self.judge_ended(process.handle);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.set_clock(memscope_log::ClockPair { boot_ns, unix_ns });
        }
        self.end_triggers();
        // Snapshots may have been written since, and are counted for the daemon that comes next.
        self.save_watching();
    }

    /// Gives memory that is free back to the kernel once the work has been over for a while.
    fn trim_at_rest(&mut self, now: u64) {
        let read = self.ring.as_ref().map_or(0, Ring::consumer_position);
        if self.rest.may_trim(now, read.wrapping_add(self.obeyed)) {
            crate::memory::trim();
        }
    }

    /// Writes that a process has ended or is detached, behind everything that was sent and lost before: what comes later of it does not
    /// count. Its probes may still be there, and a program that has found it live may send behind this. Such a program takes its place in
    /// the ring first and reads the clock then, so what it tells has a later time than this end, at which it had not happened yet.
    fn end(&mut self, process: ProcessHandle, record: &DaemonRecord) {
        self.read_everything();
        self.tell_losses();
        self.append(process, record);
    }

    /// Writes one of the daemon's own records at the current place of the log, and applies it.
    pub(super) fn append(&mut self, process: ProcessHandle, record: &DaemonRecord) {
        // The records that the kernel sent before this time come first. Those that it sends while they are read have
        // a later time.
        let now = clock::boot_ns();
        self.read_everything();
        self.write(process, now, record);
    }

    /// The same for several records, which go into the journal together.
    pub(super) fn append_all(&mut self, records: Vec<(ProcessHandle, DaemonRecord)>) {
        if records.is_empty() {
            return;
        }
        let now = clock::boot_ns();
        self.read_everything();
        self.write_all(now, records);
    }

    /// The same after everything was read that came before `time_ns`.
    pub(super) fn write_all(&mut self, time_ns: u64, records: Vec<(ProcessHandle, DaemonRecord)>) {
        let mut bytes = Vec::new();
        for (process, record) in &records {
            bytes.extend(self.encode(*process, time_ns, record));
        }
        self.take(&bytes);
    }

    fn write(&mut self, process: ProcessHandle, time_ns: u64, record: &DaemonRecord) {
        let bytes = self.encode(process, time_ns, record);
        self.take(&bytes);
    }

    /// The bytes of one of the daemon's own records; none if it cannot be written, which is counted.
    fn encode(&mut self, process: ProcessHandle, time_ns: u64, record: &DaemonRecord) -> Vec<u8> {
        let stamp = Stamp {
            process,
            tid: 0,
            time_ns,
            lost_before: match record {
                // A reading shows an earlier moment, so it reports no loss.
                DaemonRecord::Held(_) | DaemonRecord::ReadingCost(_) => 0,
                // A loss that was not reported yet is reported by its own record.
                _ => self.watched.get(&process).map_or(0, |w| w.lost_told),
            },
        };
        record.encode(stamp).unwrap_or_else(|error| {
            tracing::error!(%error, "a record of the daemon's own could not be written");
            *self.skipped.entry("unwritable").or_default() += 1;
            Vec::new()
        })
    }
}

fn watch(wake: &OwnedFd) -> std::io::Result<OwnedFd> {
    use rustix::event::epoll;
    let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &instance,
        wake,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    Ok(instance)
}

#[cfg(test)]
mod tests;
