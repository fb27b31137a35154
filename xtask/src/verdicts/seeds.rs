//! Scripts that `xtask/verdicts/generate.py` generates from seeds.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::workload::Workload;
use crate::process;

/// A range of seeds that includes both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl FromStr for Seeds {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Seeds> {
        let number = |word: &str| {
            word.parse::<u64>()
                .with_context(|| format!("{word:?} is no number; seeds are given as 1000..1009"))
        };
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let seeds = Seeds {
            first: number(first)?,
            last: number(last)?,
        };
        if seeds.first > seeds.last {
            bail!("the first seed is beyond the last one");
        }
        Ok(seeds)
    }
}

impl Seeds {
    /// The first and the last seed.
    pub fn ends(self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// Generates the scripts into a folder and reads what they say about themselves.
    pub fn scripts(&self, installation: &Path, folder: &Path) -> Result<Vec<Workload>> {
        (self.first..=self.last)
            .map(|seed| {
                let text = process::output(
                    Command::new(installation.join("bin/python"))
                        .arg("-I")
                        .arg(process::root().join("xtask/verdicts/generate.py"))
                        .arg(seed.to_string()),
                )?;
                let file = folder.join(format!("seed_{seed}.py"));
                std::fs::write(&file, text)
                    .with_context(|| format!("cannot write {}", file.display()))?;
                Workload::read(&file)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_script_and_of_two_one_leaks() -> Result<()> {
        let python = process::find_program("python3").context("no python3 on PATH")?;
        let folder = tempfile::tempdir()?;
        let generate = |seed: u64| {
            process::output(
                Command::new(&python)
                    .args(["-I", "-B"])
                    .arg(process::root().join("xtask/verdicts/generate.py"))
                    .arg(seed.to_string()),
            )
        };
        let mut different = std::collections::BTreeSet::new();
        for pair in [1001, 1003, 1005] {
            let mut leaks = 0;
            for seed in [pair, pair + 1] {
                let text = generate(seed)?;
                assert_eq!(text, generate(seed)?, "seed {seed}");
                let file = folder.path().join(format!("seed_{seed}.py"));
                std::fs::write(&file, &text)?;
                leaks += u32::from(Workload::read(&file)?.leak.is_some());
                different.insert(text);
            }
            assert_eq!(leaks, 1, "of the seeds {pair} and {}", pair + 1);
        }
        assert_eq!(different.len(), 6);
        Ok(())
    }

    #[test]
    fn a_range_has_both_ends() -> Result<()> {
        let of = |first, last| Seeds { first, last };
        assert_eq!("1000..1009".parse::<Seeds>()?, of(1000, 1009));
        assert_eq!("7".parse::<Seeds>()?, of(7, 7));
        for wrong in ["", "a", "2..1", "1..", "1...3", "-1"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong:?}");
        }
        Ok(())
    }
}
