//! `snapshot`: streamed to a file.

use super::run::Run;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::file::{Target, export, told};
use crate::output::{self, format_of_name};
use crate::process::Process;
use crate::progress::Progress;
use crate::session::Session;
use clap::ValueEnum;
use memscope_proto::v1::{self, Moment, snapshot_part::Part};
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
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// An earlier moment, from the journal: an age (-5m, -30s), a time (2026-11-20T08:30:00Z, or
    /// nanoseconds since 1970 as in `as_of`), event:NUMBER for right after that event, step:NUMBER for the end of
    /// that step, or mark:NAME for the last mark with that name (mark:NAME#2: the second; see marks).
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A pickle that PyTorch's memory viewer opens.
    MemoryViz,
    /// A trace that ui.perfetto.dev opens: counters per device and pool, long-lived blocks as slices.
    Perfetto,
    /// One self-contained page for a browser.
    Html,
    /// A JSON document {header, segments, trace}.
    Json,
}

impl Format {
    /// What a file's name may end in.
    const ENDINGS: [(&str, Format); 6] = [
        (".pickle", Format::MemoryViz),
        (".pkl", Format::MemoryViz),
        (".html", Format::Html),
        (".json", Format::Json),
        (".pftrace", Format::Perfetto),
        (".perfetto-trace", Format::Perfetto),
    ];
}

impl Snapshot {
    /// The format asked for.
    pub(crate) fn format(&self) -> Result<Format, Failure> {
        let named = match (self.format, &self.output) {
            (Some(format), _) => Some(format),
            (None, Some(path)) => format_of_name(path, &Format::ENDINGS)?,
            (None, None) => None,
        };
        Ok(named.unwrap_or(Format::MemoryViz))
    }
}

impl Run for Snapshot {
    /// A pickle is nothing for a terminal; and a name must not say something else than the file is.
    fn check(&self, _: &Session) -> Result<(), Failure> {
        let binary = matches!(self.format()?, Format::MemoryViz | Format::Perfetto);
        if self.output.is_none() && binary && output::is_terminal() {
            return Err(Failure::Usage {
                what: "this format is binary and standard output is a terminal".into(),
                hint: "write it to a file with -o FILE, or choose --format json".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = &session.client().await?;
        let chosen = self.format()?;
        let pid = client.choose(self.process.pid()).await?;
        let mut target = Target::open(self.output.as_deref())?;
        let format = match chosen {
            Format::MemoryViz => Some(v1::ExportFormat::MemoryViz),
            Format::Perfetto => Some(v1::ExportFormat::Perfetto),
            Format::Html => Some(v1::ExportFormat::Html),
            Format::Json => None,
        };
        match format {
            Some(format) => {
                let question = v1::ExportRequest {
                    pid,
                    format: format.into(),
                    at: self.at.clone(),
                    ..v1::ExportRequest::default()
                };
                export(client, question, &mut target).await?;
            }
            None => as_json(client, pid, self.at.clone(), &mut target).await?,
        }
        if told(target, pid, session.global.json)?.is_some() && !session.global.json {
            match chosen {
                Format::MemoryViz => output::text("Open it at https://pytorch.org/memory_viz\n")?,
                Format::Perfetto => output::text("Open it at https://ui.perfetto.dev\n")?,
                Format::Html | Format::Json => {}
            }
        }
        Ok(Exit::Done)
    }
}

/// Writes `{"header": …, "segments": […], "trace": […]}`, a segment and an entry a line, without
/// ever holding more than a part and a segment.
async fn as_json(
    client: &Client,
    pid: u32,
    at: Option<v1::Moment>,
    target: &mut Target,
) -> Result<(), Failure> {
    let question = v1::SnapshotRequest { pid, at };
    let mut progress = Progress::start();
    let (mut done, mut of) = (0, 0);
    let mut parts = client
        .ask(question, async |mut rpc, request| {
            rpc.snapshot(request).await
        })
        .await?;
    let mut document = Document::default();
    while let Some(part) = client.next(&mut parts).await? {
        match part.part {
            Some(Part::Header(header)) => {
                of = header.blocks + header.trace_entries;
                document.header(target, &header)?;
            }
            Some(Part::Segments(chunk)) => {
                for segment in chunk.segments {
                    done += segment.blocks.len() as u64;
                    document.segment(target, segment)?;
                }
            }
            Some(Part::Trace(chunk)) => {
                document.begin_trace(target)?;
                done += chunk.entries.len() as u64;
                for entry in &chunk.entries {
                    document.entry(target, entry)?;
                }
            }
            Some(Part::End(_)) => return document.end(target),
            // A part of a newer version.
            None => {}
        }
        progress.reached(done, of, target.bytes());
    }
    Err(Failure::Incomplete {
        what: "the snapshot ended early".into(),
    })
}

#[derive(Default)]
struct Document {
    /// The segment that the next part may continue.
    open: Option<v1::Segment>,
    segments: u64,
    in_trace: bool,
    entries: u64,
}

impl Document {
    fn header(&mut self, target: &mut Target, header: &v1::SnapshotHeader) -> Result<(), Failure> {
        target.write(b"{\"header\": ")?;
        target.json(header)?;
        target.write(b",\n\"segments\": [")
    }

    fn segment(&mut self, target: &mut Target, next: v1::Segment) -> Result<(), Failure> {
        match &mut self.open {
            Some(open) if next.continued => open.blocks.extend(next.blocks),
            _ => {
                self.close_segment(target)?;
                self.open = Some(next);
            }
        }
        Ok(())
    }

    fn close_segment(&mut self, target: &mut Target) -> Result<(), Failure> {
        let Some(segment) = self.open.take() else {
            return Ok(());
        };
        target.write(if self.segments == 0 { b"\n" } else { b",\n" })?;
        self.segments += 1;
        target.json(&segment)
    }

    fn begin_trace(&mut self, target: &mut Target) -> Result<(), Failure> {
        if self.in_trace {
            return Ok(());
        }
        self.in_trace = true;
        self.close_segment(target)?;
        target.write(b"],\n\"trace\": [")
    }

    fn entry(&mut self, target: &mut Target, entry: &v1::TraceEntry) -> Result<(), Failure> {
        target.write(if self.entries == 0 { b"\n" } else { b",\n" })?;
        self.entries += 1;
        target.json(entry)
    }

    fn end(&mut self, target: &mut Target) -> Result<(), Failure> {
        self.begin_trace(target)?;
        target.write(b"]}\n")
    }
}
