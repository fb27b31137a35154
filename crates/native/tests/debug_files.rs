//! Debugging information in a file of its own is found by debug link, and the names of a file are found after it was
//! deleted. Nothing but regular files is ever opened for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memscope_native::{Function, Image, ProcessCode, Shared, Symbols};
use memscope_site::elf::{Elf, FileBytes};
use memscope_tests::limits::{Met, constant};

const SOURCE: &str = "static __attribute__((noinline)) int hidden(int n) {\n    return n * 3 + 1;\n}\n\
                      int shown(int n) {\n    return hidden(n) + 2;\n}\n\
                      void *where(void) {\n    return (void *)hidden;\n}\n";

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Builds a library with debugging information.
fn built(folder: &Path) -> PathBuf {
    let source = folder.join("source.c");
    std::fs::write(&source, SOURCE).unwrap();
    let library = folder.join("libsplit.so");
    let from = [
        "-g",
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        text(&library),
        text(&source),
    ];
    run("cc", &from);
    library
}

/// Loads the library into this process and names the function `hidden`, which it does not export. `before` runs before
/// the names are looked up.
fn named(library: &Path, before: impl FnOnce()) -> Vec<Function> {
    // SAFETY: the library is our own, has no constructors and stays loaded.
    let address = unsafe {
        let library = libloading::Library::new(library).unwrap();
        let place: libloading::Symbol<unsafe extern "C" fn() -> u64> =
            library.get(b"where").unwrap();
        let address = place();
        std::mem::forget(library);
        address
    };
    let mut shared = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    let (_, image, offset) = process.place(address, &mut shared).unwrap();
    before();
    Symbols::default()
        .name(&image.unwrap(), &[offset])
        .remove(0)
        .functions
}

#[track_caller]
fn assert_hidden(functions: &[Function]) {
    let last = functions.last().unwrap();
    assert_eq!(last.name, "hidden", "{functions:#?}");
    assert!(last.file.ends_with("source.c"), "{functions:#?}");
    assert!((1..=3).contains(&last.line), "{functions:#?}");
}

#[test]
fn in_the_file_itself_also_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    assert_hidden(&named(&library, || std::fs::remove_file(&library).unwrap()));
}

#[test]
fn by_debug_link() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    let apart = folder.path().join("libsplit.so.debug");
    run(
        "objcopy",
        &["--only-keep-debug", text(&library), text(&apart)],
    );
    run("strip", &["--strip-all", text(&library)]);
    let link = format!("--add-gnu-debuglink={}", text(&apart));
    run("objcopy", &[&link, text(&library)]);
    assert_hidden(&named(&library, || {}));
}

/// Without debugging information there is no name: the name of the exported function before it would be wrong.
#[test]
fn without_any() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    run("strip", &["--strip-all", text(&library)]);
    let functions = named(&library, || {});
    let last = functions.last().unwrap();
    assert_eq!(*last, Function::default(), "{functions:#?}");
}

/// The library as an image, without loading it, and the address of the function `shown` in it.
fn image(library: &Path) -> (Arc<Image>, u64) {
    let bytes = FileBytes::new(File::open(library).unwrap()).unwrap();
    let elf = Elf::read(&bytes).unwrap();
    let table = elf.exported_symbols().unwrap().unwrap();
    let shown = table
        .defined()
        .find(|symbol| symbol.name == b"shown")
        .unwrap()
        .address;
    let bytes = FileBytes::new(File::open(library).unwrap()).unwrap();
    (Arc::new(Image::new(library, bytes).unwrap()), shown)
}

fn name(symbols: &mut Symbols, (image, address): &(Arc<Image>, u64)) -> String {
    let mut named = symbols.name(image, &[*address]);
    named.remove(0).functions.pop().unwrap().name
}

fn fifo(path: &Path) {
    run("mkfifo", &[text(path)]);
}

/// Runs the closure, and says whether any of these FIFOs was open for reading meanwhile: only then one can be opened for
/// writing without waiting. Whoever waits in opening it is let go by that.
fn opened_while(fifos: &[PathBuf], run: impl FnOnce()) -> bool {
    let (ended, opened) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                for path in fifos {
                    let writer = OpenOptions::new()
                        .write(true)
                        .custom_flags(0o4000) // O_NONBLOCK
                        .open(path);
                    if writer.is_ok() {
                        opened.store(true, Ordering::Release);
                    }
                }
            }
        });
        run();
        ended.store(true, Ordering::Release);
    });
    opened.into_inner()
}

/// A stripped library's debug link may name anything in its folder; and a package of debugging information would lie
/// beside it.
#[test]
fn no_fifo_is_opened_under_any_of_these_names() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    let apart = folder.path().join("libsplit.so.debug");
    run(
        "objcopy",
        &["--only-keep-debug", text(&library), text(&apart)],
    );
    run("strip", &["--strip-all", text(&library)]);
    let link = format!("--add-gnu-debuglink={}", text(&apart));
    run("objcopy", &[&link, text(&library)]);
    std::fs::remove_file(&apart).unwrap();
    let beside = folder.path().join(".debug");
    std::fs::create_dir(&beside).unwrap();
    let fifos = [
        apart,
        folder.path().join("libsplit.so.dwp"),
        beside.join("libsplit.so.debug"),
    ];
    fifos.iter().for_each(|path| fifo(path));
    let image = image(&library);
    let mut named = String::new();
    let opened = opened_while(&fifos, || named = name(&mut Symbols::default(), &image));
    assert!(!opened);
    // The name that the library exports is found all the same.
    assert_eq!(named, "shown");
}

/// A link that does not stay in the folder, and one to a file that is reached by a symbolic link.
#[test]
fn debug_links_to_elsewhere_are_not_followed() {
    for (name, to) in [("elsewhere", None), ("near", Some("elsewhere/apart.debug"))] {
        let folder = tempfile::tempdir().unwrap();
        let library = built(folder.path());
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let apart = elsewhere.join("apart.debug");
        run(
            "objcopy",
            &["--only-keep-debug", text(&library), text(&apart)],
        );
        run("strip", &["--strip-all", text(&library)]);
        let link = format!("--add-gnu-debuglink={}", text(&apart));
        run("objcopy", &[&link, text(&library)]);
        match to {
            Some(to) => std::os::unix::fs::symlink(to, folder.path().join("apart.debug")).unwrap(),
            None => {
                // The name of the same length, so that it leads into the folder beside.
                let bytes = std::fs::read(&library).unwrap();
                let at = bytes.windows(11).position(|w| w == b"apart.debug").unwrap();
                let mut changed = bytes.clone();
                changed[at..at + 11].copy_from_slice(b"linked/deb\0");
                std::fs::write(&library, changed).unwrap();
                std::os::unix::fs::symlink("elsewhere", folder.path().join("linked")).unwrap();
                std::fs::rename(&apart, elsewhere.join("deb")).unwrap();
            }
        }
        let functions = named(&library, || {});
        assert_eq!(*functions.last().unwrap(), Function::default(), "{name}");
    }
}

/// Whoever owns a library can cut it off. What was read of it before is a copy.
#[test]
fn a_library_that_is_cut_off_is_named_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    let image = image(&library);
    let mut symbols = Symbols::default();
    assert_eq!(name(&mut symbols, &image), "shown");
    let file = OpenOptions::new().write(true).open(&library).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(name(&mut symbols, &image), "shown");
    // If it was cut off before it was read, there are no names.
    let again = name(&mut Symbols::default(), &image);
    assert_eq!(again, "");
}

/// What is compressed is not read; the symbols are.
#[test]
fn compressed_debugging_information_does_not_hide_the_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    run(
        "objcopy",
        &["--compress-debug-sections=zlib", text(&library)],
    );
    let functions = named(&library, || {});
    let last = functions.last().unwrap();
    assert_eq!((&*last.name, last.line), ("hidden", 0), "{functions:#?}");
}

#[test]
fn what_is_kept_of_files_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    let mut symbols = Symbols::default();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let images: Vec<_> = (0..200).map(|_| image(&library)).collect();
    for image in &images {
        assert_eq!(name(&mut symbols, image), "shown");
    }
    let (kept, bytes) = symbols.size();
    assert_eq!(kept, 128);
    assert!(bytes > 0);
    // Each image has one descriptor, and each file that is kept has two. Other tests run beside this one.
    assert!(files() - before < 200 + 3 * 128, "{}", files() - before);
    // The first one gave way, and is read again.
    assert_eq!(name(&mut symbols, &images[0]), "shown");
    // Nobody uses them any more.
    drop(images);
    symbols.sweep();
    assert_eq!(symbols.size(), (0, 0));
    Met {
        what: "files whose symbols are kept",
        most: constant("crates/native/src/symbols.rs", "MOST_FILES"),
        beyond: "the one that was not used for the longest time gives way, and is read again",
        told: "nothing is missing",
        test: "what_is_kept_of_files_is_bounded",
    }
    .is_told();
}

/// A file whose symbols are larger than any real ones have no names, and no copy is made of it.
#[test]
fn symbols_of_any_size_are_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let library = built(folder.path());
    let mut bytes = std::fs::read(&library).unwrap();
    // The section headers: each symbol table now claims to have 500 MB.
    let at = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(bytes[60..62].try_into().unwrap()) as usize;
    for header in (0..count).map(|i| at + i * 64) {
        if bytes[header + 4] == 2 {
            bytes[header + 32..header + 40].copy_from_slice(&500_000_000u64.to_le_bytes());
        }
    }
    std::fs::write(&library, &bytes).unwrap();
    let file = OpenOptions::new().write(true).open(&library).unwrap();
    file.set_len(1 << 30).unwrap();
    let image = image(&library);
    let mut symbols = Symbols::default();
    assert_eq!(name(&mut symbols, &image), "");
    assert_eq!(symbols.size(), (1, 0));
}
