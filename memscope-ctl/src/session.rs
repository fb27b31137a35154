//! What every command takes, and the daemon or the recording that it asks.

use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::Replayer;
use crate::units::parse_timeout;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;

/// The heading of what every command takes, apart from its own options.
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
    /// Takes as_of_event.sequence and as_of_boot_ns of an answer, and gives that answer again, byte for byte.
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

/// How long to wait for an answer where nobody says.
const PATIENCE: Duration = Duration::from_secs(30);

impl Global {
    /// How long to wait for an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(PATIENCE)
    }

    /// How long to wait for what may never come. None: for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.timeout
    }
}

/// One run of this program: what it was told, and whom it asks.
pub(crate) struct Session {
    pub(crate) global: Global,
    /// Replays the recording, once something was asked of it. It is killed if this is dropped.
    replayer: Mutex<Option<(Replayer, Client)>>,
}

impl Session {
    pub(crate) fn new(global: Global) -> Session {
        Session {
            global,
            replayer: Mutex::new(None),
        }
    }

    /// The daemon, or the one that replays the recording, which starts with the first question.
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

    /// The daemon that runs, also where a recording is asked.
    pub(crate) async fn daemon(&self) -> Result<Client, Failure> {
        Client::connect(&self.global.socket, self.global.timeout()).await
    }

    /// Prints an answer: as JSON for programs, else the text.
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

    /// Ends what was started for it.
    pub(crate) async fn end(self) {
        if let Some((replayer, client)) = self.replayer.into_inner() {
            drop(client);
            replayer.stop().await;
        }
    }
}
