//! Code that a test maps into its own process.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::fs::File;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// The bytes of libgcc_s, a library that every test process has mapped.
pub fn library() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("libgcc_s")).unwrap();
    std::fs::read(&line[line.find('/').unwrap()..]).unwrap()
}

/// Takes addresses that are this test's own: nothing else is ever mapped there.
pub fn reserved(length: usize) -> u64 {
    let anywhere = std::ptr::null_mut();
    // SAFETY: the kernel chooses the place, and nothing can be reached there.
    unsafe {
        mmap_anonymous(anywhere, length, ProtFlags::empty(), MapFlags::PRIVATE).unwrap() as u64
    }
}

/// Maps a file as code at an address of [`reserved`].
pub fn load(path: &Path, at: u64, length: usize) {
    let file = File::open(path).unwrap();
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range is reserved, and nothing in it is read or run.
    unsafe { mmap(at as *mut c_void, length, protection, flags, &file, 0).unwrap() };
}

/// Takes the code at an address of [`reserved`] away.
pub fn unload(at: u64, length: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range is reserved, and nothing in it is read or run.
    unsafe { mmap_anonymous(at as *mut c_void, length, ProtFlags::empty(), flags).unwrap() };
}

/// Length of the library's mapping.
pub fn length(library: &[u8]) -> usize {
    library.len().next_multiple_of(rustix::param::page_size())
}
