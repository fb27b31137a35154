//! `cargo xtask test`: everything that a change must pass, from nothing but a Rust toolchain.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use crate::sim::selftest;
use crate::{process, setup, sim, ui, vm};

/// What to run.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only the tests that need no privilege and no PyTorch
    #[arg(long)]
    pub unprivileged: bool,

    /// Only end-to-end tests whose file or name contains this
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,

    /// Only end-to-end tests, so many times in a row; each run is told by itself
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: Option<u32>,

    /// With --repeat: so many threads that compute all the time, beside the tests
    #[arg(long, value_name = "THREADS", default_value_t = 0, requires = "repeat")]
    pub busy: usize,
}

impl Options {
    /// Whether other tests than the end-to-end tests are run.
    fn all(&self) -> bool {
        self.only.is_none() && self.repeat.is_none()
    }
}

/// The one test outside the end-to-end tests that needs root. Without root it is skipped and named.
const NEEDS_ROOT: &str =
    "on_a_full_disk_the_journal_stops_until_there_is_room_and_its_oldest_part_goes_first";

/// The package of the end-to-end tests.
const TESTS: &str = "memscope-tests";

/// The package whose tests run a second time with checkpoints.
const LEDGER: &str = "memscope-ledger";

/// Tests that passed and failed, the names of the steps that failed, and what each step took.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    broken: Vec<String>,
    took: Vec<(String, Duration)>,
    /// The names of the tests that failed, one for each time.
    names: Vec<String>,
}

impl Tally {
    /// Adds what another one counted.
    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.broken.extend(other.broken);
        self.took.extend(other.took);
        self.names.extend(other.names);
    }

    /// Fails unless tests were run and all is well. `left_out` is why some were not run, where all have to be.
    fn judge(&self, left_out: Option<&str>) -> Result<()> {
        if !self.broken.is_empty() || self.failed > 0 {
            bail!("the tests failed");
        }
        if self.passed == 0 {
            bail!("no test was run: --only chooses among the end-to-end tests, which need root");
        }
        if let Some(why) = left_out {
            bail!("in CI nothing may be left out: {why}");
        }
        Ok(())
    }
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // SAFETY: geteuid takes no arguments and touches no memory.
    let root = unsafe { libc::geteuid() } == 0;
    let in_ci = std::env::var_os("CI").is_some();
    if options.repeat.is_some() && (options.unprivileged || !root) {
        bail!("--repeat runs the end-to-end tests, which need root");
    }
    let began = Instant::now();
    // Machines of another architecture than x86-64 would have to be built for.
    let boots =
        root && !options.unprivileged && options.all() && std::env::consts::ARCH == "x86_64";
    // First what everything is built with. The rest is mostly downloads, which leave the processors to what needs none of them.
    setup::run(&setup::Options::default())?;
    let needed = setup::Options {
        torch: (root && !options.unprivileged).then(Vec::new),
        torch_npu: (root && !options.unprivileged).then(Vec::new),
        transformers: root && !options.unprivileged,
        browser: true,
        xprof: root && !options.unprivileged,
        clients: root && !options.unprivileged,
        systemd: root && !options.unprivileged,
        prometheus: root && !options.unprivileged,
        terminal: root && !options.unprivileged,
        workloads: root && !options.unprivileged,
        packages: root && !options.unprivileged,
        archive: root && !options.unprivileged,
        vm: boots,
        bpf: options.all(),
        ..setup::Options::default()
    };
    let mut tally = Tally::default();
    let end_to_end = root && !options.unprivileged;
    let selection: &[&str] = match (&options.only, end_to_end) {
        (Some(_), _) => &["memscope-daemon", "memscope-ctl", "memscope-archive", TESTS],
        (None, true) => &["--workspace"],
        (None, false) => &["--workspace", "--exclude", TESTS],
    };
    let mut programs = Vec::new();
    std::thread::scope(|scope| {
        let setup = scope.spawn(|| (setup::run(&needed), began.elapsed()));
        if options.all() {
            check_sources(&mut tally);
        }
        step(&mut tally, "building tests and programs", |_| {
            programs = build(selection)?;
            Ok(())
        });
        let (done, took) = setup
            .join()
            .map_err(|_| anyhow::anyhow!("setup panicked"))?;
        tally
            .took
            .push(("setup, beside the checks and the build".to_owned(), took));
        done
    })?;
    if options.all() {
        before_end_to_end(&programs, root, end_to_end, boots).run(&mut tally);
    }
    let mut left_out = None;
    if options.unprivileged {
        left_out = Some("asked to leave out what needs privilege");
    } else if !root {
        left_out = Some("loading BPF programs needs root, and this is not root");
    } else {
        match options.repeat {
            None => end_to_end_once(&mut tally, &programs, options.only.as_deref()),
            Some(times) => beside(options.busy, || {
                for run in 1..=times {
                    end_to_end_again(&mut tally, &programs, options.only.as_deref(), run);
                }
            }),
        }
    }
    for (name, took) in &tally.took {
        eprintln!("took {:>5} s: {name}", took.as_secs());
    }
    for name in tally.broken.iter().chain(&tally.names) {
        eprintln!("failed: {name}");
    }
    if !root {
        eprintln!("NOT RUN: {NEEDS_ROOT} (it mounts a disk, which needs root)");
    }
    if let Some(why) = left_out {
        eprintln!("NOT RUN: the end-to-end tests ({why}); as root: cargo xtask test");
    }
    println!("memscope: {} passed, {} failed", tally.passed, tally.failed);
    tally.judge(left_out.filter(|_| in_ci))
}

/// What needs no more than a compiler: the format, the lints, and that the programs build as users build them.
fn check_sources(tally: &mut Tally) {
    step(tally, "format", |_| {
        process::run(process::command("cargo").args(["fmt", "--all", "--", "--check"]))?;
        process::run(
            process::command("cargo")
                .args(["fmt", "--", "--check"])
                .current_dir(process::root().join("memscope-ebpf")),
        )
    });
    step(tally, "clippy", |_| {
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
    // The tests' programs are built with the features that the tests ask for as well. Users build without these, and the demonstration
    // without any.
    let both = ["--locked", "-p", "memscope-daemon", "-p", "memscope-ctl"];
    step(tally, "the programs with their own features", |_| {
        let mut cargo = process::command("cargo");
        cargo.arg("check").args(both);
        process::run(cargo.args(["-p", "memscope-archive"]))
    });
    step(tally, "the programs without features", |_| {
        let mut cargo = process::command("cargo");
        cargo.arg("clippy").args(both).arg("--no-default-features");
        process::run(cargo.args(["--", "-D", "warnings"]))
    });
}

/// Steps of which none needs another.
#[derive(Default)]
struct Steps<'a>(VecDeque<(&'static str, Work<'a>)>);

type Work<'a> = Box<dyn FnOnce(&mut Tally) -> Result<()> + Send + 'a>;

impl<'a> Steps<'a> {
    fn add(&mut self, name: &'static str, work: impl FnOnce(&mut Tally) -> Result<()> + Send + 'a) {
        self.0.push_back((name, Box::new(work)));
    }

    /// Does them two at a time: most of them use one processor, or wait.
    fn run(self, tally: &mut Tally) {
        let rest = Mutex::new(self.0);
        let next = || {
            let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
            rest.pop_front()
        };
        let all = Mutex::new(tally);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some((name, work)) = next() {
                        let mut own = Tally::default();
                        step(&mut own, name, work);
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        all.add(own);
                    }
                });
            }
        });
    }
}

/// What is tested before the end-to-end tests, the longest first. `boots` is whether a machine is simulated.
fn before_end_to_end(programs: &[Program], root: bool, end_to_end: bool, boots: bool) -> Steps<'_> {
    let more: &[&str] = if root { &[] } else { &["--skip", NEEDS_ROOT] };
    let mut steps = Steps::default();
    steps.add("tests without privilege", move |tally| {
        let how = How {
            words: more,
            ..How::default()
        };
        execute(tally, programs, |package| package != TESTS, &how)
    });
    steps.add(
        "the ledger's tests with checkpoints between the events",
        move |tally| {
            let how = How {
                variables: &[("MEMSCOPE_TEST_CHECKPOINTS", "between-events")],
                ..How::default()
            };
            execute(tally, programs, |package| package == LEDGER, &how)
        },
    );
    if end_to_end {
        steps.add("the simulated NPU itself", |_| itself(sim::Device::Npu));
    }
    steps.add("the BPF objects are what their sources give", |_| {
        let program = process::target().join("debug/memscope-generated");
        process::run(Command::new(program).args(["ebpf", "--check"]))
    });
    if boots {
        steps.add("the oldest kernel, in a simulated machine", |_| {
            vm::oldest(process::target().join("debug"))
        });
    }
    if end_to_end {
        steps.add("the simulated CUDA device itself", |_| {
            itself(sim::Device::Cuda)
        });
    }
    steps.add("the page is what its sources give", |_| ui::check());
    steps
}

/// The simulated device's own tests.
fn itself(device: sim::Device) -> Result<()> {
    selftest::run(&sim::Options {
        device,
        ..sim::Options::default()
    })
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

/// A program that cargo built of tests.
struct Program {
    package: String,
    /// The package's folder, in which its tests run.
    folder: PathBuf,
    file: PathBuf,
}

impl Program {
    /// Its package, and the name of its file.
    fn name(&self) -> String {
        let file = self.file.file_name().unwrap_or_default();
        format!("{}: {}", self.package, file.to_string_lossy())
    }
}

/// Builds tests, and with them the programs that they start, all at once: what is built in parts has other features in
/// each part, and cargo would build much of it again. `selection` is words of `--workspace`, or packages.
fn build(selection: &[&str]) -> Result<Vec<Program>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--locked", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    if selection[0].starts_with('-') {
        command.args(selection);
    } else {
        command.args(selection.iter().flat_map(|package| ["-p", package]));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    eprintln!("+ {}", process::words(&command));
    let mut child = command.spawn().context("cargo could not be started")?;
    let output = child.stdout.take().context("no output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        let message: Message =
            serde_json::from_str(&line?).context("cargo says what cannot be read")?;
        if let Message {
            executable: Some(file),
            manifest_path: Some(manifest),
            profile: Some(Profile { test: true }),
        } = message
        {
            programs.push(program(file, &manifest)?);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{status} from cargo test --no-run");
    }
    if programs.is_empty() {
        bail!("cargo built no tests");
    }
    // Cargo tells of them as they are ready.
    programs.sort_by(|a, b| (&a.folder, &a.file).cmp(&(&b.folder, &b.file)));
    Ok(programs)
}

/// Of what cargo says of a thing that it has built, what is needed here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn program(file: PathBuf, manifest: &Path) -> Result<Program> {
    #[derive(Deserialize)]
    struct Manifest {
        package: Package,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
    }
    let text = fs::read_to_string(manifest)
        .with_context(|| format!("{} cannot be read", manifest.display()))?;
    let read: Manifest =
        toml::from_str(&text).with_context(|| format!("{} is no package's", manifest.display()))?;
    Ok(Program {
        package: read.package.name,
        folder: manifest.parent().context("no folder")?.to_owned(),
        file,
    })
}

/// How to run tests: `words` are libtest's arguments.
#[derive(Default)]
struct How<'a> {
    words: &'a [&'a str],
    variables: &'a [(&'a str, &'a str)],
    /// Programs at a time. Each runs as many tests at a time as there are processors, and end-to-end tests wait for half
    /// of their time.
    at_once: usize,
}

/// Runs the tests of the packages that `which` takes, and adds up their results.
fn execute(
    tally: &mut Tally,
    programs: &[Program],
    which: impl Fn(&str) -> bool,
    how: &How,
) -> Result<()> {
    let chosen: Vec<&Program> = programs.iter().filter(|it| which(&it.package)).collect();
    if chosen.is_empty() {
        bail!("there are no tests to run");
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new((tally, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..how.at_once.max(1) {
            scope.spawn(|| {
                while let Some(program) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = outcome(program, how);
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    let (tally, failed) = &mut *results;
                    if !tell(tally, program, ended) {
                        failed.push(program.name());
                    }
                }
            });
        }
    });
    let (_, failed) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    Ok(())
}

fn end_to_end_once(tally: &mut Tally, programs: &[Program], only: Option<&str>) {
    step(
        tally,
        "end to end: real PyTorch, simulated device",
        |tally| match only {
            None => {
                let how = How {
                    at_once: 2,
                    ..How::default()
                };
                execute(tally, programs, |package| package == TESTS, &how)
            }
            Some(word) => end_to_end_with(tally, programs, word),
        },
    );
}

/// Runs the end-to-end tests for the `run`-th time, and tells how this run alone went.
fn end_to_end_again(tally: &mut Tally, programs: &[Program], only: Option<&str>, run: u32) {
    let (began, before) = (Instant::now(), (tally.passed, tally.failed));
    end_to_end_once(tally, programs, only);
    eprintln!(
        "run {run}: {} passed, {} failed, {} s",
        tally.passed - before.0,
        tally.failed - before.1,
        began.elapsed().as_secs()
    );
}

/// Does the work while so many threads compute.
fn beside(threads: usize, work: impl FnOnce()) {
    /// Also where the work panics the threads end, else the scope would wait for them.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work();
    });
}

/// Runs the end-to-end tests whose file or name contains this.
fn end_to_end_with(tally: &mut Tally, programs: &[Program], word: &str) -> Result<()> {
    let (mut failed, before) = (false, tally.passed + tally.failed);
    for program in programs.iter().filter(|program| program.package == TESTS) {
        let words: &[&str] = if program.name().contains(word) {
            &[]
        } else {
            &[word]
        };
        let how = How {
            words,
            ..How::default()
        };
        failed |= !tell(tally, program, outcome(program, &how));
    }
    if tally.passed + tally.failed == before {
        bail!("no end-to-end test has {word} in its file's name or its own");
    }
    if failed {
        bail!("tests failed");
    }
    Ok(())
}

/// Runs one program of tests; what it printed, and how it ended.
fn outcome(program: &Program, how: &How) -> Result<Output> {
    Command::new(&program.file)
        .args(how.words)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("CARGO_PKG_NAME", &program.package)
        .envs(how.variables.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("it could not be started")
}

/// Prints what a program of tests printed and adds up its results; whether all is well.
fn tell(tally: &mut Tally, program: &Program, ended: Result<Output>) -> bool {
    eprintln!("     Ran {}", program.name());
    let output = match ended {
        Ok(output) => output,
        Err(error) => {
            eprintln!("error: {error:#}");
            return false;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let mut well = None;
    for rest in text
        .lines()
        .filter_map(|it| it.strip_prefix("test result: "))
    {
        tally.passed += count(rest, "passed");
        tally.failed += count(rest, "failed");
        well = Some(rest.starts_with("ok"));
    }
    tally.names.extend(failures(&text).map(str::to_owned));
    if !output.status.success() {
        eprintln!("error: {}", output.status);
    }
    output.status.success() && well == Some(true)
}

/// The names of the tests that libtest says have failed.
fn failures(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
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
    use super::{NEEDS_ROOT, Tally, count, failures};
    use crate::process;

    #[test]
    fn the_test_that_needs_root_is_there() {
        let file = process::root().join("crates/log/tests/journal/full_disk.rs");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        assert!(text.contains(&format!("fn {NEEDS_ROOT}(")), "{NEEDS_ROOT}");
    }

    #[test]
    fn who_runs_no_test_fails() {
        let mut tally = Tally::default();
        assert!(tally.judge(None).is_err());
        tally.passed = 1;
        assert!(tally.judge(None).is_ok());
        assert!(tally.judge(Some("no root")).is_err());
        tally.broken.push("format".to_owned());
        assert!(tally.judge(None).is_err());
    }

    #[test]
    fn reads_cargos_result_line() {
        let line = "FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!((count(line, "passed"), count(line, "failed")), (12, 3));
        assert_eq!(count(line, "absent"), 0);
    }

    #[test]
    fn names_what_failed() {
        let text = "test late::one ... ok\ntest late::two ... FAILED\ntest three ... ignored\n";
        assert_eq!(failures(text).collect::<Vec<_>>(), ["late::two"]);
    }
}
