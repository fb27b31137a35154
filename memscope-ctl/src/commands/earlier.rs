//! `ps --earlier`: lists what the daemon's earlier runs recorded.

use crate::failure::{Exit, Failure};
use crate::recording::made_by_memscoped;
use crate::render::command_line;
use crate::session::Session;
use crate::units::{exact_bytes, short_moment};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Default state directory of the daemon.
const STATE_DIR: &str = "/var/lib/memscope";

/// Suggestion for the user where the earlier runs cannot be listed.
const HINT: &str =
    "only root may look into the daemon's state directory: try sudo; --state-dir names another one";

/// Lists the earlier runs in `state_dir`; without it, in the state directory of the running daemon, else in the
/// default one.
pub(super) async fn earlier(state_dir: Option<&Path>, session: &Session) -> Result<Exit, Failure> {
    let folder = match state_dir {
        Some(named) => named.to_owned(),
        None => state_dir_of_the_daemon(session)
            .await
            .unwrap_or_else(|| STATE_DIR.into()),
    };
    let words = [
        "--earlier".into(),
        "--state-dir".into(),
        folder.as_path().into(),
    ];
    let found: Vec<EarlierRun> =
        made_by_memscoped(&words, "not_listed", "list earlier runs", HINT).await?;
    session.show(&found, |found| text(found, &folder))
}

/// State directory of the running daemon, if there is one and it keeps a journal.
async fn state_dir_of_the_daemon(session: &Session) -> Option<PathBuf> {
    let client = session.daemon().await.ok()?;
    let journal = client.status().await.ok()?.journal?.path;
    // STATE_DIR/journal/RUN
    let state_dir = Path::new(&journal).parent()?.parent()?;
    Some(state_dir.to_owned())
}

/// Characters of a command line that are shown.
const COMMAND: usize = 80;

/// One earlier run, as `memscoped --earlier` describes it in JSON.
#[derive(Debug, Deserialize, Serialize)]
struct EarlierRun {
    recording: PathBuf,
    from_unix_ns: Option<u64>,
    until_unix_ns: Option<u64>,
    bytes: u64,
    processes: Vec<EarlierProcess>,
    problem: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct EarlierProcess {
    pid: u32,
    comm: String,
    cmdline: Vec<String>,
}

fn text(runs: &[EarlierRun], folder: &Path) -> String {
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
