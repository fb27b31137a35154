//! `cargo xtask verdicts`: how often the verdicts of `memscope-ctl leaks` are right, on scripts of which it is known
//! what leaks.
//!
//! Each run has a daemon and a process of its own. The script calls nothing of ours: it runs inside
//! `xtask/verdicts/driver.py`, which makes some steps at a time, and memscope is asked in between. The scripts say in
//! comments what is true of them, and `--truth` checks that by PyTorch's own recorder.

mod answer;
mod driver;
mod judge;
mod mode;
pub mod seeds;
mod session;
mod table;
mod truth;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::setup::torch;
use crate::{live, sim};
use mode::Mode;
use seeds::Seeds;
use session::Course;
use table::Table;
use workload::Workload;

/// What to try.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// These workloads of tests/workloads/verdicts only
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub workload: Vec<String>,

    /// Scripts that are generated from these seeds instead, first and last: 1000..1009
    #[arg(long, value_name = "A..B", conflicts_with = "workload")]
    pub seeds: Option<Seeds>,

    /// A script of your own instead, which says what is true of it; may be given again
    #[arg(long, value_name = "FILE.py", conflicts_with_all = ["workload", "seeds"])]
    pub script: Vec<PathBuf>,

    /// Only so [default: both]
    #[arg(long)]
    pub mode: Option<Mode>,

    /// Steps of each script
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,

    /// Ask after so many steps, again and again
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,

    /// Let nothing happen for so many milliseconds after each step: the simulated device takes no time for its work
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub pace: u64,

    /// What the scripts run on; an NPU with torch_npu, which gives a script that says `cuda` its own devices
    #[arg(long, value_enum, default_value_t, conflicts_with = "real_device")]
    pub device: sim::Device,

    /// On this machine's GPU instead of the simulated one, with the PyTorch in $MEMSCOPE_TORCH_VENV; scripts of several
    /// ranks are left out
    #[arg(long)]
    pub real_device: bool,

    /// Print JSON instead of tables
    #[arg(long, conflicts_with = "truth")]
    pub json: bool,

    /// Without memscope: check by PyTorch's own recorder that what the scripts say of themselves is so
    #[arg(long, conflicts_with = "mode")]
    pub truth: bool,

    /// Also write each answer to a file in this folder
    #[arg(long, value_name = "DIR", conflicts_with = "truth")]
    pub keep: Option<PathBuf>,

    /// How long a script may take for a portion of its steps, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
}

/// Runs the task. The table goes to standard output as Markdown and ends with the totals.
pub fn run(options: &Options) -> Result<()> {
    let modes = match options.mode {
        _ if options.truth => Vec::new(),
        Some(mode) => vec![mode],
        None => vec![Mode::FromStart, Mode::Late],
    };
    enough_steps(&modes, options.steps)?;
    let installation = torch::locate(None)?;
    // Generated scripts are kept in this folder while they run.
    let folder = tempfile::Builder::new()
        .prefix("memscope-verdicts-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let workloads = match &options.seeds {
        Some(seeds) => seeds.scripts(&installation, folder.path())?,
        None if options.script.is_empty() => workload::ours(&options.workload)?,
        None => options
            .script
            .iter()
            .map(|script| Workload::read(script))
            .collect::<Result<_>>()?,
    };
    let workloads = that_can_run(workloads, options.real_device)?;
    let how = driver::How {
        installation,
        by_line: options.truth,
        pace: options.pace,
        real_device: options.real_device,
        device: options.device,
        patience: Duration::from_secs(options.timeout),
    };
    if options.truth {
        let (table, failed) = truth::table(&how, &workloads, options.steps, options.every);
        print!("{table}");
        if failed > 0 {
            bail!("{failed} of {} scripts say what is not so", workloads.len());
        }
        return Ok(());
    }
    if let Some(folder) = &options.keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let programs = live::build(live::Build::Checked)?;
    let mut table = Table::default();
    for workload in &workloads {
        for mode in &modes {
            let course = Course {
                steps: options.steps,
                every: options.every,
                mode: *mode,
                keep: options.keep.clone(),
            };
            let outcome = session::run(&how, &programs, workload, &course);
            table.add(&workload.name, *mode, outcome);
        }
    }
    if options.json {
        println!("{:#}", table.json());
    } else {
        print!("{}", table.markdown());
    }
    match table.failed() {
        0 if table.is_empty() => bail!("nothing was judged"),
        0 => Ok(()),
        failed => bail!("{failed} runs are not as they should be"),
    }
}

/// Fails where a script would end before memscope could be asked about it: whoever is accused of nothing is judged well.
fn enough_steps(modes: &[Mode], steps: u64) -> Result<()> {
    for mode in modes {
        let before = mode.steps_before();
        if steps <= before {
            bail!(
                "--mode {} attaches after {before} steps: --steps {steps} leaves none to be judged by",
                mode.word()
            );
        }
    }
    Ok(())
}

/// The workloads that can run on this device; an error if there is none, since nothing would be tried.
fn that_can_run(mut workloads: Vec<Workload>, real_device: bool) -> Result<Vec<Workload>> {
    if real_device {
        // Several ranks would need a device each.
        workloads.retain(|workload| workload.ranks == 1);
    }
    if workloads.is_empty() {
        bail!("no script is left to be tried");
    }
    Ok(workloads)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_no_step_after_the_attach_fails() {
        enough_steps(&[Mode::FromStart], 1).unwrap();
        enough_steps(&[Mode::FromStart, Mode::Late], 21).unwrap();
        let error = enough_steps(&[Mode::FromStart, Mode::Late], 20).unwrap_err();
        assert!(error.to_string().contains("--steps 20"), "{error}");
    }

    #[test]
    fn who_tries_nothing_fails() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            workload::ours(&names).unwrap()
        };
        let one_rank = of(&["one_rank"]);
        assert_eq!(that_can_run(one_rank.clone(), false).unwrap().len(), 1);
        that_can_run(one_rank, true).unwrap_err();
        let some = that_can_run(of(&["one_rank", "plain_training"]), true).unwrap();
        assert_eq!(some.len(), 1);
        assert_eq!(some[0].name, "plain_training");
    }
}
