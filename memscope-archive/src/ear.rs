//! Listens to events, and keeps them until a batch has them. What finds no room is counted.

use crate::daemon::{Daemon, DaemonError};
use memscope_proto::v1;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Most events that wait for a batch.
pub const MOST_EVENTS: usize = 200_000;
/// How long to wait before a connection is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Something that was heard.
#[derive(Clone, Debug)]
pub enum Sound {
    /// The stream begins, or begins again: what was before may be missing.
    Begins,
    /// An event.
    Event(Box<v1::Event>),
    /// Events that found no room here.
    NoRoom {
        /// Number of events that were dropped.
        count: u64,
        /// Their first number.
        first: u64,
        /// Their last number.
        last: u64,
    },
}

/// What was heard since the last batch.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// In order.
    pub sounds: Vec<Sound>,
    /// Findings that stand, by the handle of their process, as far as this connection has told.
    pub standing: BTreeMap<u32, BTreeSet<u64>>,
}

#[derive(Debug, Default)]
struct Inner {
    sounds: VecDeque<Sound>,
    standing: BTreeMap<u32, BTreeSet<u64>>,
}

/// An ear for events of some kinds.
#[derive(Debug)]
pub struct Ear {
    kinds: &'static [&'static str],
    most: usize,
    inner: Mutex<Inner>,
    /// Told when half of the room is taken.
    pub filling: Arc<Notify>,
}

/// Now, nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl Ear {
    /// An ear for these kinds; none: for all.
    #[must_use]
    pub fn new(kinds: &'static [&'static str], most: usize) -> Arc<Ear> {
        Arc::new(Ear {
            kinds,
            most,
            inner: Mutex::default(),
            filling: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for ever. A daemon that is not there is tried again and again.
    pub async fn listen(self: Arc<Ear>, socket: PathBuf) {
        loop {
            if let Err(error) = self.listen_once(&socket).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "events");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn listen_once(&self, socket: &std::path::Path) -> Result<(), DaemonError> {
        let daemon = Daemon::connect(socket).await?;
        let mut stream = daemon.events(self.kinds).await?;
        self.begins();
        loop {
            let event = stream.message().await;
            let event = event.map_err(|source| DaemonError::Refused {
                question: "events",
                source: Box::new(source),
            })?;
            match event {
                Some(event) => self.hear(event),
                None => return Ok(()),
            }
        }
    }

    /// A connection is made.
    pub fn begins(&self) {
        let mut inner = self.lock();
        inner.standing.clear();
        // One of them is as good as several in a row. Where there is no room, what is missing is told anyway.
        let is_last = matches!(inner.sounds.back(), Some(Sound::Begins));
        if !is_last && inner.sounds.len() <= self.most {
            inner.sounds.push_back(Sound::Begins);
        }
    }

    /// An event came.
    pub fn hear(&self, event: v1::Event) {
        let mut inner = self.lock();
        if let Some(v1::event::Body::Finding(finding)) = &event.body {
            let of = inner.standing.entry(event.process).or_default();
            match finding.withdrawn {
                true => of.remove(&finding.number),
                false => of.insert(finding.number),
            };
        }
        let number = event.id.as_ref().map_or(0, |id| id.sequence);
        if inner.sounds.len() < self.most {
            inner.sounds.push_back(Sound::Event(Box::new(event)));
        } else if let Some(Sound::NoRoom { count, last, .. }) = inner.sounds.back_mut() {
            (*count, *last) = (*count + 1 + event.missed, number);
        } else {
            inner.sounds.push_back(Sound::NoRoom {
                count: 1 + event.missed,
                first: number,
                last: number,
            });
        }
        if inner.sounds.len() >= self.most / 2 {
            self.filling.notify_one();
        }
    }

    /// What was heard; it stays until it is [`Ear::written`].
    #[must_use]
    pub fn heard(&self) -> Heard {
        let inner = self.lock();
        Heard {
            sounds: inner.sounds.iter().cloned().collect(),
            standing: inner.standing.clone(),
        }
    }

    /// A batch has the first ones.
    pub fn written(&self, heard: &Heard) {
        let mut inner = self.lock();
        // What found no room may have become more while the batch was written.
        if let Some(Sound::NoRoom { count: told, .. }) = heard.sounds.last() {
            let told = *told;
            inner.sounds.drain(..heard.sounds.len() - 1);
            let more = match inner.sounds.front_mut() {
                Some(Sound::NoRoom { count, .. }) => {
                    *count -= told;
                    *count > 0
                }
                _ => true,
            };
            if !more {
                inner.sounds.pop_front();
            }
            return;
        }
        inner.sounds.drain(..heard.sounds.len());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    fn event(sequence: u64) -> v1::Event {
        v1::Event {
            id: Some(v1::EventId { epoch: 1, sequence }),
            ..v1::Event::default()
        }
    }

    fn lost(heard: &Heard) -> u64 {
        let sounds = heard.sounds.iter();
        let lost = sounds.map(|sound| match sound {
            Sound::NoRoom { count, .. } => *count,
            _ => 0,
        });
        lost.sum()
    }

    #[test]
    fn what_finds_no_room_is_counted_once() {
        let ear = Ear::new(&[], 10);
        ear.begins();
        let mut sent = 0;
        let (mut kept, mut counted) = (0, 0);
        for round in 0..5 {
            for _ in 0..7 + round {
                sent += 1;
                ear.hear(event(sent));
            }
            let heard = ear.heard();
            // These come while the batch is written.
            for _ in 0..round * 3 {
                sent += 1;
                ear.hear(event(sent));
            }
            let events = heard
                .sounds
                .iter()
                .filter(|it| matches!(it, Sound::Event(_)));
            kept += events.count() as u64;
            counted += lost(&heard);
            ear.written(&heard);
        }
        let rest = ear.heard();
        kept += rest
            .sounds
            .iter()
            .filter(|it| matches!(it, Sound::Event(_)))
            .count() as u64;
        counted += lost(&rest);
        assert_eq!(kept + counted, sent);
        assert!(counted > 0);
        Met {
            what: "events that wait for the archive's next batch",
            most: constant("memscope-archive/src/ear.rs", "MOST_EVENTS"),
            beyond: "further ones are not archived",
            told: "a row in the table `gaps`, with their number",
            test: "what_finds_no_room_is_counted_once",
        }
        .is_told();
    }
}
