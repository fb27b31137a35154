//! `cargo xtask verdicts`: how often the verdicts of `memscope-ctl leaks` are right, on scripts of which it is known
//! what is true.

mod driver;
mod truth;
mod workload;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::venv;

/// What to try.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// These workloads of tests/workloads/verdicts only
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub workload: Vec<String>,

    /// Steps of each script
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub steps: u64,

    /// Ask after so many steps, again and again
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub every: u64,

    /// Without memscope: check by PyTorch's own recorder that what the scripts say of themselves is so
    #[arg(long)]
    pub truth: bool,

    /// How long a script may take for a portion of its steps, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let workloads = workload::ours(&options.workload)?;
    let how = driver::How {
        installation: venv::locate(None)?,
        by_line: true,
        patience: Duration::from_secs(options.timeout),
    };
    let (table, failed) = truth::table(&how, &workloads, options.steps, options.every);
    print!("{table}");
    if failed > 0 {
        bail!("{failed} of {} scripts say what is not so", workloads.len());
    }
    Ok(())
}
