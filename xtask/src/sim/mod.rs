//! `cargo xtask sim`: runs a program on a simulated device.

pub mod cann;
pub mod compiler;
mod cuda;
mod cuda_header;
mod environment;
mod options;
pub mod selftest;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::torch;
pub use environment::{environment, environment_of};
use environment::{is_python, resolve};
pub use options::{Device, Options};

/// Runs the task. On success of a command it does not return: the command takes over this process.
pub fn run(options: &Options) -> Result<()> {
    if options.self_test {
        return selftest::run(options);
    }
    if options.c_flags {
        println!("{}", c_flags(options)?.join(" "));
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
        resolve(program, &torch::locate(options.torch.as_deref())?)
    } else {
        PathBuf::from(program)
    };
    let error = Command::new(&program)
        .args(arguments)
        .envs(variables)
        .exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// Arguments of the compiler for a C program that uses the simulated device.
pub fn c_flags(options: &Options) -> Result<Vec<String>> {
    Ok(match options.device {
        Device::Cuda => cuda::build(&torch::locate(options.torch.as_deref())?)?.c_flags(),
        Device::Npu => cann::build(&options.compiler(), None)?.c_flags(),
    })
}
