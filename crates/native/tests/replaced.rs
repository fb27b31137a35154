//! A library that was built again under its own path, and is loaded where the old one was.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use memscope_native::{ProcessCode, Shared};
use memscope_tests::{SHORT, until};

mod mapped;
use mapped::{length, library, load, reserved, unload};

#[test]
fn a_library_that_was_built_again_is_another_one_at_the_same_addresses() {
    let library = library();
    let length = length(&library);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("extension.so");
    std::fs::write(&path, &library).unwrap();
    let at = reserved(length);
    load(&path, at, length);
    let range = (at, at + length as u64);
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    process.read(&mut shared).unwrap();
    let (name, old, _) = process.place(at, &mut shared).unwrap();
    assert!(!process.read_again(&mut shared).unwrap().contains(&range));

    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &library).unwrap();
    load(&path, at, length);
    assert!(process.read_again(&mut shared).unwrap().contains(&range));
    assert!(!process.read_again(&mut shared).unwrap().contains(&range));
    let (same_name, new, _) = process.place(at, &mut shared).unwrap();
    assert_eq!(same_name, name);
    assert!(!Arc::ptr_eq(&new.unwrap(), &old.unwrap()));
}

#[test]
fn what_is_gone_is_told_although_the_mappings_were_read_in_between() {
    let library = library();
    let length = length(&library);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("extension.so");
    std::fs::write(&path, &library).unwrap();
    let at = reserved(3 * length);
    let beyond = at + 2 * length as u64;
    load(&path, at, length);
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    process.read(&mut shared).unwrap();

    unload(at, length);
    load(&path, beyond, length);
    until(SHORT, "the new address is known", || {
        process.place(beyond, &mut shared)
    });
    let gone = process.read_again(&mut shared).unwrap();
    assert!(gone.contains(&(at, at + length as u64)), "{gone:x?}");
}
