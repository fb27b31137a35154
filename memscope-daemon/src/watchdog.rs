//! Tells the service manager (systemd) that the daemon is ready, that it lives, and that it ends.
//!
//! Owns: the messages to the socket that `NOTIFY_SOCKET` names, and the thread that feeds the watchdog. Without that variable nothing
//! is done. The watchdog is fed as long as the keeper and the tracer both go on. If one of them hangs, systemd
//! ends the daemon and starts it again; probes that are pinned go on collecting for that one. Refuses: to end anything itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;

/// How often the threads are looked at within the time after which the service manager ends the daemon. A thread may therefore hang for
/// half of that time at least.
const LOOKS: u32 = 4;

/// A number that a thread raises as it goes on. Work that takes long raises it between its parts.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// The thread goes on.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thread without which the daemon is of no use.
pub struct Watched {
    name: &'static str,
    pulse: Pulse,
    /// Wakes it, so that its pulse beats although it has nothing to do. Must not block.
    nudge: Box<dyn Fn() + Send>,
    seen: u64,
    missed: u32,
}

impl Watched {
    /// `nudge` wakes the thread, and must not block.
    pub fn new(name: &'static str, pulse: Pulse, nudge: impl Fn() + Send + 'static) -> Watched {
        Watched {
            name,
            seen: pulse.count(),
            pulse,
            nudge: Box::new(nudge),
            missed: 0,
        }
    }

    /// Whether the thread has gone on since the last look. Only then is it nudged again, so that nothing piles up before one that hangs.
    fn look(&mut self) -> bool {
        let now = self.pulse.count();
        if now == self.seen {
            self.missed += 1;
            return false;
        }
        self.seen = now;
        self.missed = 0;
        (self.nudge)();
        true
    }
}

/// Tells the service manager that the daemon is ready.
pub fn ready() {
    tell(&NotifyState::Ready);
}

/// Tells the service manager that the daemon ends, so that it no longer waits for signs of life.
pub fn stopping() {
    tell(&NotifyState::Stopping);
}

/// Returns whether it was told, or nobody wants to know.
fn tell(state: &NotifyState<'_>) -> bool {
    match sd_notify::notify(std::slice::from_ref(state)) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, message = %state, "the service manager cannot be told");
            false
        }
    }
}

/// Starts the thread that feeds the watchdog, if the service manager has one for this process. It ends with the process.
pub fn start(watched: Vec<Watched>) -> io::Result<()> {
    let asked = std::env::var_os("NOTIFY_SOCKET").and_then(|_| sd_notify::watchdog_enabled());
    let Some(patience) = asked.filter(|patience| !patience.is_zero()) else {
        return Ok(());
    };
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || feed(watched, patience))
        .map(drop)
}

fn feed(mut watched: Vec<Watched>, patience: Duration) {
    let pause = patience / LOOKS;
    for one in &watched {
        (one.nudge)();
    }
    loop {
        std::thread::sleep(pause);
        // Each of them is looked at, so that each is nudged.
        let hang = watched.iter_mut().filter_map(|one| match one.look() {
            true => None,
            false => Some((one.name, one.missed)),
        });
        let hang: Vec<(&str, u32)> = hang.collect();
        if hang.is_empty() {
            tell(&NotifyState::Watchdog);
        }
        for (thread, missed) in hang {
            tracing::warn!(
                thread,
                missed,
                "a thread has not gone on for {:?}; after {patience:?} the service manager ends memscoped, and the next one goes on from \
                 there",
                pause * missed
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_hangs_is_seen_and_nudged_only_once() {
        let nudges = Pulse::default();
        let pulse = Pulse::default();
        let count = nudges.clone();
        let mut one = Watched::new("one", pulse.clone(), move || count.beat());
        pulse.beat();
        assert!(one.look());
        assert_eq!(nudges.count(), 1);
        // It goes on with something else than the nudge, which counts as well.
        pulse.beat();
        pulse.beat();
        assert!(one.look());
        assert!(!one.look());
        assert!(!one.look());
        assert_eq!((one.missed, nudges.count()), (2, 2));
        pulse.beat();
        assert!(one.look());
        assert_eq!((one.missed, nudges.count()), (0, 3));
    }
}
