//! The reader processes that there are, and who waits for which.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::FromBytes;

use super::wire::{self, Answer, MOST_RANGES, Question, Range, Said};
use crate::ask::{AskBack, Patience};
use crate::owner::Owner;
use crate::part::Part;
use crate::place::FileFacts;
use crate::place::MOST_BYTES;

/// The one argument with which a program must be started to become a reader.
pub const ARGUMENT: &str = "--read-for-memscoped";

/// Most readers of one user's processes at a time, and as many for work that may take long. Who needs another one waits.
const MOST_READERS: usize = 4;
/// Most readers of one user's processes that were given up and have not ended. While there are so many, nothing of that
/// user's is read.
const MOST_GIVEN_UP: usize = 8;
/// A user's reader that nobody needed for so long ends, and one that is idle beside another one.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_BESIDE: Duration = Duration::from_secs(2);
/// Time between two looks at whether a reader goes on.
const LOOK: Duration = Duration::from_millis(25);
/// Longest time for which a reader may work on one question, but for work that may take long.
const LONGEST: Duration = Duration::from_secs(10);
/// How long readers of one process may have stood still in vain, and how much of it is forgiven with each second that passes. Beyond that, the
/// process is left alone. So it costs a tenth of the time of whoever reads it, and all processes of a user together cost half of it.
const OF_PROCESS: (Duration, f64) = (Duration::from_secs(2), 0.1);
const OF_USER: (Duration, f64) = (Duration::from_secs(5), 0.5);
/// Longest time in which a reader that has begun with its answer may say the rest.
const IN_AN_ANSWER: Duration = Duration::from_secs(1);

/// How long a reader may stand still. A page of memory may be one of a file or of a swap device, and a busy disk delivers neither faster.
const MEMORY: Duration = Duration::from_secs(1);
const FILES: Duration = Duration::from_secs(1);

/// The readers of all users, each of which reads for one user's processes only.
#[derive(Debug)]
pub(crate) struct Readers {
    program: PathBuf,
    state: Mutex<State>,
    returned: Condvar,
    given_up: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    users: HashMap<u32, User>,
    /// What was waited for in vain in processes.
    processes: HashMap<u32, InVain>,
}

/// The readers of one user's processes.
#[derive(Debug, Default)]
struct User {
    idle: Vec<Reader>,
    at_work: usize,
    /// Those whose work may take long.
    at_length: usize,
    given_up: Vec<Child>,
    in_vain: InVain,
}

impl User {
    /// The places that are taken, of those for work that may take so long: what is short never waits for what takes long.
    fn places(&mut self, patience: Patience) -> &mut usize {
        if patience.whole > LONGEST {
            &mut self.at_length
        } else {
            &mut self.at_work
        }
    }

    fn leave(&mut self, patience: Patience) {
        let places = self.places(patience);
        *places = places.saturating_sub(1);
    }
}

/// Time for which readers stood still in vain.
#[derive(Clone, Copy, Debug, Default)]
struct InVain {
    /// Until when all of it is forgiven.
    until: Option<Instant>,
}

impl InVain {
    fn add(&mut self, now: Instant, time: Duration, (_, forgiven): (Duration, f64)) {
        let from = self.until.map_or(now, |until| until.max(now));
        self.until = Some(from + time.div_f64(forgiven));
    }

    fn is_too_much(self, now: Instant, (most, forgiven): (Duration, f64)) -> bool {
        self.left(now) > most.div_f64(forgiven)
    }

    fn left(self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until - now)
    }
}

#[derive(Debug)]
struct Reader {
    child: Child,
    socket: UnixStream,
    used: Instant,
}

/// Why a reader is of no further use.
enum Lost {
    /// It has ended, or answered nonsense.
    Broken(io::Error),
    /// It does not come back, and was waited for so long.
    Hangs(Duration),
    /// It works, but longer than it may.
    TooLong,
}

impl Readers {
    pub(crate) fn new(program: PathBuf) -> Readers {
        Readers {
            program,
            state: Mutex::default(),
            returned: Condvar::new(),
            given_up: AtomicU64::new(0),
        }
    }

    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Reads parts of a process's memory.
    pub(crate) fn read_memory(
        &self,
        owner: Owner,
        pid: i32,
        file: &File,
        mut parts: &mut [Part],
    ) -> io::Result<()> {
        while !parts.is_empty() {
            let (now, later) = parts.split_at_mut(fitting(parts));
            let range = |part: &Part| Range {
                start: part.address,
                len: part.bytes.len() as u64,
            };
            let ranges = now.iter().map(range).collect();
            let question = Question::Memory { pid, ranges };
            let bytes = self
                .ask(owner, &question, Some(file.as_fd()), MEMORY)?
                .bytes;
            let mut rest = bytes.as_slice();
            for part in now {
                let (its, behind) = rest
                    .split_at_checked(part.bytes.len())
                    .ok_or_else(wire::malformed)?;
                part.bytes.copy_from_slice(its);
                rest = behind;
            }
            parts = later;
        }
        Ok(())
    }

    /// Has work done on the process's memory whose memory file this is.
    pub(crate) fn work(
        &self,
        owner: Owner,
        file: &File,
        question: &Question,
        patience: Patience,
        reply: &mut AskBack<'_>,
    ) -> io::Result<Vec<u8>> {
        let about = Some(file.as_fd());
        let answer = self.ask_and_reply(owner, question, about, patience, reply)?;
        Ok(answer.bytes)
    }

    /// Reads a piece of the file at this place.
    pub(crate) fn read_file(
        &self,
        owner: Owner,
        place: BorrowedFd<'_>,
        offset: u64,
        piece: &mut [u8],
    ) -> io::Result<()> {
        let range = Range {
            start: offset,
            len: piece.len() as u64,
        };
        let answer = self.ask(owner, &Question::File(range), Some(place), FILES)?;
        let bytes = answer.bytes.get(..piece.len());
        piece.copy_from_slice(bytes.ok_or_else(wire::malformed)?);
        Ok(())
    }

    /// The place that a path leads to, if a regular file is there, and what is there.
    pub(crate) fn open(
        &self,
        owner: Owner,
        path: &Path,
        follow: bool,
    ) -> io::Result<(Option<OwnedFd>, FileFacts)> {
        let path = path.to_owned();
        let answer = self.ask(owner, &Question::Open { path, follow }, None, FILES)?;
        let facts = FileFacts::read_from_bytes(&answer.bytes).map_err(|_| wire::malformed())?;
        Ok((answer.place, facts))
    }

    /// The whole of a file.
    pub(crate) fn read_whole(&self, owner: Owner, path: &Path) -> io::Result<Vec<u8>> {
        let answer = self.ask(owner, &Question::Whole(path.to_owned()), None, MEMORY)?;
        Ok(answer.bytes)
    }

    fn ask(
        &self,
        owner: Owner,
        question: &Question,
        about: Option<BorrowedFd<'_>>,
        still: Duration,
    ) -> io::Result<Answer> {
        let patience = Patience {
            still,
            whole: LONGEST,
        };
        let reply = &mut |_: &[u8]| Err(wire::malformed());
        self.ask_and_reply(owner, question, about, patience, reply)
    }

    fn ask_and_reply(
        &self,
        owner: Owner,
        question: &Question,
        about: Option<BorrowedFd<'_>>,
        patience: Patience,
        reply: &mut AskBack<'_>,
    ) -> io::Result<Answer> {
        let mut reader = self.take(owner, patience)?;
        let outcome = reader.ask(question, about, patience, reply);
        let mut state = self.state();
        let user = state.users.entry(owner.uid).or_default();
        user.leave(patience);
        let result = match outcome {
            Ok(result) => {
                reader.used = Instant::now();
                user.idle.push(reader);
                result
            }
            Err(Lost::Broken(error)) => {
                reader.end(user);
                Err(error)
            }
            Err(Lost::Hangs(time)) => {
                reader.end(user);
                self.given_up.fetch_add(1, Ordering::Relaxed);
                let now = Instant::now();
                user.in_vain.add(now, time, OF_USER);
                let process = state.processes.entry(owner.pid).or_default();
                process.add(now, time, OF_PROCESS);
                Err(owner.is_left_alone())
            }
            Err(Lost::TooLong) => {
                reader.end(user);
                Err(owner.took_too_long(patience.whole))
            }
        };
        drop(state);
        self.returned.notify_all();
        result
    }

    /// A reader for this user, who has one of the user's places from then on. While others have all places, it is waited for one, as long
    /// as their readers may take: whoever is in a hurry waits no longer than it would wait for the reader itself.
    fn take(&self, owner: Owner, patience: Patience) -> io::Result<Reader> {
        let mut state = self.state();
        let now = Instant::now();
        let is_hurried = patience.still < MEMORY;
        let until = now
            + if is_hurried {
                patience.still
            } else {
                patience.whole
            };
        let process = state.processes.get(&owner.pid);
        if process.is_some_and(|process| process.is_too_much(now, OF_PROCESS)) {
            return Err(owner.is_left_alone());
        }
        state.rest(now);
        loop {
            let user = state.users.entry(owner.uid).or_default();
            if user.given_up.len() >= MOST_GIVEN_UP || user.in_vain.is_too_much(now, OF_USER) {
                return Err(owner.is_left_alone());
            }
            if *user.places(patience) < MOST_READERS {
                *user.places(patience) += 1;
                match user.idle.pop() {
                    Some(reader) => return Ok(reader),
                    None => break,
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(owner.is_left_alone());
            }
            let (waited, _) = self
                .returned
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = waited;
        }
        drop(state);
        let started = self.start();
        if started.is_err() {
            let mut state = self.state();
            state.users.entry(owner.uid).or_default().leave(patience);
            drop(state);
            self.returned.notify_all();
        }
        started
    }

    fn start(&self) -> io::Result<Reader> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(IN_AN_ANSWER))?;
        ours.set_write_timeout(Some(IN_AN_ANSWER))?;
        let child = Command::new(&self.program)
            .arg(ARGUMENT)
            .env_clear()
            // Large pieces of memory in huge pages: a reading of objects looks everywhere in them. Other C libraries ignore it.
            .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Reader {
            child,
            socket: ours,
            used: Instant::now(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between a change and its end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends readers that nobody needs, and forgets who is no longer left alone.
    fn rest(&mut self, now: Instant) {
        self.processes
            .retain(|_, process| !process.left(now).is_zero());
        for user in self.users.values_mut() {
            // The one that was used last comes last, and is taken first.
            let over = |user: &User| {
                let most = if user.idle.len() > 1 {
                    IDLE_BESIDE
                } else {
                    IDLE
                };
                let oldest = user.idle.first();
                oldest.is_some_and(|oldest| now - oldest.used > most)
            };
            while over(user) {
                user.idle.remove(0).end(user);
            }
            user.given_up
                .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        }
        self.users.retain(|_, user| {
            let readers = user.at_work + user.at_length + user.idle.len() + user.given_up.len();
            readers > 0 || !user.in_vain.left(now).is_zero()
        });
    }
}

impl Owner {
    fn whose(self) -> String {
        match self.pid {
            0 => "a file of this machine".to_owned(),
            pid => format!("memory or a file of process {pid}"),
        }
    }

    /// What work fails with that would take longer than it may.
    fn took_too_long(self, whole: Duration) -> io::Error {
        let text = format!(
            "reading {} took longer than {} s, and was ended",
            self.whose(),
            whole.as_secs()
        );
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    /// What a read fails with that is given up.
    fn is_left_alone(self) -> io::Error {
        let whose = self.whose();
        let text = format!(
            "{whose} was not delivered to who read it (a file system that does not answer?); it is tried again later"
        );
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

impl Reader {
    fn ask(
        &mut self,
        question: &Question,
        about: Option<BorrowedFd<'_>>,
        patience: Patience,
        reply: &mut AskBack<'_>,
    ) -> Result<io::Result<Answer>, Lost> {
        let began = Instant::now();
        wire::ask(&mut self.socket, question, about).map_err(Lost::Broken)?;
        loop {
            self.wait(began, patience)?;
            match wire::said(&mut self.socket, question.most()).map_err(Lost::Broken)? {
                Said::Answer(answer) => return Ok(answer),
                Said::Asks(bytes) => {
                    let answer = |bytes| Answer { bytes, place: None };
                    let reply = reply(&bytes).map(answer);
                    wire::answer(&mut self.socket, reply).map_err(Lost::Broken)?;
                }
            }
        }
    }

    /// Waits until the reader says something. On a busy machine it waits for a processor, and that is no standing still.
    fn wait(&self, began: Instant, patience: Patience) -> Result<(), Lost> {
        let mut stood_still = Duration::ZERO;
        let mut before = None;
        loop {
            if self.has_answered(LOOK).map_err(Lost::Broken)? {
                return Ok(());
            }
            let progress = self.progress();
            let goes_on = progress.works || before != Some(progress.switches);
            before = Some(progress.switches);
            stood_still = if goes_on {
                Duration::ZERO
            } else {
                stood_still + LOOK
            };
            if stood_still >= patience.still {
                return Err(Lost::Hangs(stood_still));
            }
            // Whoever asks for what is short waits for it, so that a process for which it takes long is left alone. What may take long
            // has places of its own.
            if began.elapsed() > patience.whole {
                return Err(match patience.whole > LONGEST {
                    true => Lost::TooLong,
                    false => Lost::Hangs(patience.whole),
                });
            }
        }
    }

    fn has_answered(&self, within: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let time = Timespec {
            tv_sec: within.as_secs() as i64,
            tv_nsec: within.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut fds, Some(&time)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn progress(&self) -> Progress {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let mut progress = Progress::default();
        for line in text.unwrap_or_default().lines() {
            match line.split_once(':') {
                Some(("State", state)) => progress.works = state.trim_start().starts_with('R'),
                Some(("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", count)) => {
                    progress.switches += count.trim().parse::<u64>().unwrap_or(0);
                }
                _ => {}
            }
        }
        progress
    }

    /// Ends the reader. If it does not end, it is waited for later.
    fn end(mut self, user: &mut User) {
        let _ = self.child.kill();
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            user.given_up.push(self.child);
        }
    }
}

/// What the kernel says of a reader.
#[derive(Default)]
struct Progress {
    /// It has or wants a processor, and does not wait for anything else.
    works: bool,
    /// How often it left its processor, which it also does with each page for which it waits.
    switches: u64,
}

/// How many of the first parts fit into one question; at least one.
fn fitting(parts: &[Part]) -> usize {
    let mut bytes = 0u64;
    let fit = parts.iter().take(MOST_RANGES).take_while(|part| {
        bytes = bytes.saturating_add(part.bytes.len() as u64);
        bytes <= MOST_BYTES
    });
    fit.count().max(1)
}
