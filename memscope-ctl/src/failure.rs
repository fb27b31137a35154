//! Every error that a command can end with: its message and suggestion for users, its code for programs, and its
//! exit code.

use crate::address::Address;
use crate::files::FileError;
use memscope_proto::v1::CoverageNote;
use memscope_proto::{ERROR_CODE, split_message};
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tonic::{Code, Status};

/// Exit codes. They are documented in `--help` and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command succeeded. If it looked for growth, it found none.
    Done = 0,
    /// The daemon refused or failed, or the answer could not be written.
    Failed = 1,
    /// The command line is not valid.
    Usage = 2,
    /// No daemon can be reached.
    Unreachable = 3,
    /// There is no such process, or it is not traced.
    NoProcess = 4,
    /// The user lacks a permission.
    NotPermitted = 5,
    /// No answer, or no event, came within the time limit.
    Timeout = 6,
    /// Some nodes of a fleet did not answer, or not of all their processes; what the others said is shown.
    Partly = 7,
    /// Something grows or leaked, or a rank stands out, and the user asked for this exit code (`--exit-code`).
    Growing = 10,
    /// The question cannot be answered yet, or (with `--strict`) not exactly.
    CannotTell = 11,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no daemon answers at {address}")]
    NoDaemon { address: Address, source: io::Error },
    #[error("you may not connect to {address}")]
    Forbidden { address: Address, source: io::Error },
    #[error("the daemon at {address} and this program do not trust each other")]
    NotTrusted { address: Address, source: io::Error },
    #[error("{what}")]
    Tls {
        what: String,
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("the daemon at {address} sent an answer that is too large")]
    TooLarge { address: Address },
    #[error("the answers are too large in all")]
    TooLargeInAll,
    #[error("none of {nodes} nodes answered: {reasons}")]
    NoNode { nodes: usize, reasons: String },
    #[error("the list of nodes {path} cannot be read")]
    NoNodeList { path: PathBuf, source: io::Error },
    #[error("the daemon at {address} did not {what} within {}", crate::units::duration(*after))]
    Timeout {
        address: Address,
        what: &'static str,
        after: Duration,
    },
    #[error("the connection to the daemon at {address} broke")]
    Broken {
        address: Address,
        source: Box<dyn Error + Send + Sync>,
    },
    /// The daemon, or memscoped run as a tool, refused or failed; message and hint are its own.
    #[error("{what}")]
    Refused {
        exit: Exit,
        code: String,
        what: String,
        hint: Option<String>,
    },
    #[error("no event came within {after:?}")]
    NoEvent { after: Duration },
    #[error("no process is traced")]
    NothingTraced,
    #[error("several processes are traced: {pids}")]
    SeveralTraced { pids: String },
    #[error("{what}")]
    Usage { what: String, hint: String },
    #[error("the answer is not whole: {what}")]
    Incomplete { what: String },
    #[error("{what}")]
    Output { what: String, source: io::Error },
    #[error("{path} is no snapshot that can be read")]
    NoSnapshot { path: PathBuf, source: FileError },
    #[error("the recording {path} cannot be read")]
    NoRecording { path: PathBuf, source: io::Error },
    #[error("{program} cannot be started to read the recording")]
    NoReplayer { program: PathBuf, source: io::Error },
    #[error("memscoped cannot replay {path}: {said}")]
    ReplayFailed { path: PathBuf, said: String },
}

impl Failure {
    /// A host is to be asked, which nobody can without TLS.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn no_certificates(_: &Address) -> Failure {
        Failure::left_out("TLS, by which other machines are asked")
    }

    /// A host is to be asked, and the options of TLS are missing.
    #[cfg(feature = "tls")]
    pub(crate) fn no_certificates(address: &Address) -> Failure {
        Failure::Usage {
            what: format!("{address} is asked over TLS, and no certificates are given"),
            hint: "give --tls-cert FILE, --tls-key FILE and --tls-ca FILE (or MEMSCOPE_TLS_CERT, \
                   MEMSCOPE_TLS_KEY and MEMSCOPE_TLS_CA)"
                .into(),
        }
    }

    /// What is wanted was left out when this program was built.
    #[cfg(not(all(feature = "report", feature = "tls", feature = "top")))]
    pub(crate) fn left_out(what: &str) -> Failure {
        Failure::Usage {
            what: format!("this memscope-ctl was built without {what}"),
            hint: "build it with its default features, as `cargo install --locked --path memscope-ctl` does".into(),
        }
    }

    /// The failure behind a gRPC status. The error code of the daemon, where it sent one, is kept.
    pub(crate) fn from_status(status: Status, address: Address) -> Failure {
        let word = status
            .metadata()
            .get(ERROR_CODE)
            .and_then(|word| word.to_str().ok())
            .map(str::to_owned);
        // The daemon has no such error: this is what was found out about the size of its answer.
        if word.is_none() && status.code() == Code::OutOfRange {
            return Failure::TooLarge { address };
        }
        // Without an error code of the daemon, these come from the transport.
        let transport = matches!(status.code(), Code::Unavailable | Code::Unknown);
        if word.is_none() && (transport || status.source().is_some()) {
            if let Some(source) = alert_of(&status) {
                return Failure::NotTrusted { address, source };
            }
            return Failure::Broken {
                address,
                source: Box::new(status),
            };
        }
        let exit = match (word.as_deref(), status.code()) {
            (Some("not_exact" | "given_up"), _) => Exit::CannotTell,
            (Some("died_during_attach"), _) | (_, Code::NotFound) => Exit::NoProcess,
            (_, Code::PermissionDenied | Code::Unauthenticated) => Exit::NotPermitted,
            (_, Code::DeadlineExceeded) => Exit::Timeout,
            (_, Code::InvalidArgument) => Exit::Usage,
            (_, Code::Unavailable) => Exit::Unreachable,
            _ => Exit::Failed,
        };
        let (what, hint) = split_message(status.message());
        let (what, hint) = if status.code() == Code::Unimplemented {
            let hint = "the daemon is older than this program: update it".to_owned();
            ("the daemon does not know this question", Some(hint))
        } else {
            (what, hint.map(str::to_owned))
        };
        Failure::Refused {
            exit,
            code: word.unwrap_or_else(|| code_word(status.code()).to_owned()),
            what: what.to_owned(),
            hint,
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Failure::NoDaemon { .. } | Failure::Broken { .. } | Failure::NoNode { .. } => {
                Exit::Unreachable
            }
            Failure::Forbidden { .. } | Failure::NotTrusted { .. } => Exit::NotPermitted,
            Failure::Timeout { .. } | Failure::NoEvent { .. } => Exit::Timeout,
            Failure::Refused { exit, .. } => *exit,
            Failure::NothingTraced => Exit::NoProcess,
            Failure::SeveralTraced { .. } | Failure::Usage { .. } | Failure::Tls { .. } => {
                Exit::Usage
            }
            Failure::TooLarge { .. }
            | Failure::TooLargeInAll
            | Failure::NoNodeList { .. }
            | Failure::Incomplete { .. }
            | Failure::Output { .. }
            | Failure::NoSnapshot { .. }
            | Failure::NoRecording { .. }
            | Failure::NoReplayer { .. }
            | Failure::ReplayFailed { .. } => Exit::Failed,
        }
    }

    /// Stable code of the error, for programs.
    pub(crate) fn code(&self) -> &str {
        match self {
            Failure::NoDaemon { .. } => "no_daemon",
            Failure::Forbidden { .. } => "not_permitted",
            Failure::NotTrusted { .. } => "not_trusted",
            Failure::Tls { .. } => "tls",
            Failure::TooLarge { .. } | Failure::TooLargeInAll => "too_large",
            Failure::NoNode { .. } => "no_node",
            Failure::NoNodeList { .. } => "no_node_list",
            Failure::Timeout { .. } => "timeout",
            Failure::NoEvent { .. } => "no_event",
            Failure::Broken { .. } => "connection_broke",
            Failure::Refused { code, .. } => code,
            Failure::NothingTraced => "nothing_traced",
            Failure::SeveralTraced { .. } => "several_traced",
            Failure::Usage { .. } => "usage",
            Failure::Incomplete { .. } => "incomplete",
            Failure::Output { .. } => "output",
            Failure::NoSnapshot { .. } => "no_snapshot",
            Failure::NoRecording { .. } => "no_recording",
            Failure::NoReplayer { .. } => "no_replayer",
            Failure::ReplayFailed { .. } => "replay_failed",
        }
    }

    /// Message of the error, with its causes.
    pub(crate) fn what(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // tonic says "transport error" over and over; each cause once is enough.
            let next = error.to_string();
            if !text.contains(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            cause = error.source();
        }
        text
    }

    /// Suggestion for the user: what to try next.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Failure::NoDaemon {
                address: Address::Host { .. },
                ..
            } => {
                "is memscoped started with --listen there, and does nothing in between keep the \
                 connection away?"
            }
            Failure::NotTrusted { .. } => {
                "is --tls-ca the authority of the daemon's certificate, is its name in it (--tls-name \
                 NAME says another), and is --tls-cert of an authority that the daemon knows, and \
                 neither over nor revoked?"
            }
            Failure::Tls { .. } => "it must be a file in the format PEM that this user may read",
            Failure::TooLarge { .. } => "is it a memscoped? ask for less, with --limit or --pid",
            Failure::TooLargeInAll => {
                "ask for less, with --limit or --pid, or fewer nodes at a time"
            }
            Failure::NoNode { .. } => {
                "ask one of them by itself: memscope-ctl --connect ADDRESS status"
            }
            Failure::NoNodeList { .. } => "check the path and its permissions",
            Failure::NoDaemon { .. } => {
                "start it: sudo memscoped (or: sudo systemctl start memscoped); --socket PATH \
                 names another"
            }
            Failure::Forbidden { .. } => {
                "ask with sudo, or join the group: sudo usermod -aG memscope $USER (and log in \
                 again)"
            }
            Failure::Timeout { .. } => {
                "wait longer with --timeout SECONDS: what is asked of an earlier moment is read from the \
                 journal, which takes long. If status does not answer either, see its log: journalctl -u memscoped"
            }
            Failure::NoEvent { .. } => {
                "wait longer with --timeout SECONDS, or for ever without it; --kind and --pid leave out others"
            }
            Failure::Broken {
                address: Address::Host { .. },
                ..
            } => {
                "did it end, or does it refuse --tls-cert? look at its log there: journalctl -u memscoped"
            }
            Failure::Broken { .. } => "did it end? look at its log: journalctl -u memscoped",
            Failure::Refused { hint, .. } => return hint.clone(),
            Failure::NothingTraced => {
                "memscope-ctl attach --pid PID; memscope-ctl doctor lists processes with a device"
            }
            Failure::SeveralTraced { .. } => "choose one with --pid PID",
            Failure::Usage { hint, .. } => return Some(hint.clone()),
            Failure::Incomplete { .. } => "ask again; if it happens again, see the daemon's log",
            Failure::Output { .. } => "is there room, and may this user write there?",
            Failure::NoSnapshot { .. } => {
                "give a pickle of torch.cuda.memory._snapshot(), a file of memscope-ctl snapshot \
                 (memory-viz or json), or a recording"
            }
            Failure::NoRecording { .. } => "check the path and its permissions",
            Failure::NoReplayer { .. } => {
                "install memscoped beside memscope-ctl or in PATH, or name it with MEMSCOPED"
            }
            Failure::ReplayFailed { .. } => {
                "is it a recording of memscope or a pickle of PyTorch's, whole, and not from a newer version?"
            }
        };
        Some(hint.to_owned())
    }

    /// Whether the node as a whole has this trouble, so that a further question to it would meet it again.
    pub(crate) fn is_of_the_node(&self) -> bool {
        !matches!(self, Failure::Refused { .. })
    }

    /// Whether the only problem is that nobody reads our output any more.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Failure::Output { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// How rustls begins to tell of an alert of the other side.
const ALERT: &str = "received fatal alert: ";

/// The alert of TLS with which the daemon ended the connection, if it did. In TLS 1.3 a client may ask before its certificate has been
/// looked at, so that a refusal comes in the place of the first answer. The transport keeps nothing but its text.
fn alert_of(status: &Status) -> Option<io::Error> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some((_, alert)) = error.to_string().split_once(ALERT) {
            return Some(io::Error::other(format!("{ALERT}{alert}")));
        }
        cause = error.source();
    }
    None
}

/// Implements `--strict` for files, which no daemon has judged: refuses an answer if one of its coverage notes says
/// that numbers of these kinds are not exact.
pub(crate) fn not_exact(notes: &[CoverageNote], kinds: &[&str]) -> Result<(), Failure> {
    let spoils = |note: &&CoverageNote| {
        let mut affects = note.affects.iter();
        affects.any(|kind| kinds.contains(&kind.as_str()))
    };
    let why: Vec<String> = notes
        .iter()
        .filter(spoils)
        .map(|note| format!("{}: {}", note.code, note.text))
        .collect();
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused {
        exit: Exit::CannotTell,
        code: "not_exact".to_owned(),
        what: format!("the answer is not exact: {}", why.join("; ")),
        hint: Some("without --strict it is shown, with what limits it".to_owned()),
    })
}

fn code_word(code: Code) -> &'static str {
    match code {
        Code::NotFound => "not_found",
        Code::PermissionDenied | Code::Unauthenticated => "not_permitted",
        Code::DeadlineExceeded => "timeout",
        Code::InvalidArgument => "invalid",
        Code::Unimplemented => "unimplemented",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Code, word: Option<&'static str>) -> Exit {
        let mut status = Status::new(code, "it went wrong — do better");
        if let Some(word) = word {
            status.metadata_mut().insert(
                ERROR_CODE,
                tonic::metadata::MetadataValue::from_static(word),
            );
        }
        Failure::from_status(status, Address::Unix("/s".into())).exit()
    }

    #[test]
    fn codes_become_exit_codes() {
        assert_eq!(exit(Code::NotFound, Some("not_traced")), Exit::NoProcess);
        assert_eq!(
            exit(Code::Aborted, Some("died_during_attach")),
            Exit::NoProcess
        );
        assert_eq!(
            exit(Code::PermissionDenied, Some("not_permitted")),
            Exit::NotPermitted
        );
        assert_eq!(
            exit(Code::FailedPrecondition, Some("not_exact")),
            Exit::CannotTell
        );
        assert_eq!(exit(Code::DeadlineExceeded, None), Exit::Timeout);
        assert_eq!(exit(Code::InvalidArgument, Some("invalid")), Exit::Usage);
        assert_eq!(exit(Code::Internal, Some("internal")), Exit::Failed);
        assert_eq!(
            exit(Code::Unavailable, Some("shutting_down")),
            Exit::Unreachable
        );
        assert_eq!(exit(Code::Unavailable, None), Exit::Unreachable);
    }

    /// A daemon that refuses our certificate has not crashed.
    #[cfg(feature = "tls")]
    #[test]
    fn an_alert_means_that_one_is_not_trusted() {
        let host = || Address::Host {
            host: "h".into(),
            port: 1,
            verified_as: None,
        };
        let failure = |error: rustls::Error| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            Failure::from_status(Status::from_error(Box::new(error)), host())
        };
        let alert = rustls::AlertDescription::CertificateRevoked;
        let refused = failure(rustls::Error::AlertReceived(alert));
        assert_eq!(refused.exit(), Exit::NotPermitted, "{refused:?}");
        assert_eq!(refused.code(), "not_trusted");
        assert!(refused.what().ends_with("CertificateRevoked"));
        let broken = failure(rustls::Error::DecryptError);
        assert_eq!(broken.code(), "connection_broke");
        let hint = broken.hint();
        assert!(hint.is_some_and(|hint| hint.contains("--tls-cert")));
    }

    #[test]
    fn the_daemons_words_are_kept_apart() {
        let status = Status::not_found("it went wrong — do better — now");
        let failure = Failure::from_status(status, Address::Unix("/s".into()));
        assert_eq!(failure.what(), "it went wrong");
        assert_eq!(failure.hint().as_deref(), Some("do better — now"));
        assert_eq!(failure.code(), "not_found");
    }
}
