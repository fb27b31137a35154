//! `cargo xtask conformance`: the tests against PyTorch's own numbers, over versions of PyTorch.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{process, setup, venv};

/// What to compare.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Every pinned version of PyTorch, and every end-to-end test
    #[arg(long)]
    pub full: bool,

    /// These versions only
    #[arg(long, value_name = "VERSION", num_args = 1..)]
    pub torch: Vec<String>,
}

/// Test binaries that compare with PyTorch.
const ORACLES: &[&str] = &["oracle", "late", "travel", "backends", "robust", "leaks"];

/// Runs the task; the table goes to standard output as Markdown and ends with the count.
pub fn run(options: &Options) -> Result<()> {
    let versions = if !options.torch.is_empty() {
        options.torch.clone()
    } else if options.full {
        venv::pins()?
            .torch
            .into_iter()
            .map(|pin| pin.version)
            .collect()
    } else {
        vec![venv::pins()?.default]
    };
    setup::run(&setup::Options {
        torch: Some(versions.clone()),
        ..setup::Options::default()
    })?;
    process::run(process::command("cargo").args([
        "build",
        "--locked",
        "-p",
        "memscope-daemon",
        "-p",
        "memscope-ctl",
    ]))?;
    let mut table = String::from("| torch | test | result |\n|---|---|---|\n");
    let (mut passed, mut failed) = (0, 0);
    for version in &versions {
        let environment = venv::pins()?.get(Some(version))?.folder();
        for oracle in ORACLES {
            eprintln!("== torch {version}: {oracle}");
            let output = Command::new("cargo")
                .args([
                    "test",
                    "--locked",
                    "-p",
                    "memscope-tests",
                    "--no-fail-fast",
                    "--test",
                    oracle,
                ])
                .env("MEMSCOPE_TORCH_VENV", &environment)
                .stdin(Stdio::null())
                .stderr(Stdio::inherit())
                .output()
                .context("cargo could not be started")?;
            let text = String::from_utf8_lossy(&output.stdout);
            for line in text.lines() {
                let Some(rest) = line.strip_prefix("test ") else {
                    continue;
                };
                let Some((name, result)) = rest.rsplit_once(" ... ") else {
                    continue;
                };
                if result == "ok" {
                    passed += 1;
                } else {
                    failed += 1;
                }
                writeln!(table, "| {version} | {oracle}::{name} | {result} |")?;
            }
            if !output.status.success() {
                eprintln!("{text}");
            }
        }
    }
    println!("{table}");
    println!("{passed} passed, {failed} failed");
    if failed > 0 || passed == 0 {
        bail!("memscope and PyTorch do not agree everywhere");
    }
    Ok(())
}
