//! The devices that can be simulated, and the command line with their settings.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

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

impl Options {
    /// The C compiler that makes the simulated libraries.
    pub fn compiler(&self) -> String {
        self.cc
            .clone()
            .or_else(|| env::var("SIMCANN_CC").ok())
            .unwrap_or_else(|| "cc".to_owned())
    }

    /// Refuses options that mean nothing for the chosen device.
    pub fn check(&self) -> Result<()> {
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
