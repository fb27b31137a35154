//! Tests with a disk on which a checkpoint takes as long as the test wants.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::journal::checkpoint::Folded;
use crate::journal::config::Config;
use crate::journal::full_disk::{numbers, record};
use crate::journal::writer::{Journal, State};
use crate::journal::{ClockPair, retain};
use crate::records::Decoder;
use memscope_ledger::{Ledger, LedgerConfig};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Longer than anything here takes: whoever waits for the checkpoint waits for ever.
const FOR_EVER: Duration = Duration::from_secs(60);

fn sizes(journal: &Path) -> Vec<u64> {
    let segments = retain::segments(journal).unwrap().into_iter();
    segments
        .map(|one| std::fs::metadata(one.path).unwrap().len())
        .collect()
}

#[test]
fn a_segment_is_lengthened_while_its_checkpoint_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        segment_bytes: 256 << 10,
        total_bytes: 2 << 20,
        ..Config::new(5, [0; 16], ClockPair::default())
    };
    let mut journal = Journal::create(dir.path(), config).unwrap();
    let (done, waits) = mpsc::channel();
    let (slow, until) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (decoder, ledger) = (Decoder::new(5), Ledger::new(LedgerConfig::default()));
        let append = |journal: &mut Journal, n| {
            let state = Folded {
                decoder: &decoder,
                ledger: &ledger,
            };
            assert_eq!(journal.append(&record(n), n, Some(state)).unwrap(), n);
        };
        // Five records fill a segment, so that the second one has begun.
        (1..=6).for_each(|n| append(&mut journal, n));
        let writing = journal.writing.take().expect("its checkpoint");
        journal.writing = Some(writing.held_up(until));
        // Until it has four times its size, which is half of the journal.
        (7..=24).for_each(|n| append(&mut journal, n));
        let lengthened = sizes(journal.epoch_dir());
        done.send(()).unwrap();
        // From here on it has to wait.
        (25..=40).for_each(|n| append(&mut journal, n));
        (journal, lengthened)
    });
    waits
        .recv_timeout(FOR_EVER)
        .expect("nothing waits for the checkpoint");
    drop(slow);
    let (mut journal, lengthened) = thread.join().unwrap();
    assert_eq!(lengthened.len(), 2);
    assert_eq!(lengthened[1], 1 << 20);
    assert_eq!(*journal.state(), State::Running);
    journal.settle().unwrap();
    let (numbers, warnings) = numbers(&journal);
    assert_eq!(numbers, (numbers[0]..=40).collect::<Vec<_>>());
    assert!(numbers[0] < 25, "{numbers:?}");
    assert_eq!(warnings, []);
    let sizes = sizes(journal.epoch_dir());
    assert!(sizes.iter().sum::<u64>() <= 2 << 20, "{sizes:?}");
}
