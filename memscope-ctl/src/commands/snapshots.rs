//! `snapshots`: lists the snapshots that triggers took, and gets their files.

use super::run::Run;
use super::trigger;
use crate::failure::{Exit, Failure};
use crate::file::{Target, drain};
use crate::output;
use crate::progress::Progress;
use crate::render::table::{Column, table};
use crate::session::Session;
use crate::units::{self, bytes, moment, plain};
use clap::Subcommand;
use memscope_proto::v1;
use serde::Serialize;
use std::path::PathBuf;

/// What `snapshots --help` says after its options.
const KEPT_HELP: &str = "\
Examples:
  memscope-ctl snapshots                       what is kept
  memscope-ctl snapshots get 12 -o s.pickle    the file; open it at https://pytorch.org/memory_viz";

/// List the snapshots that were taken by themselves, or get the file of one.
///
/// They are kept on the daemon's machine within bounds (memscoped --snapshots-keep, --snapshots-mib).
#[derive(Debug, clap::Args)]
#[command(after_help = KEPT_HELP)]
pub(crate) struct Snapshots {
    /// Only those of this process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    #[command(subcommand)]
    pub(crate) command: Option<SnapshotsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotsCommand {
    /// Get the file of one of them.
    Get(Get),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// Its number, as `snapshots` says it.
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: u64,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Run for Snapshots {
    const CLEANS_UP: bool = true;

    const NO_RECORDING: Option<(&'static str, &'static str)> = trigger::NO_RECORDING;

    /// The terminal is refused before anything is asked, because the file may be binary (a pickle).
    fn check(&self, _: &Session) -> Result<(), Failure> {
        let Some(SnapshotsCommand::Get(get)) = &self.command else {
            return Ok(());
        };
        if self.pid.is_some() {
            return Err(Failure::Usage {
                what: "--pid chooses what is listed, and a snapshot is got by its number".into(),
                hint: format!("memscope-ctl snapshots get {}", get.snapshot),
            });
        }
        if get.output.is_none() && output::is_terminal() {
            return Err(Failure::Usage {
                what: "the file may be binary and standard output is a terminal".into(),
                hint: "write it to a file with -o FILE".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        if let Some(SnapshotsCommand::Get(get)) = &self.command {
            return get.run(session).await;
        }
        let client = session.client().await?;
        let answer = client
            .ask_triggers(
                v1::ListKeptRequest { pid: self.pid },
                async |mut rpc, request| rpc.list_kept(request).await,
            )
            .await?;
        session.show(&answer, text)
    }
}

#[derive(Serialize)]
struct Written {
    snapshot: u64,
    file: String,
    bytes: u64,
}

impl Get {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let mut target = Target::open(self.output.as_deref())?;
        let question = v1::GetKeptRequest {
            snapshot: self.snapshot,
        };
        let chunks = client
            .ask_triggers(question, async |mut rpc, request| {
                rpc.get_kept(request).await
            })
            .await?;
        drain(&client, chunks, &mut target, &mut Progress::start()).await?;
        let bytes = target.bytes();
        let Some(path) = target.finish()? else {
            return Ok(Exit::Done);
        };
        let written = Written {
            snapshot: self.snapshot,
            file: path.display().to_string(),
            bytes,
        };
        session.show(&written, |written| {
            let size = units::exact_bytes(Some(bytes));
            format!("Wrote {}, {size}.\n", written.file)
        })
    }
}

fn text(answer: &v1::ListKeptResponse) -> String {
    let snapshots = &answer.snapshots;
    if snapshots.is_empty() {
        return "No snapshot is kept that was taken by itself.\n".to_owned();
    }
    let head = [
        Column::Right("SNAPSHOT"),
        Column::Right("TIME"),
        Column::Right("PID"),
        Column::Left("COMMAND"),
        Column::Left("TRIGGER"),
        Column::Right("SIZE"),
        Column::Left("FILE"),
    ];
    let rows = snapshots.iter().map(|kept| {
        vec![
            kept.snapshot.to_string(),
            moment(kept.time_unix_ns),
            kept.pid.to_string(),
            plain(&kept.comm),
            plain(&kept.when),
            bytes(kept.bytes),
            plain(&kept.path),
        ]
    });
    let mut text = table(&head, rows.collect());
    text.push_str("\nWhy\n");
    for kept in snapshots {
        let baseline = if kept.without_baseline {
            "; without what was there before the attach"
        } else {
            ""
        };
        text.push_str(&format!(
            "  {}: {}{baseline}\n",
            kept.snapshot,
            plain(&kept.reason)
        ));
    }
    let sum = snapshots
        .iter()
        .fold(0, |sum: u64, kept| sum.saturating_add(kept.bytes));
    text.push_str(&format!(
        "\n{} in {}; at most {} and {} are kept, of all users together.\n",
        bytes(sum),
        snapshots.len(),
        answer.limit_count,
        bytes(answer.limit_bytes)
    ));
    text
}
