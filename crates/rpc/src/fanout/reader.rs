//! A reader of events: what waits for it, and the newest event that it missed.

use crate::EventItem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio_stream::Stream;

/// What a reader missed since it was told last.
#[derive(Debug, Default)]
struct Missed {
    /// Number of events.
    count: u64,
    /// The newest of them. It is told as soon as nothing waits before it, so that the reader knows that something is missing also where
    /// nothing comes after it.
    newest: Option<EventItem>,
}

impl Missed {
    fn take(&mut self) -> Option<EventItem> {
        self.count = 0;
        self.newest.take()
    }
}

/// Both ends look at what was missed under its lock before they put something into the queue or find it empty: so events keep their order.
fn lock(missed: &Mutex<Missed>) -> MutexGuard<'_, Missed> {
    // The data are still usable if another thread panicked while it held the lock.
    missed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end that events are given to.
#[derive(Debug)]
pub(super) struct Feed {
    queue: mpsc::Sender<EventItem>,
    missed: Arc<Mutex<Missed>>,
}

/// The end from which a client's events are read. It ends when the daemon does, after the last event that came.
#[derive(Debug)]
pub struct EventReader {
    queue: mpsc::Receiver<EventItem>,
    missed: Arc<Mutex<Missed>>,
}

/// Both ends. At most `room` events wait.
pub(super) fn reader(room: usize) -> (Feed, EventReader) {
    let (sender, receiver) = mpsc::channel(room);
    let missed = Arc::<Mutex<Missed>>::default();
    let feed = Feed {
        queue: sender,
        missed: Arc::clone(&missed),
    };
    let reader = EventReader {
        queue: receiver,
        missed,
    };
    (feed, reader)
}

impl Feed {
    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Gives an event to the reader, and never waits: an event for which there is no room is missed.
    pub(super) fn give(&self, item: &EventItem) {
        let mut missed = lock(&self.missed);
        let mut item = item.clone();
        item.missed = missed.count;
        match self.queue.try_send(item) {
            Ok(()) => {
                missed.take();
            }
            Err(TrySendError::Full(item)) => {
                missed.count += 1;
                missed.newest = Some(item);
            }
            Err(TrySendError::Closed(_)) => {}
        }
    }
}

impl EventReader {
    /// The next event; `None` when no more will come.
    pub async fn recv(&mut self) -> Option<EventItem> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The next event, if one waits.
    pub fn try_recv(&mut self) -> Result<EventItem, TryRecvError> {
        let mut missed = lock(&self.missed);
        self.queue
            .try_recv()
            .or_else(|none| missed.take().ok_or(none))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<EventItem>> {
        match self.try_recv() {
            Ok(item) => return Poll::Ready(Some(item)),
            Err(TryRecvError::Disconnected) => return Poll::Ready(None),
            Err(TryRecvError::Empty) => {}
        }
        // Something is missed only while the queue is full, so what comes into the queue wakes whoever waits here.
        let next = self.queue.poll_recv(context);
        next.map(|item| item.or_else(|| lock(&self.missed).take()))
    }
}

impl Stream for EventReader {
    type Item = EventItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<EventItem>> {
        self.poll(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;
    use memscope_ledger::event::Body;
    use proptest::prelude::*;

    fn item(sequence: u64) -> EventItem {
        fake::event(1, 0, sequence, Body::Exited)
    }

    /// The number of an event, and how many were missed right before it.
    fn told(item: &EventItem) -> (u64, u64) {
        (item.event.id.sequence, item.missed)
    }

    #[tokio::test]
    async fn what_was_missed_last_is_told_when_nothing_comes_after_it() {
        let (feed, mut reader) = reader(2);
        for sequence in 0..7 {
            feed.give(&item(sequence));
        }
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(told(&reader.recv().await.unwrap()));
        }
        assert_eq!(all, [(0, 0), (1, 0), (6, 4)]);
        assert!(reader.try_recv().is_err());
        feed.give(&item(7));
        assert_eq!(told(&reader.recv().await.unwrap()), (7, 0));
    }

    #[tokio::test]
    async fn what_was_missed_last_is_told_before_the_end() {
        let (feed, mut reader) = reader(1);
        for sequence in 0..3 {
            feed.give(&item(sequence));
        }
        drop(feed);
        assert_eq!(told(&reader.recv().await.unwrap()), (0, 0));
        assert_eq!(told(&reader.recv().await.unwrap()), (2, 1));
        assert!(reader.recv().await.is_none());
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let (feed, mut reader) = reader(1);
        let waits = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(item) = reader.recv().await {
                all.push(told(&item));
            }
            all
        });
        // The other task runs until it waits for an event.
        tokio::task::yield_now().await;
        for sequence in 0..5 {
            feed.give(&item(sequence));
        }
        drop(feed);
        assert_eq!(waits.await.unwrap(), [(0, 0), (4, 3)]);
    }

    proptest! {
        /// Whoever reads when: events come in their order, none twice, and each is told or counted.
        #[test]
        fn each_event_is_told_or_counted(gives in prop::collection::vec((0u64..9, 0usize..9), 1..40)) {
            let (feed, mut reader) = reader(3);
            let (mut given, mut next) = (0, 0);
            let mut take = |reader: &mut EventReader| match reader.try_recv() {
                Ok(item) => {
                    let (sequence, missed) = told(&item);
                    assert_eq!(sequence, next + missed);
                    next = sequence + 1;
                    true
                }
                Err(_) => false,
            };
            for (give, reads) in gives {
                for _ in 0..give {
                    feed.give(&item(given));
                    given += 1;
                }
                for _ in 0..reads {
                    take(&mut reader);
                }
            }
            while take(&mut reader) {}
            prop_assert_eq!(next, given);
        }
    }
}
