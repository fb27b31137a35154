//! `cargo xtask fuzz`: looks for inputs that make a reader of foreign bytes panic, hang or take too much memory.
//!
//! libFuzzer drives the program of the crate `fuzz`, which is built with counters at each branch: an input that reaches a new
//! one is kept and changed further. The counters are a pass of the stable compiler. libFuzzer itself comes as sources with
//! the crate `libfuzzer-sys`, so nothing has to be installed but a C++ compiler.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process;

/// Where the counters come from: the pass, and what it counts.
const COUNTERS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Most seconds that one input may take. An input that takes longer is a finding.
const INPUT_SECONDS: u32 = 10;
/// Most bytes of the inputs that are kept of one target, beside those that were findings: they are part of the repository.
const KEPT_BYTES: u64 = 6 << 10;
/// Largest number of these inputs.
const KEPT: usize = 60;

/// What to try, and for how long.
#[derive(Args, Clone)]
pub struct Options {
    /// This target only, by the name of its folder in fuzz/corpus; may be given again
    #[arg(long, value_name = "TARGET")]
    pub only: Vec<String>,

    /// How long each target is tried
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,

    /// Keep the smallest inputs of what was found to reach something new in fuzz/corpus, at most 6 KiB of each target
    #[arg(long)]
    pub keep: bool,
}

/// What came of one target.
struct Came {
    seconds: String,
    executed: String,
    edges: String,
    inputs: String,
    /// Files with the inputs that are findings.
    found: Vec<PathBuf>,
}

/// Runs the task. The table goes to standard output as Markdown.
pub fn run(options: &Options) -> Result<()> {
    let corpus = process::root().join("fuzz/corpus");
    let mut targets = names(&corpus)?;
    if let Some(unknown) = options.only.iter().find(|name| !targets.contains(name)) {
        bail!(
            "there is no target {unknown}: there are {}",
            targets.join(", ")
        );
    }
    targets.retain(|name| options.only.is_empty() || options.only.contains(name));
    let program = build()?;
    println!(
        "| target | seconds | inputs tried | branches reached | inputs that reach all of them | findings |"
    );
    println!("|---|---|---|---|---|---|");
    let mut found = Vec::new();
    for name in &targets {
        let came = search(&program, &corpus.join(name), name, options)?;
        println!(
            "| {name} | {} | {} | {} | {} | {} |",
            came.seconds,
            came.executed,
            came.edges,
            came.inputs,
            came.found.len()
        );
        found.extend(came.found.into_iter().map(|file| (name, file)));
    }
    if !found.is_empty() {
        let again = |(name, file): &(&String, PathBuf)| {
            format!(
                "MEMSCOPE_FUZZ_TARGET={name} {} {}",
                program.display(),
                file.display()
            )
        };
        let lines: Vec<String> = found.iter().map(again).collect();
        bail!(
            "{} findings; each happens again with:\n  {}\nMend the code, and keep the input in fuzz/corpus under a name that says what it shows",
            found.len(),
            lines.join("\n  ")
        );
    }
    Ok(())
}

/// Names of the folders in a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the program with counters, in a folder of its own, because these flags build everything anew.
fn build() -> Result<PathBuf> {
    let target = process::target().join("fuzz");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    process::run(
        process::command("cargo")
            .args([
                "build",
                "--locked",
                "-p",
                "memscope-fuzz",
                "--features",
                "engine",
            ])
            // With a target, build scripts are built without counters.
            .args(["--profile", "fuzz", "--target", &triple, "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", COUNTERS.join(" ")),
    )?;
    Ok(target.join(triple).join("fuzz/fuzz"))
}

/// Tries one target.
fn search(program: &Path, kept: &Path, name: &str, options: &Options) -> Result<Came> {
    let work = process::target().join("fuzz/work").join(name);
    let (reached, seeds, found) = (work.join("reached"), work.join("seeds"), work.join("found"));
    if found.exists() {
        // What an earlier run found may be mended by now.
        fs::remove_dir_all(&found).with_context(|| format!("cannot clear {}", found.display()))?;
    }
    for folder in [&reached, &seeds, &found] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log = work.join("log");
    let mut command = Command::new(program);
    command
        .env("MEMSCOPE_FUZZ_TARGET", name)
        .env("MEMSCOPE_FUZZ_SEEDS", &seeds)
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(["-print_final_stats=1", "-reload=0", "-rss_limit_mb=4096"])
        .args([&reached, kept, &seeds])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(File::create(&log).with_context(|| format!("cannot write {}", log.display()))?);
    eprintln!(
        "{name}: {} seconds; what libFuzzer says is in {}",
        options.seconds,
        log.display()
    );
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let said =
        fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let found = files(&found)?;
    if !status.success() && found.is_empty() {
        bail!(
            "{name}: libFuzzer ended with {status}; see {}",
            log.display()
        );
    }
    if options.keep && found.is_empty() {
        keep(program, kept, &work, name)?;
    }
    // The last line with numbers, such as `#54188 DONE cov: 1672 ft: 5046 corp: 693/212Kb exec/s: 2579 rss: 84Mb`.
    let last = said
        .lines()
        .rev()
        .find(|line| line.starts_with('#') && line.contains(" cov: "));
    let after = |word: &str| {
        let mut words = last.unwrap_or_default().split_whitespace();
        words.find(|found| *found == word)?;
        words
            .next()
            .map(|number| number.split('/').next().unwrap_or(number).to_owned())
    };
    let executed = last.and_then(|line| line.split_whitespace().next());
    Ok(Came {
        seconds: options.seconds.to_string(),
        executed: executed
            .map_or("unknown", |word| word.trim_start_matches('#'))
            .to_owned(),
        edges: after("cov:").unwrap_or_else(|| "unknown".to_owned()),
        inputs: after("corp:").unwrap_or_else(|| "unknown".to_owned()),
        found,
    })
}

/// The files in a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = list
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Keeps the smallest of the inputs that together reach everything, beside those whose names say what they show.
fn keep(program: &Path, kept: &Path, work: &Path, name: &str) -> Result<()> {
    let least = work.join("least");
    if least.exists() {
        fs::remove_dir_all(&least)?;
    }
    fs::create_dir(&least)?;
    let log = work.join("log-least");
    let status = Command::new(program)
        .env("MEMSCOPE_FUZZ_TARGET", name)
        .args(["-set_cover_merge=1", "-rss_limit_mb=4096"])
        .args([&least, &work.join("reached"), &kept.to_owned()])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(File::create(&log)?)
        .status()?;
    if !status.success() {
        bail!(
            "{name}: the inputs cannot be reduced: {status}; see {}",
            log.display()
        );
    }
    for file in files(kept)?.iter().filter(|file| is_kept(file)) {
        fs::remove_file(file)?;
    }
    let mut all = Vec::new();
    for file in files(&least)? {
        all.push((file.metadata()?.len(), file));
    }
    all.sort();
    let mut bytes = 0;
    for (number, (len, file)) in all.iter().take(KEPT).enumerate() {
        bytes += len;
        if bytes > KEPT_BYTES {
            break;
        }
        fs::copy(file, kept.join(format!("kept-{number:03}")))?;
    }
    Ok(())
}

/// Whether a file is one that [`keep`] has written.
fn is_kept(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("kept-")
}
