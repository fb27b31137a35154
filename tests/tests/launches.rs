//! Which kernels a process launches, against what the simulated driver was given in the same process.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::Path;

use memscope_tests::{Asking, Daemon, Device, Program, dumped, sim_of};
use memscope_units::demangle;
use serde_json::Value;

/// A program that runs some statements when it is told to, and the file with what it launches.
struct Scripted {
    daemon: Daemon,
    program: Program,
    folder: tempfile::TempDir,
}

impl Scripted {
    fn start(seed: u64, count: usize) -> Scripted {
        let daemon = Daemon::start();
        let folder = tempfile::tempdir().unwrap();
        let mut command = sim_of(Device::Cuda).python("accesses/scripted.py");
        command.args([seed.to_string(), count.to_string()]);
        command.env("SIMCUDA_LAUNCHES", folder.path().join("launches"));
        let mut program = Program::start("scripted.py", command);
        program.hear();
        Scripted {
            daemon,
            program,
            folder,
        }
    }

    /// The launches that the driver was given so far: thread and name.
    fn given(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.folder.path().join("launches"));
        let text = text.unwrap();
        let line = |line: &str| {
            let (thread, name) = line.split_once(' ').unwrap();
            (thread.to_owned(), demangle(name, 1024))
        };
        text.lines().map(line).collect()
    }

    /// Writes the dumps of the process below this folder.
    fn export(&self, folder: &Path) {
        let output = folder.to_str().unwrap();
        let format = ["--format", "msmemscope-csv", "-o", output];
        let pid = self.program.pid_text();
        let made = self
            .daemon
            .json(&[&["export", "--pid", &pid], &format[..]].concat());
        assert_eq!(made["lost_records"], 0, "{made}");
    }

    /// The launches that memscope has seen: thread and name.
    fn seen(&self) -> Vec<(String, String)> {
        let folder = self.folder.path().join("seen");
        self.export(&folder);
        let rows = dumped(&folder, ["Event", "Thread Id", "Name"]).into_iter();
        rows.filter(|[event, ..]| event == "KERNEL_LAUNCH")
            .map(|[_, thread, name]| (thread, name))
            .collect()
    }
}

#[test]
fn each_launch_has_the_name_that_the_driver_was_given() {
    let mut scripted = Scripted::start(3, 200);
    // Most of these kernels have been launched before: their names are read from the driver's objects, not from calls that make them.
    let before = scripted.given().len();
    assert!(before > 0);
    let pid = scripted.program.pid_text();
    scripted
        .daemon
        .json(&["attach", "--pid", &pid, "--kernels"]);
    scripted.program.ask("go");
    let given = scripted.given().split_off(before);
    let seen = scripted.seen();
    let names: BTreeSet<&str> = given.iter().map(|(_, name)| name.as_str()).collect();
    assert!(given.len() > 100 && names.len() > 20, "{names:?}");
    assert_eq!(seen, given);
    scripted.program.finish();
}

#[test]
fn two_runs_are_compared_kernel_by_kernel() {
    let folder = tempfile::tempdir().unwrap();
    for (name, seed) in [("one", 4), ("same", 4), ("other", 5)] {
        let mut scripted = Scripted::start(seed, 40);
        let pid = scripted.program.pid_text();
        scripted
            .daemon
            .json(&["attach", "--pid", &pid, "--kernels"]);
        scripted.program.ask("go");
        scripted.export(&folder.path().join(name));
        scripted.program.finish();
    }
    let dump = |name: &str| {
        let device = folder.path().join(name);
        let mut found = Vec::new();
        collect(&device, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let one_sided = |other: &str| {
        let (one, other) = (dump("one"), dump(other));
        let asking = Asking::new(["compare", &one, &other, "--level", "kernel", "--json"]);
        let said = asking.ask().json();
        let rows = said["entries"].as_array().unwrap().clone();
        assert!(rows.len() > 20, "{said}");
        let missing = |row: &&Value| row["base_bytes"].is_null() || row["compare_bytes"].is_null();
        rows.iter().filter(missing).count()
    };
    assert_eq!(one_sided("same"), 0);
    assert!(one_sided("other") > 0);
}

fn collect(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("memscope_dump"))
        {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
}
