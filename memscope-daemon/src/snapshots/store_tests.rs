#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use std::os::unix::fs::PermissionsExt;

const LIMITS: Limits = Limits {
    count: 3,
    bytes: 1000,
};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn opened(dir: &Path, limits: Limits) -> Store {
    let (store, result) = Store::open(dir.join("snapshots"), limits);
    result.unwrap();
    store
}

/// Keeps a snapshot of this many bytes.
fn keep(store: &mut Store, pid: u32, bytes: usize) -> io::Result<u64> {
    let number = store.next_number();
    let file = format!("{number:06}-oom-pid-{pid}.pickle");
    let (part, mut out) = store.begin(&file)?;
    out.write_all(&vec![number as u8; bytes])?;
    let about = About {
        snapshot: number,
        file,
        pid,
        uids: vec![5],
        when: "oom".into(),
        bytes: bytes as u64,
        ..About::default()
    };
    let kept = store.keep(&part, about);
    if kept.is_err() {
        fs::remove_file(part)?;
    }
    kept.map(|_| number)
}

fn numbers(store: &mut Store) -> Vec<u64> {
    store.list().iter().map(|kept| kept.snapshot).collect()
}

#[test]
fn what_is_kept_is_known_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path(), LIMITS);
    for pid in [7, 8, 7, 7] {
        keep(&mut store, pid, 10).unwrap();
    }
    assert_eq!(numbers(&mut store), [2, 3, 4], "8 has only this one");
    let before = store.list();
    let folder = dir.path().join("snapshots");
    assert_eq!(
        names(&folder),
        [
            "000002-oom-pid-8.about.json",
            "000002-oom-pid-8.pickle",
            "000003-oom-pid-7.about.json",
            "000003-oom-pid-7.pickle",
            "000004-oom-pid-7.about.json",
            "000004-oom-pid-7.pickle",
        ]
    );
    // Other users cannot read the files.
    for name in names(&folder) {
        let mode = fs::metadata(folder.join(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let mode = fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    // Files that a killed daemon left, and files that somebody else put there.
    fs::write(folder.join(".000005-oom-pid-9.pickle.part"), "half").unwrap();
    fs::write(folder.join("000006-oom-pid-9.about.json"), "{}").unwrap();
    fs::write(folder.join("mine.txt"), "kept").unwrap();
    fs::remove_file(folder.join("000003-oom-pid-7.pickle")).unwrap();
    let mut again = opened(dir.path(), LIMITS);
    assert_eq!(numbers(&mut again), [2, 4]);
    assert_eq!(again.list()[1], before[2]);
    assert_eq!(
        names(&folder),
        [
            "000002-oom-pid-8.about.json",
            "000002-oom-pid-8.pickle",
            "000004-oom-pid-7.about.json",
            "000004-oom-pid-7.pickle",
            "000006-oom-pid-9.about.json",
            "mine.txt",
        ]
    );
    assert_eq!(keep(&mut again, 9, 10).unwrap(), 5, "numbers go on");
    let (shown, mut file) = again.read(5).unwrap().unwrap();
    let mut content = Vec::new();
    io::Read::read_to_end(&mut file, &mut content).unwrap();
    assert_eq!((shown.pid, content), (9, vec![5; 10]));
    assert!(again.read(3).unwrap().is_none());
    assert!(again.read(99).unwrap().is_none());
}

#[test]
fn smaller_limits_hold_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path(), LIMITS);
    for pid in [7, 8, 9] {
        keep(&mut store, pid, 300).unwrap();
    }
    let limits = Limits {
        count: 3,
        bytes: 700,
    };
    assert_eq!(numbers(&mut opened(dir.path(), limits)), [2, 3]);
    let limits = Limits {
        count: 1,
        bytes: 700,
    };
    assert_eq!(numbers(&mut opened(dir.path(), limits)), [3]);
    let limits = Limits { count: 1, bytes: 7 };
    assert_eq!(numbers(&mut opened(dir.path(), limits)), [0; 0]);
    assert_eq!(names(&dir.path().join("snapshots")), [""; 0]);
}

#[test]
fn bytes_are_bounded_and_one_that_is_too_large_takes_nobodys_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path(), LIMITS);
    keep(&mut store, 7, 600).unwrap();
    keep(&mut store, 8, 300).unwrap();
    let error = keep(&mut store, 9, 1001).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(numbers(&mut store), [1, 2]);
    keep(&mut store, 9, 500).unwrap();
    assert_eq!(numbers(&mut store), [2, 4]);
    assert!(names(store.dir()).iter().all(|name| !name.ends_with(PART)));
}

#[test]
fn what_somebody_removes_is_gone_and_counts_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path(), LIMITS);
    for pid in [7, 8, 9] {
        keep(&mut store, pid, 10).unwrap();
    }
    fs::remove_file(store.dir().join("000003-oom-pid-9.pickle")).unwrap();
    assert!(store.read(3).unwrap().is_none());
    keep(&mut store, 6, 10).unwrap();
    assert_eq!(numbers(&mut store), [1, 2, 4]);
    // The whole directory, too.
    fs::remove_dir_all(store.dir()).unwrap();
    assert_eq!(numbers(&mut store), [0; 0]);
    keep(&mut store, 6, 10).unwrap();
    assert_eq!(numbers(&mut store), [5]);
}

#[test]
fn a_name_that_leads_elsewhere_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("snapshots");
    fs::create_dir(&folder).unwrap();
    fs::write(dir.path().join("secret"), "x").unwrap();
    let about = About {
        snapshot: 1,
        file: "../secret".into(),
        ..About::default()
    };
    fs::write(
        folder.join("a.about.json"),
        serde_json::to_vec(&about).unwrap(),
    )
    .unwrap();
    assert_eq!(numbers(&mut opened(dir.path(), LIMITS)), [0; 0]);
}

/// One that cannot be read is no reason to give the others' numbers again.
#[test]
fn what_cannot_be_read_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path(), LIMITS);
    for pid in 7..10 {
        keep(&mut store, pid, 10).unwrap();
    }
    let folder = dir.path().join("snapshots");
    fs::create_dir(folder.join("000000.about.json")).unwrap();
    fs::create_dir(folder.join("x.part")).unwrap();
    let (mut store, result) = Store::open(folder, LIMITS);
    assert!(result.is_err());
    assert_eq!(numbers(&mut store), [1, 2, 3]);
    assert_eq!(store.next_number(), 4);
}

#[test]
fn a_place_that_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("snapshots");
    fs::write(&place, "a file").unwrap();
    let (mut store, result) = Store::open(place.clone(), LIMITS);
    assert!(result.is_err());
    assert!(keep(&mut store, 7, 10).is_err());
    // Once the place can be written, it is used.
    fs::remove_file(place).unwrap();
    assert_eq!(keep(&mut store, 7, 10).unwrap(), 2);
}
