//! Files that answers are written to. A file is either complete or not there.

use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, cannot_print};
use crate::progress::Progress;
use crate::render::coverage;
use crate::units;
use memscope_dump::replaced;
use memscope_proto::formats::Format;
use memscope_proto::v1;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tonic::Streaming;

/// Reads a file of text that has at most so many bytes.
pub(crate) fn text(path: &Path, most: u64) -> Result<String, Failure> {
    let refused = |why: String| Failure::Usage {
        what: format!("cannot read {}: {why}", path.display()),
        hint: "name a file of text that you may read".to_owned(),
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|why| refused(why.to_string()))?;
    file.take(most + 1)
        .read_to_string(&mut text)
        .map_err(|why| refused(why.to_string()))?;
    if text.len() as u64 > most {
        return Err(refused(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// Destination of a file: standard output, or a path.
pub(crate) struct Target {
    kind: Kind,
    bytes: u64,
}

enum Kind {
    Stdout(BufWriter<io::Stdout>),
    /// A pipe or a device, which is written to directly because no other file can replace it.
    Special(BufWriter<File>, PathBuf),
    /// A temporary file, and the path at which it will replace what is there.
    Beside(BufWriter<NamedTempFile>, PathBuf),
}

impl Target {
    pub(crate) fn open(path: Option<&Path>) -> Result<Target, Failure> {
        let kind = match path {
            None => Kind::Stdout(BufWriter::new(io::stdout())),
            Some(path) => Self::file(path).map_err(|source| cannot_write(path, source))?,
        };
        Ok(Target { kind, bytes: 0 })
    }

    /// Whether it is where answers are printed, by whatever name.
    pub(crate) fn is_stdout(&self) -> bool {
        let Kind::Special(out, _) = &self.kind else {
            return matches!(self.kind, Kind::Stdout(_));
        };
        let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let place = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
        let printed = stdout.ok().and_then(|stdout| place(&stdout));
        printed.is_some() && place(out.get_ref()) == printed
    }

    /// Number of bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(path: &Path) -> io::Result<Kind> {
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // Before links are followed: a pipe that /dev/stdout or a shell's /dev/fd/63 leads to has no path of its own.
        if path.exists() && !path.is_file() {
            let file = OpenOptions::new().write(true).open(path)?;
            return Ok(Kind::Special(BufWriter::new(file), path.to_owned()));
        }
        // The file that a link points to is replaced, not the link.
        let path = replaced::meant(path)?;
        let beside = replaced::beside(&path)?;
        Ok(Kind::Beside(BufWriter::new(beside), path))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.bytes += bytes.len() as u64;
        match &mut self.kind {
            Kind::Stdout(out) => out.write_all(bytes).map_err(cannot_print),
            Kind::Special(out, path) => out.write_all(bytes).map_err(|e| cannot_write(path, e)),
            Kind::Beside(out, path) => out.write_all(bytes).map_err(|e| cannot_write(path, e)),
        }
    }

    /// Completes the file and moves it to its path. Returns the path; `None` for standard output, pipes and devices.
    pub(crate) fn finish(self) -> Result<Option<PathBuf>, Failure> {
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

/// Writes the parts of a streamed file to `target` as they arrive. Returns the last one, which is empty and says what is to be
/// known of the file.
pub(crate) async fn drain(
    client: &Client,
    mut chunks: Streaming<v1::ExportChunk>,
    target: &mut Target,
    progress: &mut Progress,
) -> Result<v1::ExportChunk, Failure> {
    while let Some(chunk) = client.next(&mut chunks).await? {
        if chunk.content.is_empty() {
            return Ok(chunk);
        }
        target.write(&chunk.content)?;
        progress.reached(chunk.done, chunk.of, target.bytes());
    }
    Err(Failure::Incomplete {
        what: "the file ended early".into(),
    })
}

/// Asks for an export and writes it to `target` as it arrives. Returns what is to be known of it.
pub(crate) async fn export(
    client: &Client,
    question: v1::ExportRequest,
    target: &mut Target,
) -> Result<v1::ExportChunk, Failure> {
    let mut progress = Progress::start();
    let chunks = client
        .ask(question, async |mut rpc, request| rpc.export(request).await)
        .await?;
    drain(client, chunks, target, &mut progress).await
}

/// Asks for the journal as a recording and writes it to `target` as it arrives. Returns what could not be read of it, in words.
pub(crate) async fn recorded_to(
    client: &Client,
    target: &mut Target,
) -> Result<Vec<String>, Failure> {
    let mut progress = Progress::start();
    let chunks = client
        .ask(v1::RecordRequest {}, async |mut rpc, request| {
            rpc.record(request).await
        })
        .await?;
    Ok(drain(client, chunks, target, &mut progress).await?.warnings)
}

/// Says on standard error what limits the numbers in a file.
pub(crate) fn note_limits(notes: &[v1::CoverageNote]) {
    for note in notes {
        output::note(&format!("{}: {}", note.code, note.text));
    }
}

/// Completes the file and reports its path and size to the user, the moment that it describes, and what limits its numbers.
pub(crate) fn told(
    target: Target,
    pid: u32,
    format: Option<&Format>,
    last: v1::ExportChunk,
    json: bool,
) -> Result<(), Failure> {
    let bytes = target.bytes();
    let Some(path) = target.finish()? else {
        // The file itself went where this would go.
        note_limits(&last.coverage);
        return Ok(());
    };
    let file = path.display().to_string();
    if json {
        return output::json(&Written {
            pid,
            file,
            bytes,
            // A daemon of an earlier release does not say it.
            as_of: (last.as_of > 0).then_some(last.as_of),
            coverage: last.coverage,
        });
    }
    let size = units::exact_bytes(Some(bytes));
    let as_of = match last.as_of {
        0 => String::new(),
        as_of => format!(", as of {}", units::moment(as_of)),
    };
    let mut text = format!("Wrote {file}, {size}{as_of}.\n");
    if let Some(format) = format.filter(|format| !format.open.is_empty()) {
        text.push_str(&format!("{}\n", format.open.replace("FILE", &file)));
    }
    text.push_str(&coverage(&last.coverage));
    output::text(&text)
}

#[derive(Serialize)]
struct Written {
    pid: u32,
    file: String,
    bytes: u64,
    as_of: Option<u64>,
    coverage: Vec<v1::CoverageNote>,
}
