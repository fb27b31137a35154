//! Files that are not recordings, or that we cannot read: each has its own error.

use crate::common::{read, small};
use memscope_log::{FORMAT_VERSION, Recording, RecordingError};
use std::fs;
use std::path::Path;

fn refused(path: &Path, bytes: &[u8]) -> RecordingError {
    fs::write(path, bytes).unwrap();
    Recording::open(path).unwrap_err()
}

/// Writes the right check sum into the bytes of a header.
fn seal(header: &mut [u8]) {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..20]);
    crc.update(&header[24..128]);
    header[20..24].copy_from_slice(&crc.finalize().to_ne_bytes());
}

#[test]
fn headers_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 1);
    let ours = fs::read(&file).unwrap();
    let path = dir.path().join("other.msj");

    let mut order = ours.clone();
    order[8..12].reverse();
    assert!(matches!(
        refused(&path, &order),
        RecordingError::ForeignByteOrder { .. }
    ));

    let mut architecture = ours.clone();
    architecture[24..40].copy_from_slice(b"riscv64\0\0\0\0\0\0\0\0\0");
    seal(&mut architecture);
    let error = refused(&path, &architecture);
    assert!(
        matches!(&error, RecordingError::ForeignArchitecture { found, .. } if found == "riscv64")
    );
    assert!(error.to_string().contains("was written on riscv64"));

    // Records have the same layout on these two architectures, so each can read what the other wrote.
    for name in ["x86_64", "aarch64"] {
        let mut other = ours.clone();
        other[24..40].fill(0);
        other[24..24 + name.len()].copy_from_slice(name.as_bytes());
        seal(&mut other);
        fs::write(&path, &other).unwrap();
        assert_eq!(read(&path).unwrap(), read(&file).unwrap(), "{name}");
    }

    let mut newer = ours.clone();
    newer[12..14].copy_from_slice(&(FORMAT_VERSION + 1).to_ne_bytes());
    assert!(matches!(
        refused(&path, &newer),
        RecordingError::Newer {
            what: "format",
            found,
            known,
            ..
        } if found == known + 1
    ));

    let mut records = ours.clone();
    records[14] = 9;
    seal(&mut records);
    assert!(matches!(
        refused(&path, &records),
        RecordingError::Newer {
            what: "record",
            found: 9,
            ..
        }
    ));

    let mut damaged = ours.clone();
    damaged[60] ^= 1;
    assert!(matches!(
        refused(&path, &damaged),
        RecordingError::DamagedHeader { .. }
    ));
    assert!(matches!(
        refused(&path, &ours[..100]),
        RecordingError::ShortHeader { len: 100, .. }
    ));
}

#[test]
fn files_of_other_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.pickle");
    for (bytes, looks) in [
        (&b"\x80\x04}(\x8c\x08segments"[..], "pickle"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x7fELF\x02\x01", "program"),
        (b"{\"segments\": []}", "JSON"),
        (b"hello\n", "text"),
        (&[0; 300], "zeros"),
        (b"\x00\x01\xff\xfe", "does not begin as one"),
    ] {
        let error = refused(&path, bytes);
        assert!(
            matches!(error, RecordingError::NotARecording { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(looks), "{error}");
        assert!(error.to_string().contains("snapshot.pickle"), "{error}");
    }
    let error = refused(&path, b"");
    assert!(matches!(error, RecordingError::Empty { .. }));
    assert!(matches!(
        Recording::open(&dir.path().join("nowhere")),
        Err(RecordingError::NotFound { .. })
    ));
    assert!(matches!(
        Recording::open(Path::new("/dev/zero")),
        Err(RecordingError::NotARecording { .. })
    ));
}

#[test]
fn a_directory_without_segments_is_none_and_those_below_it_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let file = small(&dir.path().join("journal"), 1);
    let epoch = file.parent().unwrap();
    for path in [dir.path().to_path_buf(), dir.path().join("journal")] {
        let error = Recording::open(&path).unwrap_err();
        assert!(matches!(error, RecordingError::NoSegments { .. }));
    }
    assert_eq!(
        memscope_log::epochs(&dir.path().join("journal")).unwrap(),
        [epoch]
    );
}
