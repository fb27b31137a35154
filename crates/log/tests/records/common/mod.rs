//! Records as the BPF programs write them.
#![allow(dead_code)] // each test program uses a part of it

use memscope_common::*;
use memscope_ledger::event::{Layer, ProcessHandle};
use memscope_log::records::{DaemonRecord, SiteDefined, Stamp};

pub fn as_bytes<T>(record: &T) -> &[u8] {
    // SAFETY: the record structs of memscope-common are repr(C), made of integers only and without
    // padding (their sizes are asserted there), so every byte is initialised; the slice lives
    // no longer than the reference.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

pub fn header<T>(kind: u16) -> RecordHeader {
    RecordHeader {
        len: size_of::<T>() as u16,
        kind,
        version: RECORD_VERSION,
        flags: 0,
        reserved: 0,
        process: 8,
        tid: 99,
        time_ns: 123,
        sequence: 5,
        lost_before: 4,
        stack: STACK_NONE,
    }
}

pub fn site(site: u32, function: &str, layer: Option<Layer>) -> Vec<u8> {
    DaemonRecord::SiteDefined(SiteDefined {
        site,
        function: function.to_owned(),
        layer,
        vendor: None,
        op: None,
        library: "/lib/libcudart.so.13".to_owned(),
        offset: 0x1000,
    })
    .encode(stamp(0))
    .unwrap()
}

pub fn stamp(process: u32) -> Stamp {
    Stamp {
        process: ProcessHandle(process),
        tid: 0,
        time_ns: 50,
        lost_before: 0,
    }
}
