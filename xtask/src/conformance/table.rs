//! The table of comparisons.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::installation::Installation;
use super::mode::Mode;
use super::session::Report;

/// Result of one comparison, or why there is none.
pub enum Verdict {
    /// The comparison was made.
    Compared(Report),
    /// The comparison is impossible with this PyTorch, which lacks this feature.
    Lacking(String),
    /// The comparison failed with this error.
    Broken(String),
}

/// The results of all comparisons.
#[derive(Default)]
pub struct Table {
    rows: String,
    details: String,
    /// For each version of PyTorch, the keys that memscope writes and that version does not.
    added: BTreeMap<String, Vec<String>>,
    /// Number of comparisons that are equal in every value.
    pub passed: u64,
    /// Number of comparisons that differ or failed.
    pub failed: u64,
    lacking: u64,
}

impl Table {
    /// Adds a row, and prints it on standard error as well, because a whole table takes minutes.
    pub fn add(
        &mut self,
        installation: &Installation,
        workload: &str,
        mode: Mode,
        verdict: impl Into<Verdict>,
    ) {
        let torch = &installation.name;
        let begin = format!("| {workload} | {torch} | {} |", mode.word());
        let row = match verdict.into() {
            Verdict::Compared(report) => {
                let wrong = problems(&report, installation.stripped);
                let verdict = if wrong.is_empty() {
                    self.passed += 1;
                    if installation.stripped {
                        "state and outline equal; says level_reduced"
                    } else {
                        "equal"
                    }
                } else {
                    self.failed += 1;
                    self.detail(&begin, &wrong);
                    "DIFFERS"
                };
                let offset = report.offset_us.map_or("–".to_owned(), |(least, most)| {
                    format!("{least} … {most}")
                });
                if !installation.stripped {
                    self.added.insert(torch.to_owned(), report.added.clone());
                }
                format!(
                    "{begin} {} | {} | {} | {} | {} | {} | {} | {offset} | {verdict} |",
                    report.segments,
                    report.blocks,
                    report.entries,
                    report.values,
                    report.stacks,
                    report.figures,
                    report.differing.len(),
                )
            }
            Verdict::Lacking(what) => {
                self.lacking += 1;
                format!("{begin} – | – | – | – | – | – | – | – | not here: {what} |")
            }
            Verdict::Broken(why) => {
                self.failed += 1;
                self.detail(&begin, &[why]);
                format!("{begin} – | – | – | – | – | – | – | – | FAILED |")
            }
        };
        eprintln!("{row}");
        let _ = writeln!(self.rows, "{row}");
    }

    fn detail(&mut self, begin: &str, lines: &[String]) {
        let begin = begin.trim_matches(['|', ' ']).replace(" | ", ", ");
        let mut text = format!("\n{begin}:\n");
        for line in lines {
            let _ = writeln!(text, "  {}", line.replace('\n', "\n  "));
        }
        eprint!("{text}");
        self.details.push_str(&text);
    }

    /// The table and all details as Markdown, with the count at the end.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| workload | torch | mode | segments | blocks | trace entries | values compared | \
             of them stacks | figures of reports | keys that differ | memscope's time less PyTorch's, µs | verdict |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        text.push_str(&self.rows);
        for (torch, keys) in &self.added {
            if !keys.is_empty() {
                let _ = writeln!(
                    text,
                    "\nadded (keys of the newest format that torch {torch} does not write): {}",
                    keys.join(", ")
                );
            }
        }
        text.push_str(&self.details);
        let _ = write!(text, "\n{} passed, {} failed", self.passed, self.failed);
        if self.lacking > 0 {
            let _ = write!(text, " ({} not in these versions)", self.lacking);
        }
        text.push('\n');
        text
    }
}

/// Why a comparison has not passed; empty if it has.
fn problems(report: &Report, stripped: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let (level, says) = if stripped {
        ("blocks", true)
    } else {
        ("trace", false)
    };
    let says_that = |wanted: &str| report.coverage.iter().any(|code| code == wanted);
    let said = says_that("level_reduced");
    if report.level != level || said != says {
        wrong.push(format!(
            "level {level} was to be reached, and nothing else said"
        ));
    }
    for (key, count) in &report.differing {
        wrong.push(format!("{key}: {count} differ"));
    }
    wrong.extend(report.differences.iter().map(|line| format!("· {line}")));
    if report.segments == 0 || report.blocks == 0 || report.entries == 0 {
        wrong.push("nothing was there to compare".to_owned());
    }
    if report.stacks == 0 && !stripped && !says_that("no_python_stacks") {
        wrong.push("no stack was there to compare".to_owned());
    }
    if !wrong.is_empty() {
        wrong.push(format!(
            "level {}; what memscope says limits its answer: {}",
            report.level,
            report.coverage.join(", ")
        ));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_below_the_head_has_a_cell_for_each_column() {
        let text = Table::default().markdown();
        let cells: Vec<usize> = text
            .lines()
            .take(2)
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(cells, [13, 13], "{text}");
    }
}
