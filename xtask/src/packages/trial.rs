//! What the trials have in common: the packages that are tried, and where roots are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::dist;

/// What is tried, and with what.
pub struct Trial {
    /// Where roots and packages are.
    pub folder: PathBuf,
    /// The programs, as they are in the packages.
    pub programs: PathBuf,
}

impl Trial {
    /// The folder with the packages of this revision, in which they are made if they are not there.
    pub fn packages(&self, revision: u32) -> Result<PathBuf> {
        let output = self.folder.join(format!("revision-{revision}"));
        if !output.exists() {
            dist::run(&dist::Options {
                packages: true,
                programs: Some(self.programs.clone()),
                output: Some(output.clone()),
                revision,
                quick: true,
            })?;
        }
        Ok(output)
    }

    /// The package of a kind in the folder of a revision.
    pub fn package(&self, revision: u32, end: &str) -> Result<PathBuf> {
        let folder = self.packages(revision)?;
        let mut entries = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        entries
            .find(|file| file.extension().is_some_and(|it| it == end))
            .with_context(|| format!("there is no .{end} in {}", folder.display()))
    }
}

/// The folder of a root with nothing but Debian's minimal system.
pub fn base(folder: &Path, release: &str) -> PathBuf {
    folder.join(format!("base-{release}"))
}

/// Says a finding of a trial.
pub fn found(trial: &str, what: &str) {
    println!("{trial}: {what}");
}
