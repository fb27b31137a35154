//! Replaying a recording: the same decoding and the same ledger, fed from a file.

use std::path::Path;

use memscope_decode::{Decoder, Outcome};
use memscope_journal::{Recording, RecordingError, Records};
use memscope_ledger::event::{Body, CoverageNote, Event, EventId};
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};

/// How much later than a stack its names may come: the daemon may have been busy.
const NAMED_WITHIN_NS: u64 = 5_000_000_000;
/// Records between two looks at whether a name is missing still.
const RECORDS_PER_LOOK: u32 = 1000;

/// What a recording told.
pub struct Replayed {
    /// The state at its end.
    pub ledger: Ledger,
    /// Its epoch.
    pub epoch: u64,
    /// Boot time of the first record that it still has.
    pub begins_ns: u64,
    /// The moment of its last record.
    pub end: AsOf,
    /// Records applied.
    pub records: u64,
    /// What is wrong with it, in words.
    pub warnings: Vec<String>,
}

/// Reads a recording to its end.
pub fn replay(path: &Path, config: LedgerConfig) -> Result<Replayed, RecordingError> {
    fold(path, config, |_, _| false)
}

/// Reads a recording up to a moment: to the first event that lies behind it.
pub fn replay_until(
    path: &Path,
    config: LedgerConfig,
    until: Until,
) -> Result<Replayed, RecordingError> {
    fold(path, config, move |ledger, event| match until {
        Until::Boot(ns) => event.time_ns > ns,
        Until::Unix(ns) => ledger.unix_ns(event.time_ns) > ns,
        Until::Event(number) => event.id.sequence > number,
    })
}

/// Reads a recording up to an event, and stands at a moment behind it: what a daemon answered then, this answers.
pub fn replay_as_of(
    path: &Path,
    config: LedgerConfig,
    event: u64,
    boot_ns: u64,
) -> Result<Replayed, RecordingError> {
    let mut replayed = replay_until(path, config, Until::Event(event))?;
    replayed.end.boot_ns = boot_ns;
    replayed.end.unix_ns = replayed.ledger.unix_ns(boot_ns);
    Ok(replayed)
}

/// Where to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Behind this boot time, nanoseconds.
    Boot(u64),
    /// Behind this time, nanoseconds since 1970.
    Unix(u64),
    /// Behind the event with this number.
    Event(u64),
}

/// Reads on for the names of the stacks that are there: what comes after a moment may tell who was there then.
fn read_names(
    records: &mut Records,
    decoder: &mut Decoder,
    ledger: &mut Ledger,
    until_ns: u64,
) -> Result<(), RecordingError> {
    let mut left = 0;
    loop {
        if left == 0 {
            if !ledger.has_unnamed() {
                return Ok(());
            }
            left = RECORDS_PER_LOOK;
        }
        left -= 1;
        let Some(entry) = records.next_record()? else {
            return Ok(());
        };
        decoder.seek(entry.sequence);
        if let Outcome::Decoded(event) = decoder.decode(entry.record) {
            if event.time_ns > until_ns {
                return Ok(());
            }
            ledger.learn(&event);
        }
    }
}

fn fold(
    path: &Path,
    config: LedgerConfig,
    stop: impl Fn(&Ledger, &Event) -> bool,
) -> Result<Replayed, RecordingError> {
    let recording = Recording::open(path)?;
    let header = recording.header();
    let epoch = header.epoch;
    let mut decoder = Decoder::new(epoch);
    let mut ledger = Ledger::new(config);
    let mut records = recording.records();
    let mut last = Event {
        id: EventId { epoch, sequence: 0 },
        time_ns: header.clock.boot_ns,
        process: memscope_ledger::event::ProcessHandle(0),
        tid: 0,
        lost_before: 0,
        stack: memscope_ledger::event::StackRef::NotTaken,
        sampling: 0,
        body: Body::Clock {
            unix_ns: header.clock.unix_ns,
        },
    };
    let begins_ns = header.first_boot_ns;
    let begins_late = header.first_sequence > 1;
    ledger.apply(&last);
    let mut count = 0;
    while let Some(entry) = records.next_record()? {
        decoder.seek(entry.sequence);
        count += 1;
        if let Outcome::Decoded(event) = decoder.decode(entry.record) {
            if !entry.repeated && stop(&ledger, &event) {
                ledger.learn(&event);
                let until = event.time_ns.saturating_add(NAMED_WITHIN_NS);
                read_names(&mut records, &mut decoder, &mut ledger, until)?;
                break;
            }
            ledger.apply(&event);
            last.id = event.id;
            last.time_ns = last.time_ns.max(event.time_ns);
        }
    }
    let warnings: Vec<String> = records.warnings().iter().map(ToString::to_string).collect();
    let mut notes = Vec::new();
    if !warnings.is_empty() {
        notes.push(CoverageNote {
            code: "recording_damaged".to_owned(),
            text: format!("the recording is damaged: {}", warnings.join("; ")),
        });
    }
    if begins_late {
        notes.push(CoverageNote {
            code: "journal_begins_late".to_owned(),
            text: "the journal's oldest part is gone: blocks that came before what is left of it \
                   are not in this answer"
                .to_owned(),
        });
    }
    for process in ledger.processes() {
        for note in &notes {
            ledger.apply(&Event {
                process: process.handle,
                body: Body::Coverage(note.clone()),
                ..last.clone()
            });
        }
    }
    let end = AsOf {
        boot_ns: last.time_ns,
        unix_ns: ledger.unix_ns(last.time_ns),
        event: last.id,
    };
    Ok(Replayed {
        ledger,
        epoch,
        begins_ns,
        end,
        records: count,
        warnings,
    })
}
