//! `snapshot`: writes what a process holds to a file.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::file::{Target, export, told};
use crate::format;
use crate::process::Process;
use crate::session::Session;
use memscope_proto::formats::{Format, SNAPSHOTS};
use memscope_proto::v1::{self, Moment};
use std::path::PathBuf;

/// Write segments, blocks and trace of a process to a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl snapshot --pid 4242 -o s.pickle    open it at https://pytorch.org/memory_viz
  memscope-ctl snapshot --pid 4242 -o s.html      a page for a browser
  memscope-ctl snapshot --pid 4242 --format json | jq .header
  memscope-ctl snapshot --pid 4242 --at -5m -o before.pickle   as it was five minutes ago")]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Format of the file; without it, what its name ends in says: .pickle or .pkl (memory-viz), .html, .json, .pftrace or
    /// .perfetto-trace (perfetto); memory-viz for a name without an ending.
    #[arg(long, value_parser = format::parser(SNAPSHOTS))]
    format: Option<&'static Format>,
    /// An earlier moment, from the journal: an age (-5m, -30s), a time (2026-11-20T08:30:00Z, or
    /// nanoseconds since 1970 as in `as_of`), event:NUMBER for right after that event, step:NUMBER for the end of
    /// that step, mark:NAME for the last mark with that name (mark:NAME#2: the second; see marks), or peak for when most
    /// was allocated (peak:DEVICE: on that device).
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Snapshot {
    /// Format of the file: that of `--format`, or the one that the file's name stands for.
    pub(crate) fn format(&self) -> Result<&'static Format, Failure> {
        format::of(SNAPSHOTS, self.format, self.output.as_deref())
    }
}

impl Run for Snapshot {
    const CLEANS_UP: bool = true;

    fn check(&self, _: &Session) -> Result<(), Failure> {
        format::not_for_a_terminal(self.format()?, self.output.as_deref(), "--format json")
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = &session.client().await?;
        let format = self.format()?;
        let pid = client.choose(self.process.pid()).await?;
        let mut target = Target::open(self.output.as_deref())?;
        let question = v1::ExportRequest {
            pid,
            format: format.wire.into(),
            at: self.at.clone(),
            ..v1::ExportRequest::default()
        };
        let last = export(client, question, &mut target).await?;
        told(target, pid, Some(format), last, session.global.json)?;
        Ok(Exit::Done)
    }
}
