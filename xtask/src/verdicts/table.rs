//! The table of the runs and their judgements, and the totals.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::judge::Judgement;
use super::mode::Mode;
use super::session::Outcome;

/// One run that was judged: a row of the table.
#[derive(Debug, Serialize)]
struct Run {
    workload: String,
    mode: &'static str,
    #[serde(flatten)]
    judgement: Judgement,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Table {
    runs: Vec<Run>,
    /// Runs that failed: workload and mode, and the error.
    broken: Vec<(String, String)>,
    lacking: Vec<(String, String)>,
}

/// Numbers of runs by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    /// Leaks that were found.
    found: u64,
    /// Leaks that were not found.
    missed: u64,
    /// Runs, leaking or clean, in which something was accused wrongly.
    accused_wrongly: u64,
    /// Clean runs in which nothing was said to grow.
    left_alone: u64,
}

impl Counts {
    /// Share of the accusations that are right; `None` if nothing was accused.
    fn precision(&self) -> Option<f64> {
        share(self.found, self.accused_wrongly)
    }

    /// Share of the leaks that were found; `None` if nothing leaks.
    fn recall(&self) -> Option<f64> {
        share(self.found, self.missed)
    }

    fn text(&self) -> String {
        let shown =
            |share: Option<f64>| share.map_or("–".to_owned(), |share| format!("{share:.3}"));
        format!(
            "precision {} ({} found, {} accused wrongly), recall {} ({} missed), {} clean left alone",
            shown(self.precision()),
            self.found,
            self.accused_wrongly,
            shown(self.recall()),
            self.missed,
            self.left_alone
        )
    }
}

fn share(part: u64, rest: u64) -> Option<f64> {
    let all = part + rest;
    (all > 0).then(|| part as f64 / all as f64)
}

/// The word in the table for the result of a run.
fn word(judgement: &Judgement) -> &'static str {
    if judgement.unasked {
        return "NOT ASKED";
    }
    match (judgement.leaks, judgement.found, judgement.accused_wrongly) {
        (true, true, false) => "found",
        (true, true, true) => "FOUND, AND MORE",
        (true, false, true) => "MISSED, ACCUSED WRONGLY",
        (true, false, false) => "MISSED",
        (false, _, true) => "ACCUSED WRONGLY",
        (false, _, false) => "left alone",
    }
}

impl Table {
    /// Adds a run, and prints it on standard error as well, because a whole table takes minutes.
    pub fn add(&mut self, workload: &str, mode: Mode, outcome: anyhow::Result<Outcome>) {
        let name = || format!("{workload}, {}", mode.word());
        match outcome {
            Ok(Outcome::Judged(judgement)) => {
                let run = Run {
                    workload: workload.to_owned(),
                    mode: mode.word(),
                    judgement,
                };
                eprintln!("{}", row(&run));
                for wrong in &run.judgement.wrong {
                    eprintln!("    {wrong}");
                }
                self.runs.push(run);
            }
            Ok(Outcome::Lacking(what)) => {
                eprintln!("{}: not here: {what}", name());
                self.lacking.push((name(), what));
            }
            Err(error) => {
                eprintln!("{}: FAILED: {error:#}", name());
                self.broken.push((name(), format!("{error:#}")));
            }
        }
    }

    /// Counts the runs by their result. Without `with_line`, only the verdict counts, and the lines may be wrong.
    fn counts(&self, with_line: bool) -> Counts {
        let mut counts = Counts::default();
        for Run { judgement, .. } in &self.runs {
            let (found, accused) = if with_line {
                (judgement.found, judgement.accused_wrongly)
            } else {
                let accused = !judgement.leaks && judgement.accused_wrongly;
                (judgement.leaks && judgement.said_at_end, accused)
            };
            match (judgement.leaks, found) {
                (true, true) => counts.found += 1,
                (true, false) => counts.missed += 1,
                (false, _) => counts.left_alone += u64::from(!accused && !judgement.unasked),
            }
            counts.accused_wrongly += u64::from(accused);
        }
        counts
    }

    /// Number of runs that failed or whose verdict or steps are wrong.
    pub fn failed(&self) -> usize {
        let wrong = |run: &&Run| {
            let judgement = &run.judgement;
            judgement.unasked
                || judgement.accused_wrongly
                || judgement.leaks != judgement.found
                || judgement.steps_right == Some(false)
                || judgement.holder_right == Some(false)
        };
        self.runs.iter().filter(wrong).count() + self.broken.len()
    }

    /// Whether no run was judged.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The whole table and the totals as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| workload | mode | truth | verdict at the end | first said after step | confidence | line | line right | held by | holder right | \
             steps counted/own | source | steps right | judged |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for run in &self.runs {
            let _ = writeln!(text, "{}", row(run));
        }
        let _ = writeln!(text, "\nWith the line: {}.", self.counts(true).text());
        let _ = writeln!(text, "By the verdict alone: {}.", self.counts(false).text());
        let stepped: Vec<bool> = self
            .runs
            .iter()
            .filter_map(|run| run.judgement.steps_right)
            .collect();
        let _ = writeln!(
            text,
            "Steps: counted right in {} of {} runs whose answer speaks of them.",
            stepped.iter().filter(|right| **right).count(),
            stepped.len()
        );
        let held: Vec<bool> = self
            .runs
            .iter()
            .filter_map(|run| run.judgement.holder_right)
            .collect();
        let _ = writeln!(
            text,
            "Holders: named right, with their length, in {} of {} runs whose script says what holds what leaks.",
            held.iter().filter(|right| **right).count(),
            held.len()
        );
        let mut details = String::new();
        for run in &self.runs {
            for wrong in &run.judgement.wrong {
                let _ = writeln!(details, "* {}, {}: {wrong}", run.workload, run.mode);
            }
        }
        for (name, why) in &self.broken {
            let _ = writeln!(details, "* {name}: FAILED: {}", why.replace('\n', "\n  "));
        }
        for (name, what) in &self.lacking {
            let _ = writeln!(details, "* {name}: not here: {what}");
        }
        if !details.is_empty() {
            let _ = write!(text, "\n{details}");
        }
        text
    }

    /// The runs and the totals as JSON.
    pub fn json(&self) -> Value {
        let sums = |with_line| {
            let counts = self.counts(with_line);
            json!({"counts": counts, "precision": counts.precision(), "recall": counts.recall()})
        };
        json!({
            "runs": self.runs,
            "with_line": sums(true),
            "verdict_alone": sums(false),
            "failed": self.broken,
            "lacking": self.lacking,
        })
    }
}

fn row(run: &Run) -> String {
    let judgement = &run.judgement;
    let number = |value: Option<u64>| value.map_or("–".to_owned(), |value| value.to_string());
    let yes = |value: Option<bool>| match value {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "–",
    };
    let lines = if judgement.lines.is_empty() {
        "–".to_owned()
    } else {
        judgement.lines.join("; ")
    };
    let steps = match judgement.source {
        Some(_) => format!(
            "{}/{}",
            number(judgement.steps_counted),
            judgement.steps_own
        ),
        None => format!("–/{}", judgement.steps_own),
    };
    format!(
        "| {} | {} | {} | {} | {} | {} | {lines} | {} | {} | {} | {steps} | {} | {} | {} |",
        run.workload,
        run.mode,
        if judgement.leaks { "leak" } else { "clean" },
        if judgement.said_at_end {
            "growing"
        } else {
            "not growing"
        },
        number(judgement.first_said_step),
        judgement
            .confidence
            .map_or("–".to_owned(), |value| format!("{value:.2}")),
        yes(judgement.line_right),
        judgement.holder.as_deref().unwrap_or("–"),
        yes(judgement.holder_right),
        judgement.source.as_deref().unwrap_or("–"),
        yes(judgement.steps_right),
        word(judgement)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::answer::Answer;
    use crate::verdicts::judge::{Truth, judge, together};

    fn judged(leaks: bool, found: bool, accused_wrongly: bool) -> anyhow::Result<Outcome> {
        Ok(Outcome::Judged(Judgement {
            leaks,
            found,
            accused_wrongly,
            said_at_end: found || accused_wrongly,
            ..Judgement::default()
        }))
    }

    #[test]
    fn what_runs_come_to() {
        let mut table = Table::default();
        table.add("a", Mode::Late, judged(true, true, false));
        table.add("b", Mode::Late, judged(true, false, false));
        table.add("c", Mode::Late, judged(true, false, true));
        table.add("d", Mode::Late, judged(false, false, true));
        table.add("e", Mode::Late, judged(false, false, false));
        let counts = table.counts(true);
        assert_eq!(
            counts,
            Counts {
                found: 1,
                missed: 2,
                accused_wrongly: 2,
                left_alone: 1
            }
        );
        assert_eq!(counts.precision(), Some(1.0 / 3.0));
        assert_eq!(counts.recall(), Some(1.0 / 3.0));
        // A leak with a wrong line is found by the verdict alone.
        let alone = table.counts(false);
        assert_eq!(
            (alone.found, alone.missed, alone.accused_wrongly),
            (2, 1, 1)
        );
        assert_eq!(table.failed(), 3);
        let text = table.markdown();
        assert!(
            text.contains("precision 0.333 (1 found, 2 accused wrongly)"),
            "{text}"
        );
        assert_eq!(table.json()["with_line"]["counts"]["missed"], 2);
    }

    #[test]
    fn a_run_about_which_nothing_was_asked_fails() {
        let truth = Truth {
            script: "clean.py",
            leak: None,
            sources: &[],
        };
        let judgement = together(vec![(0, judge(truth, &[], &Answer::default()))]);
        let mut table = Table::default();
        table.add("a", Mode::Late, Ok(Outcome::Judged(judgement)));
        assert_eq!(table.failed(), 1);
        assert_eq!(table.counts(true).left_alone, 0);
        assert!(table.markdown().contains("NOT ASKED"));
    }

    #[test]
    fn a_broken_run_fails_and_nothing_is_no_precision() {
        let mut table = Table::default();
        assert!(table.is_empty());
        assert_eq!(table.counts(true).precision(), None);
        table.add("a", Mode::FromStart, Err(anyhow::anyhow!("no device")));
        assert_eq!(table.failed(), 1);
        assert!(
            table
                .markdown()
                .contains("a, from-start: FAILED: no device")
        );
    }
}
