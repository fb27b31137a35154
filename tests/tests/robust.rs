//! Processes that throw exceptions with every probe on, and libraries that are no longer what their
//! paths say.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memscope_tests::{
    Daemon, Library, Program, TempDir, Torch, assert_totals, coverage, device, eventually,
    executable, library, number, scratch, sim, strip, text_of,
};

#[test]
fn exceptions_with_every_probe_on() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    torch.ask("train");
    for level in ["segments", "blocks", "trace"] {
        daemon.attach(pid, level);
        let mut told = torch.ask("oom 20");
        for moment in [
            "train",
            "oom 5",
            "alloc a 100000",
            "oom 5",
            "free a",
            "churn 100",
        ] {
            told = torch.ask(moment);
        }
        let stats = daemon.stats(pid);
        assert_eq!(stats["lost_records"], 0);
        if level == "segments" {
            let failures = stats["failures"].as_array().unwrap();
            let failed = failures
                .iter()
                .find(|f| f["function"] == "cudaMalloc" && f["status"] == 2)
                .unwrap();
            // The allocator tries again when it has emptied its cache.
            assert!(number(&failed["count"]) >= 30, "{stats:#}");
        } else {
            assert_totals(&stats, &told);
            assert_eq!(
                device(&stats, 0)["oom_count"],
                30,
                "at level {level}: {stats:#}"
            );
        }
        daemon.detach(pid);
    }
    torch.finish();
}

/// An environment's packages by symbolic links, with copies of two libraries of torch's that a test may
/// change as `pip` would.
struct Packages(TempDir);

const OWN: [&str; 2] = ["libc10.so", "libc10_cuda.so"];

fn link_all(from: &Path, into: &Path, but: &[&str]) {
    std::fs::create_dir_all(into).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if !but.iter().any(|name| entry.file_name() == *name) {
            symlink(entry.path(), into.join(entry.file_name())).unwrap();
        }
    }
}

impl Packages {
    fn new() -> Packages {
        let folder = scratch();
        let from = sim().site_packages();
        link_all(&from, folder.path(), &["torch"]);
        link_all(&from.join("torch"), &folder.path().join("torch"), &["lib"]);
        link_all(
            &from.join("torch/lib"),
            &folder.path().join("torch/lib"),
            &OWN,
        );
        for name in OWN {
            std::fs::copy(
                from.join("torch/lib").join(name),
                folder.path().join("torch/lib").join(name),
            )
            .unwrap();
        }
        Packages(folder)
    }

    /// With a caching allocator that has no local symbols.
    fn stripped() -> Packages {
        let packages = Packages::new();
        let whole = sim().site_packages().join("torch/lib/libc10_cuda.so");
        strip(
            &whole,
            &packages.library("libc10_cuda.so"),
            &["--strip-all"],
        );
        packages
    }

    fn library(&self, name: &str) -> PathBuf {
        self.0.path().join("torch/lib").join(name)
    }

    fn start(&self) -> Torch {
        let mut command = sim().python("agent.py");
        command.env("PYTHONPATH", self.0.path());
        let torch = Torch::from_command(command);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", torch.pid())).unwrap();
        for name in OWN {
            assert!(
                maps.contains(self.library(name).to_str().unwrap()),
                "its own {name}"
            );
        }
        torch
    }
}

#[test]
fn libraries_replaced_while_it_runs() {
    let daemon = Daemon::start();
    let packages = Packages::new();
    let mut torch = packages.start();
    let pid = torch.pid();
    torch.ask("train");
    // As an upgrade does: another file under the same name. What it is does not matter any more.
    for (name, other) in [(OWN[0], OWN[1]), (OWN[1], OWN[0])] {
        let new = packages.library(&format!("{name}.new"));
        std::fs::copy(sim().site_packages().join("torch/lib").join(other), &new).unwrap();
        std::fs::rename(&new, packages.library(name)).unwrap();
    }
    assert!(
        text_of(pid, &["libc10_cuda.so"])[0]
            .path
            .ends_with("(deleted)")
    );
    for level in ["trace", "blocks"] {
        let attached = daemon.attach(pid, level);
        assert_eq!(attached["level"], level);
        for moment in ["alloc a 1000000", "train 2", "free a", "churn 100"] {
            let told = torch.ask(moment);
            assert_totals(&daemon.stats(pid), &told);
        }
        let stats = daemon.stats(pid);
        assert!(
            number(&device(&stats, 0)["alloc_count"]) > 300,
            "events come: {stats:#}"
        );
        assert_eq!(stats["lost_records"], 0);
        assert!(
            coverage(&attached).contains(&"library_replaced"),
            "{attached:#}"
        );
        daemon.detach(pid);
    }
    torch.finish();
}

#[test]
fn a_stripped_framework() {
    let daemon = Daemon::start();
    let packages = Packages::stripped();
    let mut torch = packages.start();
    let pid = torch.pid();
    // `record_trace` is gone; the reporting function is exported and cannot be.
    let attached = daemon.attach(pid, "trace");
    assert_eq!(attached["level"], "blocks", "{attached:#}");
    assert!(
        coverage(&attached).contains(&"level_reduced"),
        "{attached:#}"
    );
    for moment in ["alloc a 1000000", "train 2", "oom", "free a"] {
        let told = torch.ask(moment);
        assert_totals(&daemon.stats(pid), &told);
    }
    torch.finish();
}

/// The same where PyTorch is loaded after the attach: the level is known only then, and every answer has the new one.
#[test]
fn a_stripped_framework_that_comes_later() {
    let daemon = Daemon::start();
    let packages = Packages::stripped();
    let mut command = sim().python("late_agent.py");
    command.env("PYTHONPATH", packages.0.path());
    let mut torch = Torch::from_command(command);
    let pid = torch.pid();
    daemon.json(&["attach", "--pid", &torch.pid_text(), "--wait"]);
    assert_eq!(daemon.process(pid).unwrap()["level"], "trace");
    torch.ask("go");
    for moment in ["alloc a 1000000", "train 2", "free a"] {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        for code in ["level_reduced", "level_blocks"] {
            assert!(coverage(&stats).contains(&code), "{code}: {stats:#}");
        }
        assert_eq!(stats["level"], "blocks", "{stats:#}");
        assert_eq!(daemon.process(pid).unwrap()["level"], "blocks");
    }
    torch.finish();
}

#[test]
fn a_runtime_inside_an_extension() {
    let daemon = Daemon::start();
    let folder = scratch();
    let whole = library("extension.c", "extension.so", Library::Driver, &[]);
    let stripped = folder.path().join("extension.so");
    strip(&whole, &stripped, &["--strip-all"]);
    for (file, local_symbols) in [(&whole, true), (&stripped, false)] {
        let mut late = Program::start(
            "the late process",
            sim().native(executable("late.c", Library::None)),
        );
        late.hear();
        late.ask(&format!("load {}", file.display()));
        let pid = late.pid();
        let attached = daemon.attach(pid, "segments");
        assert!(number(&attached["sites"]) > 20, "{attached:#}");
        assert_eq!(late.ask("malloc 54321")["result"], 0);
        let stats = daemon.stats(pid);
        let held: u64 = stats["devices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| number(&d["driver"]["bytes"]))
            .sum();
        assert_eq!(held, 54321, "once, and not twice: {stats:#}");
        let libraries = stats["placement"]["libraries"].to_string();
        assert_eq!(
            libraries.contains("extension.so"),
            local_symbols,
            "{libraries}"
        );
        assert_eq!(stats["nested_calls"], u64::from(local_symbols), "{stats:#}");
        late.ask("free");
        let gone = |d: &memscope_tests::Value| d["driver"]["bytes"] == 0;
        assert!(
            daemon.stats(pid)["devices"]
                .as_array()
                .unwrap()
                .iter()
                .all(gone)
        );
        late.finish();
        eventually("its end is seen", || {
            daemon
                .process(pid)
                .is_some_and(|process| process["state"] == "exited")
        });
    }
}
