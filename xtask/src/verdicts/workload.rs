//! The scripts on which the verdicts are tried, and what is true of each.
//!
//! A script says what is true in comments: lines that begin with `# verdicts:`, and `# LEAK` at the end of each line
//! whose allocations are never freed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// Folder of our own scripts.
pub const FOLDER: &str = "tests/workloads/verdicts";
/// Beginning of a line that says what is true of a script.
const MARK: &str = "# verdicts:";
/// End of a line whose allocations are never freed.
const LEAK: &str = "# LEAK";
/// The words of an answer for the sources from which steps are counted.
const SOURCES: &[&str] = &["optimizer", "backward", "pattern", "mark", "unknown"];

/// The allocator whose memory leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Memory that PyTorch's allocator for the device hands out.
    #[default]
    Device,
    /// Memory that PyTorch pins on the host.
    Host,
    /// Memory that the driver hands out to others than PyTorch.
    Driver,
}

/// A leak, as a script describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leak {
    /// Numbers of the lines whose allocations are never freed; empty if they are made outside of any line.
    pub lines: Vec<u64>,
    /// Step at which the leak begins, counted from 0.
    pub begins: u64,
    /// The one rank of several that leaks; `None` if all do.
    pub rank: Option<u32>,
    /// The allocator whose memory leaks.
    pub memory: Memory,
    /// What holds what leaks, any of these; numbers in brackets count as any number. If empty, the holder is not checked.
    pub held_by: Vec<String>,
}

/// A script and what is true of it.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Name of the workload in the table.
    pub name: String,
    /// Path of the script.
    pub script: PathBuf,
    /// The leak, if the script has one.
    pub leak: Option<Leak>,
    /// Number of processes that run at the same time, each with its own device.
    pub ranks: u32,
    /// Sources from which the steps can be counted; any of them is right. If empty, the steps are not checked.
    pub sources: Vec<String>,
    /// A feature that PyTorch must have for the script, such as `torch.cuda.MemPool`.
    pub needs: Option<String>,
}

impl Workload {
    /// Reads a script; an error says what is wrong with its comments.
    pub fn read(script: &Path) -> Result<Workload> {
        let script = std::path::absolute(script).context("cannot find the current directory")?;
        let text = fs::read_to_string(&script)
            .with_context(|| format!("cannot read the script {}", script.display()))?;
        let name = script.file_stem().unwrap_or_default().to_string_lossy();
        let workload =
            of(&name, &text).with_context(|| format!("in the script {}", script.display()))?;
        Ok(Workload { script, ..workload })
    }

    /// The leak of one of the workload's processes, if that process leaks.
    pub fn leak_of(&self, rank: u32) -> Option<&Leak> {
        self.leak
            .as_ref()
            .filter(|leak| leak.rank.is_none_or(|only| only == rank))
    }
}

/// Parses the text of a script.
fn of(name: &str, text: &str) -> Result<Workload> {
    let mut workload = Workload {
        name: name.to_owned(),
        ranks: 1,
        ..Workload::default()
    };
    let mut leak = Leak::default();
    let mut truth = None;
    let mut without_line = false;
    for (line, number) in text.lines().zip(1u64..) {
        if line.trim_end().ends_with(LEAK) {
            leak.lines.push(number);
        }
        let Some(words) = line.strip_prefix(MARK) else {
            continue;
        };
        let wrong = || format!("line {number}: {line}");
        let (word, rest) = words.trim().split_once(' ').unwrap_or((words.trim(), ""));
        match word {
            "leak" | "clean" => truth = Some(word == "leak"),
            "line" if rest == "none" => without_line = true,
            "line" => bail!("{}: only `line none` can be said", wrong()),
            "ranks" => workload.ranks = number_of(rest).with_context(wrong)?,
            "leaking-rank" => leak.rank = Some(number_of(rest).with_context(wrong)?),
            "begins" => leak.begins = number_of(rest).with_context(wrong)?,
            "held" => {
                let names = rest.strip_prefix("by ").with_context(wrong)?;
                leak.held_by = names.split(" or ").map(str::to_owned).collect();
            }
            "needs" => workload.needs = Some(rest.to_owned()),
            "memory" => {
                leak.memory = match rest {
                    "device" => Memory::Device,
                    "host" => Memory::Host,
                    "driver" => Memory::Driver,
                    _ => bail!("{}: it is none of device, host, driver", wrong()),
                }
            }
            "steps" => {
                for source in rest.split_whitespace() {
                    if !SOURCES.contains(&source) {
                        bail!("{}: {source:?} is none of {}", wrong(), SOURCES.join(", "));
                    }
                    workload.sources.push(source.to_owned());
                }
            }
            _ => bail!(
                "{}: {word:?} is none of leak, clean, line, ranks, leaking-rank, begins, memory, held, steps, needs",
                wrong()
            ),
        }
    }
    if workload.ranks == 0 || leak.rank.is_some_and(|rank| rank >= workload.ranks) {
        bail!("there must be at least 1 rank, and the leaking rank must be one of them");
    }
    let Some(leaks) = truth else {
        bail!("it says neither `{MARK} leak` nor `{MARK} clean`");
    };
    match (leaks, leak.lines.is_empty(), without_line) {
        (true, false, false) | (true, true, true) => workload.leak = Some(leak),
        (false, true, false) => {}
        (true, true, false) => {
            bail!("it leaks, but no line ends with `{LEAK}`, nor is it `{MARK} line none`")
        }
        (true, false, true) => bail!("it has lines that end with `{LEAK}` and says `line none`"),
        (false, ..) => bail!("it is clean, but says where it leaks"),
    }
    Ok(workload)
}

fn number_of<T: std::str::FromStr>(word: &str) -> Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    word.parse().context("this needs a number")
}

/// Reads our own scripts: all, or those named.
pub fn ours(names: &[String]) -> Result<Vec<Workload>> {
    let folder = process::root().join(FOLDER);
    let mut all = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "py") {
            all.push(Workload::read(&path)?);
        }
    }
    // Leaks come first, as in the table.
    all.sort_by(|a, b| (a.leak.is_none(), &a.name).cmp(&(b.leak.is_none(), &b.name)));
    if names.is_empty() {
        return Ok(all);
    }
    names
        .iter()
        .map(|name| {
            let known = || {
                let names: Vec<&str> = all.iter().map(|w| w.name.as_str()).collect();
                format!(
                    "there is no workload {name}; there are {}",
                    names.join(", ")
                )
            };
            all.iter()
                .find(|workload| workload.name == *name)
                .cloned()
                .with_context(known)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_says_is_true_of_it() -> Result<()> {
        let text = "\"\"\"What it does.\"\"\"\n# verdicts: leak\n# verdicts: ranks 4\n# verdicts: leaking-rank 3\n\
                    # verdicts: steps pattern unknown\n# verdicts: begins 60\n# verdicts: memory host\n\
                    a = 1  # LEAK\nb = 2\nc = 3  # LEAK\n";
        let workload = of("some", text)?;
        let leak = Leak {
            lines: vec![8, 10],
            begins: 60,
            rank: Some(3),
            memory: Memory::Host,
            held_by: Vec::new(),
        };
        assert_eq!(workload.leak_of(3), Some(&leak));
        assert_eq!(workload.leak_of(2), None);
        assert_eq!((workload.name.as_str(), workload.ranks), ("some", 4));
        assert_eq!(workload.sources, ["pattern", "unknown"]);
        let clean = of("other", "# verdicts: clean\n")?;
        assert_eq!((clean.leak, clean.ranks), (None, 1));
        let outside = of("outside", "# verdicts: leak\n# verdicts: line none\n")?;
        assert_eq!(outside.leak, Some(Leak::default()));
        Ok(())
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        for wrong in [
            "",
            "a = 1  # LEAK",
            "# verdicts: leak",
            "# verdicts: clean\na = 1  # LEAK",
            "# verdicts: leak\n# verdicts: line none\na = 1  # LEAK",
            "# verdicts: clean\n# verdicts: line none",
            "# verdicts: clean\n# verdicts: surprise",
            "# verdicts: clean\n# verdicts: ranks many",
            "# verdicts: clean\n# verdicts: ranks 0",
            "# verdicts: leak\n# verdicts: ranks 2\n# verdicts: leaking-rank 2\na = 1  # LEAK",
            "# verdicts: clean\n# verdicts: steps clock",
            "# verdicts: clean\n# verdicts: memory tape",
            "# verdicts: clean\n# verdicts: line 3",
        ] {
            assert!(of("wrong", wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn our_own_can_be_read() -> Result<()> {
        let all = ours(&[])?;
        let leaks = all
            .iter()
            .filter(|workload| workload.leak.is_some())
            .count();
        assert!(leaks >= 14, "{leaks} leak");
        assert!(all.len() - leaks >= 14, "{} are clean", all.len() - leaks);
        assert_eq!(ours(&["plain_training".to_owned()])?.len(), 1);
        assert!(ours(&["nothing".to_owned()]).is_err());
        Ok(())
    }
}
