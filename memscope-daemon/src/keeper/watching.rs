//! Triggers and findings, written down for the daemon that comes next.
//!
//! Owns: the file `watching.json` of the state directory. It is written when a trigger is added, removed or fires, when a finding is
//! reported or withdrawn, and at the end. Triggers outlive a reboot. What they remember of a process, and what was
//! reported of it, counts only for a daemon that goes on with the same journal.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use memscope_ledger::event::{Finding, ProcessHandle};
use serde::{Deserialize, Serialize};

use crate::snapshots::{Counts, Tallies, Waiting};
use crate::sync::write_anew;
use crate::triggers::Triggers;

/// Name of the file in the state directory.
const FILE: &str = "watching.json";
/// Version of the file. A reader refuses any other one.
const FORMAT: u32 = 1;

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Kept<T, F> {
    format: u32,
    epoch: u64,
    triggers: T,
    findings: F,
    /// How many snapshots each trigger has taken. An older file has none.
    #[serde(default)]
    tallies: Tallies,
    /// The firings whose snapshots are not on the disk yet. An older file has none.
    #[serde(default)]
    waiting: VecDeque<Waiting>,
}

/// Identifies a finding from one check to the next: the same line, whatever the sizes and the stacks of its blocks; where no line is
/// known, the same size, or the same stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    pub(super) device: Option<i32>,
    /// A `Source`, by its number in messages.
    pub(super) source: i32,
    pub(super) line: Option<(String, u32)>,
    /// Size of the blocks in bytes where no line is known and all have the same, else 0.
    pub(super) size: u64,
    /// Number of the stack where no line is known and its blocks are of several sizes. An older file has none.
    #[serde(default)]
    pub(super) stack: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) key: Key,
    pub(super) finding: Finding,
    /// Number of checks since the line was last found to grow.
    pub(super) missing: u32,
    /// Number of the last checks, one after the other, at which most of the memory was found to be given back.
    #[serde(default)]
    pub(super) given_back: u32,
    /// Number and time of the event that reported it. An older file has none.
    #[serde(default)]
    pub(super) sequence: u64,
    #[serde(default)]
    pub(super) time_ns: u64,
}

/// What was reported of each process: the last number, and what stands.
type Findings = HashMap<ProcessHandle, (u64, Vec<Said>)>;

/// What an earlier daemon has left.
#[derive(Default)]
pub struct LeftWatching {
    pub(super) triggers: Option<Triggers>,
    pub(super) findings: Findings,
    pub(super) counts: Counts,
}

impl LeftWatching {
    /// The firings whose snapshots were not on the disk yet.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.counts.waiting.iter()
    }

    /// Takes the triggers and what has become of their firings, for whoever joins them with those of the command line. What nobody takes
    /// is written down again for the daemon after this one.
    pub fn take_triggers(&mut self) -> (Option<Triggers>, Counts) {
        (self.triggers.take(), std::mem::take(&mut self.counts))
    }
}

/// The keeper's side of the file.
pub struct Watching {
    path: PathBuf,
    epoch: u64,
    written: Vec<u8>,
    /// What an earlier daemon has left and this one has no use for.
    unused: Option<(Triggers, Counts)>,
    /// The last write failed, which is logged once.
    failed: bool,
}

impl Watching {
    /// For a state directory, and the epoch of the journal that is written now.
    pub fn new(state_dir: &Path, epoch: u64) -> Watching {
        Watching {
            path: state_dir.join(FILE),
            epoch,
            written: Vec::new(),
            unused: None,
            failed: false,
        }
    }

    /// Reads what an earlier daemon has left; nothing if there is no such file. `resumed`: this daemon goes on with the journal of
    /// that one.
    pub fn read(&self, resumed: bool) -> Result<LeftWatching, String> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(LeftWatching::default());
            }
            Err(error) => return Err(format!("cannot read {}: {error}", self.path.display())),
        };
        let bad = |error| {
            format!(
                "{} is damaged, or of another version of memscoped: {error}",
                self.path.display()
            )
        };
        let kept: Kept<Option<Triggers>, Findings> = serde_json::from_slice(&bytes).map_err(bad)?;
        if kept.format != FORMAT {
            return Err(format!(
                "{} is of another version of memscoped (form {}, this one reads {FORMAT})",
                self.path.display(),
                kept.format
            ));
        }
        let goes_on = resumed && kept.epoch == self.epoch;
        let mut triggers = kept.triggers;
        if let Some(triggers) = triggers.as_mut().filter(|_| !goes_on) {
            triggers.forget_processes();
        }
        Ok(LeftWatching {
            triggers,
            findings: if goes_on {
                kept.findings
            } else {
                Findings::default()
            },
            counts: Counts {
                tallies: kept.tallies,
                waiting: kept.waiting,
            },
        })
    }
}

impl Watching {
    /// Where no snapshots are kept: writes these triggers down again, for the daemon after this one. What they remember of processes is
    /// forgotten, because nobody follows it now.
    pub(super) fn hand_on(&mut self, mut triggers: Triggers, counts: Counts) {
        triggers.follow_nothing();
        self.unused = Some((triggers, counts));
    }

    /// Writes what has changed: the triggers with what has become of their firings, and the findings.
    pub(super) fn save(
        &mut self,
        taking: Option<(&Triggers, Counts)>,
        findings: &HashMap<ProcessHandle, (u64, Vec<Said>)>,
    ) {
        let unused = self.unused.as_ref();
        let unused = unused.map(|(triggers, counts)| (triggers, counts.clone()));
        let (triggers, counts) = taking.or(unused).unzip();
        let Counts { tallies, waiting } = counts.unwrap_or_default();
        let kept = Kept {
            format: FORMAT,
            epoch: self.epoch,
            triggers,
            findings,
            tallies,
            waiting,
        };
        let bytes = match serde_json::to_vec(&kept) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "triggers and findings could not be put into words");
                return;
            }
        };
        if bytes == self.written {
            return;
        }
        // The thread that flushes the state directory does so within a second; nobody waits for it here.
        let new = self.path.with_added_extension("new");
        let written = write_anew(&new, &bytes);
        let written = written.and_then(|_| std::fs::rename(&new, &self.path));
        match written {
            Ok(()) => {
                self.written = bytes;
                self.failed = false;
            }
            Err(error) => {
                if !self.failed {
                    tracing::error!(
                        %error,
                        path = %self.path.display(),
                        "triggers could not be written down: after a restart memscoped would not know of them"
                    );
                }
                self.failed = true;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use crate::snapshots::Tally;
    use memscope_rpc::{Condition, Metric};

    #[test]
    fn what_one_daemon_wrote_the_next_one_reads() {
        let folder = tempfile::tempdir().unwrap();
        let condition = Condition {
            metric: Metric::Allocated { above: 7 },
            device: Some(1),
        };
        let mut triggers = Triggers::new(&[], 5);
        let root = memscope_rpc::Caller::root();
        triggers.add(root, condition, None).unwrap();
        let said = Said {
            key: Key {
                device: Some(0),
                source: 1,
                line: Some(("a.py".to_owned(), 3)),
                size: 0,
                stack: None,
            },
            finding: Finding {
                number: 4,
                growth_bytes_per_step: Some(0.1),
                ..Finding::default()
            },
            missing: 1,
            given_back: 0,
            sequence: 70,
            time_ns: 700,
        };
        let findings: Findings = HashMap::from([(ProcessHandle(9), (4, vec![said.clone()]))]);
        let kept = Kept {
            format: FORMAT,
            epoch: 77,
            triggers: Some(&triggers),
            findings: &findings,
            tallies: Tallies::from([(1, Tally::default())]),
            waiting: VecDeque::new(),
        };
        let watching = Watching::new(folder.path(), 77);
        std::fs::write(&watching.path, serde_json::to_vec(&kept).unwrap()).unwrap();
        let left = watching.read(true).unwrap();
        let (number, stands) = left.findings.get(&ProcessHandle(9)).unwrap();
        assert_eq!((*number, stands[0].key == said.key), (4, true));
        assert_eq!(stands[0].finding, said.finding);
        assert_eq!((stands[0].sequence, stands[0].time_ns), (70, 700));
        let conditions = |left: &LeftWatching| {
            let all = left.triggers.as_ref().unwrap().list().into_iter();
            all.map(|one| (one.trigger, one.condition))
                .collect::<Vec<_>>()
        };
        assert_eq!(conditions(&left), [(1, condition)]);
        assert_eq!(left.counts.tallies, kept.tallies);
        // An older daemon's keys have no stack, and its findings no event.
        let older = String::from_utf8(std::fs::read(&watching.path).unwrap()).unwrap();
        let mut without = older;
        let tallies = serde_json::to_string(&kept.tallies).unwrap();
        for newer in [
            ",\"stack\":null",
            ",\"sequence\":70",
            ",\"time_ns\":700",
            &format!(",\"tallies\":{tallies}"),
            ",\"waiting\":[]",
        ] {
            assert!(without.contains(newer), "{without}");
            without = without.replace(newer, "");
        }
        std::fs::write(&watching.path, without).unwrap();
        let left = watching.read(true).unwrap();
        let (_, stands) = left.findings.get(&ProcessHandle(9)).unwrap();
        assert_eq!(stands[0].key, said.key);
        // Another journal: what was reported is of other processes.
        for (epoch, resumed) in [(78, true), (77, false)] {
            let left = Watching::new(folder.path(), epoch).read(resumed).unwrap();
            assert!(left.findings.is_empty());
            assert_eq!(conditions(&left), [(1, condition)]);
        }
        std::fs::write(&watching.path, b"{\"format\": 9}").unwrap();
        assert!(
            watching
                .read(true)
                .is_err_and(|why| why.contains("watching.json"))
        );
    }

    /// It has findings of all users.
    #[test]
    fn nobody_else_reads_what_is_written() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mut watching = Watching::new(folder.path(), 77);
        let mode = || {
            let facts = std::fs::metadata(folder.path().join(FILE)).unwrap();
            facts.permissions().mode() & 0o777
        };
        watching.save(None, &Findings::new());
        assert_eq!(mode(), 0o600);
        // Also where an unfinished one was left by somebody else.
        let new = folder.path().join(FILE).with_added_extension("new");
        std::fs::write(&new, b"half").unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
        watching.save(None, &Findings::from([(ProcessHandle(1), (3, Vec::new()))]));
        assert_eq!(mode(), 0o600);
        let left = watching.read(true).unwrap();
        assert_eq!(left.findings.len(), 1);
    }
}
