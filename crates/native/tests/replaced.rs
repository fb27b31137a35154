//! A library that was built again under its own path, and is loaded where the old one was.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memscope_native::{ProcessCode, Shared};
use memscope_tests::{SHORT, until};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// The bytes of libgcc_s, a library that every test process has mapped.
fn library() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("libgcc_s")).unwrap();
    std::fs::read(&line[line.find('/').unwrap()..]).unwrap()
}

/// Takes addresses that are this test's own: nothing else is ever mapped there.
fn reserved(length: usize) -> u64 {
    let anywhere = std::ptr::null_mut();
    // SAFETY: the kernel chooses the place, and nothing can be reached there.
    unsafe {
        mmap_anonymous(anywhere, length, ProtFlags::empty(), MapFlags::PRIVATE).unwrap() as u64
    }
}

/// Maps a file as code at an address of [`reserved`].
fn load(path: &Path, at: u64, length: usize) {
    let file = File::open(path).unwrap();
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range is reserved, and nothing in it is read or run.
    unsafe { mmap(at as *mut c_void, length, protection, flags, &file, 0).unwrap() };
}

/// Takes the code at an address of [`reserved`] away.
fn unload(at: u64, length: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range is reserved, and nothing in it is read or run.
    unsafe { mmap_anonymous(at as *mut c_void, length, ProtFlags::empty(), flags).unwrap() };
}

/// Length of the library's mapping.
fn length(library: &[u8]) -> usize {
    library.len().next_multiple_of(rustix::param::page_size())
}

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

#[test]
fn of_a_process_with_too_many_files_the_first_ones_are_open() {
    let library = library();
    let length = length(&library);
    let folder = tempfile::tempdir().unwrap();
    let addresses: Vec<u64> = (0..8)
        .map(|number| {
            let path = folder.path().join(format!("{number}.so"));
            std::fs::write(&path, &library).unwrap();
            let at = reserved(length);
            load(&path, at, length);
            at
        })
        .collect();
    let open = |shared: &mut Shared| {
        let mut process = ProcessCode::new(std::process::id());
        process.read(shared).unwrap();
        // Every address is known, with the name of its file, also where the file is not open.
        let places = addresses.iter();
        let places = places.map(|at| process.place(*at, shared).unwrap());
        places.filter(|(_, image, _)| image.is_some()).count()
    };
    assert_eq!(open(&mut Shared::default()), 8);
    for mut shared in [Shared::of_at_most(3, 100), Shared::of_at_most(100, 3)] {
        assert!(open(&mut shared) <= 3);
        // Another process has room once this one is forgotten.
        shared.sweep();
        assert!(open(&mut shared) <= 3);
    }
}
