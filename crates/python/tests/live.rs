//! Tests with every `python3` on PATH: what we read from outside equals what Python reports about itself.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Python, checks};

#[test]
fn stacks_are_those_that_python_reports() {
    Python::on_path().iter().for_each(checks::stacks);
}

#[test]
fn lines_are_those_that_python_reports() {
    for python in Python::on_path() {
        checks::lines(&python, 2000);
    }
}

#[test]
fn a_process_that_never_rests() {
    Python::on_path().iter().for_each(checks::busy);
}

#[test]
fn a_process_with_hundreds_of_threads() {
    Python::on_path().iter().for_each(checks::many_threads);
}

#[test]
fn frames_that_are_still_being_made() {
    for python in Python::on_path() {
        checks::prologue(&python);
    }
}

#[test]
fn a_forked_process() {
    Python::on_path().iter().for_each(checks::forked);
}

#[test]
fn subinterpreters() {
    Python::on_path().iter().for_each(checks::subinterpreters);
}

#[test]
fn names_beyond_the_bound() {
    Python::on_path().iter().for_each(checks::long_names);
}

#[test]
fn pthread_keys_of_the_second_level() {
    Python::on_path().iter().for_each(checks::high_keys);
}
