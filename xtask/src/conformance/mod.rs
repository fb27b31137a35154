//! `cargo xtask conformance`: what memscope exports of a process against what PyTorch's own recorder says in
//! the same process, entry by entry and key by key.
//!
//! Each comparison has a daemon and a process of its own. The script calls nothing of ours: it runs inside
//! `xtask/conformance/wrapper.py`, which stops where memscope is to attach and where the two are compared;
//! `xtask/conformance/compare.py` compares.

mod script;
mod session;
mod stripped;
mod suites;
mod table;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::{live, setup, sim, venv};
use session::Outcome;
use stripped::Stripped;
use table::Table;
use workload::Workload;

/// What `--full` compares with a stripped copy as well.
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

/// When memscope attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Before the first allocation: state and whole trace
    FromStart,
    /// After the script has run once, with what it left alive: then it runs again
    Late,
}

impl Mode {
    /// As the wrapper knows it.
    pub fn word(self) -> &'static str {
        match self {
            Mode::FromStart => "from-start",
            Mode::Late => "late",
        }
    }
}

/// A PyTorch to compare with.
#[derive(Clone, Debug)]
pub struct Installation {
    /// What the table calls it.
    pub name: String,
    /// The virtual environment.
    pub folder: PathBuf,
    /// Variables with which its Python is started.
    pub more: Vec<(String, String)>,
    /// Its allocator's libraries have no symbols, so that the trace cannot be seen.
    pub stripped: bool,
    /// It runs on this machine's GPU.
    pub real_device: bool,
    /// What its devices are.
    pub device: sim::Device,
}

impl Installation {
    /// One of somebody's, looked at before anything is built.
    fn of(folder: &std::path::Path) -> Result<Installation> {
        let folder = std::path::absolute(folder).context("cannot find the current directory")?;
        let shown = folder.display();
        if !folder.join("bin/python").exists() {
            bail!(
                "{shown} is not a virtual environment: it has no bin/python; make one with python3 -m venv {shown}"
            );
        }
        let version = folder_version(&folder)?;
        Ok(Installation {
            name: version,
            folder,
            more: Vec::new(),
            stripped: false,
            real_device: false,
            device: sim::Device::Cuda,
        })
    }

    /// Its Python.
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// Variables that make the simulated device that a workload wants.
    pub fn variables(&self, workload: &Workload) -> Result<Vec<(String, String)>> {
        if self.real_device {
            return Ok(Vec::new());
        }
        sim::environment_of(&self.folder, &workload.device(self.device))
    }
}

/// The version of an environment's PyTorch, by its metadata: nothing is run for it.
fn folder_version(folder: &std::path::Path) -> Result<String> {
    let packages = venv::site_packages(folder)?;
    let text = std::fs::read_to_string(packages.join("torch/version.py")).with_context(|| {
        format!(
            "{0} has no torch; install a CUDA build into it: {0}/bin/pip install torch",
            folder.display()
        )
    })?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__ = "))
        .with_context(|| {
            format!(
                "{} has a torch that does not say its version",
                folder.display()
            )
        })?;
    Ok(version.trim_matches(['\'', '"']).to_owned())
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
    let pins = venv::pins()?;
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
    // What is wrong with the words is said before anything takes time.
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
    let programs = live::build(false)?;
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
