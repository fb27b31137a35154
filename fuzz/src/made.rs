//! Records that the encoders make of real files, for the targets that begin with records.

use crate::{dump, pickle};
use memscope_ledger::event::{Body, Event, ProcessHandle};
use memscope_log::records::{DaemonRecord, Stamp, encode, held_parts};
use memscope_pickle::Pickle;

/// Version of the records' layouts, as the encoders write it.
pub(crate) const VERSION: u8 = 3;

/// Most records of one recording: seeds are small, so that much can be tried with them.
const RECORDS: usize = 40;

/// A record of the daemon's own, about the process with the handle 1.
pub(crate) fn of_daemon(record: DaemonRecord) -> Vec<u8> {
    let stamp = Stamp {
        process: ProcessHandle(1),
        tid: 0,
        time_ns: 1,
        lost_before: 0,
    };
    record.encode(stamp).unwrap()
}

fn encoded(events: Vec<Event>) -> Vec<u8> {
    // The others cannot be understood without it.
    let mut records = of_daemon(DaemonRecord::Attached(Box::default()));
    let mut add = |event: &Event| {
        if let Ok(Some(record)) = encode(event, 1) {
            records.extend_from_slice(&record);
        }
    };
    for event in events.into_iter().take(RECORDS) {
        match event.body {
            Body::Held(reading) => {
                for part in held_parts(*reading) {
                    add(&Event {
                        body: Body::Held(Box::new(part)),
                        ..event
                    });
                }
            }
            _ => add(&event),
        }
    }
    records
}

/// Records of some recordings.
pub(crate) fn recordings() -> Vec<Vec<u8>> {
    let snapshots = pickle::FILES
        .iter()
        .filter_map(|file| Pickle::read(*file).ok());
    let mut all: Vec<Vec<Event>> = snapshots.map(|pickle| pickle::events(&pickle)).collect();
    all.extend(dump::some_events());
    all.into_iter().map(encoded).collect()
}
