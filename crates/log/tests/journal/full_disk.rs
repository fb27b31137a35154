//! A full disk: a tiny tmpfs in a mount namespace of its own, which ends with the child. Needs root. The same rules are
//! tested without root in `src/full_disk.rs`, with an allocator that fails.

use crate::common::{Writer, config, read, record};
use memscope_log::{JournalError, State, Warning};
use std::path::Path;
use std::process::Command;

const DISK: &str = "MEMSCOPE_TEST_DISK";

#[test]
fn on_a_full_disk_the_journal_stops_until_there_is_room_and_its_oldest_part_goes_first() {
    assert!(
        rustix::process::getuid().is_root(),
        "this test needs root (user 0) to mount a tiny disk"
    );
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=700k none \"$0\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "full_disk::inside_the_namespace",
        ])
        .env(DISK, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "the mount is private"
    );
}

#[test]
#[ignore = "started by the test above, on a disk of its own"]
fn inside_the_namespace() {
    let Some(disk) = std::env::var_os(DISK) else {
        return;
    };
    let disk = Path::new(&disk);
    // 700 KiB have room for two segments of 256 KiB, but somebody else has taken 300 of them.
    let filler = disk.join("filler");
    std::fs::write(&filler, vec![1; 300 << 10]).unwrap();
    let mut journal = Writer::create(disk, config(5)).unwrap();
    let mut failed = None;
    for n in 1..=100 {
        match journal.append(&record(n, 20_000), 0) {
            Ok(first) => assert_eq!(first, n),
            Err(error) => {
                assert!(failed.is_none(), "the error comes once");
                assert!(
                    matches!(&error, JournalError::NoSpace { needed, .. } if (256 << 10..260 << 10).contains(needed))
                );
                assert!(error.to_string().contains("000001.msj"), "{error}");
                failed = Some(n);
            }
        }
    }
    let failed = failed.expect("400 KiB take no 2 MB");
    assert!(
        matches!(journal.journal.state(), State::Stopped { from_sequence, .. } if *from_sequence == failed)
    );
    assert_eq!(journal.journal.dropped(), 101 - failed);
    let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
    assert_eq!(numbers, (1..failed).collect::<Vec<_>>());
    assert_eq!(warnings, []);
    let left: Vec<_> = std::fs::read_dir(journal.journal.epoch_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["000000.msj"], "nothing half-made is left");

    // It stops again as long as there is no room, and goes on when there is.
    journal.journal.resume();
    assert!(journal.append(&record(101, 20_000), 0).is_err());
    std::fs::remove_file(&filler).unwrap();
    journal.journal.resume();
    assert_eq!(journal.append(&record(102, 20_000), 0).unwrap(), 102);
    let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
    let gap = Warning::Missing {
        from_sequence: failed,
        records: 102 - failed,
    };
    assert_eq!(numbers, (1..failed).chain([102]).collect::<Vec<_>>());
    assert_eq!(warnings, [gap]);

    // From here on the oldest segment goes whenever there is no room for the next one.
    for n in 103..=200 {
        assert_eq!(journal.append(&record(n, 20_000), 0).unwrap(), n);
    }
    assert_eq!(*journal.journal.state(), State::Running);
    let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
    let first = numbers[0];
    assert!(first > 150, "{first}");
    assert_eq!((numbers, warnings), ((first..=200).collect(), vec![]));
}
