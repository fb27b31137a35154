//! Removes the probes of processes that have ended, beside everything else.
//!
//! Each removal waits for the kernel: for a tenth of a second and more, and for locks that the kernel has once for all probes in
//! programs. In a process that has ended no probe runs any more, so that nobody has to wait for its removal, and an attach least of all.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::links::{Held, Link, close_all};
use super::load::AttachMethod;

/// Open files of links that may be left to be closed. Where processes come and go faster than the kernel removes their probes, whoever
/// brings further ones waits. Where fewer files may be open, it is a quarter of these.
const MOST_LEFT: usize = 16_384;
/// How long the end of the daemon waits for them. Whatever is left then the kernel removes as the process ends.
const AT_THE_END: Duration = Duration::from_secs(60);

/// The thread that removes them.
pub struct Remover {
    queue: Sender<Held>,
    shared: Arc<Shared>,
    most_left: usize,
}

#[derive(Default)]
struct Shared {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    /// Open files of links that are still to be closed.
    left: usize,
    /// How many are being closed at this moment.
    closing: usize,
    /// How many want the kernel's locks for themselves. As long as there is one, no further file is begun.
    paused: usize,
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, once `may` says that it may be.
    fn change(&self, may: impl Fn(&Now) -> bool, change: impl FnOnce(&mut Now)) {
        let mut now = self.now();
        while !may(&now) {
            now = (self.changed.wait(now)).unwrap_or_else(PoisonError::into_inner);
        }
        change(&mut now);
        self.changed.notify_all();
    }

    /// Does what closes one file, once it may be begun.
    fn close(&self, method: AttachMethod, work: impl FnOnce()) {
        // Those that wait for the kernel's grace periods wait for the same ones. Perf events are removed one after the other, under a lock
        // that a new one needs as well.
        let may_begin = |now: &Now| match method {
            AttachMethod::Multi => now.paused == 0,
            AttachMethod::Perf => now.paused == 0 && now.closing == 0,
        };
        self.change(may_begin, |now| now.closing += 1);
        work();
        let closed = |now: &mut Now| {
            now.closing -= 1;
            now.left -= 1;
        };
        self.change(|_| true, closed);
    }

    /// From here on none begins, and when this returns, those that had begun have ended.
    fn pause(self: &Arc<Shared>, beat: impl Fn()) -> Paused {
        self.change(|_| true, |now| now.paused += 1);
        let have_ended = |now: &Now| {
            beat();
            now.closing == 0
        };
        self.change(have_ended, |_| ());
        Paused(Arc::clone(self))
    }

    /// Waits until no more than so many are left. `beat` is called as they become fewer.
    fn wait(&self, most: usize, beat: impl Fn()) {
        let most = |now: &Now| {
            beat();
            now.left <= most
        };
        self.change(most, |_| ());
    }
}

/// As long as this is held, no removal is begun. Whoever holds it must not wait for removals.
pub struct Paused(Arc<Shared>);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.change(|_| true, |now| now.paused -= 1);
    }
}

impl Remover {
    /// Starts the thread. It ends with this value, when everything is removed.
    pub fn start(method: AttachMethod) -> std::io::Result<Remover> {
        let shared = Arc::new(Shared::default());
        let (queue, wanted) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("remover".to_owned())
            .spawn(move || run(&wanted, &of_thread, method))?;
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(Remover {
            queue,
            shared,
            most_left: MOST_LEFT.min(usize::try_from(files / 4).unwrap_or(MOST_LEFT)),
        })
    }

    /// Has the links of processes that have ended removed. Waits only where very many are left; `beat` is called as they become fewer.
    pub fn remove(&self, links: Vec<Link>, beat: impl Fn()) {
        // Here, so that a next daemon finds none of them in its way.
        let files: Held = links.into_iter().flat_map(Link::unpinned).collect();
        self.shared.change(|_| true, |now| now.left += files.len());
        // The thread ends after this value, and a panic in it ends the daemon.
        let _ = self.queue.send(files);
        self.shared.wait(self.most_left, beat);
    }

    /// Waits until everything is removed, or for as long as the end of the daemon may take. `beat` is called as it becomes less.
    pub fn finish(&self, beat: impl Fn()) {
        let end = Instant::now() + AT_THE_END;
        let mut now = self.shared.now();
        while now.left > 0 {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                tracing::warn!(
                    files = now.left,
                    "probes of processes that have ended are left for the kernel to remove"
                );
                return;
            }
            let waited = self.shared.changed.wait_timeout(now, rest);
            (now, _) = waited.unwrap_or_else(PoisonError::into_inner);
            beat();
        }
    }

    /// Lets nobody wait behind removals: waits until those that have begun have ended, and has no other one begin meanwhile. `beat` is
    /// called as they become fewer.
    pub fn pause(&self, beat: impl Fn()) -> Paused {
        self.shared.pause(beat)
    }
}

fn run(wanted: &Receiver<Held>, shared: &Shared, method: AttachMethod) {
    while let Ok(mut files) = wanted.recv() {
        // What has come meanwhile is removed together with it.
        files.extend(wanted.try_iter().flatten());
        close_all(files, |one| shared.close(method, || drop(one)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn none_is_removed_while_somebody_wants_the_locks() {
        const THREADS: usize = 4;
        const FILES: usize = 100;
        for (method, most) in [(AttachMethod::Multi, THREADS), (AttachMethod::Perf, 1)] {
            let shared = Arc::new(Shared::default());
            shared.now().left = THREADS * FILES;
            let (wanted, too_many) = (AtomicBool::new(true), AtomicBool::new(false));
            let (beats, closing) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let beat = || {
                beats.fetch_add(1, Ordering::Relaxed);
            };
            let work = || {
                let others = closing.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                if others >= most || wanted.load(Ordering::SeqCst) {
                    too_many.store(true, Ordering::SeqCst);
                }
                closing.fetch_sub(1, Ordering::SeqCst);
            };
            let mut held = Some(shared.pause(beat));
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..FILES).for_each(|_| shared.close(method, work)));
                }
                assert_eq!(shared.now().left, THREADS * FILES);
                while let Some(one) = held.take() {
                    wanted.store(false, Ordering::SeqCst);
                    let left = shared.now().left;
                    drop(one);
                    shared.wait(left.saturating_sub(1), beat);
                    let left = shared.now().left;
                    held = (left > 0).then(|| shared.pause(beat));
                    wanted.store(held.is_some(), Ordering::SeqCst);
                }
            });
            assert!(!too_many.into_inner());
            assert!(beats.into_inner() > 1);
            let now = shared.now();
            assert_eq!((now.left, now.closing, now.paused), (0, 0, 0));
        }
    }
}
