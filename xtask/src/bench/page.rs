//! The page: tables of what was measured, as text for people and as JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::measure::{Ground, median};
use crate::process;

/// From which spread of the reference on the page says that the machine was noisy: the slowest round took so many times what
/// the fastest took.
const NOISY: f64 = 1.25;

/// What was measured, each part when it was measured last.
#[derive(Serialize, Deserialize)]
pub struct Page {
    /// The parts, in the order of the page.
    pub sections: Vec<Section>,
}

/// When and where something was measured.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The machine: processor, number of cores, memory, kernel.
    machine: String,
    /// The commit that was measured.
    commit: String,
    /// The day, in UTC.
    day: String,
    /// How often each thing was measured.
    rounds: u32,
}

/// What one part of the benchmarks measured, as a table with a heading.
#[derive(Serialize, Deserialize)]
pub struct Section {
    /// Its word on the command line.
    pub name: String,
    /// Its heading.
    pub title: String,
    /// The run that measured it. A part has none before the page takes it in.
    pub run: Option<Run>,
    /// How it was measured, and what has to be known to read it.
    pub about: String,
    /// The columns, each with its unit.
    pub columns: Vec<String>,
    /// Whether the other rows are told as multiples of the first one.
    pub has_reference: bool,
    /// What was measured of each thing.
    pub rows: Vec<Row>,
}

/// A row: for each column what each round measured. Nothing was measured where a column has no value.
#[derive(Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The values of each column, one of each round.
    pub columns: Vec<Vec<f64>>,
}

impl Row {
    /// A row without values yet.
    pub fn new(name: impl Into<String>, columns: usize) -> Row {
        Row {
            name: name.into(),
            columns: vec![Vec::new(); columns],
        }
    }
}

/// The least and the most of some values; `None` if there is none.
fn bounds(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, most))
}

/// A number with three digits that count.
pub fn short(value: f64) -> String {
    let decimals = match value.abs() {
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// The median, and in brackets the least and the most where they differ.
fn cell(values: &[f64]) -> String {
    let Some((least, most)) = bounds(values) else {
        return "–".to_owned();
    };
    let (middle, least, most) = (short(median(values)), short(least), short(most));
    match least == most {
        true => middle,
        false => format!("{middle} ({least} to {most})"),
    }
}

/// Each round's value as a multiple of the same round's reference.
fn ratios(values: &[f64], reference: &[f64]) -> Vec<f64> {
    let both = values.iter().zip(reference);
    both.map(|(value, reference)| value / reference).collect()
}

impl Section {
    /// How far the rounds of the reference lie apart, as the slowest by the fastest; the widest of all columns.
    fn spread(&self) -> Option<f64> {
        let reference = self.rows.first().filter(|_| self.has_reference)?;
        let spreads = reference.columns.iter().filter_map(|of| bounds(of));
        let spreads = spreads.map(|(least, most)| most / least);
        spreads.max_by(f64::total_cmp)
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.about);
        let heads: Vec<String> = match self.has_reference {
            true => {
                let heads = self.columns.iter();
                heads.map(|head| format!("{head} | ratio")).collect()
            }
            false => self.columns.clone(),
        };
        let width = self.columns.len() * if self.has_reference { 2 } else { 1 };
        let _ = writeln!(text, "| what | {} |", heads.join(" | "));
        let _ = writeln!(text, "|---{}|", "|---".repeat(width));
        let reference = self.rows.first().map(|row| row.columns.as_slice());
        for row in &self.rows {
            let cells = row.columns.iter().enumerate().map(|(at, values)| {
                let reference = reference.and_then(|columns| columns.get(at));
                match reference.filter(|_| self.has_reference) {
                    Some(reference) => {
                        let ratio = cell(&ratios(values, reference));
                        format!("{} | {ratio}", cell(values))
                    }
                    None => cell(values),
                }
            });
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
        }
        if let Some(spread) = self.spread().filter(|spread| *spread > NOISY) {
            let _ = writeln!(
                text,
                "\nThe machine was noisy: the slowest round of the first row took {spread:.2} times what the fastest took. Each ratio is that of \
                 one round to the first row of the same round; what is in brackets says how far they lie apart."
            );
        }
        text
    }
}

impl Run {
    /// The run that is going on.
    pub fn new(ground: &Ground<'_>) -> Result<Run> {
        let git = |words: &[&str]| {
            let mut git = Command::new("git");
            process::output(git.args(words).current_dir(process::root()))
        };
        let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        let commit = git(&["rev-parse", "--short", "HEAD"])?.trim().to_owned();
        let day = process::output(Command::new("date").args(["-u", "+%F"]))?;
        Ok(Run {
            machine: machine()?,
            commit: match changed {
                true => format!("{commit} with changes"),
                false => commit,
            },
            day: day.trim().to_owned(),
            rounds: ground.options.rounds,
        })
    }

    fn words(&self) -> String {
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        format!("Commit {}, {}, {rounds} in turn.", self.commit, self.day)
    }
}

impl Page {
    /// The page that is in docs/.
    pub fn read() -> Result<Page> {
        let file = process::root().join("docs/benchmarks.json");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no page of benchmarks", file.display()))
    }

    /// Takes in a part, in place of what an earlier run measured.
    pub fn put(&mut self, run: &Run, mut section: Section) {
        section.run = Some(run.clone());
        let known = self.sections.iter_mut();
        match known.into_iter().find(|one| one.name == section.name) {
            Some(known) => *known = section,
            None => self.sections.push(section),
        }
    }

    /// What the rounds measured, by part, row and column.
    pub fn values(&self, part: &str, row: &str, column: &str) -> Option<&[f64]> {
        let section = self.sections.iter().find(|one| one.name == part)?;
        let at = section.columns.iter().position(|one| one == column)?;
        let row = section.rows.iter().find(|one| one.name == row)?;
        row.columns.get(at).map(Vec::as_slice)
    }

    /// The page as text. `first` stands before the parts.
    pub fn markdown(&self, first: &str) -> String {
        let mut text = "# Benchmarks\n\nWritten by `cargo xtask bench`; what each round measured is in [benchmarks.json](benchmarks.json).\n\n\
             Each number is the median of the rounds; in brackets are the least and the most where they differ. What is compared was\n\
             measured in turn in the same round, and a ratio is the median of the rounds' ratios: trust the ratios, not the numbers of a machine that\n\
             is not yours. The programs are built as users get them (`cargo xtask dist`), and so is what measures parts of them. `cargo xtask bench --only PART\n\
             --write` measures a part again, and `--against COMMIT` measures the programs of another commit beside these.\n"
            .to_owned();
        let runs = || self.sections.iter().filter_map(|one| one.run.as_ref());
        let machines: BTreeSet<&str> = runs().map(|run| run.machine.as_str()).collect();
        let is_one = machines.len() == 1;
        for machine in &machines {
            let _ = write!(text, "\nThe machine: {machine}.\n");
        }
        if machines.len() > 1 {
            text.push_str("\nBeneath each part stands which of these it was measured on; their times cannot be compared.\n");
        }
        text.push_str(first);
        for section in &self.sections {
            let run = section.run.as_ref();
            let mut run_words = run.map(Run::words).unwrap_or_default();
            if let Some(run) = run.filter(|_| !is_one) {
                let _ = write!(run_words, " Machine: {}.", run.machine);
            }
            let _ = write!(
                text,
                "\n{}\n`cargo xtask bench --only {}`. {run_words}\n",
                section.markdown(),
                section.name,
            );
        }
        text
    }

    /// What became of each number since another commit: the rows of its programs beside those of this tree's.
    pub fn comparison(&self) -> String {
        let mut text =
            "| what | column | now | then | now / then |\n|---|---|---|---|---|\n".to_owned();
        for section in &self.sections {
            for row in &section.rows {
                let then = section.rows.iter().find(|other| {
                    let rest = other.name.strip_prefix(row.name.as_str());
                    rest.is_some_and(|rest| rest.starts_with(" ("))
                });
                let Some(then) = then else { continue };
                for ((head, now), then) in
                    section.columns.iter().zip(&row.columns).zip(&then.columns)
                {
                    let _ = writeln!(
                        text,
                        "| {}: {} | {head} | {} | {} | {} |",
                        section.name,
                        row.name,
                        cell(now),
                        cell(then),
                        cell(&ratios(now, then))
                    );
                }
            }
        }
        text
    }

    /// Writes the page and its numbers into docs/. `first` stands before the parts, `last` behind them.
    pub fn write(&self, first: &str, last: &str) -> Result<()> {
        let docs = process::root().join("docs");
        let numbers = serde_json::to_string_pretty(self)? + "\n";
        let text = self.markdown(first) + last;
        for (file, text) in [("benchmarks.md", text), ("benchmarks.json", numbers)] {
            let file = docs.join(file);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("bench: wrote {}", file.display());
        }
        Ok(())
    }
}

/// The machine in words.
fn machine() -> Result<String> {
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let names = processors.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let names: Vec<String> = names.collect();
    let name = names
        .first()
        .cloned()
        .unwrap_or_else(|| "a processor without a name".to_owned());
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib = memory.lines().find_map(|line| {
        let rest = line.strip_prefix("MemTotal:")?;
        rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let gib = kib.context("no total in /proc/meminfo")? >> 20;
    let guest = match processors.contains("hypervisor") {
        true => ", a virtual machine",
        false => "",
    };
    Ok(format!(
        "{name}, {cores} cores, {gib} GiB, kernel {}{guest}",
        kernel.trim()
    ))
}
