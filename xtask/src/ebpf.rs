//! `cargo xtask ebpf`: builds the BPF object, by the same code path as the daemon's build script.

use anyhow::{Context, Result};
use clap::Args;

use crate::process;

/// What to build.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Architecture of the processes to be traced
    #[arg(long, default_value = std::env::consts::ARCH)]
    pub arch: String,
}

/// Runs the task. The object's path goes to standard output; MEMSCOPE_BPF_OBJECT hands it to a build on
/// a machine without the BPF toolchain.
pub fn run(options: &Options) -> Result<()> {
    let object = memscope_ebpf_build::build(
        &process::root(),
        &options.arch,
        &process::target().join("ebpf"),
    )
    .context("the BPF object was not built")?;
    println!("{}", object.display());
    Ok(())
}
