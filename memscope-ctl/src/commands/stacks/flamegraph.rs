//! `flamegraph`: stacks drawn, or as a file for pprof and speedscope.

use super::view::View;
use crate::commands::run::Run;
use crate::failure::{Exit, Failure};
use crate::file::{Target, export, told};
use crate::format;
use crate::moment::in_order;
use crate::process::Process;
use crate::session::Session;
use memscope_proto::formats::{Format, STACKS, Tells};
use memscope_proto::v1;
use std::path::PathBuf;

/// Draw whose memory it is as a flame graph, or write it for pprof or speedscope.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl flamegraph --pid 4242 -o live.svg
  memscope-ctl flamegraph --pid 4242 --from -10m -o growth.svg      what grew in ten minutes
  memscope-ctl flamegraph --pid 4242 --from -10m --diff -o diff.svg red grew, blue shrank
  memscope-ctl flamegraph --pid 4242 --metric peak --format folded | flamegraph.pl > peak.svg
  memscope-ctl flamegraph --pid 4242 -o heap.pb.gz && go tool pprof -top heap.pb.gz
  memscope-ctl flamegraph --pid 4242 -o heap.speedscope.json")]
pub(crate) struct Flamegraph {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Format of the file; without it, what its name ends in says: .svg, .folded or .txt, .pb.gz or .pprof,
    /// .json (speedscope); svg for a name without an ending.
    #[arg(long, value_parser = format::parser(STACKS))]
    format: Option<&'static Format>,
    #[command(flatten)]
    pub(crate) view: View,
    /// Draw what lives, coloured by what changed since --from: red grew, blue shrank.
    ///
    /// As folded text: two numbers, before and now.
    #[arg(long, requires = "from", conflicts_with = "metric")]
    pub(crate) diff: bool,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl Flamegraph {
    /// Format of the file: that of `--format`, or the one that the file's name stands for.
    fn format(&self) -> Result<&'static Format, Failure> {
        format::of(STACKS, self.format, self.output.as_deref())
    }
}

impl Run for Flamegraph {
    const CLEANS_UP: bool = true;

    fn check(&self, _: &Session) -> Result<(), Failure> {
        in_order(self.view.from.as_ref(), self.view.at.as_ref())?;
        let format = self.format()?;
        if self.diff && format.tells != (Tells::Stacks { differences: true }) {
            return Err(Failure::Usage {
                what: "--diff is drawn in a flame graph only".into(),
                hint: "choose --format svg or folded, or --metric growth instead of --diff".into(),
            });
        }
        format::not_for_a_terminal(format, self.output.as_deref(), "another --format")
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let format = self.format()?;
        let pid = client.choose(self.process.pid()).await?;
        let question = v1::ExportRequest {
            pid,
            format: format.wire.into(),
            at: self.view.at.clone(),
            from: self.view.from.clone(),
            view: Some(v1::StackView {
                // What changed is drawn over what lives.
                metric: match self.diff {
                    true => v1::StackMetric::Live.into(),
                    false => self.view.wire().metric,
                },
                ..self.view.wire()
            }),
            differential: self.diff,
        };
        let mut target = Target::open(self.output.as_deref())?;
        let last = export(&client, question, &mut target).await?;
        told(target, pid, Some(format), last, session.global.json)?;
        Ok(Exit::Done)
    }
}
