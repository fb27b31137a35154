//! A PyTorch process that does what it is told (`workloads/agent.py`).

use std::ops::{Deref, DerefMut};
use std::process::Command;

use serde_json::Value;

use crate::program::Program;
use crate::{device, sim};

/// A PyTorch process on the simulated device that waits for commands.
pub struct Torch {
    program: Program,
    /// Version of PyTorch.
    pub version: String,
}

impl Torch {
    /// Starts one with these environment variables and waits until PyTorch is loaded.
    pub fn start(variables: &[(&str, &str)]) -> Torch {
        let mut command = sim().python("agent.py");
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
