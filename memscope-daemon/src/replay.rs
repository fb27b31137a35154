//! Replaying a recording: the same decoding and the same ledger, fed from a file.

use std::path::Path;

use memscope_decode::{Decoder, Outcome};
use memscope_journal::{Recording, RecordingError};
use memscope_ledger::event::{Body, CoverageNote, Event, EventId};
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};

/// What a recording told.
pub struct Replayed {
    /// The state at its end.
    pub ledger: Ledger,
    /// Its epoch.
    pub epoch: u64,
    /// The moment of its last record.
    pub end: AsOf,
    /// Records applied.
    pub records: u64,
    /// What is wrong with it, in words.
    pub warnings: Vec<String>,
}

/// Reads a recording to its end.
pub fn replay(path: &Path, config: LedgerConfig) -> Result<Replayed, RecordingError> {
    let recording = Recording::open(path)?;
    let epoch = recording.header().epoch;
    let mut decoder = Decoder::new(epoch);
    let mut ledger = Ledger::new(config);
    let mut records = recording.records();
    let mut last = Event {
        id: EventId { epoch, sequence: 0 },
        time_ns: recording.header().clock.boot_ns,
        process: memscope_ledger::event::ProcessHandle(0),
        tid: 0,
        lost_before: 0,
        body: Body::Clock {
            unix_ns: recording.header().clock.unix_ns,
        },
    };
    ledger.apply(&last);
    let mut count = 0;
    while let Some(entry) = records.next_record()? {
        decoder.seek(entry.sequence);
        count += 1;
        if let Outcome::Decoded(event) = decoder.decode(entry.record) {
            ledger.apply(&event);
            last.id = event.id;
            last.time_ns = last.time_ns.max(event.time_ns);
        }
    }
    let warnings: Vec<String> = records.warnings().iter().map(ToString::to_string).collect();
    if !warnings.is_empty() {
        let text = format!("the recording is damaged: {}", warnings.join("; "));
        for process in ledger.processes() {
            ledger.apply(&Event {
                process: process.handle,
                body: Body::Coverage(CoverageNote {
                    code: "recording_damaged".to_owned(),
                    text: text.clone(),
                }),
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
        end,
        records: count,
        warnings,
    })
}
