//! `cargo xtask conformance`: compares what memscope exports of a process with what PyTorch's own recorder says in the
//! same process, entry by entry and key by key.
//!
//! Each comparison has a daemon and a process of its own. The script calls nothing of ours: it runs inside
//! `xtask/conformance/wrapper.py`, which stops where memscope is to attach and where the two are compared;
//! `xtask/conformance/compare.py` compares.

mod installation;
mod mode;
mod script;
mod session;
mod stripped;
mod suites;
mod table;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::{self, torch};
use crate::{live, sim};
use installation::Installation;
use mode::Mode;
use session::Outcome;
use stripped::Stripped;
use table::Table;
use workload::Workload;

/// Workloads that `--full` also compares with a stripped copy of PyTorch.
const WHEN_STRIPPED: &[&str] = &["devices", "expandable", "streams", "transformer"];

/// What to compare.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// What the scripts run on; an NPU with torch_npu, which gives a script that says `cuda` its own devices
    #[arg(long, value_enum, default_value_t)]
    pub device: sim::Device,

    /// Every pinned version of PyTorch, and some workloads with its symbols stripped
    #[arg(long)]
    pub full: bool,

    /// These versions only [default: $MEMSCOPE_TORCH_VENV, or the pinned default]
    #[arg(long, value_name = "VERSION", num_args = 1.., conflicts_with = "full")]
    pub torch: Vec<String>,

    /// An installation of PyTorch of your own: a virtual environment; may be given again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["full", "torch"])]
    pub torch_venv: Vec<PathBuf>,

    /// A script of your own instead of the workloads; may be given again
    #[arg(long, value_name = "FILE.py")]
    pub script: Vec<PathBuf>,

    /// These workloads of tests/workloads/conformance only
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with = "script")]
    pub workload: Vec<String>,

    /// Only so [default: both]
    #[arg(long)]
    pub mode: Option<Mode>,

    /// With the symbols of PyTorch's allocator libraries stripped: the state is compared, and of the
    /// trace which blocks came and went
    #[arg(long, conflicts_with = "suites")]
    pub stripped: bool,

    /// On this machine's GPU instead of the simulated one; scripts that want several devices, or one of a size, are
    /// left out
    #[arg(long, requires = "torch_venv", conflicts_with_all = ["full", "suites", "stripped"])]
    pub real_device: bool,

    /// How long a script may run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,

    /// Run the end-to-end tests that compare with PyTorch instead, as a table
    #[arg(long, conflicts_with_all = ["script", "workload", "mode"])]
    pub suites: bool,
}

fn installations(options: &Options) -> Result<Vec<Installation>> {
    if !options.torch_venv.is_empty() {
        return options
            .torch_venv
            .iter()
            .map(|folder| {
                Ok(Installation {
                    real_device: options.real_device,
                    device: options.device,
                    ..Installation::of(folder)?
                })
            })
            .collect();
    }
    if !options.full
        && options.torch.is_empty()
        && let Some(folder) = std::env::var_os("MEMSCOPE_TORCH_VENV")
    {
        return Ok(vec![Installation {
            device: options.device,
            ..Installation::of(std::path::Path::new(&folder))?
        }]);
    }
    let pins = torch::pins()?;
    let versions: Vec<String> = if options.full {
        pins.torch.iter().map(|pin| pin.version.clone()).collect()
    } else if options.torch.is_empty() {
        vec![pins.default.clone()]
    } else {
        options.torch.clone()
    };
    for version in &versions {
        pins.get(Some(version))?;
    }
    setup::run(&setup::Options {
        torch: Some(versions.clone()),
        ..setup::Options::default()
    })?;
    versions
        .into_iter()
        .map(|version| {
            Ok(Installation {
                folder: pins.get(Some(&version))?.folder(),
                name: version,
                more: Vec::new(),
                stripped: false,
                real_device: false,
                device: options.device,
            })
        })
        .collect()
}

/// Runs the task. The tables go to standard output as Markdown and end with the count.
pub fn run(options: &Options) -> Result<()> {
    // Errors in the arguments are reported before anything takes time.
    let workloads = if options.script.is_empty() {
        workload::ours(&options.workload)?
    } else {
        options
            .script
            .iter()
            .map(|script| Workload::read(script))
            .collect::<Result<_>>()?
    };
    let installations = installations(options)?;
    let programs = live::build(live::Build::Checked)?;
    if options.suites {
        return suites::run(&installations);
    }
    let modes = match options.mode {
        Some(mode) => vec![mode],
        None => vec![Mode::FromStart, Mode::Late],
    };
    let patience = Duration::from_secs(options.timeout);
    let mut table = Table::default();
    let mut compare = |installation: &Installation, workload: &Workload| {
        for mode in &modes {
            let outcome = session::compare(installation, &programs, workload, *mode, patience);
            table.add(installation, &workload.name, *mode, outcome);
        }
    };
    for installation in installations.iter().filter(|_| !options.stripped) {
        for workload in &workloads {
            compare(installation, workload);
        }
    }
    for installation in &installations {
        if !options.stripped && !options.full {
            continue;
        }
        let copy = Stripped::of(installation)?;
        for workload in &workloads {
            if options.stripped || WHEN_STRIPPED.contains(&workload.name.as_str()) {
                compare(&copy.installation, workload);
            }
        }
    }
    print!("{}", table.markdown());
    if table.failed > 0 || table.passed == 0 {
        bail!("memscope and PyTorch do not agree everywhere");
    }
    Ok(())
}

impl From<Result<Outcome>> for table::Verdict {
    fn from(outcome: Result<Outcome>) -> table::Verdict {
        match outcome {
            Ok(Outcome::Compared(report)) => table::Verdict::Compared(report),
            Ok(Outcome::Lacking(what)) => table::Verdict::Lacking(what),
            Err(error) => table::Verdict::Broken(format!("{error:#}")),
        }
    }
}
