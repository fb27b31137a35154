//! Stacks of compiled code. One thread makes the rules by which the programs unwind, and finishes the stacks for
//! which there was no rule yet. Another thread finds the names of what is in the stacks.
//!
//! Neither thread may delay the reading of the ring, and the search for names may not delay the making of rules: as
//! long as rules are missing, stacks are copied, and one library has up to half a gigabyte of tables and symbols.

mod job;

pub use job::{Job, Jobs, hand};

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use crate::panics::guarded;
use memscope_ledger::event::{NativeFunction, NativeName, ProcessHandle};
use memscope_log::records::stack_copy;
use memscope_native::{Image, Piece, ProcessCode, Shared, Symbols};

use crate::keeper::{Command, KeeperHandle};
use crate::probe::load::Rules;

/// Most jobs that may wait. Each is a piece of a stack, or the addresses of one stack.
const QUEUE: usize = 4096;
/// Most searches for names that may wait. Each has the addresses of one stack.
const NAMING: usize = 1024;

/// Handle of the thread `unwinder`.
#[derive(Debug)]
pub struct Unwinder {
    jobs: Jobs,
    missed: Missed,
}

/// Processes that have mapped or unmapped code while the queue of jobs was full.
type Missed = Arc<Mutex<HashSet<ProcessHandle>>>;

impl Unwinder {
    /// Starts the threads. Without `rules` (the kernel side hands them over once) the programs get no rules.
    pub fn start(rules: Option<Rules>, keeper: KeeperHandle) -> std::io::Result<Unwinder> {
        let (jobs, queue) = std::sync::mpsc::sync_channel(QUEUE);
        let missed = Missed::default();
        let looked_at = Arc::clone(&missed);
        let (naming, to_name) = std::sync::mpsc::sync_channel::<Naming>(NAMING);
        let names = keeper.clone();
        std::thread::Builder::new()
            .name("symbols".to_owned())
            .spawn(move || {
                let mut symbols = Symbols::default();
                for job in to_name {
                    match job {
                        Naming::Names(job) => job.done(&mut symbols, &names),
                        Naming::Sweep => symbols.sweep(),
                    }
                }
            })?;
        std::thread::Builder::new()
            .name("unwinder".to_owned())
            .spawn(move || {
                Worker {
                    rules,
                    keeper,
                    shared: Shared::default(),
                    naming,
                    processes: HashMap::new(),
                    missed: looked_at,
                }
                .run(&queue);
            })?;
        Ok(Unwinder { jobs, missed })
    }

    /// Prepares for the stacks of a process, and waits until its code is known. `None` if the thread has ended.
    pub fn watch(&self, process: ProcessHandle, pid: u32) -> Option<Jobs> {
        let (ready, wait) = std::sync::mpsc::channel();
        self.jobs
            .send(Job::Watch {
                process,
                pid,
                ready,
            })
            .ok()?;
        wait.recv().ok()?;
        Some(self.jobs.clone())
    }

    /// Reports that a process has mapped or unmapped code.
    pub fn mapped(&self, process: ProcessHandle) {
        // If the queue is full, the thread learns of it before it does the next job: another library may be at addresses that it knows.
        if self.jobs.try_send(Job::Mapped(process)).is_err() {
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            missed.insert(process);
        }
    }

    /// Reports that a process is no longer traced.
    pub fn forget(&self, process: ProcessHandle) {
        let _ = self.jobs.send(Job::Forget(process));
    }
}

/// Addresses in one file: their offsets in the file, and the place of each in the list of names.
#[derive(Default)]
struct InFile {
    offsets: Vec<u64>,
    places: Vec<usize>,
}

/// A job for the thread `symbols`.
enum Naming {
    /// Find these names.
    Names(ToName),
    /// A process is no longer watched: forget files that only it had.
    Sweep,
}

/// Addresses whose files are known, and whose names have to be found.
struct ToName {
    process: ProcessHandle,
    names: Vec<NativeName>,
    files: Vec<(Arc<Image>, InFile)>,
}

impl ToName {
    fn done(mut self, symbols: &mut Symbols, keeper: &KeeperHandle) {
        for (image, file) in self.files {
            let found = guarded("finding names of functions", || {
                crate::panics::if_a_test_wants_it("symbols");
                symbols.name(&image, &file.offsets)
            });
            let Some(found) = found else {
                *symbols = Symbols::default();
                continue;
            };
            for (place, named) in file.places.into_iter().zip(found) {
                if let Some(name) = self.names.get_mut(place) {
                    name.functions = named
                        .functions
                        .into_iter()
                        .map(|function| NativeFunction {
                            name: function.name.into(),
                            file: function.file.into(),
                            line: function.line,
                        })
                        .collect();
                }
            }
        }
        let _ = keeper.send(Command::Named {
            process: self.process,
            names: self.names,
        });
    }
}

struct Watched {
    process: ProcessCode,
    /// Addresses for which the programs have a rule.
    rules: HashSet<u64>,
}

struct Worker {
    rules: Option<Rules>,
    keeper: KeeperHandle,
    shared: Shared,
    naming: SyncSender<Naming>,
    processes: HashMap<ProcessHandle, Watched>,
    missed: Missed,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        for job in queue {
            crate::panics::if_a_test_wants_it("unwinder");
            let process = job.process();
            let done = guarded("unwinding stacks of compiled code", || {
                self.look_at_missed();
                self.job(job);
            });
            if done.is_none() {
                // From now on stacks of this process have no frames of compiled code.
                let watched = process.and_then(|process| self.processes.remove_entry(&process));
                if let Some((process, watched)) = watched {
                    self.unset(process, watched.rules);
                }
                self.shared = Shared::default();
            }
        }
    }

    /// Reads the mappings of processes again that have changed them while the queue was full.
    fn look_at_missed(&mut self) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *missed);
        drop(missed);
        all.into_iter().for_each(|process| self.mapped(process));
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::Watch {
                process,
                pid,
                ready,
            } => {
                let mut code = ProcessCode::new(pid);
                if let Err(error) = code.read(&mut self.shared) {
                    tracing::debug!(pid, %error, "its mapped code could not be read");
                }
                self.processes.insert(
                    process,
                    Watched {
                        process: code,
                        rules: HashSet::new(),
                    },
                );
                // It is no error if nobody waits any more.
                let _ = ready.send(());
            }
            Job::Copy(record) => self.copied(&record),
            Job::Name { process, addresses } => self.name(process, &addresses),
            Job::Mapped(process) => self.mapped(process),
            Job::Forget(process) => {
                if let Some(watched) = self.processes.remove(&process) {
                    self.unset(process, watched.rules);
                }
                self.shared.sweep();
                // If the queue is full, the next search for names of a file does the same.
                let _ = self.naming.try_send(Naming::Sweep);
            }
        }
    }

    fn unset(&mut self, process: ProcessHandle, addresses: impl IntoIterator<Item = u64>) {
        if let Some(rules) = &mut self.rules {
            for address in addresses {
                rules.remove(process.0, address);
            }
        }
    }

    fn copied(&mut self, record: &[u8]) {
        let Some(copy) = stack_copy(record) else {
            return;
        };
        let Some(watched) = self.processes.get_mut(&copy.process) else {
            return;
        };
        let piece = Piece {
            pc: copy.pc,
            sp: copy.sp,
            bp: copy.bp,
            base: copy.base,
            bytes: copy.bytes,
        };
        let unwound = watched.process.unwind(&piece, &mut self.shared);
        let gone = watched.process.replaced();
        self.moved(copy.process, &gone);
        let Some(watched) = self.processes.get_mut(&copy.process) else {
            return;
        };
        if let Some(rules) = &mut self.rules {
            for (address, rule) in unwound.rules {
                // One of code that is gone may have been used before the mappings were read again.
                if inside(&gone, address) || !watched.rules.insert(address) {
                    continue;
                }
                if let Err(error) = rules.set(copy.process.0, address, rule) {
                    // There is no room: stacks with this address are copied each time, which is slower but equally
                    // correct.
                    tracing::debug!(error = %crate::error_chain(&error), "a rule found no room");
                    watched.rules.remove(&address);
                    let _ = self.keeper.send(Command::NoRule);
                }
            }
        }
        let _ = self.keeper.send(Command::Unwound {
            process: copy.process,
            stack: copy.stack,
            frames: unwound.frames,
            whole: unwound.whole,
        });
    }

    fn name(&mut self, process: ProcessHandle, addresses: &[u64]) {
        let Some(watched) = self.processes.get_mut(&process) else {
            return;
        };
        let mut names: Vec<NativeName> = Vec::with_capacity(addresses.len());
        let mut files: HashMap<*const Image, (Arc<Image>, InFile)> = HashMap::new();
        for address in addresses {
            // The name is that of the call, which lies before the return address.
            let call = address.wrapping_sub(1);
            let mut name = NativeName {
                address: *address,
                functions: vec![NativeFunction::default()],
                ..NativeName::default()
            };
            if let Some((module, image, offset)) = watched.process.place(call, &mut self.shared) {
                name.module = module;
                name.offset = offset;
                if let Some(image) = image {
                    name.build_id = image.build_id().to_owned();
                    let (_, file) = files
                        .entry(Arc::as_ptr(&image))
                        .or_insert_with(|| (image, InFile::default()));
                    file.offsets.push(offset);
                    file.places.push(names.len());
                }
            }
            names.push(name);
        }
        let gone = watched.process.replaced();
        self.moved(process, &gone);
        let job = Naming::Names(ToName {
            process,
            names,
            files: files.into_values().collect(),
        });
        // Rules of unwinding are made by this thread and must not wait for names, which can take long: a process decides
        // how much there is to read for them. The thread `symbols` ends only together with this one.
        if let Err(TrySendError::Full(_)) = self.naming.try_send(job) {
            let addresses = addresses.to_vec();
            let _ = self.keeper.send(Command::Unnamed { process, addresses });
        }
    }

    fn mapped(&mut self, process: ProcessHandle) {
        let Some(watched) = self.processes.get_mut(&process) else {
            return;
        };
        let Ok(gone) = watched.process.read_again(&mut self.shared) else {
            return;
        };
        self.moved(process, &gone);
    }

    /// Forgets the rules and the names of code that is gone from these ranges.
    fn moved(&mut self, process: ProcessHandle, gone: &[(u64, u64)]) {
        let Some(watched) = self.processes.get_mut(&process) else {
            return;
        };
        if gone.is_empty() {
            return;
        }
        let addresses = watched.rules.iter().copied();
        let stale: Vec<u64> = addresses.filter(|rule| inside(gone, *rule)).collect();
        for address in &stale {
            watched.rules.remove(address);
        }
        self.unset(process, stale);
        let _ = self.keeper.send(Command::Moved {
            process,
            ranges: gone.to_vec(),
        });
    }
}

/// Whether the call before this return address lies in one of the ranges.
fn inside(ranges: &[(u64, u64)], address: u64) -> bool {
    let call = address.wrapping_sub(1);
    ranges.iter().any(|(from, to)| (*from..*to).contains(&call))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keeper::Keeper;
    use memscope_ledger::{Ledger, LedgerConfig};
    use memscope_rpc::EventHub;
    use memscope_tests::eventually;
    use memscope_tests::limits::{Met, constant};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    /// A worker beside a keeper of nothing, and its queue of names, which has room for one search.
    fn worker() -> (Worker, Receiver<Naming>) {
        let ledger = Ledger::new(LedgerConfig::default());
        let hub = Arc::new(EventHub::default());
        let (keeper, _) = Keeper::for_replay(ledger, 1, hub).unwrap();
        let (naming, waiting) = std::sync::mpsc::sync_channel(1);
        let worker = Worker {
            rules: None,
            keeper,
            shared: Shared::default(),
            naming,
            processes: HashMap::new(),
            missed: Missed::default(),
        };
        (worker, waiting)
    }

    /// Gives the worker this process, with a rule of code that was mapped when its mappings were read, and is no more.
    fn with_a_rule_of_gone_code(worker: &mut Worker) -> ProcessHandle {
        const PAGE: usize = 1 << 16;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: the kernel chooses the place, and nobody reads or runs what is mapped there.
        let code = unsafe {
            let anywhere = std::ptr::null_mut();
            mmap(anywhere, PAGE, protection, MapFlags::PRIVATE, &file, 0).unwrap()
        };
        let mut watched = Watched {
            process: ProcessCode::new(std::process::id()),
            rules: HashSet::from([code as u64 + 1]),
        };
        watched.process.read(&mut worker.shared).unwrap();
        let process = ProcessHandle(7);
        worker.processes.insert(process, watched);
        // SAFETY: it was mapped above, and nothing refers to it.
        unsafe { munmap(code, PAGE).unwrap() };
        process
    }

    /// No word of the change has come: the mappings are read again because an address is not known.
    #[tokio::test]
    async fn rules_of_code_that_is_gone_are_forgotten_with_the_next_unknown_address() {
        let (mut worker, _waiting) = worker();
        let keeper = worker.keeper.clone();
        let process = with_a_rule_of_gone_code(&mut worker);
        eventually("the rule is forgotten", || {
            worker.name(process, &[1]);
            worker.processes[&process].rules.is_empty()
        });
        keeper.send(Command::Stop).unwrap();
    }

    /// Another library may be at the same addresses, so that none of them is unknown.
    #[test]
    fn rules_of_code_that_is_gone_are_forgotten_although_the_queue_was_full() {
        let (mut worker, _waiting) = worker();
        let keeper = worker.keeper.clone();
        let process = with_a_rule_of_gone_code(&mut worker);
        let (jobs, _no_room) = std::sync::mpsc::sync_channel(0);
        let unwinder = Unwinder {
            jobs,
            missed: Arc::clone(&worker.missed),
        };
        unwinder.mapped(process);
        worker.look_at_missed();
        assert!(worker.processes[&process].rules.is_empty());
        assert!(worker.missed.lock().unwrap().is_empty());
        keeper.send(Command::Stop).unwrap();
    }

    /// An address of a library that was mapped a moment ago was met before the mappings were read again.
    #[tokio::test]
    async fn rules_of_code_that_was_not_known_yet_are_forgotten_when_it_is() {
        const PAGE: usize = 1 << 16;
        let (mut worker, _waiting) = worker();
        let keeper = worker.keeper.clone();
        let mut process = ProcessCode::new(std::process::id());
        process.read(&mut worker.shared).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: the kernel chooses the place, and nobody reads or runs what is mapped there.
        let code = unsafe {
            let anywhere = std::ptr::null_mut();
            mmap(anywhere, PAGE, protection, MapFlags::PRIVATE, &file, 0).unwrap()
        };
        let rules = HashSet::from([code as u64 + 1]);
        let handle = ProcessHandle(7);
        worker.processes.insert(handle, Watched { process, rules });
        eventually("the rule is forgotten", || {
            worker.name(handle, &[1]);
            worker.processes[&handle].rules.is_empty()
        });
        // SAFETY: it was mapped above, and nothing refers to it.
        unsafe { munmap(code, PAGE).unwrap() };
        keeper.send(Command::Stop).unwrap();
    }

    #[tokio::test]
    async fn what_finds_no_place_in_the_queue_of_names_is_told_and_counted() {
        let (mut worker, waiting) = worker();
        let keeper = worker.keeper.clone();
        let process = ProcessHandle(7);
        let watched = Watched {
            process: ProcessCode::new(std::process::id()),
            rules: HashSet::new(),
        };
        worker.processes.insert(process, watched);
        let address = Worker::run as *const () as u64 + 1;
        worker.name(process, &[address]);
        assert_eq!(keeper.status().await.unwrap().skipped, []);
        // The thread that finds names has not taken the first job yet.
        worker.name(process, &[address + 1, address + 2]);
        let skipped = keeper.status().await.unwrap().skipped;
        assert_eq!(skipped, [("native_names_put_off".to_owned(), 2)]);
        let Ok(Naming::Names(first)) = waiting.try_recv() else {
            panic!("the first job is in the queue");
        };
        assert_eq!(first.names.len(), 1);
        assert_eq!(first.files.len(), 1);
        assert!(waiting.try_recv().is_err());
        keeper.send(Command::Stop).unwrap();
        Met {
            what: "searches for names of compiled code that wait",
            most: constant("memscope-daemon/src/native/mod.rs", "NAMING"),
            beyond: "the names are put off until their addresses are seen again",
            told: "`native_names_put_off` in `status`",
            test: "what_finds_no_place_in_the_queue_of_names_is_told_and_counted",
        }
        .is_told();
    }
}
