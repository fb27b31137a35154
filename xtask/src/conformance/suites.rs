//! `cargo xtask conformance --suites`: runs the end-to-end tests that compare with PyTorch's own numbers, over
//! installations of PyTorch.

use std::fmt::Write as _;
use std::process::{Command, ExitStatus, Stdio};

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
            for test in tests(&text, output.status) {
                match test.outcome {
                    Outcome::Passed => passed += 1,
                    Outcome::Failed => failed += 1,
                    Outcome::Ignored => {}
                }
                let (name, result) = (test.name, test.result);
                writeln!(table, "| {version} | {oracle}{name} | {result} |")?;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Ignored,
}

/// One test of a program, or in a row without a name the program itself.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    /// With `::` before it.
    name: String,
    result: String,
    outcome: Outcome,
}

/// What the tests of a program came to, by its output and its end. One that crashed, was not built or ran no test has failed as well.
fn tests(stdout: &str, status: ExitStatus) -> Vec<Test> {
    let lines = stdout.lines().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        Some(Test {
            name: format!("::{name}"),
            result: result.to_owned(),
            outcome: match result {
                "ok" => Outcome::Passed,
                // A reason may follow.
                _ if result.starts_with("ignored") => Outcome::Ignored,
                _ => Outcome::Failed,
            },
        })
    });
    let mut all: Vec<Test> = lines.collect();
    let whole = match status.success() {
        false if all.iter().all(|test| test.outcome != Outcome::Failed) => {
            format!("ended with {status}")
        }
        true if all.is_empty() => "ran no test".to_owned(),
        _ => return all,
    };
    all.push(Test {
        name: String::new(),
        result: whole,
        outcome: Outcome::Failed,
    });
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_program_that_ends_early_has_failed() {
        let results = |stdout: &str, status: i32| {
            let all = super::tests(stdout, ExitStatus::from_raw(status));
            let results = all.into_iter();
            results
                .map(|test| (test.name + " " + &test.result, test.outcome))
                .collect::<Vec<_>>()
        };
        let passed = ("::a ok".to_owned(), Outcome::Passed);
        let failed = |text: &str| (text.to_owned(), Outcome::Failed);
        assert_eq!(
            results(
                "running 2 tests\ntest a ... ok\ntest b ... ignored, slow\n",
                0
            ),
            [
                passed.clone(),
                ("::b ignored, slow".to_owned(), Outcome::Ignored)
            ]
        );
        assert_eq!(
            results("test a ... ok\ntest b ... FAILED\n", 101 << 8),
            [passed.clone(), failed("::b FAILED")]
        );
        assert_eq!(
            results("test a ... ok\n", libc::SIGSEGV),
            [passed, failed(" ended with signal: 11 (SIGSEGV)")]
        );
        assert_eq!(
            results("", 101 << 8),
            [failed(" ended with exit status: 101")]
        );
        assert_eq!(results("running 0 tests\n", 0), [failed(" ran no test")]);
    }
}
