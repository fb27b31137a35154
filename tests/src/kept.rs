//! Snapshots that a daemon took by itself.

use std::path::PathBuf;

use serde_json::Value;

use crate::daemon::Daemon;
use crate::torch::Torch;
use crate::wait::eventually;
use crate::{coverage, find, number};

/// Triggers need no rest in tests, which do one thing after another.
pub const NO_PAUSE: [&str; 2] = ["--snapshot-pause", "0"];

impl Daemon {
    /// What is kept, oldest first, once everything that fired is written.
    #[track_caller]
    pub fn kept(&self) -> Vec<Value> {
        eventually("what fired is written", || {
            let triggers = self.json(&["trigger", "list"]);
            let triggers = triggers["triggers"].as_array().unwrap();
            triggers.iter().all(|trigger| {
                let skipped = trigger["skipped"].as_array().unwrap().iter();
                let skipped: u64 = skipped.map(|cause| number(&cause["count"])).sum();
                number(&trigger["fired"]) == number(&trigger["written"]) + skipped
            })
        });
        let answer = self.json(&["snapshots"]);
        answer["snapshots"].as_array().unwrap().clone()
    }

    /// One trigger of the list.
    #[track_caller]
    pub fn trigger(&self, number: u64) -> Value {
        let answer = self.json(&["trigger", "list"]);
        find(&answer["triggers"], "trigger", number)
            .unwrap_or_else(|| panic!("no trigger {number} in {answer:#}"))
            .clone()
    }

    /// Adds one for a process; gives its number.
    #[track_caller]
    pub fn add_trigger(&self, when: &str, pid: u32) -> u64 {
        let words = ["trigger", "add", when, "--pid", &pid.to_string()];
        number(&self.json(&words)["trigger"]["trigger"])
    }

    /// Attaches a process that holds memory already, and waits until that is known.
    #[track_caller]
    pub fn attach_late(&self, torch: &Torch) {
        self.attach(torch.pid(), "trace");
        eventually("what was there is read", || {
            coverage(&self.stats(torch.pid())).contains(&"baseline_read")
        });
    }
}

/// A kept file holds what PyTorch holds now.
#[track_caller]
pub fn assert_pytorchs(torch: &mut Torch, kept: &Value) {
    let path = kept["path"].as_str().unwrap();
    let told = torch.ask(&format!("compare {path}"));
    assert_eq!(told["exported"], told["own"], "{kept:#}");
    assert!(told["own"].as_array().is_some_and(|own| !own.is_empty()));
}

/// What a daemon wrote beside a kept file.
#[track_caller]
pub fn about(kept: &Value) -> Value {
    let path = PathBuf::from(kept["path"].as_str().unwrap());
    let text = std::fs::read_to_string(path.with_extension("about.json")).unwrap();
    text.parse().unwrap()
}
