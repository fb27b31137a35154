//! What is committed and comes from other sources, by the program `memscope-generated`, which only those need who change the sources.

use anyhow::Result;
use clap::Args;

use crate::process;

/// What to do.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Write nothing; fail if what is committed is not what its sources give
    #[arg(long)]
    pub check: bool,
}

/// Builds the program, and makes or checks `what`, which is `proto` or `ebpf`.
pub fn run(what: &str, options: &Options) -> Result<()> {
    let mut cargo = process::command("cargo");
    cargo.args([
        "run",
        "--locked",
        "--package",
        "memscope-generated",
        "--",
        what,
    ]);
    cargo.args(options.check.then_some("--check"));
    process::run(&mut cargo)
}
