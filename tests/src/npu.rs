//! Native processes that use an NPU (`workloads/ascend.c`, `tail.c`).

use std::process::Command;

use crate::build::{Library, executable, executable_with};
use crate::program::Program;

/// Starts a process that makes the Ascend calls that it is told to make, with these environment variables.
pub fn npu(variables: &[(&str, &str)]) -> Program {
    let mut command = Command::new(executable("ascend.c", Library::Acl));
    command.envs(variables.iter().copied());
    let mut program = Program::start("the process on the NPU", command);
    let ready = program.hear();
    assert_eq!(ready["ready"], true, "{ready}");
    program
}

/// Starts a process whose functions are named as Ascend's and jump from one to the next (`workloads/tail.c`).
pub fn npu_by_tail_calls() -> Program {
    let command = Command::new(executable_with("tail.c", &["-O2"]));
    let mut program = Program::start("the process with tail calls", command);
    let ready = program.hear();
    assert_eq!(ready["ready"], true, "{ready}");
    program
}
