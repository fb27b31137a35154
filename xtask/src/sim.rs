//! `cargo xtask sim`: runs a program on a simulated device.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::{selftest, simbuild, simcann, venv};

/// What is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// CUDA
    #[default]
    Cuda,
    /// CANN, with torch_npu
    Npu,
}

/// How to run a program on the simulated device. tests/simcuda/README.md and tests/simcann/README.md explain
/// the settings.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// What to simulate
    #[arg(long, value_enum, default_value_t)]
    pub device: Device,

    /// Use the environment of this PyTorch version [default: $MEMSCOPE_TORCH_VENV, or the pinned default]
    #[arg(long, value_name = "VERSION")]
    pub torch: Option<String>,

    /// Number of devices [default: 1]
    #[arg(long, value_name = "N")]
    pub devices: Option<u32>,

    /// Memory of each device, such as 16GiB or 512MiB,1GiB [default: 16GiB]
    #[arg(long, value_name = "SIZE")]
    pub device_size: Option<String>,

    /// Compute capability, such as 9.0 [default: 8.0]
    #[arg(long, value_name = "MAJOR.MINOR")]
    pub capability: Option<String>,

    /// Make calls fail: FUNCTION:CALLS=ERROR[,...], such as cudaMalloc:3=oom
    #[arg(long, value_name = "SPEC")]
    pub fail: Option<String>,

    /// Append a line of JSON for each allocator call to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Complete events this many microseconds after they are recorded
    #[arg(long, value_name = "N")]
    pub event_delay_us: Option<u64>,

    /// Have torch_npu tell of its memory through mstx (NPU)
    #[arg(long)]
    pub mstx: bool,

    /// The C compiler that makes the simulated libraries [default: $SIMCANN_CC, or cc] (NPU)
    #[arg(long, value_name = "PROGRAM")]
    pub cc: Option<String>,

    /// Leave NVML out, as on a machine without it
    #[arg(long)]
    pub no_nvml: bool,

    /// Print the environment variables that make the device, as KEY=VALUE lines, and run nothing
    #[arg(long)]
    pub print_env: bool,

    /// Print the words with which `cc` compiles a C program that uses the device, and run nothing
    #[arg(long, conflicts_with_all = ["print_env", "command"])]
    pub c_flags: bool,

    /// Run the simulated device's own tests
    #[arg(long, conflicts_with_all = ["print_env", "c_flags", "command"])]
    pub self_test: bool,

    /// The program and its arguments; `python` is the environment's
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Runs the task. On success of a command it does not return: the command takes over this process.
pub fn run(options: &Options) -> Result<()> {
    if options.self_test {
        return selftest::run(options);
    }
    if options.c_flags {
        let words = match options.device {
            Device::Cuda => simbuild::build(&venv::locate(options.torch.as_deref())?)?.c_flags(),
            Device::Npu => simcann::build(&options.compiler(), None)?.c_flags(),
        };
        println!("{}", words.join(" "));
        return Ok(());
    }
    let variables = environment(options)?;
    if options.print_env {
        for (name, value) in variables {
            println!("{name}={value}");
        }
        return Ok(());
    }
    let Some((program, arguments)) = options.command.split_first() else {
        bail!("no command; for example: cargo xtask sim -- python train.py");
    };
    let program = if is_python(program) {
        resolve(program, &venv::locate(options.torch.as_deref())?)
    } else {
        PathBuf::from(program)
    };
    let error = Command::new(&program)
        .args(arguments)
        .envs(variables)
        .exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The environment variables under which a program finds the simulated device. Builds the libraries if
/// that is needed.
pub fn environment(options: &Options) -> Result<Vec<(String, String)>> {
    let found = venv::locate(options.torch.as_deref());
    let is_native = options.command.first().is_some_and(|it| !is_python(it));
    if found.is_err() && options.device == Device::Npu && is_native {
        // Its libraries need no PyTorch, nor do most programs.
        options.check()?;
        let libraries = simcann::build(&options.compiler(), None)?;
        let mut variables = installation_of(&libraries)?;
        settings(options, &mut variables)?;
        return Ok(variables);
    }
    environment_of(&found?, options)
}

/// The same for a PyTorch that is named by its folder.
pub fn environment_of(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    options.check()?;
    let mut variables = match options.device {
        Device::Cuda => cuda(installation, options)?,
        Device::Npu => npu(installation, options)?,
    };
    settings(options, &mut variables)?;
    Ok(variables)
}

fn cuda(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    let libraries = simbuild::build(installation)?;
    Ok(vec![
        (
            "LD_PRELOAD".to_owned(),
            preload(libraries.preload(!options.no_nvml))?,
        ),
        // The simulated cuDNN has only the older of PyTorch's two ways in.
        ("TORCH_CUDNN_V8_API_DISABLED".to_owned(), "1".to_owned()),
    ])
}

/// As CANN's own script sets them.
fn installation_of(libraries: &simcann::Libraries) -> Result<Vec<(String, String)>> {
    let home = text(&libraries.home)?;
    Ok(vec![
        (
            "LD_LIBRARY_PATH".to_owned(),
            before("LD_LIBRARY_PATH", text(&libraries.folder())?),
        ),
        ("ASCEND_HOME_PATH".to_owned(), home.clone()),
        ("ASCEND_OPP_PATH".to_owned(), format!("{home}/opp")),
    ])
}

/// The same, and the folder of torch_npu. `import torch` finds and loads it.
fn npu(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    let torch_npu = venv::locate_npu(options.torch.as_deref(), installation)?;
    let libraries = simcann::build(&options.compiler(), Some(&torch_npu))?;
    let mut variables = installation_of(&libraries)?;
    variables.push((
        "PYTHONPATH".to_owned(),
        before("PYTHONPATH", text(&torch_npu)?),
    ));
    if options.mstx {
        variables.push(("LD_PRELOAD".to_owned(), preload(vec![libraries.hook()])?));
    }
    Ok(variables)
}

/// A list of folders with one more at its beginning.
fn before(variable: &str, folder: String) -> String {
    match env::var(variable) {
        Ok(rest) if !rest.is_empty() => format!("{folder}:{rest}"),
        _ => folder,
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str();
    Ok(text
        .with_context(|| format!("{} is not UTF-8", path.display()))?
        .to_owned())
}

fn preload(files: Vec<PathBuf>) -> Result<String> {
    let mut preload = Vec::new();
    for file in files {
        let file = text(&file).context("LD_PRELOAD cannot hold this path")?;
        if file.contains([' ', ':']) {
            bail!("LD_PRELOAD cannot hold a path with a space or a colon: {file}");
        }
        preload.push(file);
    }
    if let Ok(already) = env::var("LD_PRELOAD") {
        preload.push(already);
    }
    Ok(preload.join(":"))
}

/// The device's own settings, under its own names.
fn settings(options: &Options, variables: &mut Vec<(String, String)>) -> Result<()> {
    let prefix = match options.device {
        Device::Cuda => "SIMCUDA",
        Device::Npu => "SIMCANN",
    };
    let log = match &options.log {
        Some(log) => Some(text(
            &std::path::absolute(log).context("cannot find the current directory")?,
        )?),
        None => None,
    };
    for (name, value) in [
        ("DEVICES", options.devices.map(|number| number.to_string())),
        ("DEVICE_SIZE", options.device_size.clone()),
        ("COMPUTE_CAPABILITY", options.capability.clone()),
        ("FAIL", options.fail.clone()),
        (
            "EVENT_DELAY_US",
            options.event_delay_us.map(|number| number.to_string()),
        ),
        ("LOG", log),
    ] {
        if let Some(value) = value {
            variables.push((format!("{prefix}_{name}"), value));
        }
    }
    Ok(())
}

impl Options {
    /// The C compiler that makes the simulated libraries.
    pub fn compiler(&self) -> String {
        self.cc
            .clone()
            .or_else(|| env::var("SIMCANN_CC").ok())
            .unwrap_or_else(|| "cc".to_owned())
    }

    /// Refuses what the device does not have.
    fn check(&self) -> Result<()> {
        let (device, others) = match self.device {
            Device::Cuda => ("cuda", [("--mstx", self.mstx), ("--cc", self.cc.is_some())]),
            Device::Npu => (
                "npu",
                [
                    ("--capability", self.capability.is_some()),
                    ("--no-nvml", self.no_nvml),
                ],
            ),
        };
        for (option, given) in others {
            if given {
                bail!("{option} means nothing with --device {device}");
            }
        }
        Ok(())
    }
}

/// `python` and `python3` are the environment's; everything else is looked up as usual.
pub fn resolve(program: &OsString, environment: &Path) -> PathBuf {
    if is_python(program) {
        return environment.join("bin").join(program);
    }
    PathBuf::from(program)
}

fn is_python(program: &OsString) -> bool {
    program == "python" || program == "python3"
}
