//! Errors of requests: what happened, and what the user can do about it.

use memscope_ledger::event::Level;
use memscope_proto::{ERROR_CODE, HINT_SEPARATOR, v1};
use std::error::Error;
use std::path::PathBuf;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Why a request was refused. Its `Display` says what happened, [`Refusal::hint`] what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No process has this pid, or the caller may not know that one has.
    #[error("there is no process {pid} that you may see")]
    NoSuchProcess {
        /// Process id of the request.
        pid: u32,
    },
    /// The process is not traced, or the caller may not know that it is.
    #[error("process {pid} is not traced")]
    NotTraced {
        /// Process id of the request.
        pid: u32,
    },
    /// No rule has this number.
    #[error("there is no rule {rule}")]
    NoSuchRule {
        /// Number of the rule.
        rule: u64,
    },
    /// No trigger has this number, or the caller may not know that one has.
    #[error("there is no trigger {trigger}")]
    NoSuchTrigger {
        /// Number of the trigger.
        trigger: u64,
    },
    /// No kept snapshot has this number, or the caller may not know that one has.
    #[error("there is no snapshot {snapshot}")]
    NoSuchSnapshot {
        /// Number of the snapshot.
        snapshot: u64,
    },
    /// The daemon takes no snapshots by itself, so it accepts no triggers.
    #[error("this daemon takes no snapshots by itself: {why}")]
    NoTriggers {
        /// Why it takes none, as the end of the message.
        why: &'static str,
    },
    /// The caller may not do this.
    #[error("you may not {what}")]
    NotPermitted {
        /// What the caller may not do, as the words that follow "you may not".
        what: String,
    },
    /// The caller may see the process, but nothing in it can ever get a probe.
    #[error("there is nothing to probe in process {pid}: {why}")]
    NothingToProbe {
        /// Process id of the request.
        pid: u32,
        /// Why there is nothing to probe, as the end of the message.
        why: String,
    },
    /// The caller's certificate names no role, or cannot be understood.
    #[error("certificate {name:?} gives no right to ask: {why}")]
    NoRole {
        /// Name of the certificate's holder; empty if it has none.
        name: String,
        /// What is missing or wrong, as the end of the message.
        why: String,
    },
    /// The caller's certificate does not have the role that the request needs.
    #[error(
        "certificate {name:?} may not {action}: that needs the role {needed}, and its roles are {has}"
    )]
    RoleLacks {
        /// Name of the certificate's holder.
        name: String,
        /// Name of the method.
        action: String,
        /// The role that is needed.
        needed: &'static str,
        /// The roles that the certificate has.
        has: String,
    },
    /// The request did not arrive whole within its time.
    #[error("the request did not arrive within {}", memscope_units::duration(*within))]
    TooSlow {
        /// How long the daemon waited.
        within: std::time::Duration,
    },
    /// The process maps no device library.
    #[error("process {pid} ({comm}) uses no GPU or NPU: it maps no device library")]
    NoDeviceLibraries {
        /// Process id of the request.
        pid: u32,
        /// Short name of the process.
        comm: String,
    },
    /// The library whose functions must be probed has no usable symbols.
    #[error("process {pid} maps {path}, which is stripped: {missing} cannot be found in it")]
    StrippedLibrary {
        /// Process id of the request.
        pid: u32,
        /// Path of the library, as the process sees it.
        path: PathBuf,
        /// What was looked for in it and not found.
        missing: String,
    },
    /// The process ended before its probes were live.
    #[error("process {pid} ended while it was being attached")]
    DiedDuringAttach {
        /// Process id of the request.
        pid: u32,
    },
    /// The process is traced already, at another level.
    #[error("process {pid} is traced already, at level {}", word(*level))]
    AlreadyAttached {
        /// Process id of the request.
        pid: u32,
        /// Level at which it is traced.
        level: Level,
    },
    /// Something of the process could not be read.
    #[error("{what} of process {pid} cannot be read")]
    Unreadable {
        /// Process id of the request.
        pid: u32,
        /// What could not be read (`the mappings`).
        what: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The process has ended or is no longer traced, so it has no present moment that could be marked or pictured.
    #[error("process {pid} {how} at {at}: it has no present moment")]
    Ended {
        /// Process id of the request.
        pid: u32,
        /// What happened to it: `has ended`, `was detached`.
        how: &'static str,
        /// When that happened, in words.
        at: String,
    },
    /// The process took too much of the daemon's memory, so nothing is kept of what it held.
    #[error(
        "process {pid} was given up at {at}: {} were kept of it, and all processes together may take {} of memscoped's memory",
        memscope_units::bytes(*held_bytes), memscope_units::bytes(*limit_bytes)
    )]
    GivenUp {
        /// Process id of the request.
        pid: u32,
        /// When that happened, in words.
        at: String,
        /// Bytes that were kept of it.
        held_bytes: u64,
        /// Bytes that all processes together may take.
        limit_bytes: u64,
    },
    /// The answer has no room in the daemon's memory.
    #[error("there is no room in memory: {what}")]
    NoMemory {
        /// How much is needed and how much there is, as the end of the message.
        what: String,
    },
    /// The caller wanted only an exact answer, and this one is not exact.
    #[error("the answer is not exact: {why}")]
    NotExact {
        /// What is not exact, and why.
        why: String,
    },
    /// The daemon replays a recording, and the question or the order needs a process that runs.
    #[error("this daemon replays a recording: that needs the living process")]
    Replaying,
    /// The daemon has too much to do right now.
    #[error("the daemon is busy: {what}")]
    Busy {
        /// What keeps it busy, as the end of the message.
        what: String,
    },
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// The user has, or all but root together have, as much as they may have at the same time.
    #[error("too many: {what}")]
    TooMany {
        /// What there is too much of, and how much there may be.
        what: String,
    },
    /// The request is larger than any that makes sense.
    #[error("the request is too large: a request may have {}", memscope_units::bytes(*most as u64))]
    TooLarge {
        /// Largest size of a request in bytes.
        most: usize,
    },
    /// The client took nothing of the answer for so long that the answer was given up.
    #[error("nothing of the answer was taken for {}", memscope_units::duration(*patience))]
    NotTaken {
        /// How long the daemon waited.
        patience: std::time::Duration,
    },
    /// The client is gone, so the work for its answer ended early. Nobody reads this.
    #[error("nobody waits for the answer any more")]
    NotWanted,
    /// The request makes no sense.
    #[error("{what}")]
    Invalid {
        /// What is wrong with the request: the message.
        what: String,
        /// What a valid request would look like.
        hint: String,
    },
    /// A fault of the daemon.
    #[error("{what}")]
    Internal {
        /// What failed, in words: the message.
        what: String,
        /// Error that caused it.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Copy of another refusal. Its causes cannot be cloned, so they are kept as text.
    #[error("{what}")]
    Copied {
        /// Stable word of the copied refusal.
        word: &'static str,
        /// gRPC code of the copied refusal.
        code: Code,
        /// What happened, with all causes.
        what: String,
        /// What to do about it.
        hint: String,
    },
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Read => "read",
        Level::Segments => "segments",
        Level::Blocks => "blocks",
        Level::Trace => "trace",
    }
}

impl Refusal {
    /// The stable word by which programs recognise the error.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::NoSuchProcess { .. } => "no_such_process",
            Refusal::NotTraced { .. } => "not_traced",
            Refusal::NoSuchRule { .. } => "no_such_rule",
            Refusal::NoSuchTrigger { .. } => "no_such_trigger",
            Refusal::NoSuchSnapshot { .. } => "no_such_snapshot",
            Refusal::NoTriggers { .. } => "no_triggers",
            Refusal::NotPermitted { .. } | Refusal::RoleLacks { .. } => "not_permitted",
            Refusal::NoRole { .. } => "no_role",
            Refusal::TooSlow { .. } => "too_slow",
            Refusal::NothingToProbe { .. } => "nothing_to_probe",
            Refusal::NoDeviceLibraries { .. } => "no_device_libraries",
            Refusal::StrippedLibrary { .. } => "stripped_library",
            Refusal::DiedDuringAttach { .. } => "died_during_attach",
            Refusal::AlreadyAttached { .. } => "already_attached",
            Refusal::Unreadable { .. } => "unreadable",
            Refusal::Ended { .. } => "ended",
            Refusal::GivenUp { .. } => "given_up",
            Refusal::NoMemory { .. } => "no_memory",
            Refusal::NotExact { .. } => "not_exact",
            Refusal::Replaying => "replaying",
            Refusal::Busy { .. } => "busy",
            Refusal::ShuttingDown => "shutting_down",
            Refusal::NotWanted => "not_wanted",
            Refusal::TooMany { .. } => "too_many",
            Refusal::TooLarge { .. } => "too_large",
            Refusal::NotTaken { .. } => "not_taken",
            Refusal::Invalid { .. } => "invalid",
            Refusal::Internal { .. } => "internal",
            Refusal::Copied { word, .. } => word,
        }
    }

    /// The gRPC status code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Refusal::NoSuchProcess { .. }
            | Refusal::NotTraced { .. }
            | Refusal::NoSuchRule { .. }
            | Refusal::NoSuchTrigger { .. }
            | Refusal::Ended { .. }
            | Refusal::NoSuchSnapshot { .. } => Code::NotFound,
            Refusal::NotPermitted { .. } | Refusal::NoRole { .. } | Refusal::RoleLacks { .. } => {
                Code::PermissionDenied
            }
            Refusal::NothingToProbe { .. }
            | Refusal::NoDeviceLibraries { .. }
            | Refusal::StrippedLibrary { .. }
            | Refusal::Unreadable { .. }
            | Refusal::NotExact { .. }
            | Refusal::GivenUp { .. }
            | Refusal::NoTriggers { .. }
            | Refusal::Replaying => Code::FailedPrecondition,
            Refusal::DiedDuringAttach { .. } => Code::Aborted,
            Refusal::AlreadyAttached { .. } => Code::AlreadyExists,
            Refusal::Busy { .. }
            | Refusal::NoMemory { .. }
            | Refusal::TooMany { .. }
            | Refusal::TooLarge { .. } => Code::ResourceExhausted,
            Refusal::ShuttingDown => Code::Unavailable,
            Refusal::NotWanted => Code::Cancelled,
            Refusal::NotTaken { .. } | Refusal::TooSlow { .. } => Code::DeadlineExceeded,
            Refusal::Invalid { .. } => Code::InvalidArgument,
            Refusal::Internal { .. } => Code::Internal,
            Refusal::Copied { code, .. } => *code,
        }
    }

    /// What the user can do about it, as a sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Refusal::NoSuchProcess { .. } => {
                "check the number (ps, nvidia-smi); a process of another user needs root".into()
            }
            Refusal::NotTraced { pid } => format!(
                "attach it first: memscope-ctl attach --pid {pid}; `memscope-ctl ps` lists what is \
                 traced; a process of another user needs root"
            ),
            Refusal::NoSuchRule { .. } => "`memscope-ctl status` lists the rules".into(),
            Refusal::NoSuchTrigger { .. } => "`memscope-ctl trigger list` lists them".into(),
            Refusal::NoSuchSnapshot { .. } => {
                "`memscope-ctl snapshots` lists those that are kept".into()
            }
            Refusal::NoTriggers { .. } => {
                "start memscoped with --snapshots-keep N, more than 0".into()
            }
            Refusal::NotPermitted { .. } => {
                "ask as root, or for a process whose real, effective and saved user are yours"
                    .into()
            }
            Refusal::NoRole { .. } => {
                "ask for a certificate whose subject has the OU memscope:see=NAMESPACE, memscope:see, memscope:control \
                 or memscope:admin; or start memscoped with --tls-default-role see"
                    .into()
            }
            Refusal::RoleLacks { needed, .. } => {
                format!("ask with a certificate whose subject has the OU memscope:{needed}")
            }
            Refusal::TooSlow { .. } => "send it again, whole".into(),
            Refusal::NothingToProbe { .. } => {
                "`memscope-ctl doctor` shows the processes that can be traced".into()
            }
            Refusal::NoDeviceLibraries { pid, .. } => format!(
                "is it the right process? `memscope-ctl doctor` lists those with device \
                 libraries; if it loads one later: memscope-ctl attach --pid {pid} --wait; if a \
                 child does the work: --children"
            ),
            Refusal::StrippedLibrary { .. } => {
                "--level segments needs no symbols of the framework; or install the library \
                 unstripped"
                    .into()
            }
            Refusal::DiedDuringAttach { .. } => {
                "start it again; `memscope-ctl attach --comm NAME` attaches it as soon as it runs"
                    .into()
            }
            Refusal::AlreadyAttached { pid, .. } => {
                format!("for another level, detach it first: memscope-ctl detach --pid {pid}")
            }
            Refusal::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => {
                "ask again in a moment: a page of the process was not there in time, as on a busy disk. If it says so each time, \
                 the process maps a file of a file system that does not answer"
                    .into()
            }
            Refusal::Unreadable { source, .. }
                if source.kind() != std::io::ErrorKind::PermissionDenied =>
            {
                "other questions about this process are answered; docs/limits.md says what cannot be read".into()
            }
            Refusal::Unreadable { .. } if may_trace() => {
                "the daemon has the capability for it (CAP_SYS_PTRACE), and the kernel denies it all the \
                 same: a security module protects this process, or it is of another user namespace. \
                 memscope cannot trace it"
                    .into()
            }
            Refusal::Unreadable { .. } => {
                "the daemon needs CAP_SYS_PTRACE and the host's /proc; `memscope-ctl doctor` checks \
                 both"
                    .into()
            }
            Refusal::Ended { pid, .. } => format!(
                "`leaks`, `stats` and `stacks` with --pid {pid} tell what it held until then, and `memscope-ctl marks --pid {pid}` lists \
                 its marks; a moment of its past is named by its time"
            ),
            Refusal::GivenUp { pid, .. } => format!(
                "moments before that can be asked for with --at; to trace it again, give memscoped more (--memory) and \
                 attach it: memscope-ctl attach --pid {pid}"
            ),
            Refusal::NoMemory { .. } => {
                "ask again when other questions about earlier moments have been answered; or give memscoped more (--memory), or ask \
                 the recording: memscope-ctl record, then --recording"
                    .into()
            }
            Refusal::NotExact { .. } => {
                "without --strict it is shown, with what limits it; `memscope-ctl stats` has all notes"
                    .into()
            }
            Refusal::Replaying => "ask a live daemon: leave out --recording".into(),
            Refusal::Busy { .. } => "ask again in a moment".into(),
            Refusal::ShuttingDown => "ask again when it runs again".into(),
            Refusal::TooMany { .. } => {
                "wait until some have ended, or end the programs that have them; cancelled requests count until their \
                 work has ended"
                    .into()
            }
            Refusal::TooLarge { .. } => "shorten the names in it".into(),
            Refusal::NotTaken { .. } => {
                "ask again, and read the answer as it comes; to read it later, write it to a file first".into()
            }
            Refusal::NotWanted => "ask again, and wait for the answer".into(),
            Refusal::Invalid { hint, .. } => hint.clone(),
            Refusal::Internal { .. } => {
                "this is a fault of memscope: please report it with the daemon's log".into()
            }
            Refusal::Copied { hint, .. } => hint.clone(),
        }
    }

    /// What happened, with every cause.
    #[must_use]
    pub fn what(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }

    /// The whole message: what happened and what to do.
    #[must_use]
    pub fn message(&self) -> String {
        format!("{}{HINT_SEPARATOR}{}", self.what(), self.hint())
    }

    /// The refusal as an entry in the answer to an attach, for the process `pid`, which could not be attached.
    #[must_use]
    pub fn of_process(&self, pid: u32) -> v1::RefusedProcess {
        v1::RefusedProcess {
            pid,
            code: self.word().into(),
            message: self.message(),
        }
    }

    /// A copy of the refusal. Its causes become text.
    #[must_use]
    pub fn duplicate(&self) -> Refusal {
        Refusal::Copied {
            word: self.word(),
            code: self.code(),
            what: self.what(),
            hint: self.hint(),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let mut status = Status::new(refusal.code(), refusal.message());
        status
            .metadata_mut()
            .insert(ERROR_CODE, MetadataValue::from_static(refusal.word()));
        status
    }
}

/// Whether the daemon has the capability to read other processes (CAP_SYS_PTRACE).
fn may_trace() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_PTRACE)
    })
}

/// Makes the refusal of a request that makes no sense: what is wrong with it, and what would be right.
pub(crate) fn invalid(what: impl Into<String>, hint: impl Into<String>) -> Refusal {
    Refusal::Invalid {
        what: what.into(),
        hint: hint.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_not_erased() {
        let refusal = Refusal::Unreadable {
            pid: 7,
            what: "the mappings".into(),
            source: std::io::Error::from_raw_os_error(13),
        };
        let status = Status::from(refusal);
        assert_eq!(status.code(), Code::FailedPrecondition);
        let (what, hint) = memscope_proto::split_message(status.message());
        assert_eq!(
            what,
            "the mappings of process 7 cannot be read: Permission denied (os error 13)"
        );
        // The hint asks for the capability only if the daemon lacks it.
        let expected = if may_trace() {
            "denies it all the same"
        } else {
            "needs CAP_SYS_PTRACE"
        };
        assert!(hint.unwrap().contains(expected), "{hint:?}");
        assert_eq!(status.metadata().get(ERROR_CODE).unwrap(), "unreadable");
    }

    #[test]
    fn what_came_too_late_is_no_lack_of_rights() {
        let refusal = Refusal::Unreadable {
            pid: 7,
            what: "Python's objects".into(),
            source: std::io::ErrorKind::TimedOut.into(),
        };
        let status = Status::from(refusal);
        let (_, hint) = memscope_proto::split_message(status.message());
        assert!(
            hint.unwrap().starts_with("ask again in a moment"),
            "{hint:?}"
        );
    }

    #[test]
    fn a_copy_says_the_same() {
        let refusal = Refusal::NotTraced { pid: 7 };
        let copy = refusal.duplicate();
        assert_eq!(copy.message(), refusal.message());
        assert_eq!(copy.word(), refusal.word());
        assert_eq!(copy.code(), refusal.code());
    }
}
