//! Files of code: headers, symbols, notes, operators, functions that are found without symbols, places for probes.

use crate::Target;
use memscope_site::elf::{Elf, notes};
use memscope_site::place::{Code, Emulation, Machine, Wants, place};
use memscope_site::{operators, stripped};
use std::hint::black_box;

pub(crate) const TARGET: Target = Target {
    name: "elf",
    reads: "ELF files: headers, symbols, notes, PyTorch's operators, functions without symbols, places for probes",
    read,
    seeds,
    held_mib: 16,
    held_per_byte: 1024,
    longest: 1 << 15,
};

/// A small library with symbols, and one with debugging information (`seeds/small.cc`).
pub(crate) const FILES: [&[u8]; 2] = [
    include_bytes!("../seeds/small.so"),
    include_bytes!("../seeds/debug.so"),
];

fn read(input: &[u8]) {
    let emulation = Emulation::of_kernel(6, 18);
    black_box(notes(input));
    if let Ok(elf) = Elf::read(input) {
        black_box(elf.build_id());
        for name in [".note.stapsdt", ".note.gnu.build-id"] {
            black_box(elf.note_section(name).map(|bytes| notes(&bytes).len()).ok());
        }
        let machine = Machine::from_elf(elf.machine);
        for table in [elf.exported_symbols(), elf.all_symbols()]
            .into_iter()
            .flatten()
            .flatten()
        {
            let entries: Vec<u64> = table.entries().collect();
            for symbol in table.defined().take(64) {
                let Some((offset, left)) = elf.code_offset_of(symbol.address) else {
                    continue;
                };
                let Ok(bytes) = elf.bytes_at(offset, left.min(256), "code") else {
                    continue;
                };
                let code = Code {
                    bytes: &bytes,
                    whole: symbol.size == left,
                    address: symbol.address,
                    entries: &entries,
                };
                let wants = Wants {
                    returns: true,
                    stack: true,
                };
                let _ = black_box(place(machine, &code, wants, emulation));
            }
        }
        let _ = black_box(operators::find(&elf, emulation));
        let _ = black_box(stripped::find(&elf));
    }
    if let Ok(loaded) = Elf::read_loaded(input) {
        let _ = black_box(loaded.exported_symbols());
    }
}

fn seeds() -> Vec<Vec<u8>> {
    FILES.map(<[u8]>::to_vec).to_vec()
}
