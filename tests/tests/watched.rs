//! The Python package's watcher: which operator changed the contents of some memory, in a program that knows it.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Stdio;

use memscope_tests::{Device, root, sim_of};

/// The program checks itself, case by case.
const CASES: usize = 9;

fn every_change_has_its_operator(device: Device) {
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name("libmemscope_mark.so");
    assert!(library.is_file(), "{} is not there", library.display());
    let mut command = sim_of(device).python("watched.py");
    let mut folders = vec![root().join("clients/python/src")];
    for (name, value) in command.get_envs() {
        if let (true, Some(value)) = (name == "PYTHONPATH", value) {
            folders.extend(std::env::split_paths(value));
        }
    }
    let output = command
        .env("PYTHONPATH", std::env::join_paths(folders).unwrap())
        .env("MEMSCOPE_MARK_LIBRARY", library)
        .stdin(Stdio::null())
        .output()
        .unwrap();
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
