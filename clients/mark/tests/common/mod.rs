//! Helpers of the tests: the path of the library, and a function that runs a program and shows its output if it fails.

#![allow(dead_code, clippy::unwrap_used)]

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The folder of this crate.
pub fn here() -> PathBuf {
    let built = env!("CARGO_MANIFEST_DIR");
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| built.into(), PathBuf::from)
}

/// Path of the library that cargo has built beside this test. (The one in the folder above is from the last `cargo
/// build`.)
pub fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let library = test.with_file_name("libmemscope_mark.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// Runs a program to its end, and returns what it printed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{shown} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{} of {shown}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
