//! Passes events on to any number of readers, and keeps what was found of each process. No reader can hold up the daemon.

mod reader;

use crate::{EventFilter, EventItem, kinds};
use memscope_ledger::event::{Body, Event, Finding, ProcessHandle};
use memscope_proto::v1::ProcessVerdict;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use reader::EventReader;
use reader::Feed;

/// Number of events that may wait for one reader. Events beyond that are missed, and counted.
const QUEUE: usize = 4096;

/// Largest number of findings that are kept for later readers. Beyond it the oldest one is dropped.
const MOST_FINDINGS: usize = 1024;

/// The readers of events, and the findings that stand (reported and not withdrawn). A new reader gets these findings
/// first.
#[derive(Default)]
pub struct EventHub {
    inner: Mutex<Inner>,
    count: AtomicUsize,
    /// Number of readers who want every kind of event.
    wide: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    readers: Vec<Reader>,
    /// Findings that were reported and not withdrawn, of processes that are traced.
    findings: VecDeque<EventItem>,
    /// Number of those that had to go because there were too many.
    forgotten: u64,
    /// How each process was judged last, and the confidence of what grows.
    verdicts: HashMap<ProcessHandle, (ProcessVerdict, Option<f64>)>,
    /// The moment of which that is for those that are traced, nanoseconds of boot time.
    judged_boot_ns: Option<u64>,
}

struct Reader {
    filter: EventFilter,
    feed: Feed,
}

impl EventHub {
    /// A hub without readers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the event must be published: there are readers, or the event may change which findings stand.
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        if matches!(event.body, Body::Finding(_)) || ends(&event.body) {
            return true;
        }
        if self.readers() == 0 {
            return false;
        }
        // Most events are of kinds that nobody asked for where a collector is the only reader: of those nothing is made.
        let of_kind = |reader: &Reader| kinds::is_of(&reader.filter.kinds, &event.body);
        self.wide.load(Ordering::Relaxed) > 0 || self.lock().readers.iter().any(of_kind)
    }

    /// Number of readers.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds a reader. It first gets the findings that stand, as far as its filter accepts them.
    #[must_use]
    pub fn subscribe(&self, filter: EventFilter) -> EventReader {
        let (feed, receiver) = reader::reader(QUEUE);
        let mut inner = self.lock();
        for item in inner.findings.iter().filter(|item| filter.accepts(item)) {
            // The queue has more room than there are findings.
            feed.give(item);
        }
        inner.readers.push(Reader { filter, feed });
        self.note_readers(&inner);
        receiver
    }

    /// Takes over which readers there are now.
    fn note_readers(&self, inner: &Inner) {
        let readers = &inner.readers;
        let wide = readers
            .iter()
            .filter(|reader| reader.filter.kinds.is_empty());
        self.wide.store(wide.count(), Ordering::Relaxed);
        self.count.store(readers.len(), Ordering::Relaxed);
    }

    /// Gives the item to every reader whose filter accepts it. Never waits: a reader whose queue is full misses the
    /// item, and is told the newest that it missed when it has read the others.
    pub fn publish(&self, item: &EventItem) {
        let mut inner = self.lock();
        inner.note(item);
        inner.readers.retain(|reader| !reader.feed.is_closed());
        let interested = inner.readers.iter();
        for reader in interested.filter(|reader| reader.filter.accepts(item)) {
            reader.feed.give(item);
        }
        self.note_readers(&inner);
    }

    /// The findings that stand, the oldest first.
    #[must_use]
    pub fn findings(&self) -> Vec<(ProcessHandle, Finding)> {
        let inner = self.lock();
        let known = |item: &EventItem| match &item.event.body {
            Body::Finding(finding) => Some((item.event.process, (**finding).clone())),
            _ => None,
        };
        inner.findings.iter().filter_map(known).collect()
    }

    /// Takes over what is known now of a finding that stands. Readers who were told of it are not told again; whoever asks later gets the
    /// numbers of now.
    pub fn renew(&self, process: ProcessHandle, now: &Finding) {
        let mut inner = self.lock();
        let known = inner.findings.iter_mut().find(|known| {
            known.event.process == process
                && matches!(&known.event.body, Body::Finding(one) if one.number == now.number)
        });
        if let Some(known) = known {
            let mut event = Event::clone(&known.event);
            event.body = Body::Finding(Box::new(now.clone()));
            known.event = Arc::new(event);
        }
    }

    /// Takes over how a process is judged: a traced one now, and one that is no longer traced once more, when all is known of it. The end of
    /// the trace makes what was said before it void.
    pub fn judged(&self, process: ProcessHandle, verdict: ProcessVerdict, sure: Option<f64>) {
        self.lock().verdicts.insert(process, (verdict, sure));
    }

    /// Takes over of which moment all verdicts and findings of traced processes are, in nanoseconds of boot time.
    pub fn judged_at(&self, boot_ns: u64) {
        self.lock().judged_boot_ns = Some(boot_ns);
    }

    /// The moment of which all verdicts and findings of traced processes are, in nanoseconds of boot time; `None` before the first.
    #[must_use]
    pub fn judged_boot_ns(&self) -> Option<u64> {
        self.lock().judged_boot_ns
    }

    /// Forgets how a process was judged of which nothing is known any more.
    pub fn forget(&self, process: ProcessHandle) {
        self.lock().verdicts.remove(&process);
    }

    /// How a process was judged last, and the confidence of what grows; `None` if it was not judged, or not since its trace has ended.
    #[must_use]
    pub fn verdict(&self, process: ProcessHandle) -> Option<(ProcessVerdict, Option<f64>)> {
        self.lock().verdicts.get(&process).copied()
    }

    /// Number of findings that stand and are not among [`EventHub::findings`], because there were too many.
    #[must_use]
    pub fn forgotten_findings(&self) -> u64 {
        self.lock().forgotten
    }

    /// Ends the streams of all readers.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.readers.clear();
        self.note_readers(&inner);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The data are still usable if another thread panicked while it held the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Updates the list of findings that stand.
    fn note(&mut self, item: &EventItem) {
        let process = item.event.process;
        match &item.event.body {
            Body::Finding(finding) => {
                self.findings.retain(|known| {
                    known.event.process != process
                        || !matches!(&known.event.body, Body::Finding(one) if one.number == finding.number)
                });
                if !finding.withdrawn {
                    self.findings.push_back(item.clone());
                }
                if self.findings.len() > MOST_FINDINGS {
                    self.findings.pop_front();
                    self.forgotten += 1;
                }
            }
            body if ends(body) => {
                self.findings.retain(|known| known.event.process != process);
                self.verdicts.remove(&process);
            }
            _ => {}
        }
    }
}

/// Whether the process is no longer traced after this event.
fn ends(body: &Body) -> bool {
    matches!(body, Body::Detached | Body::Exited | Body::Replaced)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Caller, fake};
    use memscope_ledger::event::{PoolTrace, TraceAction};
    use memscope_tests::limits::{Met, constant};

    fn item(pid: u32, uid: u32, sequence: u64) -> EventItem {
        fake::event(pid, uid, sequence, Body::Exited)
    }

    const ALL: EventFilter = EventFilter {
        pid: None,
        caller: None,
        kinds: Vec::new(),
    };

    #[test]
    fn a_verdict_is_forgotten_with_the_trace() {
        let hub = EventHub::new();
        let event = item(7, 0, 1);
        let process = event.event.process;
        assert_eq!(hub.verdict(process), None);
        hub.judged(process, ProcessVerdict::TooEarly, None);
        hub.judged(process, ProcessVerdict::Growing, Some(0.9));
        let growing = (ProcessVerdict::Growing, Some(0.9));
        assert_eq!(hub.verdict(process), Some(growing));
        hub.publish(&event);
        assert_eq!(hub.verdict(process), None);
        hub.judged(process, ProcessVerdict::Steady, None);
        assert_eq!(
            hub.verdict(process),
            Some((ProcessVerdict::Steady, None)),
            "once more, after its end"
        );
        hub.forget(process);
        assert_eq!(hub.verdict(process), None);
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed() {
        let hub = EventHub::new();
        let forked = fake::event(1, 0, 1, Body::Forked { child: 2 });
        assert!(!hub.wants(&forked.event), "nobody reads");
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
        Met {
            what: "events that wait for one reader",
            most: constant("crates/rpc/src/fanout.rs", "QUEUE"),
            beyond: "it misses further ones",
            told: "`missed` of the next event",
            test: "a_slow_reader_is_told_what_it_missed",
        }
        .is_told();
    }

    /// Nothing is made of events that no reader asked for; those about memory that ran out are asked for by one word.
    #[test]
    fn events_that_nobody_asked_for_are_not_wanted() {
        let trace = |action| {
            let trace = PoolTrace {
                action,
                allocator: 1,
                device: Some(0),
                addr: 1,
                size: 1,
                stream: 0,
                block_size: None,
                total_allocated: None,
                total_reserved: None,
                pool: None,
            };
            fake::event(1, 0, 1, Body::Trace(trace)).event
        };
        let hub = EventHub::new();
        let few = hub.subscribe(EventFilter {
            kinds: vec![crate::OUT_OF_MEMORY],
            ..ALL
        });
        assert!(!hub.wants(&trace(TraceAction::Alloc)));
        assert!(hub.wants(&trace(TraceAction::Oom)));
        let all = hub.subscribe(ALL);
        assert!(hub.wants(&trace(TraceAction::Alloc)));
        drop(all);
        // That a reader is gone is seen at the next event.
        hub.publish(&item(1, 0, 1));
        assert!(!hub.wants(&trace(TraceAction::Alloc)));
        drop(few);
    }

    /// Events of kinds that a reader did not ask for take no room in its queue.
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
        let caller = Caller::local(1000, 1000, None);
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
        let forked = fake::event(1, 0, 1, Body::Forked { child: 2 });
        assert!(!hub.wants(&forked.event), "nobody reads");
    }

    #[test]
    fn findings_that_give_way_are_counted() {
        let hub = EventHub::new();
        for number in 1..=MOST_FINDINGS as u64 + 3 {
            let finding = Finding {
                number,
                ..Finding::default()
            };
            hub.publish(&fake::event(1, 1, number, Body::Finding(Box::new(finding))));
        }
        assert_eq!(hub.forgotten_findings(), 3);
        let standing = hub.findings();
        assert_eq!(standing.len(), MOST_FINDINGS);
        assert_eq!(standing[0].1.number, 4);
        Met {
            what: "findings that stand",
            most: constant("crates/rpc/src/fanout.rs", "MOST_FINDINGS"),
            beyond: "the oldest is not listed any more",
            told: "`findings_forgotten` in `status`",
            test: "findings_that_give_way_are_counted",
        }
        .is_told();
    }

    #[test]
    fn who_asks_later_gets_the_numbers_of_now() {
        let hub = EventHub::new();
        let finding = |number, live_bytes| Finding {
            number,
            live_bytes,
            ..Finding::default()
        };
        for number in [1, 2] {
            let body = Body::Finding(Box::new(finding(number, 100)));
            hub.publish(&fake::event(7, 7, number, body));
        }
        hub.renew(ProcessHandle(7), &finding(2, 300));
        // What does not stand does not come to stand by that.
        hub.renew(ProcessHandle(7), &finding(3, 300));
        hub.renew(ProcessHandle(8), &finding(1, 300));
        let told: Vec<_> = hub
            .findings()
            .iter()
            .map(|(_, one)| (one.number, one.live_bytes))
            .collect();
        assert_eq!(told, [(1, 100), (2, 300)]);
        let told = hub.subscribe(ALL).try_recv().unwrap();
        assert_eq!(told.event.id.sequence, 1);
    }

    #[test]
    fn a_new_reader_is_told_of_the_findings_that_stand() {
        let hub = EventHub::new();
        let finding = |pid: u32, number: u64, withdrawn| {
            let finding = Finding {
                number,
                withdrawn,
                ..Finding::default()
            };
            fake::event(pid, pid, number, Body::Finding(Box::new(finding)))
        };
        for item in [
            finding(1, 1, false),
            finding(1, 2, false),
            finding(2, 1, false),
            finding(3, 1, false),
        ] {
            assert!(hub.wants(&item.event));
            hub.publish(&item);
        }
        // One is withdrawn, and a process ends.
        hub.publish(&finding(1, 1, true));
        hub.publish(&item(3, 3, 9));
        let told = |filter| {
            let mut reader = hub.subscribe(filter);
            let mut told = Vec::new();
            while let Ok(item) = reader.try_recv() {
                told.push((item.pid.unwrap(), item.event.id.sequence));
            }
            told
        };
        assert_eq!(told(ALL), [(1, 2), (2, 1)]);
        let standing = hub.findings();
        let standing: Vec<_> = standing
            .iter()
            .map(|(process, one)| (process.0, one.number))
            .collect();
        assert_eq!(standing, [(1, 2), (2, 1)]);
        assert_eq!(
            told(EventFilter {
                pid: Some(2),
                ..ALL
            }),
            [(2, 1)]
        );
        let caller = Caller::local(1, 1, None);
        assert_eq!(
            told(EventFilter {
                caller: Some(caller),
                ..ALL
            }),
            [(1, 2)]
        );
        assert_eq!(
            told(EventFilter {
                kinds: vec!["mark"],
                ..ALL
            }),
            []
        );
    }
}
