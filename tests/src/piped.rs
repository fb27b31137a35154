//! A command that is given a text on standard input.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs it with this input; what it printed, and how it ended.
#[track_caller]
pub fn piped(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let mut to = child.stdin.take().unwrap();
    to.write_all(input.as_bytes()).unwrap();
    drop(to);
    child.wait_with_output().unwrap()
}
