//! `flamegraph`: stacks drawn, or as a file for pprof and speedscope.

use super::view::View;
use crate::commands::run::Run;
use crate::failure::{Exit, Failure};
use crate::file::{Target, export, told};
use crate::output::{self, format_of_name};
use crate::process::Process;
use crate::session::Session;
use clap::ValueEnum;
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
    #[arg(long, value_enum)]
    format: Option<StackFormat>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackFormat {
    /// A flame graph for a browser: click to zoom, Ctrl-F to search.
    Svg,
    /// A line for each stack: frames from the outermost with ; between them, a space, the number.
    Folded,
    /// A profile for `go tool pprof`, with all metrics in it.
    Pprof,
    /// A file for speedscope, with all devices and metrics in it.
    Speedscope,
}

impl StackFormat {
    /// On the wire.
    pub(crate) fn wire(self) -> v1::ExportFormat {
        match self {
            StackFormat::Svg => v1::ExportFormat::Flamegraph,
            StackFormat::Folded => v1::ExportFormat::Folded,
            StackFormat::Pprof => v1::ExportFormat::Pprof,
            StackFormat::Speedscope => v1::ExportFormat::Speedscope,
        }
    }

    /// What a file's name may end in.
    const ENDINGS: [(&str, StackFormat); 6] = [
        (".svg", StackFormat::Svg),
        (".folded", StackFormat::Folded),
        (".txt", StackFormat::Folded),
        (".pb.gz", StackFormat::Pprof),
        (".pprof", StackFormat::Pprof),
        (".json", StackFormat::Speedscope),
    ];
}

impl Flamegraph {
    /// The format asked for.
    fn format(&self) -> Result<StackFormat, Failure> {
        let named = match (self.format, &self.output) {
            (Some(format), _) => Some(format),
            (None, Some(path)) => format_of_name(path, &StackFormat::ENDINGS)?,
            (None, None) => None,
        };
        Ok(named.unwrap_or(StackFormat::Svg))
    }
}

impl Run for Flamegraph {
    fn check(&self, _: &Session) -> Result<(), Failure> {
        let format = self.format()?;
        if self.diff && matches!(format, StackFormat::Pprof | StackFormat::Speedscope) {
            return Err(Failure::Usage {
                what: "--diff is drawn in a flame graph only".into(),
                hint: "choose --format svg or folded, or --metric growth instead of --diff".into(),
            });
        }
        if self.output.is_none() && format == StackFormat::Pprof && output::is_terminal() {
            return Err(Failure::Usage {
                what: "this format is binary and standard output is a terminal".into(),
                hint: "write it to a file with -o FILE, or choose another --format".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let format = self.format()?;
        let pid = client.choose(self.process.pid()).await?;
        let question = v1::ExportRequest {
            pid,
            format: format.wire().into(),
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
        export(&client, question, &mut target).await?;
        let Some(path) = told(target, pid, session.global.json)? else {
            return Ok(Exit::Done);
        };
        if !session.global.json {
            let path = path.display();
            output::text(&match format {
                StackFormat::Svg => "Open it in a browser.\n".to_owned(),
                StackFormat::Folded => String::new(),
                StackFormat::Pprof => format!("Look at it with: go tool pprof -http=: {path}\n"),
                StackFormat::Speedscope => "Open it at https://www.speedscope.app\n".to_owned(),
            })?;
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::path::Path;

    #[test]
    fn names_of_files_say_their_format() {
        for (name, format) in [
            ("x.svg", Some(StackFormat::Svg)),
            ("x", None),
            ("/a.b/x", None),
            ("/a/b.folded", Some(StackFormat::Folded)),
            ("x.txt", Some(StackFormat::Folded)),
            ("heap.pb.gz", Some(StackFormat::Pprof)),
            ("x.speedscope.json", Some(StackFormat::Speedscope)),
        ] {
            let said = format_of_name(Path::new(name), &StackFormat::ENDINGS);
            assert_eq!(said.unwrap(), format, "{name}");
        }
        for name in ["x.html", "x.gz"] {
            let said = format_of_name(Path::new(name), &StackFormat::ENDINGS);
            assert!(matches!(said, Err(Failure::Usage { .. })), "{name}");
        }
    }
}
