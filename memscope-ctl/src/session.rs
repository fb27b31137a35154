//! The options that every command has, and the daemon or recording that a command asks.

use crate::address::Address;
use crate::client::{Client, Room};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::Replayer;
use crate::tls::Tls;
use crate::units::parse_timeout;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;

/// Heading in the help texts that separates the options of every command from a command's own.
const GLOBAL: &str = "Options of every command";

/// What every command takes.
#[derive(Clone, Debug, clap::Args)]
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

    /// Ask the daemon at this address instead: unix:PATH, or HOST:PORT of memscoped --listen, which needs the options --tls-….
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "ADDRESS", value_parser = parse_address, conflicts_with = "recording")]
    pub(crate) connect: Option<Address>,

    /// Ask many nodes at once, and show one table of all: FILE, - for standard input, dns:NAME:PORT, slurm:JOB:PORT, or
    /// k8s:NAMESPACE/SERVICE:PORT.
    ///
    /// FILE has an address a line: unix:PATH, HOST:PORT, or recording:PATH; before it a name may stand, which the tables show. Blank
    /// lines and those that begin with # are skipped. Of dns:NAME:PORT all addresses are asked that the name has, of slurm:JOB:PORT the nodes on which the job
    /// runs, and of k8s:NAMESPACE/SERVICE:PORT all endpoints that kubectl tells of a service of Kubernetes, by their nodes' names (without
    /// NAMESPACE in kubectl's own, without PORT at the service's only one).
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE", conflicts_with_all = ["connect", "recording"])]
    pub(crate) fleet: Option<String>,

    /// Own certificate, with those between it and its authority, in PEM: it says to daemons who asks.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE", env = "MEMSCOPE_TLS_CERT")]
    tls_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE", env = "MEMSCOPE_TLS_KEY")]
    tls_key: Option<PathBuf>,

    /// Authorities that the daemons' certificates must be from, in PEM.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE", env = "MEMSCOPE_TLS_CA")]
    tls_ca: Option<PathBuf>,

    /// Name that the daemons' certificates must have; without it, that of the host.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NAME")]
    tls_name: Option<String>,

    /// Print JSON instead of tables.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// How long to wait for an answer, 30 s if it is not given, of each node of a fleet 10 s; with events, for the next event, for ever if it is not given.
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Ask a recording instead of a daemon: a file, or a directory that `ps --earlier` names; the daemon's state directory means the
    /// latest of these. A snapshot that PyTorch wrote itself (a pickle) is a recording, too.
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
/// The same for a node of a fleet, where others have answered already.
const PATIENCE_IN_A_FLEET: Duration = Duration::from_secs(10);

fn parse_address(text: &str) -> Result<Address, String> {
    match Address::parse(text).map_err(|error| error.to_string())? {
        Address::Recording(_) => Err("a recording is asked with --recording PATH".into()),
        address => Ok(address),
    }
}

impl Global {
    /// How long to wait for a node of a fleet.
    pub(crate) fn timeout_in_a_fleet(&self) -> Duration {
        self.timeout.unwrap_or(PATIENCE_IN_A_FLEET)
    }

    /// The address of the daemon: that of `--connect`, else the Unix socket.
    pub(crate) fn address(&self) -> Address {
        let socket = || Address::Unix(self.socket.clone());
        self.connect.clone().unwrap_or_else(socket)
    }

    /// What connections over TLS are made with; `None` where the options are not given.
    pub(crate) fn tls(&self) -> Result<Option<Tls>, Failure> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(authority)) => {
                Tls::load(certificate, key, authority, self.tls_name.as_deref()).map(Some)
            }
            _ => Err(Failure::Usage {
                what: "--tls-cert, --tls-key and --tls-ca belong together".into(),
                hint: "give all three".into(),
            }),
        }
    }

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
    pub(crate) command_line: fn() -> clap::Command,
    pub(crate) global: Global,
    /// The memscoped that replays the recording, once a question was asked. It is killed if this is dropped.
    replayer: Mutex<Option<(Replayer, Client)>>,
}

impl Session {
    /// `command_line` tells of all commands and their options.
    pub(crate) fn new(global: Global, command_line: fn() -> clap::Command) -> Session {
        Session {
            command_line,
            global,
            replayer: Mutex::new(None),
        }
    }

    /// The same options, with this recording to be asked.
    pub(crate) fn of_recording(&self, recording: PathBuf) -> Session {
        let global = Global {
            recording: Some(recording),
            ..self.global.clone()
        };
        Session::new(global, self.command_line)
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
                            Replayer::start(recording, as_of, Room::ALONE, self.global.timeout())
                                .await?;
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
        let address = self.global.address();
        // Certificates in the environment are not read for a socket, which has no use for them.
        let tls = match &address {
            Address::Host { .. } => self.global.tls()?,
            Address::Unix(_) | Address::Recording(_) => None,
        };
        Client::connect(&address, tls.as_ref(), Room::ALONE, self.global.timeout()).await
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
