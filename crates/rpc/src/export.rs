//! Streams the bytes of a file as somebody else's function writes them.

use memscope_export::Progress;
use memscope_ledger::report::SnapshotReport;
use memscope_proto::v1::ExportChunk;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes of a chunk.
const CHUNK: usize = 64 * 1024;
/// Chunks that wait for the client before the writer waits.
const QUEUE: usize = 4;

/// Writes a snapshot, and may say how far it is.
pub type Exporter =
    Arc<dyn Fn(&SnapshotReport, &mut dyn Write, Progress<'_>) -> io::Result<()> + Send + Sync>;

pub(crate) type ChunkStream = ReceiverStream<Result<ExportChunk, Status>>;

/// Runs `work` on its own thread; it waits when the client is slow and stops when it is gone.
pub(crate) fn stream(
    work: impl FnOnce(&mut dyn Write, Progress<'_>) -> io::Result<()> + Send + 'static,
) -> ChunkStream {
    chunks(move |writer| {
        let reached = Arc::clone(&writer.reached);
        let tell = |done, of| reached.set(done, of);
        work(writer, &tell).map_err(|error| {
            Status::internal(format!(
                "the file cannot be written: {error} — this is a fault of memscope: please \
                 report it"
            ))
        })
    })
}

/// Passes a file on as it is.
pub(crate) fn pass_on(mut content: Box<dyn Read + Send>) -> ChunkStream {
    chunks(move |writer| match io::copy(&mut content, writer) {
        Ok(_) => Ok(()),
        Err(error) => Err(Status::internal(format!(
            "the snapshot cannot be read: {error} — is the daemon's disk in order?"
        ))),
    })
}

fn chunks(
    write: impl FnOnce(&mut ChunkWriter) -> Result<(), Status> + Send + 'static,
) -> ChunkStream {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let mut writer = ChunkWriter {
            sender,
            buffer: Vec::with_capacity(CHUNK),
            reached: Arc::default(),
        };
        let end = match write(&mut writer) {
            // What cannot be sent is asked for by nobody.
            Ok(()) => writer
                .flush()
                .map_or(None, |()| Some(Ok(ExportChunk::default()))),
            Err(status) => {
                tracing::warn!(error = status.message(), "an export ended early");
                Some(Err(status))
            }
        };
        let Some(end) = end else {
            return;
        };
        // A client that is gone needs no end.
        let _ = writer.sender.blocking_send(end);
    });
    ReceiverStream::new(receiver)
}

struct ChunkWriter {
    sender: mpsc::Sender<Result<ExportChunk, Status>>,
    buffer: Vec<u8>,
    reached: Arc<Reached>,
}

/// How far the work is. Only the thread that works sets it.
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
        // An empty chunk means the end of the file.
        if self.buffer.is_empty() {
            return Ok(());
        }
        let content = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        self.sender
            .blocking_send(Ok(ExportChunk {
                content,
                done: self.reached.done.load(Ordering::Relaxed),
                of: self.reached.of.load(Ordering::Relaxed),
            }))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away"))
    }
}
