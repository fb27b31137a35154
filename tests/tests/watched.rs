//! The Python package's watcher: which operator changed the contents of some memory, in a program that knows it.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Stdio;

use memscope_tests::{Device, sim_of};

/// The program checks itself, case by case.
const CASES: usize = 9;

fn every_change_has_its_operator(device: Device) {
    let mut command = sim_of(device).python_with_package("watched.py");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let right = said.lines().filter(|line| line.starts_with("right: "));
    assert_eq!(right.count(), CASES, "{said}");
}

#[test]
fn every_change_on_a_gpu_has_its_operator() {
    every_change_has_its_operator(Device::Cuda);
}

#[test]
fn every_change_on_an_npu_has_its_operator() {
    every_change_has_its_operator(Device::Npu);
}
