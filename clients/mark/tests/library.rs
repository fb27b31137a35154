//! Checks the library's file, by which a probe is placed.

#![allow(clippy::unwrap_used)]

mod common;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::fs;

/// The whole code of the probed function. On x86-64: a nop for newer kernels, one for older ones, and the return. On
/// aarch64: a nop and the return.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x90, 0xc3];
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6];

#[test]
fn the_probed_function_is_exported_sized_aligned_and_does_nothing() {
    let bytes = fs::read(common::library()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok("memscope_event"))
        .unwrap();
    assert!(symbol.is_definition() && symbol.is_global());
    assert_eq!(symbol.kind(), SymbolKind::Text);
    assert_eq!(symbol.size(), CODE.len() as u64);
    assert_eq!(symbol.address() % 16, 0);
    let section = file
        .section_by_index(symbol.section_index().unwrap())
        .unwrap();
    assert_eq!(section.name(), Ok(".text"));
    let code = section
        .data_range(symbol.address(), symbol.size())
        .unwrap()
        .unwrap();
    assert_eq!(code, CODE);
}

#[test]
fn nothing_else_is_exported_than_what_the_header_declares() {
    let bytes = fs::read(common::library()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    exported.sort_unstable();
    let header = fs::read_to_string(common::here().join("include/memscope_mark.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter_map(|line| {
            line.strip_suffix(';')?
                .split_once('(')?
                .0
                .split(' ')
                .next_back()
        })
        .collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    assert_eq!(exported.len(), 6);
}

#[test]
fn the_check_sum_is_msmemscopes() {
    let sum = |bytes: &[u8]| {
        // SAFETY: the slice's bytes can be read.
        unsafe { memscope_mark::memscope_checksum(bytes.as_ptr(), bytes.len()) }
    };
    assert_eq!(sum(b"123456789"), 0xb868_83e6_fa71_0a9f);
    // Bit by bit, by the rule.
    let plain = |bytes: &[u8]| {
        !bytes.iter().fold(u64::MAX, |sum, byte| {
            (0..8).fold(sum ^ u64::from(*byte), |sum, _| {
                (sum >> 1) ^ (0x42F0_E1EB_A9EA_3693 * (sum & 1))
            })
        })
    };
    let bytes: Vec<u8> = (0..1000_u32).map(|it| (it * it / 7) as u8).collect();
    for length in [0, 1, 7, 8, 15, 16, 17, 255, 1000] {
        assert_eq!(sum(&bytes[..length]), plain(&bytes[..length]), "{length}");
    }
    // SAFETY: with length 0 nothing is read.
    let of_nothing = unsafe { memscope_mark::memscope_checksum(std::ptr::null(), 0) };
    assert_eq!(of_nothing, plain(&[]));
}

#[test]
fn it_is_called_as_a_rust_library_too() {
    let begun: Vec<u64> = (0..3)
        // SAFETY: the name is a C string, which ends with a NUL.
        .map(|_| unsafe { memscope_mark::memscope_range_begin(c"of Rust".as_ptr()) })
        .collect();
    assert_eq!(begun[2] - begun[0], 2);
    for range in begun {
        memscope_mark::memscope_range_end(range);
    }
    memscope_mark::memscope_step();
    // SAFETY: the name is NULL with length 0, so no memory is read.
    unsafe { memscope_mark::memscope_event(memscope_mark::INSTANT, 0, std::ptr::null(), 0) };
}
