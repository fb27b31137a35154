//! `cargo xtask test`: everything that a change must pass, from nothing but a Rust toolchain.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::sim::selftest;
use crate::{ebpf, house, process, setup, sim};

/// What to run.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only the tests that need no privilege and no PyTorch
    #[arg(long)]
    pub unprivileged: bool,

    /// Only end-to-end tests whose file or name contains this
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,
}

/// The one test outside the end-to-end tests that needs root. Without root it is skipped and named.
const NEEDS_ROOT: &str = "a_full_disk_stops_the_journal_and_nothing_else";

/// Tests that passed and failed, the names of the steps that failed, and what each step took.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    broken: Vec<String>,
    took: Vec<(String, Duration)>,
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // SAFETY: geteuid takes no arguments and touches no memory.
    let root = unsafe { libc::geteuid() } == 0;
    let in_ci = std::env::var_os("CI").is_some();
    let began = Instant::now();
    setup::run(&setup::Options {
        torch: (root && !options.unprivileged).then(Vec::new),
        torch_npu: (root && !options.unprivileged).then(Vec::new),
        browser: true,
        clients: root && !options.unprivileged,
        systemd: root && !options.unprivileged,
        bpf: options.only.is_none(),
        ..setup::Options::default()
    })?;
    let mut tally = Tally::default();
    tally.took.push(("setup".to_owned(), began.elapsed()));
    if options.only.is_none() {
        step(&mut tally, "the house's rules", |_| house::check());
        step(&mut tally, "format", |_| {
            process::run(process::command("cargo").args(["fmt", "--all", "--", "--check"]))?;
            process::run(
                process::command("cargo")
                    .args(["fmt", "--", "--check"])
                    .current_dir(process::root().join("memscope-ebpf")),
            )
        });
        step(&mut tally, "clippy", |_| {
            process::run(process::command("cargo").args([
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]))
        });
        step(
            &mut tally,
            "the BPF objects are what their sources give",
            |_| ebpf::check(),
        );
        step(&mut tally, "tests without privilege", |tally| {
            tests(
                tally,
                &[
                    "--workspace",
                    "--exclude",
                    "memscope-tests",
                    "--locked",
                    "--no-fail-fast",
                ],
                if root { &[] } else { &["--skip", NEEDS_ROOT] },
            )
        });
    }
    if options.only.is_none() {
        step(
            &mut tally,
            "the ledger's tests with checkpoints between the events",
            |tally| {
                tests(
                    tally,
                    &[
                        "-p",
                        "memscope-ledger",
                        "--features",
                        "checkpoint-between-events",
                        "--locked",
                        "--no-fail-fast",
                    ],
                    &[],
                )
            },
        );
    }
    let mut left_out = None;
    if options.unprivileged {
        left_out = Some("asked to leave out what needs privilege");
    } else if !root {
        left_out = Some("loading BPF programs needs root, and this is not root");
    } else {
        if options.only.is_none() {
            for device in [sim::Device::Cuda, sim::Device::Npu] {
                step(
                    &mut tally,
                    &format!("the simulated device itself: {device:?}"),
                    |_| {
                        selftest::run(&sim::Options {
                            device,
                            ..sim::Options::default()
                        })
                    },
                );
            }
        }
        step(&mut tally, "programs for the end-to-end tests", |_| {
            process::run(process::command("cargo").args([
                "build",
                "--locked",
                "-p",
                "memscope-daemon",
                "-p",
                "memscope-ctl",
            ]))
        });
        let only: Vec<&str> = options.only.as_deref().into_iter().collect();
        step(
            &mut tally,
            "end to end: real PyTorch, simulated device",
            |tally| {
                tests(
                    tally,
                    &["-p", "memscope-tests", "--locked", "--no-fail-fast"],
                    &only,
                )
            },
        );
    }
    for (name, took) in &tally.took {
        eprintln!("took {:>5} s: {name}", took.as_secs());
    }
    for name in &tally.broken {
        eprintln!("failed: {name}");
    }
    if !root {
        eprintln!("NOT RUN: {NEEDS_ROOT} (it mounts a disk, which needs root)");
    }
    if let Some(why) = left_out {
        eprintln!("NOT RUN: the end-to-end tests ({why}); as root: cargo xtask test");
    }
    println!("memscope: {} passed, {} failed", tally.passed, tally.failed);
    if !tally.broken.is_empty() || tally.failed > 0 {
        bail!("the tests failed");
    }
    if in_ci && left_out.is_some() {
        bail!(
            "in CI nothing may be left out: {}",
            left_out.unwrap_or_default()
        );
    }
    Ok(())
}

fn step(tally: &mut Tally, name: &str, work: impl FnOnce(&mut Tally) -> Result<()>) {
    eprintln!("\n== {name}");
    let began = Instant::now();
    if let Err(error) = work(tally) {
        eprintln!("error: {error:#}");
        tally.broken.push(name.to_owned());
    }
    tally.took.push((name.to_owned(), began.elapsed()));
}

/// Runs `cargo test` and adds up its results.
fn tests(tally: &mut Tally, selection: &[&str], filter: &[&str]) -> Result<()> {
    let mut command = std::process::Command::new("cargo");
    command
        .arg("test")
        .args(selection)
        .arg("--")
        .args(filter)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    eprintln!("+ {}", process::words(&command));
    let mut child = command.spawn().context("cargo could not be started")?;
    let output = child.stdout.take().context("no output")?;
    let mut stdout = std::io::stdout().lock();
    for line in BufReader::new(output).lines() {
        let line = line?;
        writeln!(stdout, "{line}")?;
        if let Some(rest) = line.strip_prefix("test result: ") {
            tally.passed += count(rest, "passed");
            tally.failed += count(rest, "failed");
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{status} from cargo test");
    }
    Ok(())
}

/// The number before a word, as in `12 passed; 0 failed`.
fn count(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text
        .split([' ', ';', '.'])
        .filter(|w| !w.is_empty())
        .collect();
    words
        .windows(2)
        .find(|pair| pair[1] == word)
        .and_then(|pair| pair[0].parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod unit {
    use super::count;

    #[test]
    fn reads_cargos_result_line() {
        let line = "FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!((count(line, "passed"), count(line, "failed")), (12, 3));
        assert_eq!(count(line, "absent"), 0);
    }
}
