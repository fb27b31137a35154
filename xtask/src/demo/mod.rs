//! `cargo xtask demo`: a training loop leaks, memscope attaches while it runs and names the leak.

mod phases;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::live::{self, Daemon, Python};
use crate::setup::torch;
use crate::{process, sim};

/// How to show it.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Use the simulated device even if there is a real one
    #[arg(long)]
    pub simulated: bool,
}

/// What is set while the programs are built, which are built once: what makes the next build faster makes this one slower, and nobody looks
/// for lines in them. Nothing that cargo would build the packages anew for which `cargo xtask` has built already.
const ONCE: [(&str, &str); 2] = [
    ("CARGO_INCREMENTAL", "0"),
    ("CARGO_PROFILE_DEV_DEBUG", "false"),
];

/// What a shell runs to fetch PyTorch; this program is its `$0`.
const PYTORCH: &str = "exec \"$0\" setup --torch";

/// The same, and then the simulated device is built for this PyTorch.
const PYTORCH_AND_DEVICE: &str = "\"$0\" setup --torch && exec \"$0\" sim --print-env";

/// Exit code of `leaks --exit-code` when something grows.
const GROWS: i32 = 10;

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    live::need_root()?;
    let began = Instant::now();
    let real = !options.simulated && torch::has_gpu();
    let mut took = prepare(real)?;
    let environment = torch::locate(None)?;
    let python = environment.join("bin/python");
    let variables = if real {
        Vec::new()
    } else {
        sim::environment(&sim::Options::default())?
    };
    show(&python, &variables, real)?;
    took.push(("all, to the named leak", began.elapsed()));
    let took: Vec<String> = took
        .iter()
        .map(|(what, time)| format!("{what} {} s", time.as_secs()))
        .collect();
    println!("\nTook: {}.", took.join(", "));
    Ok(())
}

/// Builds memscope, and at the same time fetches PyTorch and builds its simulated device, unless a `real` one is used; returns
/// how long each took.
fn prepare(real: bool) -> Result<Vec<(&'static str, Duration)>> {
    let mut build = process::command("cargo");
    build.args(["build", "--locked", "--no-default-features"]);
    build.args(["-p", "memscope-daemon", "-p", "memscope-ctl"]);
    build.envs(ONCE);
    let mut torch = Command::new("sh");
    torch.args(["-c", if real { PYTORCH } else { PYTORCH_AND_DEVICE }]);
    torch.arg(std::env::current_exe().context("this program has no name")?);
    let fetched = if real {
        "PyTorch"
    } else {
        "PyTorch and the simulated device"
    };
    let took = phases::side_by_side(&programs(), vec![("memscope", build), (fetched, torch)])?;
    // The tests start the programs that are in `target/debug`, and these would fail them for the features that they lack.
    for name in ["memscoped", "memscope-ctl"] {
        let (from, to) = (
            process::target().join("debug").join(name),
            programs().join(name),
        );
        // That of the last demonstration may be the same file under another name, and then a move would leave both names.
        let _ = std::fs::remove_file(&to);
        std::fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
    }
    Ok(took)
}

/// Folder of the programs, and of what was said while they were built.
fn programs() -> PathBuf {
    process::target().join("demo")
}

/// Runs the demonstration itself.
fn show(python: &Path, variables: &[(String, String)], real: bool) -> Result<()> {
    let daemon = Daemon::launch(&programs(), &[])?;
    println!(
        "A training loop runs on {}. It knows nothing of memscope; each step it keeps a 2 MiB tensor.",
        if real { "the GPU" } else { "a simulated GPU" }
    );
    let script = process::root().join("xtask/demo/train.py");
    let mut training = Python::start(python, &script, variables, Stdio::null())?;
    println!(
        "… {}: now memscope attaches to it, while it runs.",
        training.until("step 40")?
    );
    let pid = training.pid().to_string();
    let shown = |words: &[&str]| {
        let status = daemon.show(words)?;
        if !status.success() {
            bail!("{status} from: memscope-ctl {}", words.join(" "));
        }
        Ok(())
    };
    shown(&["attach", "--pid", &pid])?;
    println!("\n… {}", training.until("step 200")?);
    shown(&["stats", "--pid", &pid])?;
    let verdict = daemon.show(&["leaks", "--pid", &pid, "--exit-code"])?;
    shown(&["stacks", "--pid", &pid, "--limit", "2"])?;
    shown(&["detach", "--pid", &pid])?;
    if verdict.code() != Some(GROWS) {
        bail!("the leak was not found");
    }
    println!(
        "\nThe training loop runs on, as if nothing had happened: {}",
        training.until("step 2")?
    );
    Ok(())
}
