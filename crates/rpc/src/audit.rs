//! The audit log: who changed what, or took data away, and who tried to.
//!
//! Owns: the file, its form (one JSON object a line), its size, and what happens when it cannot be written: the daemon
//! goes on, says so once, and notes in the file how many entries are missing when there is room again. A file that was moved away or removed
//! is made anew. Refuses: to decide what is written down; the table in `rights` does.

use crate::caller::{Caller, Peer};
use memscope_proto::ERROR_CODE;
use rustix::fs::{Mode, OFlags};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

/// Size of the file in bytes at which it becomes the previous one, which is replaced.
const LARGEST_FILE: u64 = 16 << 20;
/// Most letters of a target that are written down.
const LONGEST_TARGET: usize = 512;

/// Says something to the daemon's users: in its log, and among its messages.
pub type Tell = Arc<dyn Fn(String) + Send + Sync>;

/// The audit log. Clones write to the same file.
#[derive(Clone)]
pub struct Audit(Arc<Mutex<Log>>);

struct Log {
    path: PathBuf,
    largest: u64,
    /// `None`: it could not be opened yet.
    open: Option<(File, u64)>,
    /// Entries that could not be written since the last one that could.
    missing: u64,
    tell: Tell,
}

impl Audit {
    /// The log `audit.jsonl` in this directory. What keeps it from being written is told by `tell`, once until it is
    /// written again.
    #[must_use]
    pub fn new(state_dir: &Path, tell: Tell) -> Audit {
        Audit::with_size(state_dir, tell, LARGEST_FILE)
    }

    /// The same with another size at which the file becomes the previous one.
    #[must_use]
    pub fn with_size(state_dir: &Path, tell: Tell, largest: u64) -> Audit {
        Audit(Arc::new(Mutex::new(Log {
            path: state_dir.join("audit.jsonl"),
            largest,
            open: None,
            missing: 0,
            tell,
        })))
    }

    /// Writes an entry. Blocks for as long as the file system does.
    fn write(&self, entry: &Value) {
        // The log is still usable if another thread panicked while it held the lock.
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.write(entry);
    }
}

impl Log {
    fn write(&mut self, entry: &Value) {
        let mut lines = String::new();
        if self.missing > 0 {
            let gap = json!({"time_unix_ns": now_unix_ns(), "action": "entries_missing", "count": self.missing});
            lines = format!("{gap}\n");
        }
        lines.push_str(&format!("{entry}\n"));
        match self.append(lines.as_bytes()) {
            Ok(()) => self.missing = 0,
            Err(error) => {
                self.missing = self.missing.saturating_add(1);
                if self.missing == 1 {
                    (self.tell)(format!(
                        "the audit log {} cannot be written: {error} — make room or set its permissions right; until \
                         then requests are answered and not written down",
                        self.path.display()
                    ));
                }
            }
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        // What is written into a file that was moved away or removed is in no log that anybody reads.
        if let Some((file, _)) = &self.open
            && !is_at(file, &self.path)
        {
            self.open = None;
        }
        if self.open.is_none() {
            self.open = Some(open(&self.path)?);
        }
        let is_full = |(_, size): &(File, u64)| {
            *size > 0 && size.saturating_add(lines.len() as u64) > self.largest
        };
        if self.open.as_ref().is_some_and(is_full) {
            let mut previous = self.path.as_os_str().to_owned();
            previous.push(".1");
            fs::rename(&self.path, previous)?;
            self.open = None;
            self.open = Some(open(&self.path)?);
        }
        let Some((file, size)) = &mut self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        match file.write_all(lines) {
            Ok(()) => {
                *size += lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A part of a line would make the next one unreadable. If this fails as well, the file is opened anew.
                let _ = file.set_len(*size);
                self.open = None;
                Err(error)
            }
        }
    }
}

/// Whether an open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = rustix::fs::open(
        path,
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::RUSR | Mode::WUSR,
    )?;
    let file = File::from(file);
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// In the extensions of a request that is written down: what the request is about. The handler sets it as soon as it
/// has read the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Target(Arc<OnceLock<String>>);

impl Target {
    /// Sets the target of a request, if it is written down.
    pub(crate) fn set<T>(request: &tonic::Request<T>, words: impl FnOnce() -> String) {
        if let Some(target) = request.extensions().get::<Target>() {
            let words = words();
            let cut = words.chars().take(LONGEST_TARGET).collect();
            // It is set once.
            let _ = target.0.set(cut);
        }
    }
}

/// An entry of a request that is under way.
pub(crate) struct Entry {
    audit: Audit,
    action: &'static str,
    peer: Option<Peer>,
    target: Target,
}

impl Entry {
    pub(crate) fn new(audit: &Audit, action: &'static str, peer: Option<Peer>) -> Entry {
        Entry {
            audit: audit.clone(),
            action,
            peer,
            target: Target::default(),
        }
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Writes the entry, now that it is known what became of the request. An answer in parts counts as given when its
    /// first part is.
    pub(crate) async fn finish(self, headers: &HeaderMap) {
        let status = Status::from_header_map(headers);
        let refused = status.filter(|status| status.code() != tonic::Code::Ok);
        let code = refused.map(|status| {
            let word = status.metadata().get(ERROR_CODE);
            let word = word.and_then(|word| word.to_str().ok()).map(str::to_owned);
            word.unwrap_or_else(|| format!("{:?}", status.code()))
        });
        self.end(code).await;
    }

    /// Writes the entry of a request whose handler ended without an answer.
    pub(crate) async fn broke(self) {
        self.end(Some("internal".to_owned())).await;
    }

    async fn end(self, code: Option<String>) {
        let entry = json!({
            "time_unix_ns": now_unix_ns(),
            "who": self.peer.as_ref().map_or(Value::Null, who),
            "action": self.action,
            "target": self.target.0.get(),
            "outcome": if code.is_none() { "ok" } else { "refused" },
            "code": code,
        });
        let audit = self.audit;
        let written = tokio::task::spawn_blocking(move || audit.write(&entry)).await;
        if let Err(error) = written {
            tracing::error!(%error, "an entry of the audit log was not written");
        }
    }
}

/// Who made the request, in the words of the file.
fn who(peer: &Peer) -> Value {
    let mut who = Map::new();
    match &peer.caller {
        Some(Caller::Local(user)) => {
            who.insert("uid".to_owned(), user.uid.into());
            who.insert("pid".to_owned(), user.pid.into());
        }
        Some(Caller::Certified(certified)) => {
            let name = certified.certificate.as_str();
            who.insert("certificate".to_owned(), name.into());
            who.insert("serial".to_owned(), certified.serial.as_str().into());
            who.insert("roles".to_owned(), certified.roles.to_string().into());
        }
        None => {}
    }
    if let Some(address) = peer.address {
        who.insert("address".to_owned(), address.to_string().into());
    }
    Value::Object(who)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn told() -> (Tell, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        (Arc::new(move |text| into.lock().unwrap().push(text)), told)
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn it_has_a_size_and_one_previous_file() {
        let folder = tempfile::tempdir().unwrap();
        let (tell, told) = told();
        let audit = Audit::with_size(folder.path(), tell, 100);
        for number in 0..40 {
            audit.write(&json!({"number": number}));
        }
        let now = lines(&folder.path().join("audit.jsonl"));
        let before = lines(&folder.path().join("audit.jsonl.1"));
        let numbers: Vec<_> = before
            .iter()
            .chain(&now)
            .map(|one| one["number"].as_u64().unwrap())
            .collect();
        let last: Vec<u64> = (40 - numbers.len() as u64..40).collect();
        assert_eq!(numbers, last, "the newest, in order");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let meta = entry.unwrap().metadata().unwrap();
            assert!(meta.len() <= 100);
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
        assert!(told.lock().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_written_is_said_once_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let (tell, told) = told();
        let audit = Audit::new(&state, tell);
        for number in 0..3 {
            audit.write(&json!({"number": number}));
        }
        assert_eq!(told.lock().unwrap().len(), 1, "{told:?}");
        fs::create_dir(&state).unwrap();
        audit.write(&json!({"number": 3}));
        let all = lines(&state.join("audit.jsonl"));
        assert_eq!((all.len(), all[0]["count"].as_u64()), (2, Some(3)));
        assert_eq!(all[1]["number"], 3);
    }

    /// As logrotate does, or whoever wants the room.
    #[test]
    fn a_file_that_was_moved_or_removed_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let away = folder.path().join("moved");
        let (tell, told) = told();
        let audit = Audit::with_size(folder.path(), tell, 30);
        let write = |number: u64| audit.write(&json!({"number": number}));
        let numbers = |path: &Path| {
            let all = lines(path);
            all.iter()
                .map(|one| one["number"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        write(0);
        fs::rename(&path, &away).unwrap();
        write(1);
        assert_eq!((numbers(&away), numbers(&path)), (vec![0], vec![1]));
        fs::remove_file(&path).unwrap();
        write(2);
        assert_eq!(numbers(&path), [2]);
        // Another one has its name, which is not for others to read from now on.
        fs::rename(&path, &away).unwrap();
        fs::write(&path, "").unwrap();
        write(3);
        assert_eq!(numbers(&path), [3]);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // And when it has no room for a further entry.
        write(4);
        fs::remove_file(&path).unwrap();
        write(5);
        assert_eq!(numbers(&path), [5]);
        assert!(told.lock().unwrap().is_empty(), "{told:?}");
    }

    /// `/dev/full` answers as a full disk does.
    #[test]
    fn a_full_disk_is_said() {
        let (tell, told) = told();
        let mut log = Log {
            path: "/dev/full".into(),
            largest: LARGEST_FILE,
            open: Some((File::options().write(true).open("/dev/full").unwrap(), 0)),
            missing: 0,
            tell,
        };
        log.write(&json!({}));
        assert_eq!(log.missing, 1);
        assert!(
            told.lock().unwrap()[0].contains("No space left"),
            "{told:?}"
        );
    }
}
