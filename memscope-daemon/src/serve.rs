//! Answers requests of the gRPC server: passes questions to the keeper and orders to the tracer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use memscope_ledger::event::{EventId, Finding, Level, Mark, ProcessHandle, ShedPart};
use memscope_ledger::report::{
    AsOf, BesidePool, BlockState, ProcessState, ProcessSummary, SnapshotBlock, SnapshotReport,
    StackReport,
};
use memscope_ledger::{Answered, Asked, Ledger, LedgerConfig, Needs, Who};
use memscope_log::records::DaemonRecord;
use memscope_log::{Recording, RecordingError, SegmentPlace, Warning};
use memscope_proto::v1;
use memscope_rpc::{
    AttachRequest, Caller, Daemon, DetachScope, EventFilter, Moment, RecordingWriter, Refusal,
    Wanted, Window,
};
use tokio::sync::oneshot;

use crate::addresses::{Addresses, no_such_block};
use crate::clock;
use crate::courses::{self, Courses};
use crate::ended::still_there;
use crate::holders::{self, NotRead};
use crate::keeper::{Command, Gone, KeeperHandle, KeeperStatus, MemoryStatus};
use crate::looks::{Looks, ended};
use crate::memory::{FoldRoom, Memory, NoRoom};
use crate::messages::{Messages, Severity};
use crate::otlp::Queues;
use crate::owners::{self, Rulebook};
use crate::replay::{
    Bounds, NotThere, ReplayError, Replayed, Until, first_moment, last_record, replay_within,
    time_of,
};
use crate::snapshots::Shelf;
use crate::sync::Flushing;
use crate::threads::{self, Threads};
use crate::tracer::{Order, QUESTION, TracerStatus};

/// How long an answer waits until the tracer has checked the processes' allocators. The tracer may be busy with an
/// attach of another process.
const REFRESH: Duration = Duration::from_millis(300);

/// How long the answer about the daemon itself waits for the tracer.
const STATUS: Duration = Duration::from_millis(500);

/// Answers for a live daemon, or (without a tracer) for a recording.
pub struct Serving {
    /// Handle of the keeper, which owns the ledger.
    pub keeper: KeeperHandle,
    /// Sends orders to the tracer; `None` when a recording is replayed.
    pub tracer: Option<Sender<Order>>,
    /// When the daemon was started.
    pub started: Instant,
    /// What questions ask the tracer for.
    pub looks: Looks,
    /// Messages of the daemon about itself.
    pub messages: Messages,
    /// The recording that is replayed, and the moment at which it ends.
    pub replay: Option<(std::path::PathBuf, AsOf)>,
    /// The snapshots that triggers have taken; `None` if no snapshots are taken.
    pub shelf: Option<Shelf>,
    /// Settings of a ledger into which the journal is folded again, for a question about an earlier moment.
    pub ledger: LedgerConfig,
    /// The daemon's memory; `None` where a recording is replayed.
    pub memory: Option<Memory>,
    /// Largest size of the journal in bytes; `None` without a journal.
    pub journal_limit: Option<u64>,
    /// Whether the state directory reaches the disk.
    pub flushing: Flushing,
    /// What is sent to a collector; `None`: nothing is.
    pub pushed: Option<Queues>,
    /// The courses of the journal's parts, which need not be folded again.
    pub courses: Arc<Courses>,
}

impl From<Gone> for RefusalOf {
    fn from(gone: Gone) -> RefusalOf {
        RefusalOf(match gone {
            Gone::Busy => Refusal::Busy {
                what: gone.to_string(),
            },
            Gone::Ended => Refusal::ShuttingDown,
        })
    }
}

/// A refusal that is made from another error.
pub(crate) struct RefusalOf(pub(crate) Refusal);

impl Serving {
    /// Asks the ledger about one process.
    async fn about<T: Send + 'static>(
        &self,
        pid: u32,
        question: impl FnOnce(&Ledger, ProcessHandle, AsOf) -> Option<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let end = self.replay.as_ref().map(|(_, end)| *end);
        self.keeper
            .ask(move |ledger, as_of| {
                let Some(process) = ledger.find(pid) else {
                    return Ok(None);
                };
                still_kept(ledger, process)?;
                Ok(question(ledger, process, end.unwrap_or(as_of)))
            })
            .await
            .map_err(|gone| RefusalOf::from(gone).0)??
            .ok_or(Refusal::NotTraced { pid })
    }

    /// Asks the ledger, as it is when everything that came before the question is in it.
    pub(crate) async fn ask_keeper<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Ledger, AsOf) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let answered = self.keeper.ask(question).await;
        answered.map_err(|gone| RefusalOf::from(gone).0)
    }

    /// The present moment: now, or the end of the recording.
    async fn present(&self) -> Result<AsOf, Refusal> {
        let now = self.keeper.ask(|_, as_of| as_of).await;
        let now = now.map_err(|gone| RefusalOf::from(gone).0)?;
        Ok(self.replay.as_ref().map_or(now, |(_, end)| *end))
    }

    /// Path of the journal or the recording, if this moment is in it.
    async fn past_with(&self, until: Until) -> Result<std::path::PathBuf, Refusal> {
        let (path, stopped) = self.past().await?;
        match stopped.filter(|stopped| !stopped.has(until)) {
            Some(stopped) => Err(stopped.refused()),
            None => Ok(path),
        }
    }

    /// Path of the journal or the recording. When this returns, everything that came before the question is in it, or as much as was
    /// written before the journal stopped there.
    async fn past(&self) -> Result<(std::path::PathBuf, Option<Stopped>), Refusal> {
        if let Some((path, _)) = &self.replay {
            return Ok((path.clone(), None));
        }
        let gone = |gone| RefusalOf::from(gone).0;
        self.keeper.ask(|_, _| ()).await.map_err(gone)?;
        let keeper = self.keeper.status().await.map_err(gone)?;
        let path = keeper.journal_dir;
        let reason = match keeper.journal {
            None => return Err(not_in_the_journal("needs a journal, and none is written")),
            Some(memscope_log::State::Running) => return Ok((path, None)),
            Some(memscope_log::State::Stopped { reason, .. }) => reason,
        };
        let written = path.clone();
        let find = move || last_record(&Recording::open(&written).ok()?).ok()?;
        let at = tokio::task::spawn_blocking(find).await.ok().flatten();
        let stopped = match at {
            Some((last, boot_ns)) => {
                let unix_ns = self.ask_keeper(move |ledger, _| ledger.unix_ns(boot_ns));
                Stopped {
                    last,
                    boot_ns,
                    unix_ns: Some(unix_ns.await?),
                    reason,
                }
            }
            None => Stopped {
                last: 0,
                boot_ns: 0,
                unix_ns: None,
                reason,
            },
        };
        Ok((path, Some(stopped)))
    }

    /// When a step ended, in nanoseconds of boot time.
    async fn end_of_step(&self, pid: u32, number: u64) -> Result<u64, Refusal> {
        let (ends, evidence) = self
            .about(pid, |ledger, process, _| ledger.ends_of_steps(process))
            .await?;
        if let Some((_, ended_ns)) = ends.iter().find(|(step, _)| *step == number) {
            return Ok(*ended_ns);
        }
        let what = match (ends.first(), ends.last()) {
            (_, Some((last, _))) if number > *last => {
                return Err(Refusal::Invalid {
                    what: format!("step {number} has not ended: the last one that has is {last}"),
                    hint: "`memscope-ctl steps` shows which there are; `memscope-ctl trigger add 'step = N'` takes a snapshot when step N ends"
                        .to_owned(),
                });
            }
            (Some((first, _)), Some((last, _))) => {
                format!("is no step from {first} to {last}, which are kept")
            }
            _ => format!("is no step: {evidence}"),
        };
        Err(not_in_the_journal(&what))
    }

    async fn order<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, Refusal> {
        let Some(tracer) = &self.tracer else {
            return Err(Refusal::Replaying);
        };
        let (reply, answer) = oneshot::channel();
        tracer
            .send(make(reply))
            .map_err(|_| Refusal::ShuttingDown)?;
        answer.await.map_err(|_| Refusal::ShuttingDown)
    }

    /// Makes the tracer check which allocator each process uses, since it may have been exchanged, and how much is
    /// free on the devices. `true` beside a process also asks for a reading, because there may be no other way to
    /// know what the process holds now.
    async fn refresh(&self, processes: &[(ProcessHandle, bool)]) {
        let Some(tracer) = &self.tracer else {
            return;
        };
        let looks: Vec<_> = processes
            .iter()
            .filter_map(|(process, read)| self.looks.look(tracer, *process, *read))
            .collect();
        let reads = processes.iter().any(|(_, read)| *read);
        let patience = if reads { QUESTION + REFRESH } else { REFRESH };
        let all = async {
            for look in looks {
                ended(look).await;
            }
        };
        // If there is no answer in time, the last reading is used.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Brings what is known of these processes up to date, as far as the question needs it.
    pub(crate) async fn refresh_for(&self, needs: Needs, of: &[ProcessHandle]) {
        if needs == Needs::Events || self.tracer.is_none() {
            return;
        }
        let of = of.to_vec();
        let traced = self.keeper.ask(move |ledger, _| {
            let all = of.iter().filter_map(|process| ledger.summary(*process));
            let traced = all.filter(|process| process.state == ProcessState::Attached);
            let level = |process: ProcessSummary| {
                let is_only_read = process.facts.level == Some(Level::Read);
                (process.handle, is_only_read)
            };
            traced.map(level).collect::<Vec<_>>()
        });
        let mut traced = traced.await.unwrap_or_default();
        traced.retain(|(_, is_only_read)| *is_only_read || needs == Needs::Totals);
        self.refresh(&traced).await;
    }

    /// Refuses a question for objects of a process that has ended, or of a recording.
    async fn still_runs(&self, pid: u32, before: &SnapshotReport) -> Result<(), Refusal> {
        if self.tracer.is_none() {
            return Err(Refusal::Replaying);
        }
        let ended_ns = before.process.ended_ns;
        let ended_ns = self
            .about(pid, move |ledger, _, _| {
                Some(ended_ns.map(|ended| ledger.unix_ns(ended)))
            })
            .await?;
        still_there(&before.process, ended_ns)
    }

    /// The same process as in a snapshot, as it is now.
    async fn same_again(
        &self,
        pid: u32,
        before: &SnapshotReport,
    ) -> Result<SnapshotReport, Refusal> {
        let handle = before.process.handle;
        self.about(pid, move |ledger, process, as_of| {
            (process == handle).then(|| ledger.snapshot(process, as_of))?
        })
        .await
    }

    /// Prepares for a snapshot, which must contain every block and segment.
    async fn complete(&self, pid: u32) {
        let incomplete = self.keeper.ask(move |ledger, _| {
            let process = ledger.find(pid)?;
            Some((process, ledger.wants_reading(process)))
        });
        if let Ok(Some(process)) = incomplete.await {
            self.refresh(&[process]).await;
        }
    }
}

/// Has Python's objects read, as far as they keep these blocks. `modules`: also which modules made what the autograd graph has saved.
async fn read_objects(
    pid: u32,
    blocks: Vec<u64>,
    modules: bool,
) -> Result<memscope_heap::Reading, NotRead> {
    let read = aside(move || holders::read(pid, blocks, modules)).await;
    read.map_err(NotRead::Refused)?
}

/// What a process has, of one moment.
struct Owned {
    snapshot: Arc<SnapshotReport>,
    beside: Vec<BesidePool>,
    devices: Vec<v1::DeviceStats>,
    /// The devices of which it is not known how much is free since what the process holds changed.
    free_is_old: Vec<Option<i32>>,
    /// The threads that freed its blocks behind that moment, by the blocks' addresses.
    freed_by: HashMap<u64, u32>,
}

/// The blocks that are handed out.
fn active(snapshot: &SnapshotReport) -> impl Iterator<Item = &SnapshotBlock> {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::Active)
}

/// What makes each of the blocks that are handed out the same one at another moment: its address and the boot time of the allocation.
fn identities(snapshot: &SnapshotReport) -> HashSet<(u64, u64)> {
    let active = active(snapshot);
    active.map(|block| (block.addr, block.since_ns)).collect()
}

/// Asks a ledger for what a process has.
fn owned(pid: u32) -> impl FnOnce(&Ledger, ProcessHandle, AsOf) -> Option<Owned> + Send + 'static {
    move |ledger, process, as_of| {
        let stats = ledger.ask(&[process], as_of, &v1::StatsRequest { pid })?;
        Some(Owned {
            snapshot: Arc::new(ledger.snapshot(process, as_of)?),
            beside: ledger.beside_the_pool(process)?,
            devices: stats.devices,
            free_is_old: ledger.free_is_old(process),
            freed_by: HashMap::new(),
        })
    }
}

/// The process that has this number now had not been started at the moment that was asked for.
fn was_another(pid: u32) -> Refusal {
    Refusal::Invalid {
        what: format!(
            "at that moment, process {pid} was another one, or had not executed its program yet"
        ),
        hint: "`memscope-ctl ps` says since when a process is traced; `snapshot --at` has the blocks of the process before it"
            .to_owned(),
    }
}

/// Does work that takes its time beside the threads that answer others.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|source| Refusal::Internal {
        what: "the work for an answer failed".to_owned(),
        source: Box::new(source),
    })
}

#[tonic::async_trait]
impl Daemon for Serving {
    async fn attach(
        &self,
        caller: Caller,
        request: AttachRequest,
    ) -> Result<v1::AttachResponse, Refusal> {
        self.order(|reply| Order::Attach {
            caller,
            request,
            reply,
        })
        .await?
    }

    async fn detach(
        &self,
        caller: Caller,
        scope: DetachScope,
    ) -> Result<v1::DetachResponse, Refusal> {
        self.order(|reply| Order::Detach {
            caller,
            scope,
            reply,
        })
        .await?
    }

    async fn who(&self, pid: Option<u32>) -> Result<Vec<Who>, Refusal> {
        self.keeper
            .ask(move |ledger, _| ledger.who(pid))
            .await
            .map_err(|gone| RefusalOf::from(gone).0)
    }

    async fn ask(&self, asked: Asked, of: Vec<ProcessHandle>) -> Result<Answered, Refusal> {
        crate::panics::if_a_test_wants_it(crate::panics::ANSWERS);
        let pid = asked.pid();
        self.refresh_for(asked.needs(), &of).await;
        let end = self.replay.as_ref().map(|(_, end)| *end);
        let mut answered = self
            .keeper
            .ask(move |ledger, as_of| {
                if let (Some(_), [process]) = (pid, of.as_slice()) {
                    still_kept(ledger, *process)?;
                }
                Ok(asked.answer(ledger, &of, end.unwrap_or(as_of)))
            })
            .await
            .map_err(|gone| RefusalOf::from(gone).0)??
            .ok_or(Refusal::NotTraced {
                pid: pid.unwrap_or_default(),
            })?;
        if let Answered::List(list) = &mut answered {
            self.add_to_list(list).await?;
        }
        Ok(answered)
    }

    async fn course(
        &self,
        window: Window,
        wanted: &Wanted,
    ) -> Result<v1::FluctuationResponse, Refusal> {
        self.refresh_for(Needs::Reading, &[window.of]).await;
        let end = self.present().await?;
        let (pid, of) = (window.pid, window.of);
        let known = self.about(pid, move |ledger, process, _| {
            let until_ns = ledger.known_until(process, end)?;
            let attached_ns = ledger.summary(process)?.attached_ns;
            (process == of).then_some((attached_ns, until_ns))
        });
        let (attached_ns, until_ns) = known.await?;
        let from_ns = match window.from {
            Some(from) => self.boot_ns(pid, from, end).await?,
            None => attached_ns,
        };
        let to_ns = match window.to {
            Some(to) => self.boot_ns(pid, to, end).await?,
            None => until_ns.max(from_ns),
        };
        if from_ns > to_ns {
            return Err(Refusal::Invalid {
                what: "the window ends before it begins".to_owned(),
                hint: "give the earlier moment first".to_owned(),
            });
        }
        let asked = courses::Asked {
            process: of,
            pid,
            window: (from_ns, to_ns),
            intervals: match window.intervals {
                0 => courses::USUAL_INTERVALS,
                count => count.into(),
            },
            until_ns,
            last: end.event.sequence,
        };
        let found = match self.course_in_the_journal(&asked, wanted).await? {
            Some(found) => found,
            // Nothing but the buckets is left of it.
            None => {
                let coarse = self.about(pid, move |ledger, _, _| {
                    let mut found = courses::Found::default();
                    found.take_coarse(ledger, &asked, &asked.grid(), until_ns);
                    Some(found)
                });
                coarse.await?
            }
        };
        self.about(pid, move |ledger, process, _| {
            found.told(ledger, process, of, end)
        })
        .await
    }

    async fn end(&self) -> Result<u64, Refusal> {
        Ok(self.present().await?.boot_ns)
    }

    async fn recording(&self) -> Result<RecordingWriter, Refusal> {
        let (path, stopped) = self.past().await?;
        let stopped = match stopped {
            Some(stopped) if stopped.unix_ns.is_none() => return Err(stopped.refused()),
            stopped => {
                stopped.map(|stopped| format!("the {stopped}: what came later is not in it"))
            }
        };
        let opened = tokio::task::spawn_blocking(move || Recording::open(&path)).await;
        let recording = match opened.map_err(|source| unreadable(Box::new(source)))? {
            Ok(recording) => recording,
            Err(RecordingError::NoBeginning { .. }) => {
                return Err(Refusal::Invalid {
                    what: "nothing can be recorded: the journal is too small for what is known of the processes".to_owned(),
                    hint: "`memscope-ctl status` says how large it should be (--journal-mib of memscoped)".to_owned(),
                });
            }
            Err(other) => return Err(unreadable(Box::new(other))),
        };
        let is_written = self.replay.is_none();
        Ok(Box::new(move |out| {
            let exported = recording.write_to(out).map_err(std::io::Error::other)?;
            let mut warnings = exported.warnings;
            warnings.retain(|one| !matches!(one, Warning::BeginsLate { .. }));
            // The batch that is just being written ends a journal that is none the worse for it.
            let _ = warnings.pop_if(|last| is_written && matches!(last, Warning::Truncated { .. }));
            let warnings = warnings.iter().map(ToString::to_string);
            Ok(warnings.chain(stopped).collect())
        }))
    }

    async fn mark(&self, of: Who, mark: Mark) -> Result<EventId, Refusal> {
        if self.tracer.is_none() {
            return Err(Refusal::Replaying);
        }
        let process = of.handle;
        // This question makes sure that records from before the request come before the mark.
        let found = self.keeper.ask(move |ledger, _| {
            let summary = ledger.summary(process)?;
            let ended_ns = summary.ended_ns.map(|ended| ledger.unix_ns(ended));
            Some((summary, ended_ns))
        });
        let found = found.await.map_err(|gone| RefusalOf::from(gone).0)?;
        // An ended process may have been forgotten since it was looked up.
        let (summary, ended_ns) = found.ok_or(Refusal::NotTraced { pid: of.pid })?;
        still_there(&summary, ended_ns)?;
        let name = mark.name.clone();
        let record = DaemonRecord::Mark(mark);
        self.keeper
            .submit(Command::Append { process, record })
            .await
            .map_err(|gone| RefusalOf::from(gone).0)?;
        // Other events may have followed the mark since, so it is looked up.
        let made = self.keeper.ask(move |ledger, as_of| {
            let marks = ledger
                .ask(&[process], as_of, &v1::MarksRequest::default())?
                .marks;
            let outside = marks
                .iter()
                .rev()
                .filter(|mark| mark.source() == v1::MarkSource::Outside);
            let mut named = outside.filter(|mark| mark.name == name.trim_matches('"'));
            let event = named.next().and_then(|mark| mark.event);
            Some(event.map_or(as_of.event, |event| EventId {
                epoch: event.epoch,
                sequence: event.sequence,
            }))
        });
        let made = made.await.map_err(|gone| RefusalOf::from(gone).0)?;
        made.ok_or(Refusal::NotTraced { pid: of.pid })
    }

    async fn snapshot(
        &self,
        pid: u32,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<Arc<SnapshotReport>, Refusal> {
        if let Some(at) = at {
            return self
                .earlier(pid, at, wanted, |ledger, process, as_of| {
                    ledger.snapshot(process, as_of)
                })
                .await
                .map(Arc::new);
        }
        self.complete(pid).await;
        self.about(pid, |ledger, process, as_of| {
            ledger.snapshot(process, as_of)
        })
        .await
        .map(Arc::new)
    }

    async fn holders(
        &self,
        request: v1::HoldersRequest,
        before: Arc<SnapshotReport>,
    ) -> Result<v1::HoldersResponse, Refusal> {
        let pid = request.pid;
        self.still_runs(pid, &before).await?;
        let (asked, of) = (request.clone(), Arc::clone(&before));
        let find = move || {
            let held = holders::blocks(&of, &asked);
            // Where PyTorch keeps what is learned from all blocks, also if few of them are asked about.
            let all = holders::blocks(&of, &v1::HoldersRequest::default());
            let addresses: Vec<u64> = all.iter().map(|block| block.address).collect();
            (held, addresses)
        };
        let (held, addresses) = aside(find).await?;
        if held.is_empty() && !request.addresses.is_empty() {
            return Err(no_such_block(pid, &request.addresses));
        }
        let began = Instant::now();
        let reading = read_objects(pid, addresses, false)
            .await
            .map_err(NotRead::refusal)?;
        let duration_ns = began.elapsed().as_nanos() as u64;
        // At level `read` only another reading shows what is there by now.
        self.refresh_for(Needs::Reading, &[before.process.handle])
            .await;
        let after = self.same_again(pid, &before).await?;
        aside(move || {
            // What came meanwhile and is alike is not among those that were read.
            let held = holders::still_there(&held, &holders::blocks(&after, &request));
            let mut answer = holders::answer(&reading, &held, request.limit, &before.coverage);
            answer.coverage.extend(before.coverage.iter().cloned());
            v1::HoldersResponse {
                pid,
                process: Some(before.process.clone().into()),
                as_of: before.as_of.unix_ns,
                duration_ns,
                ..answer
            }
        })
        .await
    }

    async fn owners(
        &self,
        request: v1::OwnersRequest,
        before: Arc<SnapshotReport>,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<(v1::OwnersResponse, Who), Refusal> {
        let pid = request.pid;
        let rules = Rulebook::new(&request)?;
        // Of an earlier moment the rules say something also where there are no objects any more.
        let mut gone = self.still_runs(pid, &before).await.err();
        let earlier = match (at, gone.take_if(|_| at.is_none())) {
            (None, Some(gone)) => return Err(gone),
            (None, None) => None,
            (Some(at), _) => {
                // Without the names of its threads nothing would follow from who freed what.
                let still = match gone {
                    None => {
                        let now = Arc::clone(&before);
                        Some(aside(move || identities(&now)).await?)
                    }
                    Some(_) => None,
                };
                let earlier = self.earlier_with_frees(pid, at, wanted, still, owned(pid));
                let (owned, freed_by) = earlier.await?;
                // What is read from the process that runs now would say nothing about that one, which may be another user's.
                if !before.process.has_the_image_of(&owned.snapshot.process) {
                    return Err(was_another(pid));
                }
                Some(Owned { freed_by, ..owned })
            }
        };
        if !request.addresses.is_empty() {
            let asked = earlier.as_ref().map_or(&before, |then| &then.snapshot);
            let (asked, addresses) = (Arc::clone(asked), Addresses::new(&request.addresses));
            if !aside(move || addresses.lie_in_any(active(&asked))).await? {
                return Err(no_such_block(pid, &request.addresses));
            }
        }
        let runs = gone.is_none();
        let began = Instant::now();
        let mut notes = Vec::new();
        let mut reading = None;
        let mut has_no_python = false;
        if rules.needs_objects() {
            let read = match gone {
                None => {
                    let now = Arc::clone(&before);
                    let blocks = aside(move || active(&now).map(|block| block.addr).collect());
                    read_objects(pid, blocks.await?, true).await
                }
                Some(why) => Err(NotRead::Refused(why)),
            };
            match read {
                Ok(read) => {
                    notes.extend(holders::notes(&read, &before.coverage));
                    reading = Some(read);
                }
                // The rules still say something by stacks and pools, and the answer says what is missing.
                Err(why) => {
                    has_no_python = matches!(why, NotRead::NoPython { .. });
                    notes.push(v1::CoverageNote {
                        code: "objects_not_read".to_owned(),
                        text: format!(
                            "Python's objects were not read, so nothing here is known from them: {}",
                            why.refusal()
                        ),
                        ..v1::CoverageNote::default()
                    });
                }
            }
        }
        let duration_ns = began.elapsed().as_nanos() as u64;
        let is_earlier = earlier.is_some();
        let handle = before.process.handle;
        // The address of a block that was freed while the journal and the objects were read may be another's by then.
        let again = match is_earlier && reading.is_some() {
            true => {
                self.refresh_for(Needs::Totals, &[handle]).await;
                Some(self.same_again(pid, &before).await.ok())
            }
            false => None,
        };
        let known = aside(move || {
            let of = |snapshot: &SnapshotReport| -> HashSet<owners::Identity> {
                active(snapshot).map(owners::identity).collect()
            };
            match again {
                None => of(&before),
                Some(None) => HashSet::new(),
                Some(Some(again)) => &of(&before) & &of(&again),
            }
        });
        let known = known.await?;
        let owned = match earlier {
            Some(owned) => owned,
            None => {
                self.refresh_for(Needs::Totals, &[handle]).await;
                let owned = owned(pid);
                // All of one moment, so that the sums of a device fit together.
                self.about(pid, move |ledger, process, as_of| {
                    (process == handle).then(|| owned(ledger, process, as_of))?
                })
                .await?
            }
        };
        let addresses = request.addresses.clone();
        let (answer, who) = aside(move || {
            // By now the number may be another process's.
            let backward = match runs {
                true => threads::backward(pid),
                false => HashSet::new(),
            };
            let threads = Threads::new(&owned.snapshot, backward, owned.freed_by);
            let picture = owners::Picture {
                reading: reading.as_ref(),
                known: &known,
                after: &owned.snapshot,
                beside: &owned.beside,
                devices: &owned.devices,
                free_is_old: &owned.free_is_old,
                threads: &threads,
                has_no_python,
                is_earlier,
            };
            let answer = owners::answer(&picture, &rules, &request);
            let after = &owned.snapshot;
            notes.extend(after.coverage.iter().cloned());
            let answer = v1::OwnersResponse {
                pid,
                process: Some(after.process.clone().into()),
                as_of: after.as_of.unix_ns,
                duration_ns,
                coverage: notes,
                ..answer
            };
            (answer, after.process.who())
        })
        .await?;
        // What was freed meanwhile is nothing that is explained, and the answer to another question must not stand for it.
        if !addresses.is_empty() && answer.explained.is_empty() {
            return Err(no_such_block(pid, &addresses));
        }
        Ok((answer, who))
    }

    async fn stacks(
        &self,
        pid: u32,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<StackReport, Refusal> {
        match at {
            Some(at) => {
                self.earlier(pid, at, wanted, |ledger, process, as_of| {
                    ledger.stacks(process, as_of)
                })
                .await
            }
            None => {
                let process = self.about(pid, |_, process, _| Some(process)).await?;
                self.refresh_for(Needs::Reading, &[process]).await;
                self.about(pid, |ledger, process, as_of| ledger.stacks(process, as_of))
                    .await
            }
        }
    }

    async fn events(&self, filter: EventFilter) -> Result<memscope_rpc::EventReader, Refusal> {
        Ok(self.keeper.hub().subscribe(filter))
    }

    async fn status(&self) -> Result<v1::StatusResponse, Refusal> {
        let keeper = self
            .keeper
            .status()
            .await
            .map_err(|gone| RefusalOf::from(gone).0)?;
        let tracer = match self.tracer {
            Some(_) => tokio::time::timeout(STATUS, self.order(Order::Status))
                .await
                .ok()
                .transpose()?,
            None => None,
        };
        let recording = self.kept_recording().await?;
        let first = recording.as_ref().and_then(|all| all.segments().first());
        let known_from = first.map(SegmentPlace::first_unix_ns);
        Ok(self.put_together(keeper, tracer, known_from))
    }
}

impl Serving {
    /// The recording that is read for earlier moments. `None` if nothing is kept.
    async fn kept_recording(&self) -> Result<Option<Recording>, Refusal> {
        let path = match &self.replay {
            Some((path, _)) => path.clone(),
            None => {
                let gone = |gone| RefusalOf::from(gone).0;
                let keeper = self.keeper.status().await.map_err(gone)?;
                if keeper.journal.is_none() {
                    return Ok(None);
                }
                keeper.journal_dir
            }
        };
        let read = move || Recording::open(&path).ok();
        // A recording that cannot be opened counts as none.
        Ok(tokio::task::spawn_blocking(read).await.ok().flatten())
    }

    /// For each process the moment from which on it can be asked about its past, in nanoseconds since 1970. Processes
    /// of which no past is kept are left out.
    async fn known_from(&self) -> Result<Vec<(ProcessHandle, u64)>, Refusal> {
        let Some(recording) = self.kept_recording().await? else {
            return Ok(Vec::new());
        };
        self.keeper
            .ask(move |ledger, _| {
                let known = |process: ProcessSummary| {
                    let first = recording.complete_from(process.handle.0);
                    let first = first.map_or(0, |place| place.header.first_boot_ns);
                    let from = ledger.unix_ns(process.attached_ns.max(first));
                    (process.handle, from)
                };
                ledger.processes().into_iter().map(known).collect()
            })
            .await
            .map_err(|gone| RefusalOf::from(gone).0)
    }

    /// Adds to each process since when its past is known, how much its findings grow, and how it was judged.
    async fn add_to_list(&self, list: &mut v1::ListResponse) -> Result<(), Refusal> {
        let known_from = self.known_from().await?;
        let findings = self.keeper.hub().findings();
        let (judged_ns, now) = (self.keeper.hub().judged_boot_ns(), clock::boot_ns());
        for process in &mut list.processes {
            let known = known_from.iter().find(|(of, _)| of.0 == process.handle);
            process.known_from_unix_ns = known.map(|(_, from)| *from);
            let of_it = findings.iter().filter(|(of, _)| of.0 == process.handle);
            let of_it: Vec<&Finding> = of_it.map(|(_, finding)| finding).collect();
            process.growing_lines = Some(of_it.len() as u64);
            // It is shown beside what the devices hold, which page-locked memory of the host is no part of.
            let on_devices = || of_it.iter().filter(|one| one.space != "host");
            // The sum of none would be a negative zero.
            let per_s = on_devices().fold(0.0, |sum, one| sum + one.growth_bytes_per_s);
            process.growth_bytes_per_s = Some(per_s);
            // A sum without one of its lines would be a wrong number.
            let per_step: Option<f64> = on_devices().map(|one| one.growth_bytes_per_step).sum();
            process.growth_bytes_per_step = per_step.filter(|_| on_devices().next().is_some());
            // What a recording has is as it was left, and nobody judges it.
            if self.tracer.is_none() {
                continue;
            }
            let judged = self.keeper.hub().verdict(ProcessHandle(process.handle));
            if process.state() == v1::ProcessState::Attached {
                // Growth that was reported stands for a moment after it has paused, and before a new daemon has judged for the first time.
                let reported = of_it.iter().filter_map(|one| one.confidence);
                let judged = match of_it.is_empty() {
                    true => judged,
                    false => Some((v1::ProcessVerdict::Growing, reported.max_by(f64::total_cmp))),
                };
                process.judged_ago_ns = judged.and(judged_ns).map(|ns| now.saturating_sub(ns));
                let (verdict, sure) = judged.unwrap_or((v1::ProcessVerdict::TooEarly, None));
                (process.verdict, process.confidence) = (verdict.into(), sure);
            } else if let Some((verdict, sure)) = judged {
                (process.verdict, process.confidence) = (verdict.into(), sure);
            }
        }
        Ok(())
    }

    /// The moment from which on a process can be asked about its past, in nanoseconds since 1970.
    async fn known_from_of(&self, pid: u32) -> Result<Option<u64>, Refusal> {
        let find = move |ledger: &mut Ledger, _| ledger.find(pid);
        let process = self.keeper.ask(find).await;
        let process = process.map_err(|gone| RefusalOf::from(gone).0)?;
        let known = self.known_from().await?;
        let mut known = known.into_iter();
        Ok(known
            .find(|(of, _)| Some(*of) == process)
            .map(|(_, from)| from))
    }

    /// Asks about an earlier moment: the journal is folded again up to that moment. The fold ends early when the
    /// client is gone.
    async fn earlier<T: Send + 'static>(
        &self,
        pid: u32,
        at: Moment,
        wanted: &Wanted,
        question: impl FnOnce(&Ledger, ProcessHandle, AsOf) -> Option<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let answer = self.earlier_with_frees(pid, at, wanted, None, question);
        answer.await.map(|(answer, _)| answer)
    }

    /// The same. If it is said which blocks are `still` there (address and boot time of the allocation), the threads that freed the
    /// other blocks of that moment as well, by the blocks' addresses.
    async fn earlier_with_frees<T: Send + 'static>(
        &self,
        pid: u32,
        at: Moment,
        wanted: &Wanted,
        still: Option<HashSet<(u64, u64)>>,
        question: impl FnOnce(&Ledger, ProcessHandle, AsOf) -> Option<T> + Send + 'static,
    ) -> Result<(T, HashMap<u64, u32>), Refusal> {
        let end = self.present().await?;
        let until = match at {
            Moment::Unix(ns) if ns > end.unix_ns => return Err(not_in_the_journal("lies ahead")),
            Moment::Event(number) if number > end.event.sequence => {
                return Err(not_in_the_journal("has not come yet"));
            }
            Moment::Unix(ns) => {
                let at = self.ask_keeper(move |ledger, _| Until::at_unix(ns, ledger));
                at.await?
            }
            Moment::Ago(ns) => Until::Boot(end.boot_ns.saturating_sub(ns)),
            Moment::Boot(ns) => Until::Boot(ns),
            Moment::Event(number) => Until::Event(number),
            Moment::Step(number) => Until::Boot(self.end_of_step(pid, number).await?),
        };
        let path = self.past_with(until).await?;
        let config = self.ledger.clone();
        let wanted = wanted.clone();
        let room = self.room_for(pid).await?;
        // The ledger is asked and dropped on the same thread, because both take long where it is large.
        let fold = move || {
            let bounds = Bounds {
                wanted: &|| wanted.is_wanted(),
                room: room.as_ref(),
                last: Some(end.event.sequence),
            };
            let mut folded = replay_within(&path, config, until, pid, &bounds, still.as_ref())?;
            let freed_by = std::mem::take(&mut folded.freed_by);
            let answer = ask_folded(&folded, pid, until, question);
            // Its room is free again when its memory is.
            drop(folded);
            if room.is_some() {
                crate::memory::trim();
            }
            Ok(answer.map(|answer| (answer, freed_by)))
        };
        let answer = tokio::task::spawn_blocking(fold)
            .await
            .map_err(|source| unreadable(Box::new(source)))?;
        let too_early = |from| {
            not_in_the_journal(&format!(
                "is no longer in the journal, whose older part is gone: process {pid} is known from {} on",
                first_moment(from)
            ))
        };
        match answer {
            Ok(Ok((answer, freed_by))) => match answer? {
                Some(answer) => Ok((answer, freed_by)),
                None => Err(not_in_the_journal(&format!(
                    "lies before process {pid} was attached"
                ))),
            },
            Ok(Err(NotThere {
                known_from_unix_ns: Some(from),
                ..
            })) => Err(too_early(from)),
            Ok(Err(_)) => Err(not_in_the_journal(&format!(
                "is no longer in the journal, whose older part is gone, and no later part that can be read has process {pid}"
            ))),
            Err(ReplayError::TooEarly { known_from_unix_ns }) => {
                let own = self.known_from_of(pid).await?;
                Err(too_early(own.unwrap_or(known_from_unix_ns)))
            }
            Err(ReplayError::Recording(RecordingError::NoBeginning { .. })) => {
                Err(not_in_the_journal(
                    "is no longer in the journal, which is too small for what is known of the processes: \
                     `memscope-ctl status` says how large it should be",
                ))
            }
            Err(ReplayError::NoRoom(why)) => Err(no_memory(why)),
            Err(ReplayError::NotWanted) => Err(Refusal::NotWanted),
            Err(other) => Err(unreadable(Box::new(other))),
        }
    }

    /// What the journal has of a window; `None` if none is written, or it stopped before the window ends, or has nothing of the process.
    async fn course_in_the_journal(
        &self,
        asked: &courses::Asked,
        wanted: &Wanted,
    ) -> Result<Option<courses::Found>, Refusal> {
        let path = match self.past_with(Until::Boot(asked.window.1)).await {
            Ok(path) => path,
            Err(Refusal::Invalid { .. }) => return Ok(None),
            Err(other) => return Err(other),
        };
        let (asked, wanted) = (*asked, wanted.clone());
        let (config, courses) = (self.ledger.clone(), Arc::clone(&self.courses));
        let room = self.room_for(asked.pid).await?;
        let fold = move || {
            let bounds = Bounds {
                wanted: &|| wanted.is_wanted(),
                room: room.as_ref(),
                last: Some(asked.last),
            };
            courses.find(&path, &config, &asked, &bounds)
        };
        let found = tokio::task::spawn_blocking(fold).await;
        match found.map_err(|source| unreadable(Box::new(source)))? {
            Ok(found) => Ok(found),
            Err(ReplayError::Recording(RecordingError::NoBeginning { .. })) => Ok(None),
            Err(ReplayError::NoRoom(why)) => Err(no_memory(why)),
            Err(ReplayError::NotWanted) => Err(Refusal::NotWanted),
            Err(other) => Err(unreadable(Box::new(other))),
        }
    }

    /// A moment in nanoseconds of boot time. `end` is the present moment.
    async fn boot_ns(&self, pid: u32, moment: Moment, end: AsOf) -> Result<u64, Refusal> {
        match moment {
            Moment::Boot(ns) => Ok(ns),
            Moment::Ago(ns) => Ok(end.boot_ns.saturating_sub(ns)),
            Moment::Step(number) => self.end_of_step(pid, number).await,
            Moment::Unix(ns) => {
                let known = self.ask_keeper(move |ledger, _| ledger.boot_ns(ns)).await?;
                known.ok_or_else(|| {
                    not_in_the_journal("has no place among the events: no clock was read")
                })
            }
            Moment::Event(number) => {
                let path = self.past_with(Until::Event(number)).await?;
                let find = move || time_of(&Recording::open(&path)?, number);
                let found = tokio::task::spawn_blocking(find).await;
                let found = found.map_err(|source| unreadable(Box::new(source)))?;
                let found = found.map_err(|source| unreadable(Box::new(source)))?;
                found.ok_or_else(|| not_in_the_journal("is not in the journal"))
            }
        }
    }

    /// Takes room in the memory for the ledger of a question about an earlier moment of a process: as much as the process
    /// takes now. If it took more at that moment, the fold notices it.
    async fn room_for(&self, pid: u32) -> Result<Option<FoldRoom>, Refusal> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let bytes = self.keeper.ask(move |ledger, _| {
            let kept = ledger.find(pid).and_then(|p| ledger.kept_bytes(p));
            kept.map_or(0, |kept| kept.all())
        });
        let bytes = bytes.await.map_err(|gone| RefusalOf::from(gone).0)?;
        memory.fold(bytes).map(Some).map_err(no_memory)
    }

    fn put_together(
        &self,
        keeper: KeeperStatus,
        tracer: Option<TracerStatus>,
        known_from_unix_ns: Option<u64>,
    ) -> v1::StatusResponse {
        let (_, now_unix_ns) = clock::pair();
        let mut messages = self.messages.all();
        messages.extend(
            keeper
                .calibrating
                .iter()
                .map(|(pid, progress)| v1::Message {
                    time_unix_ns: now_unix_ns,
                    severity: Severity::Info.word().to_owned(),
                    text: format!("process {pid}: looking for the allocator's layout ({progress})"),
                }),
        );
        let state = match (&self.replay, &keeper.journal) {
            (Some(_), _) => "replay",
            (None, None) => "off",
            (None, Some(memscope_log::State::Running)) => "writing",
            (None, Some(memscope_log::State::Stopped { is_full: true, .. })) => "full",
            (None, Some(memscope_log::State::Stopped { .. })) => "failed",
        };
        let journal = v1::Journal {
            state: state.to_owned(),
            path: keeper.journal_dir.display().to_string(),
            epoch: keeper.epoch,
            last_sequence: keeper.journal_sequence,
            bytes: directory_bytes(&keeper.journal_dir),
            limit_bytes: self.journal_limit,
            refused_records: keeper.journal_dropped,
            problem: keeper
                .journal_problem
                .clone()
                .or_else(|| self.flushing.problem()),
            known_from_unix_ns,
        };
        let mut drops = keeper.skipped.clone();
        let forgotten = self.keeper.hub().forgotten_findings();
        if forgotten > 0 {
            drops.push(("findings_forgotten".to_owned(), forgotten));
        }
        let mut status = v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map(|s| s.trim().to_owned())
                .unwrap_or_default(),
            uptime_ns: u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            now_unix_ns,
            replay: self
                .replay
                .as_ref()
                .map(|(path, _)| path.display().to_string()),
            ring_bytes: keeper.ring_bytes,
            journal: Some(journal),
            records: keeper.records,
            messages,
            memory: keeper.memory.map(memory),
            ..v1::StatusResponse::default()
        };
        status.attaching = self.tracer.is_some() && tracer.is_none();
        status.reads_given_up = memscope_memory::reader::given_up();
        if let Some(tracer) = tracer {
            drops.extend(tracer.drops);
            status.attach_method = Some(tracer.method.name().to_owned());
            status.sites = tracer.sites;
            status.libraries = tracer.libraries;
            status.rules = tracer.rules;
        }
        let drops = drops.into_iter();
        status.drops = drops
            .map(|(cause, count)| v1::Cause { cause, count })
            .collect();
        status
    }
}

fn memory(status: MemoryStatus) -> v1::Memory {
    let shed = status.shed.into_iter().map(|(part, count)| v1::Cause {
        cause: part.word().to_owned(),
        count,
    });
    v1::Memory {
        limit_bytes: status.limit,
        used_bytes: status.used,
        processes_limit_bytes: status.of_processes,
        processes_bytes: status.processes,
        shed: shed.collect(),
    }
}

/// Asks about a process in what was folded; `Ok(Ok(None))` if it was not there yet, and
/// `Err` if it had to give way to others.
fn ask_folded<T>(
    folded: &Replayed,
    pid: u32,
    until: Until,
    question: impl FnOnce(&Ledger, ProcessHandle, AsOf) -> Option<T>,
) -> Result<Result<Option<T>, Refusal>, NotThere> {
    if let Some(gone) = folded.not_there(pid) {
        return Err(gone);
    }
    let Some(process) = folded.ledger.find(pid) else {
        return Ok(Ok(None));
    };
    let asked = still_kept(&folded.ledger, process)
        .and_then(|()| traced_then(folded, process, until))
        .map(|()| question(&folded.ledger, process, folded.end));
    Ok(asked)
}

/// Refuses a moment at which a process ran but was not traced: what it had then is not known.
fn traced_then(folded: &Replayed, process: ProcessHandle, until: Until) -> Result<(), Refusal> {
    let ledger = &folded.ledger;
    let Some(detached_ns) = ledger.detached_ns(process) else {
        return Ok(());
    };
    let is_over = match until {
        Until::Boot(ns) => ns > detached_ns,
        Until::Unix(ns) => ns > ledger.unix_ns(detached_ns),
        Until::Event(_) => folded.end.boot_ns > detached_ns,
    };
    if !is_over {
        return Ok(());
    }
    let pid = ledger.summary(process).map_or(0, |one| one.facts.pid);
    Err(not_in_the_journal(&format!(
        "lies after process {pid} was detached at {}: it was not traced then",
        memscope_units::moment_ms(ledger.unix_ns(detached_ns))
    )))
}

/// Refuses a question about a process of which nothing is kept any more, because it took too much memory.
fn still_kept(ledger: &Ledger, process: ProcessHandle) -> Result<(), Refusal> {
    let Some(shed) = ledger.shed(process, ShedPart::Process) else {
        return Ok(());
    };
    let summary = ledger.summary(process);
    let ended_ns = summary.as_ref().and_then(|one| one.ended_ns).unwrap_or(0);
    Err(Refusal::GivenUp {
        pid: summary.map_or(0, |one| one.facts.pid),
        at: memscope_units::moment_ms(ledger.unix_ns(ended_ns)),
        held_bytes: shed.held_bytes,
        limit_bytes: shed.limit_bytes,
    })
}

fn no_memory(why: NoRoom) -> Refusal {
    Refusal::NoMemory {
        what: why.to_string(),
    }
}

fn unreadable(source: Box<dyn std::error::Error + Send + Sync>) -> Refusal {
    Refusal::Internal {
        what: "the journal could not be read".to_owned(),
        source,
    }
}

/// Where and why the journal has stopped.
struct Stopped {
    /// Number of the last record in it, and when that was.
    last: u64,
    boot_ns: u64,
    /// `None`: nothing that can be asked for is in it.
    unix_ns: Option<u64>,
    /// What the system said.
    reason: String,
}

impl Stopped {
    /// Whether the moment is in it.
    fn has(&self, until: Until) -> bool {
        match until {
            Until::Boot(ns) => ns <= self.boot_ns,
            Until::Unix(ns) => self.unix_ns.is_some_and(|last| ns <= last),
            Until::Event(number) => number <= self.last,
        }
    }

    fn refused(&self) -> Refusal {
        Refusal::Invalid {
            what: format!("that moment is not in the journal: the {self}"),
            hint: "make room on the disk of memscoped's state directory, and the journal goes on; as root, --recording DIR of \
                   memscope-ctl with that directory asks about all that is in it"
                .to_owned(),
        }
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = &self.reason;
        match self.unix_ns {
            Some(ns) => write!(
                f,
                "journal has stopped at {} ({reason})",
                memscope_units::moment_ms(ns)
            ),
            None => write!(f, "journal has stopped ({reason})"),
        }
    }
}

fn not_in_the_journal(why: &str) -> Refusal {
    Refusal::Invalid {
        what: format!("that moment {why}"),
        hint: "`memscope-ctl ps` says since when a process is traced; --journal-mib of memscoped \
               says how much is kept"
            .to_owned(),
    }
}

/// Disk space in bytes that the files in a directory take.
fn directory_bytes(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.blocks() * 512)
        .sum()
}
