//! The options that every command has, and the daemon or recording that a command asks.

use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::Replayer;
use crate::units::parse_timeout;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;

/// Heading in the help texts that separates the options of every command from a command's own.
const GLOBAL: &str = "Options of every command";

/// What every command takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Socket of the daemon.
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        value_name = "PATH",
        env = "MEMSCOPE_SOCKET",
        default_value = memscope_proto::DEFAULT_SOCKET
    )]
    pub(crate) socket: PathBuf,

    /// Print JSON instead of tables.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// How long to wait for an answer, 30 s if it is not given; with events, for the next event, for ever if it is not given.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Ask a recording instead of a daemon: a file, or a directory that `ps --earlier` names; the daemon's state directory means the
    /// latest of these.
    ///
    /// Starts `memscoped --replay FILE` on a private socket, asks it, and stops it. The memscoped
    /// beside this program is taken, else the one in PATH; MEMSCOPED names another.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    pub(crate) recording: Option<PathBuf>,

    /// Ask the recording as of this moment, not of its end: EVENT@BOOT_NS.
    ///
    /// Takes as_of_event.sequence and as_of_boot_ns of an answer, and gives that answer again, byte for byte. What
    /// was read from the process's Python objects, as the holders of `leaks` are, is in no recording.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "MOMENT", requires = "recording")]
    pub(crate) as_of: Option<String>,

    /// Take only exact answers: refuse one whose totals, counts or levels are not all proven (exit code 11).
    ///
    /// What limits an answer is beneath it, and `affects` in JSON says which of its numbers; this makes an error of it.
    /// Answers that have no such numbers (ps, status, marks, events) are not affected, and what is not known of stacks or
    /// steps is a reason only for answers that consist of them.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) strict: bool,
}

/// Time to wait for an answer where `--timeout` is not given.
const PATIENCE: Duration = Duration::from_secs(30);

impl Global {
    /// How long to wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(PATIENCE)
    }

    /// Time to wait for an event, which may never come; `None` means without a limit.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.timeout
    }
}

/// One run of this program: its options, and what it asks.
pub(crate) struct Session {
    pub(crate) global: Global,
    /// The memscoped that replays the recording, once a question was asked. It is killed if this is dropped.
    replayer: Mutex<Option<(Replayer, Client)>>,
}

impl Session {
    pub(crate) fn new(global: Global) -> Session {
        Session {
            global,
            replayer: Mutex::new(None),
        }
    }

    /// Connects to the daemon, or to a memscoped that replays the recording. That is started at the first call.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let client = match &self.global.recording {
            None => self.daemon().await?,
            Some(recording) => {
                let mut replayer = self.replayer.lock().await;
                match &*replayer {
                    Some((_, client)) => client.clone(),
                    None => {
                        let as_of = self.global.as_of.as_deref();
                        let started =
                            Replayer::start(recording, as_of, self.global.timeout()).await?;
                        let client = started.1.clone();
                        *replayer = Some(started);
                        client
                    }
                }
            }
        };
        Ok(client.strict(self.global.strict))
    }

    /// Connects to the running daemon, even if `--recording` is given.
    pub(crate) async fn daemon(&self) -> Result<Client, Failure> {
        Client::connect(&self.global.socket, self.global.timeout()).await
    }

    /// Prints an answer: as JSON with `--json`, else as the text that `text` makes of it.
    pub(crate) fn show<A: Serialize>(
        &self,
        answer: &A,
        text: impl FnOnce(&A) -> String,
    ) -> Result<Exit, Failure> {
        if self.global.json {
            output::json(answer)?;
        } else {
            output::text(&text(answer))?;
        }
        Ok(Exit::Done)
    }

    /// Stops the memscoped that was started for a recording, if any.
    pub(crate) async fn end(self) {
        if let Some((replayer, client)) = self.replayer.into_inner() {
            drop(client);
            replayer.stop().await;
        }
    }
}
