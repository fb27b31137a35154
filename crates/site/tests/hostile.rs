//! Files that claim to be larger than any real one: what is read and held of them stays bounded, the error says what was
//! too large, and the other files of the process are examined all the same.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{Fixtures, Waiting, missing, object, resolve, site};
use memscope_site::Level;
use memscope_site::elf::{Budget, Elf, ElfError, MOST_OF_FILE, MOST_OF_PROCESS, ReadAt, Whole};
use memscope_site::stripped;
use memscope_tests::limits::{Met, constant};

const MIB: u64 = 1 << 20;

thread_local! {
    /// Bytes that this thread holds, and the most that it has held since the measurement began.
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

fn changed(by: i64) {
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + by, most.max(now + by)));
    });
}

/// The system's allocator, which counts.
struct Counting;

// SAFETY: every call goes to the system's allocator with the same arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        changed(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        changed(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        changed(-(layout.size() as i64));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What the closure returns, and the most bytes that it held at a time.
fn most_held<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    let result = run();
    (result, (HELD.get().1 - before) as u64)
}

/// A file that has some bytes at its beginning, and then is a hole. It counts what is read of it.
struct Hole {
    head: Vec<u8>,
    len: u64,
    read: Cell<u64>,
}

impl ReadAt for Hole {
    fn length(&self) -> u64 {
        self.len
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.set(self.read.get() + buffer.len() as u64);
        // The buffer is zero already, as a hole is.
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(bytes) = self.head.get(from..) {
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }
}

/// `SHT_*` of elf.h.
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const RELA: u32 = 4;
const DYNSYM: u32 = 11;
const RELR: u32 = 19;

#[derive(Clone, Copy, Default)]
struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
    entry: u64,
}

/// A program header for code that lies in the file at this offset and as long, at the same address.
#[derive(Clone, Copy)]
struct Code(u64, u64);

/// Headers of an ELF file for this machine.
fn headers(code: &[Code], sections: &[Section]) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    file[16] = 3;
    file[18] = 62;
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&(code.len() as u16).to_le_bytes());
    for Code(at, size) in code {
        let mut raw = [0; 56];
        raw[0] = 1;
        raw[4] = 5;
        for place in [8, 16] {
            raw[place..place + 8].copy_from_slice(&at.to_le_bytes());
        }
        for place in [32, 40] {
            raw[place..place + 8].copy_from_slice(&size.to_le_bytes());
        }
        file.extend(raw);
    }
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file[58..60].copy_from_slice(&64u16.to_le_bytes());
    file[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
    for section in sections {
        let mut raw = [0; 64];
        raw[4..8].copy_from_slice(&section.kind.to_le_bytes());
        raw[24..32].copy_from_slice(&section.offset.to_le_bytes());
        raw[32..40].copy_from_slice(&section.size.to_le_bytes());
        raw[40..44].copy_from_slice(&section.link.to_le_bytes());
        raw[56..64].copy_from_slice(&section.entry.to_le_bytes());
        file.extend(raw);
    }
    file
}

fn hole(head: Vec<u8>, len: u64) -> Hole {
    Hole {
        head,
        len,
        read: Cell::new(0),
    }
}

/// A file whose table of symbols of this kind, and whose table of names, have these sizes.
fn with_symbols(kind: u32, symbols: u64, names: u64) -> Hole {
    let symbols = Section {
        kind,
        offset: MIB,
        size: symbols,
        link: 2,
        entry: 24,
    };
    let names = Section {
        kind: STRTAB,
        offset: MIB,
        size: names,
        ..Section::default()
    };
    hole(headers(&[], &[Section::default(), symbols, names]), 1 << 50)
}

#[track_caller]
fn assert_too_large<T>(result: Result<T, ElfError>, wanted: &str, wanted_whole: Whole) {
    match result.err() {
        Some(ElfError::TooLarge { table, whole, .. }) => {
            assert_eq!((table, whole), (wanted, wanted_whole));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_of_one_file() {
    // One table that is too large; then two that are too large only together.
    for (kind, symbols, names, which) in [
        (SYMTAB, 600 * MIB, 8, "the symbol table"),
        (SYMTAB, 8, 1 << 40, "the table of the symbols' names"),
        (
            SYMTAB,
            300 * MIB,
            300 * MIB,
            "the table of the symbols' names",
        ),
        (DYNSYM, 600 * MIB, 8, "the table of exported symbols"),
        (
            DYNSYM,
            300 * MIB,
            300 * MIB,
            "the table of the exported symbols' names",
        ),
    ] {
        let file = with_symbols(kind, symbols, names);
        let (result, most) = most_held(|| {
            let elf = Elf::read(&file)?;
            match kind {
                SYMTAB => elf.all_symbols(),
                _ => elf.exported_symbols(),
            }
        });
        assert_too_large(result, which, Whole::Tables);
        assert!(most < 310 * MIB, "{which}: {most}");
    }
    // As large as they may be: nothing is refused.
    let file = with_symbols(SYMTAB, 200 * MIB, 300 * MIB);
    assert!(Elf::read(&file).unwrap().all_symbols().unwrap().is_some());
    Met {
        what: "bytes of the tables of one file that are held",
        most: constant("crates/site/src/elf/budget.rs", "MOST_TABLES"),
        beyond: "the file is left out, the others are examined",
        told: "the error, which names the table",
        test: "tables_of_one_file",
    }
    .is_told();
}

#[test]
fn headers_of_sections_and_segments() {
    // With a count of 0, the first section header has the number of sections: here 16 million.
    let first = Section {
        size: 16 << 20,
        ..Section::default()
    };
    let mut head = headers(&[], &[first]);
    head[60] = 0;
    let file = hole(head, 1 << 50);
    let (result, most) = most_held(|| Elf::read(&file));
    assert_too_large(result, "the table of section headers", Whole::Table);
    assert!(most < MIB, "{most}");

    let mut head = headers(&[], &[]);
    head[56..58].copy_from_slice(&60_000u16.to_le_bytes());
    let file = hole(head, 1 << 50);
    let (result, most) = most_held(|| Elf::read(&file));
    assert_too_large(result, "the table of program headers", Whole::Table);
    assert!(most < MIB, "{most}");
    Met {
        what: "bytes of section headers of a file",
        most: constant("crates/site/src/elf/mod.rs", "MAX_SECTIONS"),
        beyond: "the file is left out, the others are examined",
        told: "the error, which names the table",
        test: "headers_of_sections_and_segments",
    }
    .is_told();
}

#[test]
fn files_of_one_process() {
    let budget = Budget::of_process();
    let mut read = 0;
    let refused = (0..1000).find_map(|_| {
        let file = with_symbols(SYMTAB, 200 * MIB, 300 * MIB);
        let (result, most) = most_held(|| {
            let elf = Elf::read_within(&file, &budget)?;
            elf.all_symbols().map(|_| ())
        });
        assert!(most < 510 * MIB, "{most}");
        read += file.read.get();
        result.err()
    });
    assert_too_large::<()>(Err(refused.unwrap()), "the symbol table", Whole::Process);
    assert!(read <= MOST_OF_PROCESS + MIB, "{read}");
    Met {
        what: "bytes that are read of the files of one process",
        most: constant("crates/site/src/elf/budget.rs", "MOST_OF_PROCESS"),
        beyond: "the file is left out, the others are examined",
        told: "the error, which says so",
        test: "files_of_one_process",
    }
    .is_told();
}

#[test]
fn a_search_through_a_hole_ends() {
    let file = hole(headers(&[Code(0, 1 << 49)], &[]), 1 << 50);
    let (result, most) = most_held(|| stripped::find(&Elf::read(&file)?));
    assert_too_large(result, "a loaded segment", Whole::File);
    assert!(file.read.get() <= MOST_OF_FILE + MIB, "{}", file.read.get());
    assert!(most < 16 * MIB, "{most}");
    Met {
        what: "bytes that are read of one file",
        most: constant("crates/site/src/elf/budget.rs", "MOST_OF_FILE"),
        beyond: "the file is left out, the others are examined",
        told: "the error, which says so",
        test: "a_search_through_a_hole_ends",
    }
    .is_told();
}

#[test]
fn relocations() {
    // Packed: 2 MiB of the file stand for 16 million words.
    let section = Section {
        kind: RELR,
        offset: 1024,
        size: 2 * MIB,
        ..Section::default()
    };
    let mut head = headers(&[], &[Section::default(), section]);
    head.resize(1024, 0);
    head.resize(1024 + 2 * MIB as usize, 0xff);
    let len = head.len() as u64;
    let file = hole(head, len);
    let (result, most) = most_held(|| stripped::find(&Elf::read(&file)?));
    let error = result.err().unwrap();
    assert!(
        matches!(
            error,
            ElfError::TooMany {
                what: "relocations",
                ..
            }
        ),
        "{error}"
    );
    assert!(most < 300 * MIB, "{most}");
    // And plain ones, in a table that is too large.
    let section = Section {
        kind: RELA,
        offset: 1024,
        size: 900 * MIB,
        ..Section::default()
    };
    let file = hole(headers(&[], &[Section::default(), section]), 1 << 40);
    let (result, most) = most_held(|| stripped::find(&Elf::read(&file)?));
    assert_too_large(result, "a table of relocations", Whole::Tables);
    assert!(most < MIB, "{most}");
    Met {
        what: "words that relocations of one file set",
        most: constant("crates/site/src/stripped/rtti.rs", "MOST_WORDS"),
        beyond: "nothing is searched for in it",
        told: "the error, which says so",
        test: "relocations",
    }
    .is_told();
}

/// Maps the files that its arguments name as code, loads the first as a library, and waits.
const MAPS: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
int main(int n, char **names) {
    if (!dlopen(names[1], RTLD_NOW)) { puts(dlerror()); return 1; }
    for (int i = 2; i < n; i++) {
        int file = open(names[i], O_RDONLY);
        if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) { perror("mmap"); return 1; }
    }
    puts("ready");
    fflush(stdout);
    return getchar() == 0;
}
"#;

fn sparse(path: &Path, head: &[u8], len: u64) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(head, 0).unwrap();
}

/// Where the first of these functions lies.
const CODE: u64 = 0x10_0000;

/// A table of `count` functions that all have the same name, at addresses of their own.
fn many_functions(count: usize, name: &str) -> Vec<u8> {
    functions_of(count, name, MIB)
}

/// The same, with functions of this many bytes.
fn functions_of(count: usize, name: &str, bytes: u64) -> Vec<u8> {
    let at = 4096;
    let size = count * 24;
    let symbols = Section {
        kind: DYNSYM,
        offset: at as u64,
        size: size as u64,
        link: 2,
        entry: 24,
    };
    let names = Section {
        kind: STRTAB,
        offset: (at + size) as u64,
        size: name.len() as u64 + 2,
        ..Section::default()
    };
    let mut file = headers(&[Code(0, 1 << 32)], &[Section::default(), symbols, names]);
    file.resize(at, 0);
    for i in 0..count {
        let mut raw = [0; 24];
        raw[0] = 1;
        raw[4] = 0x12;
        raw[6] = 1;
        raw[8..16].copy_from_slice(&(CODE + i as u64 * 16).to_le_bytes());
        raw[16..24].copy_from_slice(&bytes.to_le_bytes());
        file.extend(raw);
    }
    file.push(0);
    file.extend(name.as_bytes());
    file.push(0);
    file
}

#[test]
fn the_other_files_of_the_process_are_examined() {
    let fixtures = Fixtures::new();
    let source = "int cudaMalloc(void **p, unsigned long n) { *p = (void *)n; return 0; }";
    let good = fixtures.library("libcudart.so.12", source, &[]);
    let bomb = fixtures.path("libtorch_cuda.so");
    let head = with_symbols(DYNSYM, 1000 * MIB, 1000 * MIB).head;
    sparse(&bomb, &head, 8 << 30);
    let crowd = fixtures.path("libc10_cuda.so");
    sparse(&crowd, &many_functions(100_000, "cudaMalloc"), 8 << 30);
    let host = fixtures.program("maps", MAPS, &["-ldl"]);
    let process = Waiting::start(Command::new(host).args([&good, &bomb, &crowd]));
    let (resolved, most) = most_held(|| resolve(process.pid(), Level::Segments));
    assert!(most < 200 * MIB, "{most}");
    site(object(&resolved, &good), "cudaMalloc");
    let why = |path: &Path| {
        let path = path.to_string_lossy();
        let told = resolved.missing.iter().find(|m| m.library == path);
        let told = told.unwrap_or_else(|| panic!("{:?}", resolved.missing));
        assert_eq!(told.function, "*");
        told.to_string()
    };
    let text = why(&bomb);
    assert!(
        text.contains("the table of exported symbols has 1048576000 bytes"),
        "{text}"
    );
    let text = why(&crowd);
    assert!(
        text.contains("more than 4096 names of allocators' functions in one file"),
        "{text}"
    );
    // What is missing for this reason is told once for each file, and nothing else is missing.
    assert_eq!(missing(&resolved, "*").function, "*");
    Met {
        what: "names of allocators' functions in one file",
        most: constant("crates/site/src/file_sites.rs", "MOST_NAMES"),
        beyond: "the file is left out, the others are examined",
        told: "`not_probed` in coverage, with its name",
        test: "the_other_files_of_the_process_are_examined",
    }
    .is_told();
}

/// Writes two MiB of code for the functions of such a table: these 16 bytes again and again.
fn write_code(file: &Path, pattern: [u8; 16]) {
    let code = pattern.repeat(2 * MIB as usize / 16);
    let file = File::options().write(true).open(file).unwrap();
    file.write_all_at(&code, CODE).unwrap();
}

/// The symbol of PyTorch's `record_trace`.
const RECORD_TRACE: &str = "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator12record_traceE\
     NS1_10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE";

/// Files of little more than a megabyte in which very much would have to be decoded or compared. Each is refused, and the good file beside
/// them is examined.
#[test]
fn code_and_names_that_are_too_much_to_look_at() {
    let fixtures = Fixtures::new();
    let source = "int cudaMalloc(void **p, unsigned long n) { *p = (void *)n; return 0; }";
    let good = fixtures.library("libcudart.so.12", source, &[]);
    // Functions that lie over one another. Before each of 14 instructions on which a probe could stand it has to be proved that no jump
    // leads there, and the last byte, which is half an instruction, spoils the proof.
    let places = fixtures.path("places.so");
    sparse(&places, &functions_of(128, "cudaMalloc", MIB - 15), 8 << 30);
    let mut pattern = [0x90; 16];
    pattern[..2].copy_from_slice(&[0x31, 0xc0]);
    write_code(&places, pattern);
    // Each `record_trace` has all code of the file searched for calls.
    let calls = fixtures.path("calls.so");
    sparse(&calls, &functions_of(16, RECORD_TRACE, MIB), 8 << 30);
    write_code(&calls, [0x90; 16]);
    // Names that are as long as names may be, and whose beginning fits.
    let names = fixtures.path("names.so");
    let (begins, _) = RECORD_TRACE.split_once("NS1_").unwrap();
    let name = format!("{begins}{}", "v".repeat(3900));
    sparse(&names, &functions_of(40_000, &name, 16), 8 << 30);
    let host = fixtures.program("maps", MAPS, &["-ldl"]);
    let files = [&good, &places, &calls, &names];
    let process = Waiting::start(Command::new(host).args(files));
    let resolved = resolve(process.pid(), Level::Trace);
    site(object(&resolved, &good), "cudaMalloc");
    for path in [&places, &calls, &names] {
        let path = path.to_string_lossy();
        let told: Vec<String> = (resolved.missing.iter())
            .filter(|missing| missing.library == path)
            .map(ToString::to_string)
            .collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("more than 67108864 bytes of code and names to look at in one file"),
            "{told:?}"
        );
    }
    Met {
        what: "bytes of code and names of one file that are looked at",
        most: constant("crates/site/src/elf/budget.rs", "MOST_WORK_OF_FILE"),
        beyond: "the file is left out, the others are examined",
        told: "`not_probed` in coverage, with its name",
        test: "code_and_names_that_are_too_much_to_look_at",
    }
    .is_told();
}

/// What many files of a process cost together is bounded, too.
#[test]
fn code_of_many_files_that_is_too_much_to_look_at() {
    let fixtures = Fixtures::new();
    let good = fixtures.library("good.so", "int good(void) { return 0; }", &[]);
    let mut files = vec![good];
    for number in 0..8 {
        let path = fixtures.path(&format!("many{number}.so"));
        sparse(&path, &functions_of(60, "cudaMalloc", MIB - 15), 8 << 30);
        write_code(&path, [0x90; 16]);
        files.push(path);
    }
    let host = fixtures.program("maps", MAPS, &["-ldl"]);
    let process = Waiting::start(Command::new(host).args(&files));
    let resolved = resolve(process.pid(), Level::Segments);
    let refused = resolved.missing.iter().filter(|missing| {
        let text = missing.to_string();
        missing.library.contains("/many")
            && text.contains("268435456 bytes of code and names to look at in all files")
    });
    assert_eq!(refused.count(), 4, "{:?}", resolved.missing);
    Met {
        what: "bytes of code and names of the files of one process that are looked at",
        most: constant("crates/site/src/elf/budget.rs", "MOST_WORK_OF_PROCESS"),
        beyond: "further files are left out",
        told: "`not_probed` in coverage, with their names",
        test: "code_of_many_files_that_is_too_much_to_look_at",
    }
    .is_told();
}

/// Sizes whose sum is larger than any number.
#[test]
fn functions_of_impossible_sizes() {
    let fixtures = Fixtures::new();
    let good = fixtures.library("good.so", "int good(void) { return 0; }", &[]);
    let huge = fixtures.path("libc10_cuda.so");
    sparse(&huge, &functions_of(2, RECORD_TRACE, 1 << 63), 8 << 30);
    write_code(&huge, [0x90; 16]);
    let host = fixtures.program("maps", MAPS, &["-ldl"]);
    let process = Waiting::start(Command::new(host).args([&good, &huge]));
    let resolved = resolve(process.pid(), Level::Trace);
    let path = huge.to_string_lossy();
    let told = resolved.missing.iter().filter(|m| m.library == path);
    // It was searched to its end: only that the process has not mapped the code is missing.
    let whys: Vec<String> = told.map(|missing| missing.why.to_string()).collect();
    assert!(
        whys.contains(&"its code is not mapped".to_owned()),
        "{whys:?}"
    );
}
