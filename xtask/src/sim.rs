//! `cargo xtask sim`: runs a program on the simulated CUDA device.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{selftest, simbuild, venv};

/// How to run a program on the simulated device. tests/simcuda/README.md explains the settings.
#[derive(Args, Clone, Default)]
pub struct Options {
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
        let libraries = simbuild::build(&venv::locate(options.torch.as_deref())?)?;
        println!("{}", libraries.c_flags().join(" "));
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
    let program = resolve(program, &venv::locate(options.torch.as_deref())?);
    let error = Command::new(&program)
        .args(arguments)
        .envs(variables)
        .exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The environment variables under which a program finds the simulated device. Builds the libraries if
/// that is needed.
pub fn environment(options: &Options) -> Result<Vec<(String, String)>> {
    environment_of(&venv::locate(options.torch.as_deref())?, options)
}

/// The same for a PyTorch that is named by its folder.
pub fn environment_of(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    let libraries = simbuild::build(installation)?;
    let mut preload = Vec::new();
    for file in libraries.preload(!options.no_nvml) {
        let file = file
            .to_str()
            .context("LD_PRELOAD cannot hold this path, because it is not UTF-8")?
            .to_owned();
        if file.contains([' ', ':']) {
            bail!("LD_PRELOAD cannot hold a path with a space or a colon: {file}");
        }
        preload.push(file);
    }
    if let Ok(already) = env::var("LD_PRELOAD") {
        preload.push(already);
    }
    let mut variables = vec![
        ("LD_PRELOAD".to_owned(), preload.join(":")),
        // The simulated cuDNN has only the older of PyTorch's two ways in.
        ("TORCH_CUDNN_V8_API_DISABLED".to_owned(), "1".to_owned()),
    ];
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            variables.push((name.to_owned(), value));
        }
    };
    set(
        "SIMCUDA_DEVICES",
        options.devices.map(|number| number.to_string()),
    );
    set("SIMCUDA_DEVICE_SIZE", options.device_size.clone());
    set("SIMCUDA_COMPUTE_CAPABILITY", options.capability.clone());
    set("SIMCUDA_FAIL", options.fail.clone());
    set(
        "SIMCUDA_EVENT_DELAY_US",
        options.event_delay_us.map(|number| number.to_string()),
    );
    if let Some(log) = &options.log {
        let log = std::path::absolute(log).context("cannot find the current directory")?;
        set(
            "SIMCUDA_LOG",
            Some(
                log.to_str()
                    .context("the log's path is not UTF-8")?
                    .to_owned(),
            ),
        );
    }
    Ok(variables)
}

/// `python` and `python3` are the environment's; everything else is looked up as usual.
pub fn resolve(program: &OsString, environment: &Path) -> PathBuf {
    if program == "python" || program == "python3" {
        return environment.join("bin").join(program);
    }
    PathBuf::from(program)
}
