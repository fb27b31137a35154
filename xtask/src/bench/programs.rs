//! The programs that are measured: this tree's, and those of another commit, built from a worktree of their own below `target`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::live::{self, Build};
use crate::process;

/// How all that is measured is built, the examples too.
pub const PROFILE: Build = Build::Dist;

/// Programs of one commit.
pub struct Programs {
    /// The commit, where it is another than that of this tree.
    pub commit: Option<String>,
    /// The folder with memscoped and memscope-ctl.
    pub folder: PathBuf,
    /// The root of their sources.
    pub sources: PathBuf,
}

impl Programs {
    /// The name of a row about these programs.
    pub fn row(&self, name: &str) -> String {
        match &self.commit {
            Some(commit) => format!("{name} ({commit})"),
            None => name.to_owned(),
        }
    }
}

/// Builds those of this tree.
pub fn own() -> Result<Programs> {
    Ok(Programs {
        commit: None,
        folder: live::build(PROFILE)?,
        sources: process::root(),
    })
}

/// Cargo's folder for all other commits: what they share is built once.
pub fn target() -> PathBuf {
    process::target().join("against/target")
}

/// Builds the programs of a commit and the examples that are measured.
pub fn of(commit: &str) -> Result<Programs> {
    let root = process::root();
    let mut name = Command::new("git");
    name.args([
        "rev-parse",
        "--short",
        "--verify",
        &format!("{commit}^{{commit}}"),
    ]);
    let name = process::output(name.current_dir(&root))
        .with_context(|| format!("there is no commit {commit}"))?;
    let name = name.trim().to_owned();
    let folder = process::target().join("against");
    let sources = folder.join(&name);
    if !sources.is_dir() {
        let mut worktree = process::command("git");
        worktree.args(["worktree", "add", "--detach"]);
        process::run(worktree.arg(&sources).arg(&name).current_dir(&root))?;
    }
    let target = target();
    let mut build = process::command("cargo");
    build.args(["build", "--locked", "--profile", PROFILE.profile()]);
    build.args(["-p", "memscope-daemon", "-p", "memscope-ctl"]);
    process::run(build.current_dir(&sources).env("CARGO_TARGET_DIR", &target))?;
    // The next commit's programs would lie in their place.
    let kept = folder.join(format!("{name}-programs"));
    std::fs::create_dir_all(&kept)?;
    for program in ["memscoped", "memscope-ctl"] {
        std::fs::copy(
            target.join(PROFILE.folder()).join(program),
            kept.join(program),
        )
        .with_context(|| format!("cannot keep {program} of {name}"))?;
    }
    Ok(Programs {
        commit: Some(name),
        folder: kept,
        sources,
    })
}
