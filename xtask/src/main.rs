//! Development tasks: `cargo xtask <task>`.
//!
//! Each task is a module with an `Options` type (its command line) and a `run` function. What a task
//! says goes to standard error; standard output belongs to results and to the programs it starts.

mod elf;
mod headers;
mod process;
mod selftest;
mod setup;
mod sim;
mod simbuild;
mod toolchain;
mod venv;
mod wheels;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of memscope.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or install what building and testing need
    Setup(setup::Options),
    /// Run a program on a simulated CUDA device
    Sim(sim::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Setup(options) => setup::run(&options),
        Task::Sim(options) => sim::run(&options),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // Not by returning the error: that would add a backtrace, which tells a user nothing here.
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("caused by: {cause}");
    }
    ExitCode::FAILURE
}
