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
    /// Events of one journal that found no room here.
    NoRoom {
        /// Epoch of the journal that has them.
        epoch: u64,
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
        // One of them is as good as several in a row. It is kept where there is no room, too: what was made while nobody listened is in no
        // number of events that found none.
        if !matches!(inner.sounds.back(), Some(Sound::Begins)) {
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
        let id = event.id.as_ref().copied().unwrap_or_default();
        if inner.sounds.len() < self.most {
            inner.sounds.push_back(Sound::Event(Box::new(event)));
        } else {
            match inner.sounds.back_mut() {
                Some(Sound::NoRoom {
                    epoch, count, last, ..
                }) if *epoch == id.epoch => {
                    (*count, *last) = (*count + 1 + event.missed, id.sequence);
                }
                _ => inner.sounds.push_back(Sound::NoRoom {
                    epoch: id.epoch,
                    count: 1 + event.missed,
                    first: id.sequence,
                    last: id.sequence,
                }),
            }
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
        if let Some(Sound::NoRoom {
            count: told,
            last: told_to,
            ..
        }) = heard.sounds.last()
        {
            inner.sounds.drain(..heard.sounds.len() - 1);
            let more = match inner.sounds.front_mut() {
                Some(Sound::NoRoom { count, first, .. }) => {
                    *count -= told;
                    *first = told_to + 1;
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

    /// The connection breaks and memscoped is started anew while the ear is full: each gap is of its own journal.
    #[test]
    fn what_breaks_off_while_there_is_no_room_is_told_as_well() {
        let of = |epoch, sequence| v1::Event {
            id: Some(v1::EventId { epoch, sequence }),
            ..v1::Event::default()
        };
        let ear = Ear::new(&[], 3);
        ear.begins();
        for sequence in 1..=4 {
            ear.hear(of(7, sequence));
        }
        ear.begins();
        ear.begins();
        ear.hear(of(7, 9));
        let first = ear.heard();
        ear.begins();
        ear.hear(of(8, 5));
        ear.hear(of(8, 6));
        let told = |heard: &Heard| -> Vec<String> {
            let told = heard.sounds.iter().map(|sound| match sound {
                Sound::Begins => "begins".to_owned(),
                Sound::Event(event) => format!("event {}", event.id.as_ref().unwrap().sequence),
                Sound::NoRoom {
                    epoch,
                    count,
                    first,
                    last,
                } => format!("{count} of {epoch}: {first} to {last}"),
            });
            told.collect()
        };
        let before = ["begins", "event 1", "event 2", "2 of 7: 3 to 4"];
        let between = ["begins", "1 of 7: 9 to 9"];
        assert_eq!(told(&first), [&before[..], &between].concat());
        ear.written(&first);
        assert_eq!(told(&ear.heard()), ["begins", "2 of 8: 5 to 6"]);
    }

    #[test]
    fn what_found_no_room_while_a_batch_was_written_is_told_by_its_own_numbers() {
        let ear = Ear::new(&[], 2);
        for sequence in 1..=5 {
            ear.hear(event(sequence));
        }
        let heard = ear.heard();
        ear.hear(event(6));
        ear.hear(event(7));
        ear.written(&heard);
        let rest = ear.heard();
        let [
            Sound::NoRoom {
                count, first, last, ..
            },
        ] = rest.sounds[..]
        else {
            panic!("{rest:?}");
        };
        assert_eq!((count, first, last), (2, 6, 7));
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
