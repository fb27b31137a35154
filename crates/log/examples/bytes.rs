//! Shows how many bytes each kind of record takes on disk in a journal or a recording:
//! `cargo run --release -p memscope-log --example bytes -- PATH`.
//!
//! Records of different kinds are packed together, so the size of a kind is found by packing the records of that kind
//! alone.

use memscope_log::records::{DaemonRecord, Header};
use memscope_log::{ClockPair, Config, Journal, Recording};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Length of the header of a batch of format 1, whose records were not packed.
const PLAIN_BATCH_HEADER: u64 = 32;

/// Records by batch, as they were in the journal.
type Batches = Vec<Vec<u8>>;

fn name(record: &[u8], kind: u16) -> String {
    let name = match kind {
        1 => "call",
        2 => "report",
        3 => "out of memory",
        4 => "trace",
        5 => "trace, while the layout is found",
        6 => "process",
        7 => "mappings",
        8 => "stack",
        9 => "code died",
        11 => "mark",
        _ => match DaemonRecord::decode(record) {
            Ok(Some(said)) => {
                let said = format!("{said:?}");
                let end = said.find(|letter: char| !letter.is_alphanumeric());
                return format!("daemon: {}", &said[..end.unwrap_or(said.len())]);
            }
            _ => return kind.to_string(),
        },
    };
    name.to_owned()
}

/// Bytes that these batches take in a journal, and the time in seconds that writing them took.
fn stored(batches: &Batches) -> Result<(u64, f64), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let config = Config {
        segment_bytes: 1 << 30,
        total_bytes: 1 << 40,
        ..Config::new(1, [0; 16], ClockPair::default())
    };
    let mut journal = Journal::create(dir.path(), config)?;
    let file = journal.epoch_dir().join("000000.msj");
    let started = Instant::now();
    for batch in batches {
        journal.append(batch, 0, None)?;
    }
    let took = started.elapsed().as_secs_f64();
    drop(journal);
    Ok((std::fs::metadata(file)?.len() - 128, took))
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("which journal or recording?")?;
    let recording = Recording::open(Path::new(&path))?;
    let checkpoints: u64 = recording
        .segments()
        .iter()
        .filter_map(|place| Some(place.checkpoint()?.bytes()))
        .sum();
    let mut all = Batches::new();
    let mut kinds: BTreeMap<String, (u64, Batches)> = BTreeMap::new();
    let mut count = 0u64;
    let mut records = recording.records();
    let mut position = None;
    while let Some(entry) = records.next_record()? {
        let is_new = position.replace(entry.ring_position) != Some(entry.ring_position);
        match all.last_mut() {
            Some(batch) if !is_new && batch.len() <= 3 << 20 => {
                batch.extend_from_slice(entry.record);
            }
            _ => all.push(entry.record.to_vec()),
        }
        let header = Header::read(entry.record)?;
        let (number, batches) = kinds.entry(name(entry.record, header.kind)).or_default();
        *number += 1;
        count += 1;
        batches.resize_with(all.len(), Vec::new);
        if let Some(batch) = batches.last_mut() {
            batch.extend_from_slice(entry.record);
        }
    }
    println!(
        "| kind of record | records | bytes each, format 1 | bytes each now |\n|---|---|---|---|"
    );
    let mut rows: Vec<_> = kinds.iter_mut().collect();
    rows.sort_by_key(|(_, (number, _))| std::cmp::Reverse(*number));
    for (kind, (number, batches)) in rows {
        batches.retain(|batch| !batch.is_empty());
        let plain: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
        let (now, _) = stored(batches)?;
        let each = |bytes: u64| bytes as f64 / *number as f64;
        println!(
            "| {kind} | {number} | {:.1} | {:.1} |",
            each(plain),
            each(now)
        );
    }
    let plain: u64 = all
        .iter()
        .map(|batch| batch.len() as u64 + PLAIN_BATCH_HEADER)
        .sum();
    let (now, took) = stored(&all)?;
    let each = |bytes: u64| bytes as f64 / count as f64;
    println!(
        "| all, with the headers of batches | {count} | {:.1} | {:.1} |",
        each(plain),
        each(now)
    );
    println!(
        "| with checkpoints | {count} | | {:.1} |",
        each(now + checkpoints)
    );
    println!(
        "\n{} records a batch; {:.0} ns to append a record",
        count / all.len().max(1) as u64,
        took * 1e9 / count as f64
    );
    Ok(())
}
