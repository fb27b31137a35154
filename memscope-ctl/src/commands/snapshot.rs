//! `snapshot`: streamed to a file, which is whole or not there.

use crate::args::{self, Format, Snapshot};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::{self, cannot_print, no_json};
use crate::progress::Progress;
use crate::units;
use memscope_proto::v1::{self, snapshot_part::Part};
use serde::Serialize;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tonic::Streaming;

/// A pickle is nothing for a terminal; and a name must not say something else than the file is.
pub(super) fn refuse_terminal(snapshot: &Snapshot) -> Result<(), Failure> {
    let binary = matches!(snapshot.format()?, Format::MemoryViz | Format::Perfetto);
    if snapshot.output.is_none() && binary && output::is_terminal() {
        return Err(Failure::Usage {
            what: "this format is binary and standard output is a terminal".into(),
            hint: "write it to a file with -o FILE, or choose --format json".into(),
        });
    }
    Ok(())
}

pub(super) async fn snapshot(
    client: &Client,
    snapshot: &Snapshot,
    json: bool,
) -> Result<Exit, Failure> {
    let chosen = snapshot.format()?;
    let pid = client.choose(snapshot.process.pid()).await?;
    let mut target = Target::open(snapshot.output.as_deref())?;
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
                at: snapshot.at.clone(),
                ..v1::ExportRequest::default()
            };
            export(client, question, &mut target).await?;
        }
        None => as_json(client, pid, snapshot.at.clone(), &mut target).await?,
    }
    if told(target, pid, json)?.is_some() && !json {
        match chosen {
            Format::MemoryViz => output::text("Open it at https://pytorch.org/memory_viz\n")?,
            Format::Perfetto => output::text("Open it at https://ui.perfetto.dev\n")?,
            Format::Html | Format::Json => {}
        }
    }
    Ok(Exit::Done)
}

/// Puts a file in its place and tells of it; returns where, if it is a file.
pub(super) fn told(target: Target, pid: u32, json: bool) -> Result<Option<PathBuf>, Failure> {
    let bytes = target.bytes();
    let Some(path) = target.finish()? else {
        return Ok(None);
    };
    if json {
        output::json(&Written {
            pid,
            file: path.display().to_string(),
            bytes,
        })?;
    } else {
        let size = units::exact_bytes(Some(bytes));
        output::text(&format!("Wrote {}, {size}.\n", path.display()))?;
    }
    Ok(Some(path))
}

#[derive(Serialize)]
struct Written {
    pid: u32,
    file: String,
    bytes: u64,
}

#[derive(Serialize)]
struct Recorded {
    file: String,
    bytes: u64,
}

/// Writes the journal.
pub(super) async fn recorded_to(client: &Client, target: &mut Target) -> Result<(), Failure> {
    let mut progress = Progress::start();
    let chunks = client
        .ask(v1::RecordRequest {}, async |mut rpc, request| {
            rpc.record(request).await
        })
        .await?;
    drain(client, chunks, target, &mut progress).await
}

/// Writes the journal to a file, and tells of it.
pub(super) async fn record(
    client: &Client,
    record: &args::Record,
    json: bool,
) -> Result<Exit, Failure> {
    let mut target = Target::open(Some(&record.output))?;
    recorded_to(client, &mut target).await?;
    let bytes = target.bytes();
    target.finish()?;
    let file = record.output.display().to_string();
    if json {
        output::json(&Recorded { file, bytes })?;
    } else {
        let size = units::exact_bytes(Some(bytes));
        output::text(&format!(
            "Wrote {file}, {size}.\nAsk it: memscope-ctl --recording {file} leaks\n"
        ))?;
    }
    Ok(Exit::Done)
}

/// Writes the bytes of a file as they come.
pub(super) async fn export(
    client: &Client,
    question: v1::ExportRequest,
    target: &mut Target,
) -> Result<(), Failure> {
    let mut progress = Progress::start();
    let chunks = client
        .ask(question, async |mut rpc, request| rpc.export(request).await)
        .await?;
    drain(client, chunks, target, &mut progress).await
}

/// Writes a file as it comes.
pub(super) async fn drain(
    client: &Client,
    mut chunks: Streaming<v1::ExportChunk>,
    target: &mut Target,
    progress: &mut Progress,
) -> Result<(), Failure> {
    while let Some(chunk) = client.next(&mut chunks).await? {
        // The last chunk is empty.
        if chunk.content.is_empty() {
            return Ok(());
        }
        target.write(&chunk.content)?;
        progress.reached(chunk.done, chunk.of, target.bytes());
    }
    Err(Failure::Incomplete {
        what: "the file ended early".into(),
    })
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

/// Where a file goes.
pub(super) struct Target {
    kind: Kind,
    bytes: u64,
}

enum Kind {
    Stdout(BufWriter<io::Stdout>),
    /// A pipe or a device, which cannot be replaced by another file.
    Special(BufWriter<File>, PathBuf),
    /// A file beside the one that it will replace.
    Beside(BufWriter<NamedTempFile>, PathBuf),
}

impl Target {
    pub(super) fn open(path: Option<&Path>) -> Result<Target, Failure> {
        let kind = match path {
            None => Kind::Stdout(BufWriter::new(io::stdout())),
            Some(path) => Self::file(path).map_err(|source| cannot_write(path, source))?,
        };
        Ok(Target { kind, bytes: 0 })
    }

    /// Written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(path: &Path) -> io::Result<Kind> {
        // What a link points to is replaced, not the link.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if path.exists() && !path.is_file() {
            let file = OpenOptions::new().write(true).open(&path)?;
            return Ok(Kind::Special(BufWriter::new(file), path));
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // The umask narrows this, as for any file.
        let beside = tempfile::Builder::new()
            .prefix(".memscope-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        Ok(Kind::Beside(BufWriter::new(beside), path))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.bytes += bytes.len() as u64;
        match &mut self.kind {
            Kind::Stdout(out) => out.write_all(bytes).map_err(cannot_print),
            Kind::Special(out, path) => out.write_all(bytes).map_err(|e| cannot_write(path, e)),
            Kind::Beside(out, path) => out.write_all(bytes).map_err(|e| cannot_write(path, e)),
        }
    }

    fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let document = serde_json::to_vec(value).map_err(no_json)?;
        self.write(&document)
    }

    /// Puts the file in its place; returns where, if it is a file.
    pub(super) fn finish(self) -> Result<Option<PathBuf>, Failure> {
        match self.kind {
            Kind::Stdout(mut out) => {
                out.flush().map_err(cannot_print)?;
                Ok(None)
            }
            Kind::Special(mut out, path) => {
                out.flush().map_err(|error| cannot_write(&path, error))?;
                Ok(None)
            }
            Kind::Beside(out, path) => {
                let place = || {
                    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
                    file.as_file().sync_all()?;
                    file.persist(&path)?;
                    Ok(())
                };
                place().map_err(|error| cannot_write(&path, error))?;
                Ok(Some(path))
            }
        }
    }
}

fn cannot_write(path: &Path, source: io::Error) -> Failure {
    Failure::Output {
        what: format!("{} cannot be written", path.display()),
        source,
    }
}
