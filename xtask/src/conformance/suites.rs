//! `cargo xtask conformance --suites`: runs the end-to-end tests that compare with PyTorch's own numbers, over
//! installations of PyTorch.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::installation::Installation;

/// Test binaries that compare with PyTorch.
const ORACLES: &[&str] = &[
    "oracle", "late", "travel", "moments", "backends", "robust", "leaks",
];

/// Runs the tests; the table goes to standard output as Markdown and ends with the count.
pub fn run(installations: &[Installation]) -> Result<()> {
    let mut table = String::from("| torch | test | result |\n|---|---|---|\n");
    let (mut passed, mut failed) = (0, 0);
    for installation in installations {
        let version = &installation.name;
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
                .env("MEMSCOPE_TORCH_VENV", &installation.folder)
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
