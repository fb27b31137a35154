//! Any bytes as input: there is no panic, and the results keep what the documentation promises.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use memscope_site::elf::{Elf, notes};
use memscope_site::mapped::group;
use memscope_site::place::{Code, Emulation, Machine, Wants, place};
use memscope_site::process::parse_stat;
use proptest::prelude::*;

/// The bytes of this process's dynamic linker, which is a real but small file.
fn linker() -> Vec<u8> {
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let objects = group(&maps).objects;
    let linker = objects.iter().find(|o| o.file_name().starts_with("ld-"));
    std::fs::read(&linker.unwrap().path).unwrap()
}

proptest! {
    #[test]
    fn places(bytes in proptest::collection::vec(any::<u8>(), 0..200), returns: bool, stack: bool, whole: bool) {
        let code = Code { bytes: &bytes, whole, address: 0x40_0000, entries: &[] };
        let wants = Wants { returns, stack };
        if let Ok(found) = place(Machine::X86_64, &code, wants, Emulation::of_kernel(6, 18)) {
            prop_assert!((found.entry_offset as usize) < bytes.len());
            prop_assert_eq!(found.return_offset, returns.then_some(found.entry_offset));
            prop_assert!(whole || found.entry_offset == 0);
            if returns || stack {
                prop_assert_eq!(found.pushed, 0);
            }
        }
    }

    #[test]
    fn damaged_elf(
        header in proptest::collection::vec((0usize..64, any::<u8>()), 0..3),
        table in proptest::collection::vec((0usize..4096, any::<u8>()), 0..20),
        cut in 0usize..400_000,
    ) {
        let mut bytes = linker();
        let len = bytes.len();
        // Tables of symbols and names lie near the beginning of the file, headers of sections at the end.
        for (at, value) in table {
            bytes[at % len] = value;
            bytes[len - 1 - at % len] = value;
        }
        for (at, value) in header {
            bytes[at] = value;
        }
        if cut < len {
            bytes.truncate(cut.max(64));
        }
        if let Ok(elf) = Elf::read(&bytes[..]) {
            let _ = elf.build_id();
            for table in [elf.exported_symbols(), elf.all_symbols()].into_iter().flatten().flatten() {
                for symbol in table.defined().take(1000) {
                    let _ = elf.code_offset_of(symbol.address);
                }
            }
        }
    }

    #[test]
    fn other_texts(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = notes(&bytes);
        let _ = parse_stat(&bytes);
        let _ = group(&bytes);
        let _ = Elf::read(&bytes[..]).map(|_| ());
    }
}
