//! `cargo xtask sim --self-test`: tests of the simulated device itself, in C and in PyTorch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::sim::{self, Options};
use crate::{process, simbuild, venv};

/// Runs both tests; fails if one of them does.
pub fn run(options: &Options) -> Result<()> {
    let environment = venv::locate(options.torch.as_deref())?;
    let folder = process::root().join("tests/simcuda");
    in_c(&folder, &environment)?;
    in_python(&folder, &environment, options)?;
    eprintln!("sim: all self-tests passed with {}", environment.display());
    Ok(())
}

fn in_c(folder: &Path, environment: &Path) -> Result<()> {
    let libraries = simbuild::build(environment)?;
    let program = compile(&folder.join("selftest.c"), &libraries)?;
    let names = process::output(&mut Command::new(&program))?;
    if names.lines().count() == 0 {
        bail!("selftest.c has no tests");
    }
    for name in names.lines() {
        let log = program.with_extension(format!("{name}.jsonl"));
        let _ = fs::remove_file(&log);
        let mut command = process::command(&program);
        command.arg(name).env("SIMCUDA_LOG", &log);
        command.envs([
            ("SIMCUDA_DEVICES", "2"),
            ("SIMCUDA_DEVICE_SIZE", "1GiB,512MiB"),
        ]);
        match name {
            "streams" => command.env("SIMCUDA_EVENT_DELAY_US", "20000"),
            "failing" => command.env(
                "SIMCUDA_FAIL",
                "cudaMalloc:2=oom,cudaMallocHost:*=999,cuMemAlloc_v2:4+=2",
            ),
            _ => &mut command,
        };
        let status = command
            .status()
            .with_context(|| format!("cannot start {}", program.display()))?;
        if !status.success() {
            bail!("selftest.c: {name}: {status}");
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        check_log(&text)
            .with_context(|| format!("selftest.c: {name}: the log {}", log.display()))?;
        eprintln!("selftest.c: {name}: passed");
    }
    Ok(())
}

/// The log must be in order, and everything that the runtime allocates must come from the driver.
fn check_log(text: &str) -> Result<()> {
    let mut inner = false;
    for line in text.lines() {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
            rest.split([',', '}'])
                .next()
                .map(|value| value.trim_matches('"'))
        };
        let function =
            field("function").with_context(|| format!("has a line without a function: {line}"))?;
        let depth: u32 = field("depth")
            .context("has a line without a depth")?
            .parse()?;
        let succeeded = field("result") == Some("0");
        let allocates = function.starts_with("cudaMalloc") || function == "cudaHostAlloc";
        let empty = field("size") == Some("0");
        if allocates && succeeded && !empty && !inner {
            bail!("has a {function} without a call of the driver inside");
        }
        inner = depth == 1;
    }
    Ok(())
}

fn compile(source: &Path, libraries: &simbuild::Libraries) -> Result<PathBuf> {
    let program = libraries.folder.join("selftest");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(&program).arg(source).args(libraries.c_flags());
    process::output(&mut compiler).context("cannot compile selftest.c")?;
    Ok(program)
}

fn in_python(folder: &Path, environment: &Path, options: &Options) -> Result<()> {
    let options = Options {
        torch: options.torch.clone(),
        ..Options::default()
    };
    let mut command = process::command(sim::resolve(&"python".into(), environment));
    command
        .arg(folder.join("selftest.py"))
        .envs(sim::environment(&options)?);
    let status = command.status().context("cannot start python")?;
    if !status.success() {
        bail!("selftest.py: {status}");
    }
    Ok(())
}
