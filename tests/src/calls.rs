//! A native process that makes the CUDA calls that it is told to make, or HIP's (`workloads/calls.c`).

use std::ops::{Deref, DerefMut};
use std::process::Command;

use serde_json::Value;

use crate::program::Program;
use crate::{Library, executable, sim};

/// A native process on the simulated device that waits for commands.
pub struct Calls {
    program: Program,
}

impl Calls {
    /// Starts one with these environment variables.
    pub fn start(variables: &[(&str, &str)]) -> Calls {
        Calls::with(Library::Runtime, variables)
    }

    /// The same with one of the simulated runtimes. Commands have CUDA's names, whatever the runtime calls its functions.
    pub fn with(library: Library, variables: &[(&str, &str)]) -> Calls {
        let mut command = sim().native(executable("calls.c", library));
        command.envs(variables.iter().copied());
        Calls::from_command(command)
    }

    /// The same from a command of the caller's.
    pub fn from_command(command: Command) -> Calls {
        let mut program = Program::start("the native process", command);
        let ready = program.hear();
        assert_eq!(ready["ready"], true, "{ready}");
        Calls { program }
    }

    /// Makes a call, which must succeed.
    #[track_caller]
    pub fn call(&mut self, line: &str) -> Value {
        let answer = self.program.ask(line);
        assert_eq!(answer["result"], 0, "{line}: {answer}");
        answer
    }

    /// Makes a call, which must fail with this status.
    #[track_caller]
    pub fn call_fails(&mut self, line: &str, status: i64) {
        let answer = self.program.ask(line);
        assert_eq!(answer["result"], status, "{line}: {answer}");
    }
}

impl Deref for Calls {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Calls {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}
