//! Streams a file to the client while another function writes it.

use crate::daemon::RecordingWriter;
use crate::under_way::UnderWay;
use memscope_export::Progress;
use memscope_ledger::report::{AsOf, SnapshotReport};
use memscope_proto::v1::{CoverageNote, ExportChunk};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Size of a chunk in bytes.
const CHUNK: usize = 64 * 1024;
/// Number of chunks that may wait for the client; with more, the writer waits.
const QUEUE: usize = 4;

/// Function that writes a snapshot as a file, and may report its progress.
pub type Exporter =
    Arc<dyn Fn(&SnapshotReport, &mut dyn Write, Progress<'_>) -> io::Result<()> + Send + Sync>;

pub(crate) type ChunkStream = ReceiverStream<Result<ExportChunk, Status>>;

/// The moment that a file describes, and what limits its numbers.
pub(crate) type Described = (AsOf, Vec<CoverageNote>);

/// Runs `work` on its own thread. Its writes wait while the client is slow, and fail when the client is gone. The last chunk has
/// what `work` says of the file.
pub(crate) fn stream(
    under_way: UnderWay,
    work: impl FnOnce(&mut dyn Write, Progress<'_>) -> io::Result<Described> + Send + 'static,
) -> ChunkStream {
    chunks(under_way, move |writer| {
        let reached = Arc::clone(&writer.reached);
        let tell = |done, of| reached.set(done, of);
        let (as_of, coverage) = work(writer, &tell).map_err(unwritable)?;
        Ok(ExportChunk {
            coverage,
            as_of: as_of.unix_ns,
            ..ExportChunk::default()
        })
    })
}

/// The same for a recording. What could not be read for it is in the last chunk.
pub(crate) fn recording(under_way: UnderWay, write: RecordingWriter) -> ChunkStream {
    chunks(under_way, move |writer| {
        let warnings = write(writer).map_err(unwritable)?;
        Ok(ExportChunk {
            warnings,
            ..ExportChunk::default()
        })
    })
}

fn unwritable(error: io::Error) -> Status {
    Status::internal(format!(
        "the file cannot be written: {error} — this is a fault of memscope: please report it"
    ))
}

/// Streams an existing file unchanged.
pub(crate) fn pass_on(under_way: UnderWay, mut content: Box<dyn Read + Send>) -> ChunkStream {
    chunks(under_way, move |writer| {
        match io::copy(&mut content, writer) {
            Ok(_) => Ok(ExportChunk::default()),
            Err(error) => Err(Status::internal(format!(
                "the snapshot cannot be read: {error} — is the daemon's disk in order?"
            ))),
        }
    })
}

/// Sends what `write` writes, and then the last chunk, which it returns. The request counts as under way until the thread has
/// ended, which may be after the client has gone.
fn chunks(
    under_way: UnderWay,
    write: impl FnOnce(&mut ChunkWriter) -> Result<ExportChunk, Status> + Send + 'static,
) -> ChunkStream {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let _under_way = under_way;
        let mut writer = ChunkWriter {
            sender,
            buffer: Vec::with_capacity(CHUNK),
            reached: Arc::default(),
        };
        let end = match write(&mut writer) {
            // A flush fails only if the client is gone: then nobody waits for the end.
            Ok(last) => writer.flush().ok().map(|()| Ok(last)),
            Err(status) => {
                tracing::warn!(error = status.message(), "an export ended early");
                Some(Err(status))
            }
        };
        let Some(end) = end else {
            return;
        };
        // Fails only if the client is gone: then nobody waits for the end.
        let _ = writer.sender.blocking_send(end);
    });
    ReceiverStream::new(receiver)
}

struct ChunkWriter {
    sender: mpsc::Sender<Result<ExportChunk, Status>>,
    buffer: Vec<u8>,
    reached: Arc<Reached>,
}

/// How far the export has come: units done, and units in all. Only the thread that runs the export sets it.
#[derive(Default)]
struct Reached {
    done: AtomicU64,
    of: AtomicU64,
}

impl Reached {
    fn set(&self, done: u64, of: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.of.store(of, Ordering::Relaxed);
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nothing is sent for an empty buffer, because an empty chunk means the end of the file.
        if self.buffer.is_empty() {
            return Ok(());
        }
        let content = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        self.sender
            .blocking_send(Ok(ExportChunk {
                content,
                done: self.reached.done.load(Ordering::Relaxed),
                of: self.reached.of.load(Ordering::Relaxed),
                ..ExportChunk::default()
            }))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away"))
    }
}
