//! Checks the claims of the scripts about themselves by PyTorch's own recorder and counters, without memscope.
//!
//! A line rises if one of two rules holds for its live blocks. The first: its lowest number of blocks in the last
//! quarter of the run is higher than in the quarter before. The second: in each of these two quarters its bytes never
//! fall below the maximum of the quarter before, and exceed it at some time. The second is for blocks that become
//! larger
//! and not more. Blocks that only have random sizes fulfil neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::driver::{Driver, How, Said};
use super::workload::{Leak, Memory, Workload};

/// Runs a workload and returns which of its claims are wrong; nothing if all hold.
pub fn check(how: &How, workload: &Workload, steps: u64, every: u64) -> Result<Vec<String>> {
    let folder = tempfile::Builder::new()
        .prefix("memscope-verdicts-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let mut wrong = Vec::new();
    for rank in 0..workload.ranks {
        let mut driver = Driver::start(how, workload, rank, folder.path())?;
        if let Some(what) = driver.hear()?.lacking {
            bail!("this PyTorch has no {what}, which the script needs");
        }
        driver.ask("setup")?;
        let mut course = Vec::new();
        let mut done = 0;
        while done < steps {
            let portion = every.min(steps - done);
            let said = driver.ask(&format!("steps {portion}"))?;
            done += portion;
            if said.steps != done {
                bail!("the driver has made {} steps of {done}", said.steps);
            }
            course.push(said);
        }
        wrong.extend(compare(workload.leak_of(rank), &course)?);
    }
    Ok(wrong)
}

/// Compares the claim of a script with the course of a run.
fn compare(leak: Option<&Leak>, course: &[Said]) -> Result<Vec<String>> {
    let quarter = course.len() / 4;
    if quarter < 2 {
        bail!("too few portions to see what rises: take more --steps, or smaller --every");
    }
    let (first, last) = course.split_at(course.len() - quarter);
    let (first, before) = first.split_at(first.len() - quarter);
    let long_before = &first[first.len() - quarter..];
    let beyond = |value: &dyn Fn(&Said) -> u64, earlier: &[Said], later: &[Said]| {
        let most = |part: &[Said]| part.iter().map(value).max();
        later.iter().map(value).min() >= most(earlier) && most(later) > most(earlier)
    };
    let rises = |value: &dyn Fn(&Said) -> u64| {
        beyond(value, long_before, before) && beyond(value, before, last)
    };
    let names: BTreeSet<&String> = course.iter().flat_map(|said| said.lines.keys()).collect();
    let mut rising = BTreeMap::new();
    for name in names {
        let of = |said: &Said| said.lines.get(name).copied().unwrap_or_default();
        let fewest = |part: &[Said]| part.iter().map(|said| of(said).0).min();
        if fewest(last) > fewest(before) || rises(&|said| of(said).1) {
            rising.insert(name.clone(), of(&course[course.len() - 1]));
        }
    }
    let mut wrong = Vec::new();
    let memory = leak.map_or(Memory::Device, |leak| leak.memory);
    for (which, value) in [
        (Memory::Host, (|said| said.host) as fn(&Said) -> u64),
        (Memory::Driver, |said| said.driver),
    ] {
        let claimed = leak.is_some() && memory == which;
        if rises(&value) != claimed {
            wrong.push(format!(
                "{which:?} memory {} at its end",
                if claimed { "does not rise" } else { "rises" }
            ));
        }
    }
    // PyTorch's recorder does not know the lines of other memory, so only its total can be checked.
    let claimed: BTreeSet<String> = match leak {
        Some(leak) if memory == Memory::Device && leak.lines.is_empty() => {
            BTreeSet::from(["none".to_owned()])
        }
        Some(leak) if memory == Memory::Device => leak.lines.iter().map(u64::to_string).collect(),
        _ => BTreeSet::new(),
    };
    for (name, (blocks, bytes)) in &rising {
        if !claimed.contains(name) {
            wrong.push(format!(
                "line {name} leaks and does not say so: {blocks} blocks of {bytes} bytes live at the end"
            ));
        }
    }
    for name in claimed.iter().filter(|name| !rising.contains_key(*name)) {
        wrong.push(format!("line {name} says that it leaks, and does not"));
    }
    Ok(wrong)
}

/// Checks all workloads; returns the table in Markdown and the number of workloads whose claims do not hold.
pub fn table(how: &How, workloads: &[Workload], steps: u64, every: u64) -> (String, u64) {
    let mut text = String::from("| workload | says | by PyTorch's recorder |\n|---|---|---|\n");
    let mut failed = 0;
    for workload in workloads {
        let says = if workload.leak.is_some() {
            "leak"
        } else {
            "clean"
        };
        let found = match check(how, workload, steps, every) {
            Ok(wrong) if wrong.is_empty() => "so it is".to_owned(),
            Ok(wrong) => {
                failed += 1;
                wrong.join("; ")
            }
            Err(error) => {
                failed += 1;
                format!("FAILED: {error:#}")
            }
        };
        let row = format!("| {} | {says} | {found} |", workload.name);
        eprintln!("{row}");
        let _ = writeln!(text, "{row}");
    }
    (text, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A course of forty portions, from the blocks and bytes of each line and the bytes on the host.
    fn course(
        lines: impl Fn(u64) -> Vec<(&'static str, u64, u64)>,
        host: fn(u64) -> u64,
    ) -> Vec<Said> {
        (0..40)
            .map(|n| Said {
                host: host(n),
                lines: lines(n)
                    .into_iter()
                    .map(|(name, blocks, bytes)| (name.to_owned(), (blocks, bytes)))
                    .collect(),
                ..Said::default()
            })
            .collect()
    }

    fn leak(lines: &[u64], memory: Memory) -> Leak {
        Leak {
            lines: lines.to_vec(),
            memory,
            ..Leak::default()
        }
    }

    #[test]
    fn a_leak_rises_and_noise_does_not() -> Result<()> {
        // Line 7 has one block more in each portion; line 9 has the same number in random sizes; line 11 goes up and
        // down.
        let noisy = course(
            |n| {
                vec![
                    ("7", n, 512 * n),
                    ("9", 20, 1000 + n * 7919 % 4001),
                    ("11", n % 4, 64 * (n % 4)),
                ]
            },
            |_| 0,
        );
        let claimed = leak(&[7], Memory::Device);
        assert_eq!(compare(Some(&claimed), &noisy)?, Vec::<String>::new());
        assert_eq!(compare(None, &noisy)?.len(), 1);
        let elsewhere = leak(&[9], Memory::Device);
        assert_eq!(compare(Some(&elsewhere), &noisy)?.len(), 2);
        Ok(())
    }

    #[test]
    fn what_grows_without_becoming_more_rises_too() -> Result<()> {
        let grown = course(|n| vec![("none", 1, 512 * n)], |_| 0);
        let claimed = leak(&[], Memory::Device);
        assert_eq!(compare(Some(&claimed), &grown)?, Vec::<String>::new());
        // It may rise only in every second portion.
        let seldom = course(|n| vec![("none", 1, 512 * n.div_ceil(2))], |_| 0);
        assert_eq!(compare(Some(&claimed), &seldom)?, Vec::<String>::new());
        // A cache that is full long before the end is no leak.
        let filled = course(|n| vec![("3", n.min(15), 9 * n.min(15))], |_| 0);
        assert_eq!(compare(None, &filled)?, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn other_memory_is_told_by_its_total() -> Result<()> {
        let pinned = course(|_| Vec::new(), |n| 4096 * n);
        let claimed = leak(&[5], Memory::Host);
        assert_eq!(compare(Some(&claimed), &pinned)?, Vec::<String>::new());
        assert_eq!(compare(None, &pinned)?.len(), 1);
        assert!(compare(None, &pinned[..4]).is_err(), "too short to tell");
        Ok(())
    }
}
