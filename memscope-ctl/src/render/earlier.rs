//! `ps --earlier`.

use super::command_line;
use crate::units::{exact_bytes, short_moment};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Characters of a command line that are shown.
const COMMAND: usize = 80;

/// What memscoped says of one of them.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct EarlierRun {
    pub(crate) recording: PathBuf,
    pub(crate) from_unix_ns: Option<u64>,
    pub(crate) until_unix_ns: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) processes: Vec<EarlierProcess>,
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct EarlierProcess {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    pub(crate) cmdline: Vec<String>,
}

pub(crate) fn earlier(runs: &[EarlierRun], folder: &Path) -> String {
    let Some(latest) = runs.first() else {
        return format!(
            "No earlier run of the daemon left a recording in {}.\n",
            folder.display()
        );
    };
    let mut out = String::new();
    for run in runs {
        let _ = writeln!(out, "{}", run.recording.display());
        let when = |moment: Option<u64>| moment.map_or_else(|| "?".to_owned(), short_moment);
        let _ = writeln!(
            out,
            "  {} to {} UTC, {}",
            when(run.from_unix_ns),
            when(run.until_unix_ns),
            exact_bytes(Some(run.bytes))
        );
        if let Some(problem) = &run.problem {
            let _ = writeln!(out, "  cannot be asked: {problem}");
        } else if run.processes.is_empty() {
            let _ = writeln!(out, "  no process was traced at its end");
        }
        for process in &run.processes {
            let command = command_line(&process.cmdline, &process.comm, COMMAND);
            let _ = writeln!(out, "  {:>7}  {command}", process.pid);
        }
    }
    let _ = writeln!(
        out,
        "Ask one: memscope-ctl --recording {} leaks",
        latest.recording.display()
    );
    out
}
