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
fn of_a_process_with_too_many_files_those_stay_open_that_are() {
    let library = library();
    let length = length(&library);
    let folder = tempfile::tempdir().unwrap();
    let place = |number: usize| {
        let path = folder.path().join(format!("{number}.so"));
        std::fs::write(&path, &library).unwrap();
        path
    };
    // Those that are mapped later lie below, as the kernel does it.
    let base = reserved(8 * length);
    let at = |number: usize| base + ((7 - number) * length) as u64;
    let is_open = |process: &mut ProcessCode, shared: &mut Shared, number: usize| {
        // Every address is known, with the name of its file, also where the file is not open.
        let (name, image, _) = process.place(at(number), shared).unwrap();
        assert!(name.ends_with(&format!("/{number}.so")), "{name}");
        image.is_some()
    };
    (0..4).for_each(|number| load(&place(number), at(number), length));
    let mut all = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    process.read(&mut all).unwrap();
    assert!((0..4).all(|number| is_open(&mut process, &mut all, number)));
    // The test's own program and libraries are open before.
    let most = all.files();
    drop((process, all));
    for mut shared in [Shared::of_at_most(most, 100), Shared::of_at_most(100, most)] {
        let mut process = ProcessCode::new(std::process::id());
        process.read(&mut shared).unwrap();
        (4..8).for_each(|number| load(&place(number), at(number), length));
        process.read(&mut shared).unwrap();
        let open: Vec<bool> = (0..8)
            .map(|number| is_open(&mut process, &mut shared, number))
            .collect();
        assert_eq!(open, [true, true, true, true, false, false, false, false]);
        assert_eq!(shared.files(), most);
        drop(process);
        shared.sweep();
        assert_eq!(shared.files(), 0);
        (4..8).for_each(|number| unload(at(number), length));
    }
}
