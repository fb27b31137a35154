//! Records, as they come from the ring and lie in the journal: decoded, applied, asked about.

use crate::pieces::{Pieces, put};
use crate::{Target, ask, made};
use memscope_log::records::{Decoder, Outcome, RecordReader, calibration, totals_on_trial};
use std::hint::black_box;

pub(crate) const TARGET: Target = Target {
    name: "records",
    reads: "records of the ring and of the daemon: decoded, applied to a ledger, asked about",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 4096,
    longest: 1 << 15,
};

/// Where a record has the version of its layout.
const VERSION_AT: usize = 4;

/// Makes the lengths and versions of records right, unless the piece says that they are not.
fn records(mut pieces: Pieces<'_>) -> Vec<u8> {
    let version = made::VERSION;
    let mut bytes = Vec::new();
    while let Some((kind, content)) = pieces.piece() {
        let begin = bytes.len();
        bytes.extend_from_slice(content);
        bytes.resize(begin + content.len().next_multiple_of(8).max(40), 0);
        let Some(record) = bytes.get_mut(begin..).filter(|_| kind < 250) else {
            continue;
        };
        let len = u16::try_from(record.len()).unwrap_or(u16::MAX - 7);
        record[..2].copy_from_slice(&len.to_ne_bytes());
        record[VERSION_AT] = version;
    }
    bytes
}

fn read(input: &[u8]) {
    let bytes = records(Pieces(input));
    let mut decoder = Decoder::new(77);
    let mut ledger = ask::ledger();
    for record in RecordReader::new(&bytes).flatten() {
        black_box((calibration(record), totals_on_trial(record)));
        if let Outcome::Decoded(event) = decoder.decode(record) {
            ledger.apply(&event);
        }
    }
    ask::everything(&ledger);
}

fn seeds() -> Vec<Vec<u8>> {
    let of = |records: Vec<u8>| {
        let mut seed = Vec::new();
        for record in RecordReader::new(&records).flatten() {
            put(0, record, &mut seed);
        }
        seed
    };
    made::recordings().into_iter().map(of).collect()
}
