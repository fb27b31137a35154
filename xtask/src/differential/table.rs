//! The table of results of all programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::judgement::{Counts, Judgement, When};
use super::program::Program;

/// A row: a version of PyTorch, a kind of daemon and a level.
type Row = (String, String, String);

/// The results of one row.
#[derive(Default)]
struct Sum {
    seeds: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    counts: Counts,
}

/// The results of all programs.
#[derive(Default)]
pub struct Table {
    rows: BTreeMap<Row, Sum>,
    differing: BTreeMap<String, u64>,
    details: String,
}

impl Table {
    /// Adds a judgement on a program. There are several if its moments were asked about later, too.
    pub fn add(&mut self, torch: &str, program: &Program, judgement: &Judgement) {
        let row = (
            torch.to_owned(),
            program.daemon.name.clone(),
            program.level.clone(),
        );
        let sum = self.rows.entry(row).or_default();
        sum.seeds.insert(program.seed);
        sum.counts.add(&judgement.counts);
        if !judgement.is_right() {
            sum.failed.insert(program.seed);
            for (key, count) in &judgement.differing {
                *self.differing.entry(key.clone()).or_default() += count;
            }
        }
    }

    /// Adds a text about a failure, which is also printed at once.
    pub fn detail(&mut self, text: &str) {
        eprint!("{text}");
        self.details.push_str(text);
    }

    /// Number of programs that failed.
    pub fn failed(&self) -> usize {
        self.rows.values().map(|sum| sum.failed.len()).sum()
    }

    /// Number of programs that passed.
    pub fn passed(&self) -> usize {
        let all: usize = self.rows.values().map(|sum| sum.seeds.len()).sum();
        all - self.failed()
    }

    /// The table and all details as Markdown, with the count at the end.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| torch | daemon | level | seeds | failed | live | past | recorded | refused | said unknown | segments | \
             blocks | trace entries | values compared | of them stacks | statistics |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut all = Sum::default();
        let (mut seeds, mut failed) = (0, 0);
        for ((torch, daemon, level), sum) in &self.rows {
            row(
                &mut text,
                &[torch, daemon, level],
                sum.seeds.len(),
                sum.failed.len(),
                &sum.counts,
            );
            seeds += sum.seeds.len();
            failed += sum.failed.len();
            all.counts.add(&sum.counts);
        }
        row(&mut text, &["all", "", ""], seeds, failed, &all.counts);
        if self.differing.is_empty() {
            text.push_str("\nkeys that differ: none\n");
        } else {
            text.push_str("\nkeys that differ:\n");
            for (key, count) in &self.differing {
                let _ = writeln!(text, "  {key}: {count}");
            }
        }
        text.push_str(&self.details);
        let _ = writeln!(text, "\n{} passed, {} failed", self.passed(), self.failed());
        text
    }
}

fn row(text: &mut String, names: &[&str; 3], seeds: usize, failed: usize, counts: &Counts) {
    let of = |when| counts.compared.get(&when).copied().unwrap_or_default();
    let numbers = [
        seeds as u64,
        failed as u64,
        of(When::Live),
        of(When::Past),
        of(When::Recorded),
        counts.refused,
        counts.unknown,
    ];
    let numbers = numbers.iter().chain(&counts.sums).map(u64::to_string);
    let cells: Vec<String> = names
        .iter()
        .map(|name| (*name).to_owned())
        .chain(numbers)
        .collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
