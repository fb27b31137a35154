//! What waits for the collector, and what became of the rest.
//!
//! The room is bounded in bytes. What finds none pushes out what has waited longest: of metrics, newer points tell what the older ones did,
//! and a finding that still stands is told of by its numbers.

use crate::messages::{Messages, Severity};
use memscope_metrics::Pushed;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message as _;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Most bytes of requests of one signal that wait.
const MOST_WAITING_BYTES: usize = 8 << 20;

/// What kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Data points.
    Metrics,
    /// Log records.
    Logs,
}

impl Signal {
    /// Its word, in paths and labels.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Signal::Metrics => "metrics",
            Signal::Logs => "logs",
        }
    }

    /// What its requests consist of, in words.
    fn items(self) -> &'static str {
        match self {
            Signal::Metrics => "data points",
            Signal::Logs => "log records",
        }
    }
}

/// Why something will never be with the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There was no room while the collector took nothing.
    QueueFull,
    /// The collector refused the request.
    Refused,
    /// The collector accepted the request and refused a part of it.
    Rejected,
    /// Events came faster than they could be told of.
    Missed,
}

/// The causes with their words, in the order of the counters.
const CAUSES: [(Cause, &str); 4] = [
    (Cause::QueueFull, "queue_full"),
    (Cause::Refused, "refused"),
    (Cause::Rejected, "rejected"),
    (Cause::Missed, "missed"),
];

/// A message that is to be sent.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Metrics(ExportMetricsServiceRequest),
    Logs(ExportLogsServiceRequest),
}

impl Message {
    /// Its bytes.
    pub(super) fn encoded(&self) -> Vec<u8> {
        match self {
            Message::Metrics(message) => message.encode_to_vec(),
            Message::Logs(message) => message.encode_to_vec(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Message::Metrics(message) => message.encoded_len(),
            Message::Logs(message) => message.encoded_len(),
        }
    }
}

/// A message with what is in it.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) message: Message,
    /// Data points or log records in it.
    pub(super) items: u64,
}

/// The messages of one signal that wait, and the counters of those that do not any more.
pub(super) struct Queue {
    signal: Signal,
    inner: Mutex<Inner>,
    came: Notify,
    messages: Messages,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<(Batch, usize)>,
    bytes: usize,
    /// Items of the batch that is being sent.
    in_hand: u64,
    sent: u64,
    retries: u64,
    dropped: [u64; CAUSES.len()],
    /// That there is no room has been said, and there has been none since.
    is_full_told: bool,
}

impl Inner {
    fn drop_items(&mut self, cause: Cause, items: u64) {
        let at = CAUSES.iter().position(|(known, _)| *known == cause);
        if let Some(count) = at.and_then(|at| self.dropped.get_mut(at)) {
            *count += items;
        }
    }
}

impl Queue {
    fn new(signal: Signal, messages: Messages) -> Queue {
        Queue {
            signal,
            inner: Mutex::default(),
            came: Notify::new(),
            messages,
        }
    }

    /// What kind of messages it has.
    pub(super) fn signal(&self) -> Signal {
        self.signal
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The counters are still usable if another thread panicked while it held the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a batch behind the others. Never waits.
    pub(super) fn push(&self, batch: Batch) {
        let length = batch.message.bytes();
        let mut inner = self.lock();
        inner.bytes += length;
        inner.waiting.push_back((batch, length));
        let mut is_new = false;
        while inner.bytes > MOST_WAITING_BYTES
            && let Some((oldest, length)) = inner.waiting.pop_front()
        {
            inner.bytes -= length;
            inner.drop_items(Cause::QueueFull, oldest.items);
            is_new |= !std::mem::replace(&mut inner.is_full_told, true);
        }
        drop(inner);
        self.came.notify_one();
        if is_new {
            let items = self.signal.items();
            let text = format!(
                "the OTLP collector has taken nothing for so long that the oldest {items} for it are dropped (memscope_otlp_dropped_total counts them)"
            );
            self.messages.log(Severity::Warning, text);
        }
    }

    /// The batch that has waited longest, if there is one. It counts as waiting until it is told what became of it.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut inner = self.lock();
        let (batch, length) = inner.waiting.pop_front()?;
        inner.bytes -= length;
        inner.in_hand = batch.items;
        Some(batch)
    }

    /// Waits for a batch.
    pub(super) async fn next(&self) -> Batch {
        loop {
            let came = self.came.notified();
            if let Some(batch) = self.take() {
                return batch;
            }
            came.await;
        }
    }

    /// The batch in hand was accepted, but for so many items of it.
    pub(super) fn accepted(&self, rejected: u64) {
        let mut inner = self.lock();
        let items = std::mem::take(&mut inner.in_hand);
        let rejected = rejected.min(items);
        inner.sent += items - rejected;
        inner.drop_items(Cause::Rejected, rejected);
        inner.is_full_told = false;
    }

    /// The batch in hand was refused.
    pub(super) fn refused(&self) {
        let mut inner = self.lock();
        let items = std::mem::take(&mut inner.in_hand);
        inner.drop_items(Cause::Refused, items);
    }

    /// The batch in hand is sent again.
    pub(super) fn again(&self) {
        self.lock().retries += 1;
    }

    /// So many events never became records.
    pub(super) fn missed(&self, events: u64) {
        self.lock().drop_items(Cause::Missed, events);
    }

    /// Number of items that wait, with those in hand.
    pub(super) fn waiting(&self) -> u64 {
        let inner = self.lock();
        let waiting: u64 = inner.waiting.iter().map(|(batch, _)| batch.items).sum();
        waiting + inner.in_hand
    }

    /// What is left at the end, in words; `None`: nothing.
    pub(super) fn left(&self) -> Option<String> {
        let left = self.waiting();
        (left > 0).then(|| format!("{left} {}", self.signal.items()))
    }

    fn counts(&self) -> Pushed {
        let waiting = self.waiting();
        let inner = self.lock();
        let dropped = CAUSES.iter().zip(inner.dropped);
        Pushed {
            signal: self.signal.word(),
            sent: inner.sent,
            waiting,
            retries: inner.retries,
            dropped: dropped.map(|((_, word), count)| (*word, count)).collect(),
        }
    }
}

/// Both queues. Clones share them.
#[derive(Clone)]
pub struct Queues {
    pub(super) metrics: Arc<Queue>,
    pub(super) logs: Arc<Queue>,
}

impl Queues {
    /// Empty ones. What has to be said of them is said in these messages.
    #[must_use]
    pub fn new(messages: &Messages) -> Queues {
        let of = |signal| Arc::new(Queue::new(signal, messages.clone()));
        Queues {
            metrics: of(Signal::Metrics),
            logs: of(Signal::Logs),
        }
    }

    /// What became of everything so far.
    #[must_use]
    pub fn counts(&self) -> Vec<Pushed> {
        vec![self.metrics.counts(), self.logs.counts()]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};
    use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;

    /// A batch of about so many bytes.
    fn batch(bytes: usize, items: u64) -> Batch {
        let padding = ResourceMetrics {
            schema_url: "x".repeat(bytes),
            ..ResourceMetrics::default()
        };
        Batch {
            message: Message::Metrics(ExportMetricsServiceRequest {
                resource_metrics: vec![padding],
            }),
            items,
        }
    }

    fn dropped(queue: &Queue, cause: &str) -> u64 {
        let counts = queue.counts();
        let mut all = counts.dropped.iter();
        all.find(|(word, _)| *word == cause).unwrap().1
    }

    #[test]
    fn the_oldest_give_way_and_are_counted() {
        let messages = Messages::default();
        let queues = Queues::new(&messages);
        let queue = &queues.metrics;
        for number in 1..=12 {
            queue.push(batch(1 << 20, number));
        }
        // Seven of a little more than a MiB fit into eight.
        assert_eq!(dropped(queue, "queue_full"), 1 + 2 + 3 + 4 + 5);
        assert_eq!(queue.waiting(), 6 + 7 + 8 + 9 + 10 + 11 + 12);
        assert_eq!(messages.all().len(), 1, "said once");
        assert_eq!(queue.take().unwrap().items, 6, "the oldest that is left");
        queue.accepted(0);
        queue.push(batch(8 << 20, 100));
        assert_eq!(queue.waiting(), 0, "more than there is room for");
        assert_eq!(
            messages.all().len(),
            2,
            "said again after something arrived"
        );
        Met {
            what: "bytes of OTLP requests of one signal that wait for the collector",
            most: constant("memscope-daemon/src/otlp/queue.rs", "MOST_WAITING_BYTES"),
            beyond: "the oldest are dropped",
            told: "`memscope_otlp_dropped_total` with the cause `queue_full`, and a message in `status`",
            test: "the_oldest_give_way_and_are_counted",
        }
        .is_told();
    }

    #[test]
    fn each_item_is_counted_once() {
        let queues = Queues::new(&Messages::default());
        let queue = &queues.metrics;
        for items in [10, 20, 30, 40] {
            queue.push(batch(1, items));
        }
        assert!(queue.take().is_some());
        queue.again();
        assert_eq!(queue.waiting(), 100);
        queue.accepted(0);
        assert!(queue.take().is_some());
        queue.accepted(3);
        assert!(queue.take().is_some());
        queue.refused();
        // A collector that says nonsense spoils no counter.
        assert!(queue.take().is_some());
        queue.accepted(u64::MAX);
        queue.missed(7);
        let counts = queue.counts();
        assert_eq!((counts.sent, counts.waiting, counts.retries), (27, 0, 1));
        assert_eq!(
            counts.dropped,
            [
                ("queue_full", 0),
                ("refused", 30),
                ("rejected", 43),
                ("missed", 7)
            ]
        );
    }

    #[tokio::test]
    async fn whoever_waits_is_woken() {
        let queues = Queues::new(&Messages::default());
        let queue = Arc::clone(&queues.logs);
        let waits = tokio::spawn(async move { queue.next().await.items });
        queues.logs.push(batch(1, 5));
        assert_eq!(waits.await.unwrap(), 5);
    }
}
