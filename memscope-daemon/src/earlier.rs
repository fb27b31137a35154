//! Recordings of earlier runs of the daemon: which ones are in its state directory, and which processes are in them.
//!
//! Owns: the search for them, and reading the end of each. Refuses: to remove any; the bound on the journal's size
//! does that.

use std::path::{Path, PathBuf};

use memscope_ledger::LedgerConfig;
use memscope_ledger::report::ProcessSummary;
use memscope_log::Recording;
use serde::Serialize;

use crate::replay::{Until, replay_until};

/// The recording that an earlier run of the daemon left.
#[derive(Debug, Serialize)]
pub struct EarlierRun {
    /// Path for `--replay`.
    pub recording: PathBuf,
    /// First moment that can be asked about, in nanoseconds since 1970.
    pub from_unix_ns: Option<u64>,
    /// Last moment of the recording, in nanoseconds since 1970.
    pub until_unix_ns: Option<u64>,
    /// Size of its files in bytes.
    pub bytes: u64,
    /// The processes in it.
    pub processes: Vec<EarlierProcess>,
    /// Why the recording cannot be asked, if so.
    pub problem: Option<String>,
}

/// A process of an earlier run.
#[derive(Debug, Serialize)]
pub struct EarlierProcess {
    /// Process id at that time.
    pub pid: u32,
    /// Short name of the process.
    pub comm: String,
    /// Command line of the process.
    pub cmdline: Vec<String>,
}

/// Why earlier runs cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read: is it the daemon's state directory, and may this user look into it?", path.display())]
pub struct EarlierError {
    /// The directory of journals.
    path: PathBuf,
    /// Error of the system call.
    #[source]
    source: std::io::Error,
}

/// The recordings of earlier runs in a state directory, the latest first. The recording of a daemon that runs now is
/// left out.
pub fn earlier(state_dir: &Path, config: &LedgerConfig) -> Result<Vec<EarlierRun>, EarlierError> {
    let journals = state_dir.join("journal");
    let fail = |source| EarlierError {
        path: journals.clone(),
        source,
    };
    let mut found = memscope_log::ended_epochs(&journals).map_err(fail)?;
    found.reverse();
    Ok(found.into_iter().map(|path| look(path, config)).collect())
}

/// Resolves a path that is to be replayed. A state directory, or a directory of journals, stands for the latest
/// earlier run in it, or for the running one if there is no other. Any other path stands for itself.
pub fn resolve(path: &Path) -> PathBuf {
    for journals in [path.join("journal"), path.to_owned()] {
        let latest = || memscope_log::ended_epochs(&journals).ok()?.pop();
        let running = || memscope_log::epochs(&journals).ok()?.pop();
        if let Some(found) = latest().or_else(running) {
            return found;
        }
    }
    path.to_owned()
}

fn look(path: PathBuf, config: &LedgerConfig) -> EarlierRun {
    let mut run = EarlierRun {
        from_unix_ns: None,
        until_unix_ns: None,
        bytes: bytes(&path),
        processes: Vec::new(),
        problem: None,
        recording: path,
    };
    let ended = Recording::open(&run.recording)
        .map(|recording| {
            recording
                .segments()
                .first()
                .map(|first| first.first_unix_ns())
        })
        .map_err(Into::into)
        .and_then(|from| {
            run.from_unix_ns = from;
            // Reading starts at the last segment, whose checkpoint has the processes that were traced.
            replay_until(&run.recording, config.clone(), Until::Event(u64::MAX), None)
        });
    match ended {
        Ok(ended) => {
            run.until_unix_ns = Some(ended.end.unix_ns);
            // What had loaded no library of a device when the run ended has nothing to be asked for either.
            let mut processes = ended.ledger.processes();
            processes.retain(|one| !one.waits_for_device && ended.ledger.is_listed(one.handle));
            run.processes = processes.into_iter().map(who).collect();
        }
        Err(error) => run.problem = Some(crate::error_chain(&error)),
    }
    run
}

fn who(process: ProcessSummary) -> EarlierProcess {
    EarlierProcess {
        pid: process.facts.pid,
        comm: process.facts.comm.clone(),
        cmdline: process.facts.cmdline.clone(),
    }
}

/// Bytes of the files of a run. Files that are deleted meanwhile are not counted.
fn bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lengths = files.filter_map(|file| Some(file.metadata().ok()?.len()));
    lengths.sum()
}
