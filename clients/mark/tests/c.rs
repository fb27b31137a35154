//! Tests with programs in C that use the header and are linked with the library.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles one of the sources in `tests/c` to a program in `folder`.
fn compile(source: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join(source.trim_end_matches(".c"));
    let libraries = common::library().parent().unwrap().to_owned();
    common::run(
        Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg("-I")
            .arg(common::here().join("include"))
            .args(flags)
            .arg(common::here().join("tests/c").join(source))
            .arg("-L")
            .arg(&libraries)
            .args(["-lmemscope_mark", "-pthread", "-ldl"])
            .arg(format!("-Wl,-rpath,{}", libraries.display()))
            .arg("-o")
            .arg(&program),
    );
    program
}

#[test]
fn every_function_from_several_threads_and_two_copies() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.so");
    fs::copy(common::library(), &copy).unwrap();
    // dlsym gives a function as a pointer to an object, which the strictest reading of C forbids.
    let program = compile("calls.c", folder.path(), &["-Wno-pedantic"]);
    let said = common::run(Command::new(program).arg(copy));
    assert_eq!(said, "180000 ranges\n");
}

#[test]
fn what_a_listener_is_given() {
    let folder = tempfile::tempdir().unwrap();
    // `-rdynamic` exports the program's `memscope_event`, so that the library calls it instead of its own.
    let program = compile("listens.c", folder.path(), &["-rdynamic"]);
    let said = common::run(&mut Command::new(program));
    let expected = [
        "0 0 :moment 6",
        "0 0 : 0",
        "0 0 null 0",
        "1 1 :outer 5",
        "1 2 null 0",
        "2 1 null 0",
        "2 2 null 0",
        "2 0 null 0",
        "3 0 null 0",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_header_in_c99_and_its_names_for_c_plus_plus() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("only.c");
    fs::write(&source, "#include <memscope_mark.h>\n").unwrap();
    common::run(
        Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(["-fsyntax-only", "-I"])
            .arg(common::here().join("include"))
            .arg(&source),
    );
    let seen = common::run(
        Command::new("cc")
            .args(["-E", "-P", "-D__cplusplus", "-I"])
            .arg(common::here().join("include"))
            .arg(&source),
    );
    assert!(seen.contains("extern \"C\" {"), "{seen}");
}
