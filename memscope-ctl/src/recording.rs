//! Recordings. Each is asked through a memscoped that is started for it, on a private socket.

use crate::address::Address;
use crate::client::{Client, Room};
use crate::failure::{Exit, Failure};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Time between two attempts to reach the memscoped that was started.
const PAUSE: Duration = Duration::from_millis(20);
/// Time that memscoped has to end after SIGTERM, before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Bytes at the end of memscoped's standard error from which the error message is taken.
const LAST_WORDS: u64 = 2000;

/// A memscoped that replays a recording.
pub(crate) struct Replayer {
    child: Child,
    // Private folder with the socket; it is deleted when this is dropped.
    folder: TempDir,
}

impl Replayer {
    /// Starts a memscoped and waits until it answers. It is killed if this is dropped.
    pub(crate) async fn start(
        recording: &Path,
        as_of: Option<&str>,
        room: Room,
        timeout: Duration,
    ) -> Result<(Replayer, Client), Failure> {
        let no_recording = |source| Failure::NoRecording {
            path: recording.to_owned(),
            source,
        };
        let path = std::fs::canonicalize(recording).map_err(no_recording)?;
        if path.is_file() {
            File::open(&path).map_err(no_recording)?;
        }
        let cannot = |source| Failure::Output {
            what: "no private folder can be made for the socket".into(),
            source,
        };
        let folder = tempfile::Builder::new()
            .prefix("memscope-")
            .tempdir()
            .map_err(cannot)?;
        let socket = folder.path().join("replay.sock");
        let mut words = tempfile::tempfile().map_err(cannot)?;
        let program = find_memscoped();
        let child = Command::new(&program)
            .arg("--replay")
            .arg(&path)
            .arg("--socket")
            .arg(&socket)
            .args(as_of.map(|moment| format!("--as-of={moment}")))
            // The pipe closes whenever this process ends, also when it is killed, and memscoped ends with it.
            .arg("--until-input-ends")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(words.try_clone().map_err(cannot)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| Failure::NoReplayer { program, source })?;
        let mut replayer = Replayer { child, folder };
        let deadline = Instant::now() + timeout;
        loop {
            // The exit status is read before the socket is tried: a process that ends in between is noticed in the next
            // round.
            let ended = replayer.child.try_wait().ok().flatten();
            if let Ok(client) = replayer.ask(room, deadline).await {
                return Ok((replayer, client.with_timeout(timeout)));
            }
            if let Some(status) = ended {
                return Err(Failure::ReplayFailed {
                    path: recording.to_owned(),
                    said: last_words(&mut words).unwrap_or_else(|| format!("it ended: {status}")),
                });
            }
            if Instant::now() >= deadline {
                replayer.stop().await;
                return Err(Failure::Timeout {
                    address: Address::Unix(socket),
                    what: "replay the recording",
                    after: timeout,
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A client of the memscoped, if it answers before the deadline.
    async fn ask(&self, room: Room, deadline: Instant) -> Result<Client, Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        let socket = Address::Unix(self.folder.path().join("replay.sock"));
        let client = Client::connect(&socket, None, room, left).await?;
        client.status().await?;
        Ok(client)
    }

    /// Ends the memscoped: with SIGTERM, and if it does not end in time, by killing it.
    pub(crate) async fn stop(mut self) {
        let pid = self
            .child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // An error means that it has already ended, which is fine. It is our child and has not been waited
            // for, so its process id cannot belong to another process.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(GRACE, self.child.wait())
            .await
            .is_err()
        {
            let _ = self.child.kill().await;
        }
    }
}

/// Suggestion for the user where memscoped could not convert a file.
pub(crate) const NOT_MADE: &str =
    "is the file whole, is there room, and are memscoped and memscope-ctl of one version?";

/// Runs memscoped to its end, for work that needs no daemon, and returns the JSON document that it prints. `what`
/// names the work for the error message, `code` is the error's code for programs, and `hint` is its suggestion.
pub(crate) async fn made_by_memscoped<T: serde::de::DeserializeOwned>(
    words: &[std::ffi::OsString],
    code: &str,
    what: &str,
    hint: &str,
) -> Result<T, Failure> {
    let program = find_memscoped();
    let ended = Command::new(&program)
        .args(words)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Failure::NoReplayer { program, source })?;
    let failed = |what: String| Failure::Refused {
        exit: Exit::Failed,
        code: code.to_owned(),
        what,
        hint: Some(hint.to_owned()),
    };
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let words = last.map_or_else(|| format!("it ended: {}", ended.status), str::to_owned);
        let words = words.strip_prefix("memscoped: ").unwrap_or(&words);
        return Err(failed(format!("memscoped cannot {what}: {words}")));
    }
    serde_json::from_slice(&ended.stdout)
        .map_err(|error| failed(format!("memscoped did not say what it made: {error}")))
}

/// Path of memscoped: that of `MEMSCOPED`, else the one beside this program, else the one in `PATH`.
fn find_memscoped() -> PathBuf {
    if let Some(named) = std::env::var_os("MEMSCOPED").filter(|name| !name.is_empty()) {
        return named.into();
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join("memscoped")));
    match beside {
        Some(path) if path.is_file() => path,
        _ => "memscoped".into(),
    }
}

/// The last lines that memscoped wrote to standard error, at most three.
fn last_words(words: &mut File) -> Option<String> {
    let length = words.seek(SeekFrom::End(0)).ok()?;
    words
        .seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))
        .ok()?;
    let mut bytes = Vec::new();
    words.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    (!last.is_empty()).then_some(last)
}
