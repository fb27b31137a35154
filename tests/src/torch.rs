//! A PyTorch process that does what it is told (`workloads/agent.py`).

use std::ops::{Deref, DerefMut};
use std::process::Command;

use serde_json::Value;

use crate::build::{Library, library};
use crate::daemon::Daemon;
use crate::places::scratch;
use crate::program::Program;
use crate::sim::{Device, sim_of};
use crate::{coverage, device, number};

/// Codes of coverage that take back that every block is known.
const NOT_KNOWN: [&str; 8] = [
    "attached_late",
    "baseline_not_read",
    "inexact_after_loss",
    "reading_contradicted",
    "reading_failed",
    "reading_incomplete",
    "reading_too_old",
    "rounded_size_unknown",
];

/// A PyTorch process on the simulated device that waits for commands.
pub struct Torch {
    program: Program,
    /// Version of PyTorch.
    pub version: String,
}

impl Torch {
    /// Starts one with these environment variables and waits until PyTorch is loaded.
    pub fn start(variables: &[(&str, &str)]) -> Torch {
        Torch::start_on(Device::Cuda, variables)
    }

    /// Starts one as a rank of a job, with the variables that torchrun sets.
    pub fn rank(rank: &str, world_size: &str) -> Torch {
        Torch::start(&[
            ("RANK", rank),
            ("WORLD_SIZE", world_size),
            ("TORCHELASTIC_RUN_ID", "one-job"),
        ])
    }

    /// Starts one on this device, with these environment variables. Its tensors, and what it says of its memory, are that device's.
    pub fn start_on(device: Device, variables: &[(&str, &str)]) -> Torch {
        let mut command = sim_of(device).python("agent.py");
        command.envs(variables.iter().copied());
        Torch::from_command(command)
    }

    /// The same from a command of the caller's.
    pub fn from_command(command: Command) -> Torch {
        let mut program = Program::start("the torch process", command);
        let ready = program.hear();
        assert_eq!(ready["ready"], true, "{ready}");
        Torch {
            program,
            version: ready["torch"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Allocates and frees this often, and says what it has afterwards. It goes in pieces that the daemon's ring buffer has room for,
    /// and the daemon has read each piece before the next one begins: so no record is lost on a machine where the daemon has to wait
    /// for a core.
    #[track_caller]
    pub fn churn(&mut self, daemon: &Daemon, pairs: usize) -> Value {
        const PIECE: usize = 5000;
        let mut told = Value::Null;
        for first in (0..pairs).step_by(PIECE) {
            told = self.ask(&format!("churn {}", PIECE.min(pairs - first)));
            daemon.json(&["ps"]);
        }
        told
    }
}

impl Deref for Torch {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Torch {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}

impl Torch {
    /// Starts threads of a kind (`python`, `native`) that wait to allocate without a pause: see
    /// `workloads/hammer.py`. `go` sets them off.
    pub fn hammer(&mut self, kind: &str, threads: u32) {
        let native = library("hammer.c", "hammer.so", Library::None, &[]);
        self.ask(&format!("hammer {kind} {threads} {}", native.display()));
    }

    /// Operations of those threads so far.
    #[track_caller]
    pub fn operations(&mut self) -> u64 {
        number(&self.ask("operations")["operations"])
    }
}

/// The state of a process in memscope's export (`exported`) and in PyTorch's own snapshot (`own`).
#[track_caller]
pub fn compared(daemon: &Daemon, torch: &mut Torch) -> Value {
    let folder = scratch();
    let file = folder.path().join("snapshot.pickle");
    let file = file.to_str().unwrap();
    daemon
        .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", file])
        .text();
    torch.ask(&format!("compare {file}"))
}

/// Whether an answer claims that every block is known.
pub fn claims_to_know(answer: &Value) -> bool {
    let codes = coverage(answer);
    !NOT_KNOWN.iter().any(|code| codes.contains(code))
}

/// An answer to `stats` has the numbers that PyTorch told, for every device on which it holds memory.
#[track_caller]
pub fn assert_totals(stats: &Value, told: &Value) {
    let mut compared = 0;
    for theirs in told["devices"].as_array().unwrap() {
        let known = crate::find(&stats["devices"], "device", theirs["device"].clone());
        if known.is_none() && theirs["reserved"] == 0 {
            continue;
        }
        let ours = device(stats, theirs["device"].as_i64().unwrap());
        assert_eq!(
            ours["allocated_bytes"], theirs["allocated"],
            "allocated; torch: {theirs}; stats: {stats:#}"
        );
        assert_eq!(
            ours["reserved_bytes"], theirs["reserved"],
            "reserved; torch: {theirs}; stats: {stats:#}"
        );
        compared += 1;
    }
    assert!(compared > 0, "nothing to compare in {told}");
}

/// memscope's trace of a device as PyTorch's history has it.
fn trace(daemon: &Daemon, pid: &str, device: i64) -> Vec<Value> {
    let snapshot = daemon.json(&["snapshot", "--pid", pid, "--format", "json"]);
    assert_eq!(snapshot["header"]["trace_dropped"], 0);
    let entries = snapshot["trace"].as_array().expect("a trace");
    entries
        .iter()
        .filter(|entry| entry["device"] == device)
        .map(|entry| {
            serde_json::json!([
                entry["action"],
                entry["address"],
                entry["size_bytes"],
                entry["stream"]
            ])
        })
        .collect()
}

/// The histories are the same, entry by entry. Asking PyTorch for its history makes an entry
/// `snapshot` on every device, which is not yet in its answer; those are left out.
#[track_caller]
pub fn assert_histories(daemon: &Daemon, torch: &mut Torch) -> Vec<usize> {
    let told = torch.ask("trace");
    assert_totals(&daemon.stats(torch.pid()), &told);
    let told = told["traces"].as_array().unwrap();
    let mut lengths = Vec::new();
    for (device, theirs) in told.iter().enumerate() {
        let wanted = |entry: &&Value| entry[0] != "snapshot";
        let theirs: Vec<&Value> = theirs.as_array().unwrap().iter().filter(wanted).collect();
        let ours = trace(daemon, &torch.pid_text(), device as i64);
        let ours: Vec<&Value> = ours.iter().filter(wanted).collect();
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(
                ours, theirs,
                "entry {at} of device {device}: memscope's, PyTorch's"
            );
        }
        assert_eq!(
            ours.len(),
            theirs.len(),
            "entries of device {device}: memscope's, PyTorch's"
        );
        lengths.push(theirs.len());
    }
    lengths
}
