//! Moments that have passed, as the script itself saw them then: `snapshot --at` gives what
//! `torch.cuda.memory._snapshot()` gave, key by key, from the running daemon and from its recording.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{Asking, Daemon, LONG, TempDir, Torch, Value, number, root, scratch, until};

/// A process with PyTorch's recorder on, and what it remembers.
struct Script {
    torch: Torch,
    folder: TempDir,
    /// What came last, PyTorch's own snapshot then, and when that was.
    moments: Vec<(String, PathBuf, u64)>,
}

impl Script {
    fn start(variables: &[(&str, &str)]) -> Script {
        let mut torch = Torch::start(variables);
        torch.ask("history");
        Script {
            torch,
            folder: scratch(),
            moments: Vec::new(),
        }
    }

    fn remember(&mut self, after: &str) {
        let file = self.folder.path().join(self.moments.len().to_string());
        let told = self.torch.ask(&format!("moment {}", file.display()));
        let taken = number(&told["unix_ns"]);
        self.moments.push((after.to_owned(), file, taken));
    }

    /// Each moment equals the script's. Gives segments, blocks, trace entries and stacks compared.
    fn assert_moments(&self, ask: impl Fn(&[&str]) -> Asking) -> [u64; 4] {
        let file = self.folder.path().join("then.pickle");
        let path = file.to_str().unwrap();
        let pid = self.torch.pid_text();
        let mut compared = [0; 4];
        let mut states = BTreeSet::new();
        for (after, own, taken) in &self.moments {
            let at = taken.to_string();
            let words = ["snapshot", "--pid", &pid, "--at", &at, "-o", path];
            ask(&words).ask().text();
            let found = compare(own, &file);
            let none = Value::Object(serde_json::Map::new());
            assert_eq!(found["differing"], none, "after {after}: {found:#}");
            for (sum, key) in compared
                .iter_mut()
                .zip(["segments", "blocks", "entries", "stacks"])
            {
                *sum += number(&found[key]);
            }
            states.insert(found["entries"].to_string());
        }
        assert_eq!(states.len(), self.moments.len(), "no two moments are alike");
        let other = compare(&self.moments[0].1, &file);
        assert!(number(&other["differing"]["number of trace entries"]) > 0);
        compared
    }

    /// By the running daemon, and from its recording.
    fn assert_both(self, mut daemon: Daemon) {
        assert!(self.moments.len() >= 10);
        let live = self.assert_moments(|words| daemon.ask(words));
        daemon.stop();
        let recording = daemon.recording();
        let recorded = self.assert_moments(|words| {
            let first = ["--recording", recording.to_str().unwrap()];
            Asking::new(first.iter().chain(words))
        });
        assert_eq!(live, recorded);
        let [segments, blocks, entries, stacks] = live;
        assert!(
            segments > 20 && blocks > 200 && entries > 10_000,
            "{live:?}"
        );
        println!(
            "{} moments: {segments} segments, {blocks} blocks, {entries} entries, {stacks} stacks equal",
            self.moments.len()
        );
    }
}

/// The comparison of `cargo xtask conformance`.
fn compare(own: &Path, exported: &Path) -> Value {
    let script = root().join("xtask/conformance/compare.py");
    let output = Command::new("python3")
        .args([&script, own, exported])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const COMMANDS: [&str; 11] = [
    "train",
    "alloc a 3000000",
    "allocs many 300 3000",
    "train 2",
    "oom",
    "free a",
    "empty_cache",
    "alloc c 30000000",
    "train",
    "free many",
    "drop",
];

fn ten_moments(variables: &[(&str, &str)], before: &[&str]) {
    let daemon = Daemon::start();
    let mut script = Script::start(variables);
    for command in before {
        script.torch.ask(command);
    }
    daemon.attach(script.torch.pid(), "trace");
    if !before.is_empty() {
        script.torch.ask("mark");
    }
    for command in COMMANDS {
        script.torch.ask(command);
        script.remember(command);
    }
    script.assert_both(daemon);
}

#[test]
fn attached_from_the_start() {
    ten_moments(&[], &[]);
}

#[test]
fn attached_late_on_two_devices() {
    ten_moments(
        &[("SIMCUDA_DEVICES", "2")],
        &["train 2", "alloc there 5000000 1", "alloc old 70000"],
    );
}

#[test]
fn expandable_segments_attached_late() {
    ten_moments(
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        &["train 2", "alloc old 30000000"],
    );
}

/// Eight threads stand still for an instant, ten times; before the first, memscope attached.
#[test]
fn between_the_operations_of_eight_threads() {
    let daemon = Daemon::start();
    let mut script = Script::start(&[]);
    script.torch.hammer("native", 8);
    // With a pause, so that nothing is lost: what a loss leaves behind is tested elsewhere.
    let go_on = |torch: &mut Torch| {
        let due = torch.operations() + 2000;
        torch.ask("go 8 300");
        until(LONG, "the threads allocate", || {
            (torch.operations() >= due).then_some(())
        });
    };
    go_on(&mut script.torch);
    script.torch.ask("hold");
    daemon.attach(script.torch.pid(), "trace");
    script.torch.ask("mark");
    for round in 0..10 {
        go_on(&mut script.torch);
        script.torch.ask("hold");
        script.remember(&format!("round {round}"));
    }
    script.assert_both(daemon);
}
