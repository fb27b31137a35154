//! A full disk: a tiny tmpfs in a mount namespace of its own, which ends with the child. Needs root. The same rules are
//! tested without root in `src/full_disk.rs`, with an allocator that fails.

use crate::common::{Writer, config, read, record};
use memscope_log::{JournalError, State};
use std::path::Path;
use std::process::Command;

const DISK: &str = "MEMSCOPE_TEST_DISK";

#[test]
fn a_full_disk_stops_the_journal_and_nothing_else() {
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
    // 700 KiB have room for two segments of 256 KiB, not for three.
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
                assert!(error.to_string().contains("000002.msj"), "{error}");
                failed = Some(n);
            }
        }
    }
    let failed = failed.expect("700 KiB take no 2 MB");
    assert!(
        matches!(journal.journal.state(), State::Stopped { from_sequence, .. } if *from_sequence == failed)
    );
    assert_eq!(journal.journal.dropped(), 101 - failed);
    let (numbers, _, warnings) = read(journal.journal.epoch_dir()).unwrap();
    assert_eq!(numbers, (1..failed).collect::<Vec<_>>());
    assert_eq!(warnings, []);
    let mut left: Vec<_> = std::fs::read_dir(journal.journal.epoch_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    let whole = ["000000.msj", "000001.msc", "000001.msj"];
    assert_eq!(left, whole, "nothing half-made is left");
}
