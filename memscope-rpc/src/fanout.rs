//! Passes events on to any number of readers, none of which can hold the daemon up.

use crate::{EventFilter, EventItem};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Events that a reader may be behind before it misses some.
const QUEUE: usize = 4096;

/// The readers of events.
#[derive(Default)]
pub struct EventHub {
    readers: Mutex<Vec<Reader>>,
    count: AtomicUsize,
}

struct Reader {
    filter: EventFilter,
    queue: mpsc::Sender<EventItem>,
    missed: u64,
}

impl EventHub {
    /// A hub without readers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True if nobody reads: then there is no need to make items.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// A new reader.
    #[must_use]
    pub fn subscribe(&self, filter: EventFilter) -> mpsc::Receiver<EventItem> {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let mut readers = self.lock();
        readers.push(Reader {
            filter,
            queue,
            missed: 0,
        });
        self.count.store(readers.len(), Ordering::Relaxed);
        receiver
    }

    /// Gives the item to every reader that wants it and has room. Never waits for a reader.
    pub fn publish(&self, item: &EventItem) {
        if self.is_idle() {
            return;
        }
        let mut readers = self.lock();
        readers.retain_mut(|reader| {
            if reader.queue.is_closed() {
                return false;
            }
            if !reader.filter.accepts(item) {
                return true;
            }
            let mut item = item.clone();
            item.missed = reader.missed;
            match reader.queue.try_send(item) {
                Ok(()) => reader.missed = 0,
                Err(TrySendError::Full(_)) => reader.missed += 1,
                Err(TrySendError::Closed(_)) => return false,
            }
            true
        });
        self.count.store(readers.len(), Ordering::Relaxed);
    }

    /// Ends every reader's stream.
    pub fn close(&self) {
        let mut readers = self.lock();
        readers.clear();
        self.count.store(0, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Reader>> {
        // A panic elsewhere leaves a list of readers that is still a list of readers.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Caller, fake};
    use memscope_ledger::event::Body;

    fn item(pid: u32, uid: u32, sequence: u64) -> EventItem {
        fake::event(pid, uid, sequence, Body::Exited)
    }

    const ALL: EventFilter = EventFilter {
        pid: None,
        caller: None,
        kinds: Vec::new(),
    };

    #[test]
    fn a_slow_reader_is_told_what_it_missed() {
        let hub = EventHub::new();
        assert!(hub.is_idle());
        let mut reader = hub.subscribe(ALL);
        for sequence in 0..QUEUE as u64 + 10 {
            hub.publish(&item(1, 0, sequence));
        }
        assert_eq!(reader.try_recv().unwrap().event.id.sequence, 0);
        hub.publish(&item(1, 0, 99_999));
        let mut last = None;
        while let Ok(item) = reader.try_recv() {
            last = Some(item);
        }
        let last = last.unwrap();
        assert_eq!((last.event.id.sequence, last.missed), (99_999, 10));
    }

    /// What a reader did not ask for takes no room from what it did.
    #[test]
    fn other_kinds_are_not_missed() {
        let hub = EventHub::new();
        let mut reader = hub.subscribe(EventFilter {
            kinds: vec!["forked"],
            ..ALL
        });
        for sequence in 0..QUEUE as u64 + 10 {
            hub.publish(&item(1, 0, sequence));
        }
        hub.publish(&fake::event(1, 0, 99_999, Body::Forked { child: 2 }));
        let got = reader.try_recv().unwrap();
        assert_eq!((got.event.id.sequence, got.missed), (99_999, 0));
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn filters_by_pid_and_owner_and_forgets_who_left() {
        let hub = EventHub::new();
        let caller = Caller {
            uid: 1000,
            gid: 1000,
            pid: None,
        };
        let mut reader = hub.subscribe(EventFilter {
            pid: Some(7),
            caller: Some(caller),
            kinds: Vec::new(),
        });
        hub.publish(&item(8, 1000, 1));
        hub.publish(&item(7, 0, 2));
        hub.publish(&item(7, 1000, 3));
        assert_eq!(reader.try_recv().unwrap().event.id.sequence, 3);
        assert!(reader.try_recv().is_err());
        drop(reader);
        hub.publish(&item(7, 1000, 4));
        assert!(hub.is_idle());
    }
}
