//! What is packed: the version, and the time of the commit, which all files of the packages bear.

use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// Which packages are made.
pub struct Release {
    /// Version of the programs.
    pub version: &'static str,
    /// Which packaging of that version it is.
    pub revision: u32,
    /// What is packed.
    pub commit: Commit,
    /// Whether little is compressed, which is done in a moment.
    pub quick: bool,
}

/// The time of the commit that is packed: files bear it, so that the same commit gives the same bytes.
pub struct Commit {
    /// Seconds since 1970.
    pub seconds: u64,
}

impl Commit {
    /// That of SOURCE_DATE_EPOCH, or else of the commit that is checked out.
    pub fn of() -> Result<Commit> {
        let text = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => process::output(
                Command::new("git")
                    .args(["log", "-1", "--format=%ct"])
                    .current_dir(process::root()),
            )
            .context("outside of a clone SOURCE_DATE_EPOCH must say how old the sources are")?,
        };
        let seconds = text
            .trim()
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH is no number of seconds: {text}"))?;
        Ok(Commit { seconds })
    }

    /// As `date` writes it, in UTC.
    pub fn written(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        date.args(["-u", "-d", &format!("@{}", self.seconds), format]);
        let text = process::output(date.env("LC_ALL", "C"))?;
        Ok(text.trim().to_owned())
    }
}
