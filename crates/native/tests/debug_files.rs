//! Debugging information in a file of its own is found by debug link, and the names of a file are found after it was
//! deleted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_native::{Function, ProcessCode, Shared, Symbols};

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
