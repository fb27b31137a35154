//! `cargo xtask setup`: finds or installs what building and testing need.
//!
//! Nothing is changed that is there already. Packages come from the distribution, everything else goes
//! below `target`, so removing the checkout removes it.

pub mod apt;
pub mod chart;
pub mod grpc;
pub mod mode;
pub mod npm;
pub mod page;
pub mod tool;
pub mod toolchain;
pub mod torch;
pub mod venv;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{aarch64, process, vm};
use mode::Mode;

/// What to set up.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only report what is there; fail if something is missing
    #[arg(long)]
    pub check: bool,

    /// Also make Python environments with these PyTorch versions [default: the pinned default; or `all`]
    #[arg(long, value_name = "VERSION", num_args = 0..)]
    pub torch: Option<Vec<String>>,

    /// Also torch_npu in these versions, each with its PyTorch [default: the one for the pinned default; or `all`]
    #[arg(long, value_name = "VERSION", num_args = 0..)]
    pub torch_npu: Option<Vec<String>>,

    /// Also what compiles the BPF programs, for those who change them: a Rust compiler with library sources, LLVM and bpf-linker
    #[arg(long)]
    pub bpf: bool,

    /// Also Chromium and Node.js, with which tests open exported pages
    #[arg(long)]
    pub browser: bool,

    /// Also gRPC's own libraries for Python, Node.js and Go, with which tests ask the daemon, what generates code for them, and
    /// OpenTelemetry's packages, which receive what the daemon sends
    #[arg(long)]
    pub clients: bool,

    /// Also the libraries transformers, peft and accelerate for the pinned default PyTorch, whose models tests look at
    #[arg(long)]
    pub transformers: bool,

    /// Also systemd's programs, with which tests check the unit; nothing of it is started
    #[arg(long)]
    pub systemd: bool,

    /// Also Prometheus and Alertmanager, with which tests fetch metrics and evaluate rules
    #[arg(long)]
    pub prometheus: bool,

    /// Also tmux, in whose terminals tests walk through `memscope-ctl top`
    #[arg(long)]
    pub terminal: bool,

    /// Also Slurm and podman, with which tests start jobs and containers
    #[arg(long)]
    pub workloads: bool,

    /// Also what makes the .deb and the .rpm, what judges them and the man pages, and Helm's library, which renders the chart
    #[arg(long)]
    pub packages: bool,

    /// Also DuckDB, ClickHouse's engine and a server with the interface of S3 for Python, with which tests read archives
    #[arg(long)]
    pub archive: bool,

    /// Also XProf for Python, with which tests open reports
    #[arg(long)]
    pub xprof: bool,

    /// Also bpftrace, which benchmarks measure beside memscope
    #[arg(long)]
    pub bench: bool,

    /// Also what simulates machines of x86-64, in which `vm` boots Debian's kernels
    #[arg(long)]
    pub vm: bool,

    /// Also what builds for aarch64 (`cross`) and simulates machines of it (`vm --arch aarch64`)
    #[arg(long)]
    pub aarch64: bool,

    /// The Python to make the environments with [default: a suitable one on PATH]
    #[arg(long, value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
}

/// Waits until no other task of this checkout installs anything. Until the result is dropped, no other one does: two that fill the same
/// folder begin by removing what the other has put there.
pub fn alone() -> Result<File> {
    let path = process::target().join("setup.lock");
    std::fs::create_dir_all(process::target())
        .and_then(|()| locked(&path))
        .with_context(|| format!("cannot lock {}", path.display()))
}

fn locked(path: &Path) -> std::io::Result<File> {
    let file = File::create(path)?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        eprintln!("setup: waiting for another task that installs something");
    }
    file.lock()?;
    Ok(file)
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let (mode, _alone) = if options.check {
        (Mode::Check, None)
    } else {
        (Mode::Install, Some(alone()?))
    };
    let mut complete = toolchain::ensure(mode)?;
    if options.bpf {
        complete &= toolchain::ensure_bpf(mode)?;
    }
    if options.browser {
        complete &= toolchain::ensure_browser(mode)?;
        complete &= page::ensure(mode)?;
    }
    if options.clients {
        complete &= grpc::ensure(mode)?;
    }
    if options.systemd {
        complete &= toolchain::ensure_systemd(mode)?;
    }
    if options.prometheus {
        complete &= toolchain::ensure_prometheus(mode)?;
    }
    if options.terminal {
        complete &= toolchain::ensure_terminal(mode)?;
    }
    if options.workloads {
        complete &= toolchain::ensure_workloads(mode)?;
    }
    if options.packages {
        complete &= toolchain::ensure_packages(mode)?;
        complete &= chart::ensure(mode)?;
    }
    if options.archive {
        complete &= ensure_archive(mode)?;
    }
    if options.xprof {
        complete &= ensure_xprof(mode)?;
    }
    if options.bench {
        complete &= toolchain::ensure_bench(mode)?;
    }
    if options.vm {
        complete &= vm::ensure(&vm::X86_64, mode)?;
    }
    if options.aarch64 {
        complete &= aarch64::ensure(mode)?;
        complete &= vm::ensure(&vm::AARCH64, mode)?;
    }
    if let Some(versions) = &options.torch {
        for version in chosen(versions)? {
            complete &= ensure_torch(Some(&version), options.python.as_deref(), mode)?;
        }
    }
    if let Some(versions) = &options.torch_npu {
        for version in chosen_npu(versions)? {
            complete &= ensure_npu(version.as_deref(), options.python.as_deref(), mode)?;
        }
    }
    if options.transformers {
        complete &= ensure_transformers(options.python.as_deref(), mode)?;
    }
    if !complete {
        bail!(
            "something is missing; `cargo xtask setup`, with the same options but without --check, installs it"
        );
    }
    eprintln!("setup: complete");
    Ok(())
}

/// The versions that `--torch` means.
fn chosen(versions: &[String]) -> Result<Vec<String>> {
    let pins = torch::pins()?;
    if versions.is_empty() {
        return Ok(vec![pins.default]);
    }
    if versions.iter().any(|version| version == "all") {
        return Ok(pins.torch.into_iter().map(|pin| pin.version).collect());
    }
    Ok(versions.to_vec())
}

/// The versions that `--torch-npu` means.
fn chosen_npu(versions: &[String]) -> Result<Vec<Option<String>>> {
    if versions.is_empty() {
        return Ok(vec![None]);
    }
    if versions.iter().any(|version| version == "all") {
        let pins = torch::pins()?.torch_npu;
        return Ok(pins.into_iter().map(|pin| Some(pin.version)).collect());
    }
    Ok(versions.iter().cloned().map(Some).collect())
}

/// Makes sure that there is this torch_npu and its PyTorch. False: something is missing.
fn ensure_npu(version: Option<&str>, python: Option<&std::path::Path>, mode: Mode) -> Result<bool> {
    let pins = torch::pins()?;
    let pin = pins.npu(version)?;
    if !ensure_torch(Some(&pin.torch), python, mode)? {
        return Ok(false);
    }
    let environment = pins.get(Some(&pin.torch))?.folder();
    if mode == Mode::Check && !pin.installed(&environment) {
        eprintln!(
            "torch_npu {}: missing, or made for another Python; tests with the simulated NPU need it",
            pin.version
        );
        return Ok(false);
    }
    torch::install::torch_npu(pin, &environment)?;
    Ok(true)
}

/// Makes sure that there is an environment with what reads archives. False: it is missing.
fn ensure_archive(mode: Mode) -> Result<bool> {
    let folder = process::target().join("archive");
    let pins = process::root().join("tests/archive/requirements.txt");
    venv::installed_from(
        &folder,
        &folder,
        &pins,
        "readers of archives",
        mode,
        |pins| {
            toolchain::ensure_python(mode)?;
            venv::make_with(&folder, pins)
        },
    )
}

/// Makes sure that there is an environment with XProf. False: it is missing.
fn ensure_xprof(mode: Mode) -> Result<bool> {
    let folder = process::target().join("xprof");
    let pins = process::root().join("tests/report/requirements.txt");
    venv::installed_from(&folder, &folder, &pins, "XProf", mode, |pins| {
        toolchain::ensure_python(mode)?;
        venv::make_with(&folder, pins)
    })
}

/// Makes sure that there is transformers, in a folder beside the pinned default PyTorch. False: something is missing.
fn ensure_transformers(python: Option<&std::path::Path>, mode: Mode) -> Result<bool> {
    if !ensure_torch(None, python, mode)? {
        return Ok(false);
    }
    let torch = torch::pins()?.get(None)?.folder();
    let folder = process::target().join("venv/transformers");
    let pins = process::root().join("tests/transformers.txt");
    venv::installed_from(&folder, &torch, &pins, "transformers", mode, |pins| {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        // What it needs beside these has the environment, in versions that PyTorch was made for.
        let mut install = venv::install_into(&torch, &folder, pins);
        process::run(install.arg("--no-deps"))
    })
}

/// Makes sure that there is an environment with this PyTorch, or the default one. False: it is missing.
pub fn ensure_torch(
    version: Option<&str>,
    python: Option<&std::path::Path>,
    mode: Mode,
) -> Result<bool> {
    let pins = torch::pins()?;
    let pin = pins.get(version)?;
    if mode == Mode::Check && !pin.installed() {
        eprintln!(
            "torch {}: missing, or made for another Python; tests with the simulated device need it",
            pin.version
        );
        return Ok(false);
    }
    if mode == Mode::Install && !pin.installed() {
        toolchain::ensure_python(mode)?;
    }
    torch::install::torch(pin, python)?;
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::locked;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn of_two_that_install_one_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("setup.lock");
        let first = locked(&path).unwrap();
        let (send, receive) = channel();
        let second = std::thread::spawn(move || send.send(locked(&path).unwrap()));
        let early = receive.recv_timeout(Duration::from_millis(200));
        assert_eq!(early.unwrap_err(), RecvTimeoutError::Timeout);
        drop(first);
        receive.recv_timeout(Duration::from_secs(60)).unwrap();
        second.join().unwrap().unwrap();
    }
}
