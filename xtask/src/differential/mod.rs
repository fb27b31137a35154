//! `cargo xtask differential`: plays random programs over PyTorch's allocator, and compares memscope's answers about
//! random moments with PyTorch's own recorder and statistics.
//!
//! `xtask/differential/generate.py` makes a program from a seed: tensors, threads, streams, private pools, graphs, out
//! of memory, settings, a daemon that is stopped for a while, and the moments at which both are asked. `player.py`
//! plays
//! it in a process with real PyTorch on the simulated device, `judge.py` compares. Several programs are played in one
//! process; memscope attaches and detaches for each. A program that fails is made smaller and kept.

mod bench;
mod judgement;
mod partner;
mod program;
mod shrink;
mod table;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use crate::setup::{self, torch};
use crate::verdicts::seeds::Seeds;
use crate::{live, process};
use bench::{Bench, Setting};
use judgement::Judgement;
use program::Program;
use table::Table;

/// Number of programs that are played with one daemon and in one process.
const TOGETHER: usize = 20;

/// What to play.
#[derive(Args, Clone)]
pub struct Options {
    /// Seeds of the programs, first and last: 1..2000; may be given again
    #[arg(long, value_name = "A..B", required_unless_present = "program")]
    pub seeds: Vec<Seeds>,

    /// Of these only this one
    #[arg(long, value_name = "N", requires = "seeds")]
    pub only_seed: Option<u64>,

    /// A program that was kept; may be given again
    #[arg(long, value_name = "FILE.json", conflicts_with = "seeds")]
    pub program: Vec<PathBuf>,

    /// With these pinned versions of PyTorch [default: $MEMSCOPE_TORCH_VENV, or the pinned default]
    #[arg(long, value_name = "VERSION", num_args = 1..)]
    pub torch: Vec<String>,

    /// Leave out elements, environments or kinds of daemon by their names in generate.py, such as rotation, overflow, graph
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub without: Vec<String>,

    /// Where programs that fail are kept [default: target/differential]
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,

    /// How often a failing program may be played to make it smaller; 0 keeps it as it is
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub tries: u32,

    /// End after so many failing programs
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub stop_after: usize,

    /// How many processes are played with at the same time, each with a daemon of its own [default: one for each core]
    #[arg(long, value_name = "N")]
    pub jobs: Option<std::num::NonZeroUsize>,

    /// Change a number in each snapshot before it is compared: every program must fail
    #[arg(long)]
    pub plant: bool,
}

/// An installed PyTorch.
struct Installation {
    version: String,
    folder: PathBuf,
}

/// Runs the task. The table goes to standard output as Markdown and ends with the count.
pub fn run(options: &Options) -> Result<()> {
    let mut programs = Vec::new();
    for file in &options.program {
        programs.push(Program::read(file)?);
    }
    for seeds in &options.seeds {
        let (first, last) = seeds.ends();
        programs.extend(program::generate(first, last, &options.without)?);
    }
    programs.retain(|program| options.only_seed.is_none_or(|seed| program.seed == seed));
    if programs.is_empty() {
        bail!("there is no such seed among those that are given");
    }
    let keep = match &options.keep {
        Some(folder) => folder.clone(),
        None => process::target().join("differential"),
    };
    let installations = installations(&options.torch)?;
    let folder = live::build(live::Build::Checked)?;
    let jobs = match options.jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let table = Mutex::new(Table::default());
    let groups = program::grouped(programs);
    let portions: Vec<&[Program]> = groups
        .iter()
        .flat_map(|group| group.chunks(TOGETHER))
        .collect();
    let mut runs = Vec::new();
    for installation in &installations {
        // The simulated device is built here, because several threads would otherwise build it at once.
        if let Some(portion) = portions.first() {
            portion[0].environment.variables(&installation.folder)?;
        }
        runs.push(Run {
            setting: Setting {
                installation: installation.folder.clone(),
                programs: folder.clone(),
                plant: options.plant,
            },
            torch: &installation.version,
            options,
            keep: &keep,
            table: &table,
        });
    }
    let all: Vec<(&Run, &[Program])> = runs
        .iter()
        .flat_map(|run| portions.iter().map(move |portion| (run, *portion)))
        .collect();
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(all.len()) {
            scope.spawn(|| {
                while let Some((run, portion)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if run.table().failed() >= options.stop_after {
                        return;
                    }
                    run.portion(portion);
                }
            });
        }
    });
    let mut table = table.into_inner().unwrap_or_else(PoisonError::into_inner);
    if table.failed() >= options.stop_after {
        table.detail("\nended after so many failures: --stop-after\n");
    }
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "{} programs in {seconds:.0} s with --jobs {jobs}: {:.1} a minute",
        table.passed() + table.failed(),
        (table.passed() + table.failed()) as f64 * 60.0 / seconds
    );
    print!("{}", table.markdown());
    if table.failed() > 0 || table.passed() == 0 {
        bail!("memscope and PyTorch do not agree everywhere");
    }
    Ok(())
}

fn installations(versions: &[String]) -> Result<Vec<Installation>> {
    if versions.is_empty() {
        let folder = torch::locate(None)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        return Ok(vec![Installation {
            version: name.trim_start_matches("torch-").to_owned(),
            folder: folder.clone(),
        }]);
    }
    setup::run(&setup::Options {
        torch: Some(versions.to_vec()),
        ..setup::Options::default()
    })?;
    let pins = torch::pins()?;
    versions
        .iter()
        .map(|version| {
            Ok(Installation {
                folder: pins.get(Some(version))?.folder(),
                version: version.clone(),
            })
        })
        .collect()
}

/// What is needed to play programs with one PyTorch.
struct Run<'a> {
    setting: Setting,
    torch: &'a str,
    options: &'a Options,
    keep: &'a Path,
    table: &'a Mutex<Table>,
}

impl Run<'_> {
    /// The table to which all runs add.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plays programs of one group, with one daemon and in one process unless something breaks.
    fn portion(&self, programs: &[Program]) {
        let mut bench = None;
        let mut failed: Vec<(&Program, Judgement)> = Vec::new();
        for program in programs {
            let judgement = match played(&self.setting, &mut bench, program) {
                Ok(judgement) => judgement,
                Err(error) => {
                    // The daemon and the processes cannot be trusted with the next program.
                    bench = None;
                    Judgement::broken(&error)
                }
            };
            self.table().add(self.torch, program, &judgement);
            if !judgement.is_right() {
                failed.push((program, judgement));
            }
        }
        if let Some(bench) = &mut bench {
            for (seed, judgement) in recorded(bench) {
                // If the recording as a whole cannot be asked, the error is reported for the last program.
                let program = programs.iter().find(|program| Some(program.seed) == seed);
                let Some(program) = program.or(programs.last()) else {
                    continue;
                };
                self.table().add(self.torch, program, &judgement);
                if !judgement.is_right() {
                    match failed
                        .iter_mut()
                        .find(|(other, _)| other.seed == program.seed)
                    {
                        Some((_, before)) => before.add(judgement),
                        None => failed.push((program, judgement)),
                    }
                }
            }
        }
        drop(bench);
        for (program, judgement) in failed {
            let text = self.kept(program, &judgement);
            self.table().detail(&text);
        }
        if let (Some(first), Some(last)) = (programs.first(), programs.last()) {
            let table = self.table();
            eprintln!(
                "torch {}, {}, {}: seeds {} to {}: {} passed, {} failed so far",
                self.torch,
                first.environment.name,
                first.daemon.name,
                first.seed,
                last.seed,
                table.passed(),
                table.failed()
            );
        }
    }

    /// Makes a failing program smaller, keeps it, and returns a text that says how to run it again.
    fn kept(&self, program: &Program, judgement: &Judgement) -> String {
        let mut bench = None;
        let mut last = judgement.clone();
        let mut fails = |candidate: &Program, fresh: bool| {
            if fresh {
                bench = None;
            }
            let found = alone(&self.setting, &mut bench, candidate);
            let same = found.fails_as(judgement);
            if same {
                last = found;
            }
            same
        };
        let (smallest, how) = if self.options.tries == 0 {
            (program.clone(), "as it was made".to_owned())
        } else if fails(program, true) {
            // Some programs fail only as the first one of a process. Then each try gets a new process.
            let fresh = !fails(program, false);
            let smallest = shrink::shrink(program, self.options.tries, |candidate| {
                fails(candidate, fresh)
            });
            let how = format!(
                "{} of {} elements are left",
                smallest.elements.len(),
                program.elements.len()
            );
            (smallest, how)
        } else {
            let how = "by itself it passes: it fails after those before it, or sometimes";
            (program.clone(), how.to_owned())
        };
        let file = self
            .keep
            .join(format!("torch-{}-seed-{}.json", self.torch, program.seed));
        let again = format!("cargo xtask differential --program {}", file.display());
        let written = keep(&file, &smallest, &last, &again, self.torch);
        let mut text = format!(
            "\nseed {} with torch {} ({}, {}, level {}, stacks {}): {how}\n",
            program.seed,
            self.torch,
            program.environment.name,
            program.daemon.name,
            program.level,
            program.stacks
        );
        for line in last.differences.iter().take(8) {
            text.push_str(&format!("  {line}\n"));
        }
        match written {
            Ok(()) => text.push_str(&format!("  again: {again}\n")),
            Err(error) => text.push_str(&format!("  it could not be kept: {error:#}\n")),
        }
        text
    }
}

/// Plays a program with the bench that exists, or starts one for it.
fn played(setting: &Setting, bench: &mut Option<Bench>, program: &Program) -> Result<Judgement> {
    let bench = match bench {
        Some(bench) => bench,
        None => bench.insert(Bench::start(setting, program)?),
    };
    bench.play(program)
}

/// Asks the recording about all programs that were played; returns the judgements by seed.
fn recorded(bench: &mut Bench) -> Vec<(Option<u64>, Judgement)> {
    match bench.recorded() {
        Ok(found) => found
            .into_iter()
            .map(|(seed, judgement)| (Some(seed), judgement))
            .collect(),
        Err(error) => vec![(None, Judgement::broken(&error))],
    }
}

/// Plays one program and asks its recording.
fn alone(setting: &Setting, bench: &mut Option<Bench>, program: &Program) -> Judgement {
    let mut judgement = match played(setting, bench, program) {
        Ok(judgement) => judgement,
        Err(error) => {
            *bench = None;
            return Judgement::broken(&error);
        }
    };
    if let Some(bench) = bench {
        for (_, more) in recorded(bench) {
            judgement.add(more);
        }
    }
    judgement
}

/// Writes a program to a file, together with what differed and how to run it again.
fn keep(file: &Path, program: &Program, found: &Judgement, again: &str, torch: &str) -> Result<()> {
    let folder = file.parent().context("a file has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut document = serde_json::to_value(program)?;
    document["again"] = json!(again);
    document["torch"] = json!(torch);
    document["differing"] = json!(found.differing);
    document["differences"] = json!(found.differences);
    std::fs::write(file, format!("{document:#}\n"))
        .with_context(|| format!("cannot write {}", file.display()))
}
