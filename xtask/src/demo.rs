//! `cargo xtask demo`: a training loop leaks, memscope attaches while it runs and names the leak.

use std::process::Stdio;

use anyhow::{Result, bail};
use clap::Args;

use crate::live::{Daemon, Python};
use crate::{process, setup, sim, venv};

/// How to show it.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Use the simulated device even if there is a real one
    #[arg(long)]
    pub simulated: bool,
}

/// Exit code of `leaks --exit-code` when something grows.
const GROWS: i32 = 10;

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    setup::run(&setup::Options {
        torch: Some(Vec::new()),
        ..setup::Options::default()
    })?;
    let environment = venv::locate(None)?;
    let python = environment.join("bin/python");
    let real = !options.simulated && venv::has_gpu();
    let variables = if real {
        Vec::new()
    } else {
        sim::environment(&sim::Options::default())?
    };
    let daemon = Daemon::start(false)?;
    println!(
        "A training loop runs on {}. It knows nothing of memscope; each step it keeps a 2 MiB tensor.",
        if real { "the GPU" } else { "a simulated GPU" }
    );
    let script = process::root().join("xtask/demo/train.py");
    let mut training = Python::start(&python, &script, &variables, Stdio::null())?;
    println!(
        "… {}: now memscope attaches to it, while it runs.",
        training.until("step 40")?
    );
    let pid = training.pid().to_string();
    if !daemon.show(&["attach", "--pid", &pid])?.success() {
        bail!("the attach failed");
    }
    println!("\n… {}", training.until("step 200")?);
    daemon.show(&["stats", "--pid", &pid])?;
    let verdict = daemon.show(&["leaks", "--pid", &pid, "--exit-code"])?;
    daemon.show(&["top", "--pid", &pid, "--limit", "2"])?;
    daemon.show(&["detach", "--pid", &pid])?;
    if verdict.code() != Some(GROWS) {
        bail!("the leak was not found");
    }
    println!(
        "\nThe training loop runs on, as if nothing had happened: {}",
        training.until("step 2")?
    );
    Ok(())
}
