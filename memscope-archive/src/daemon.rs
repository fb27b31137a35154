//! The connection to memscoped.

use hyper_util::rt::TokioIo;
use memscope_proto::{ERROR_CODE, v1};
use memscope_service::memscope_client::MemscopeClient;
use memscope_service::triggers_client::TriggersClient;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status, Streaming};

/// Largest message that is accepted, in bytes. The daemon's are below 4 MiB.
const LARGEST: usize = 64 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why the daemon gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Nobody answers at the socket.
    #[error("no memscoped answers at {socket}")]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What the transport says.
        source: tonic::transport::Error,
    },
    /// The daemon refuses the question.
    #[error("memscoped does not answer {question}: {}", source.message())]
    Refused {
        /// Name of the method.
        question: &'static str,
        /// What it says.
        source: Box<Status>,
    },
    /// The answer did not come in time.
    #[error("memscoped has not answered {question} within {PATIENCE:?}")]
    Late {
        /// Name of the method.
        question: &'static str,
    },
}

impl DaemonError {
    /// Whether what was asked for is not there (any more).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, DaemonError::Refused { source, .. } if source.code() == Code::NotFound)
    }

    /// Whether the daemon has no time or room for the question now, and may answer it later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let busy = [Code::ResourceExhausted, Code::Unavailable];
        matches!(self, DaemonError::Refused { source, .. } if busy.contains(&source.code()))
    }

    /// A question that was refused with this error code.
    #[cfg(test)]
    pub fn refused(question: &'static str, word: &'static str) -> DaemonError {
        let mut source = Status::failed_precondition("it is refused");
        let word = tonic::metadata::MetadataValue::from_static(word);
        source
            .metadata_mut()
            .insert(memscope_proto::ERROR_CODE, word);
        DaemonError::Refused {
            question,
            source: Box::new(source),
        }
    }

    /// Whether the daemon has given up the process, because it took too much of the daemon's memory.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        let word = match self {
            DaemonError::Refused { source, .. } => source.metadata().get(ERROR_CODE),
            _ => None,
        };
        word.is_some_and(|word| word == "given_up")
    }
}

/// A connection to memscoped.
#[derive(Clone, Debug)]
pub struct Daemon {
    questions: MemscopeClient<Channel>,
    kept: TriggersClient<Channel>,
}

macro_rules! ask {
    ($self:ident, $client:ident, $method:ident, $question:expr) => {{
        let mut client = $self.$client.clone();
        let question = stringify!($method);
        match tokio::time::timeout(PATIENCE, client.$method($question)).await {
            Err(_) => Err(DaemonError::Late { question }),
            Ok(Err(source)) => Err(DaemonError::Refused {
                question,
                source: Box::new(source),
            }),
            Ok(Ok(answer)) => Ok(answer.into_inner()),
        }
    }};
}

impl Daemon {
    /// Connects to the daemon at this socket.
    ///
    /// # Errors
    /// If nobody answers there.
    pub async fn connect(socket: &Path) -> Result<Daemon, DaemonError> {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let endpoint = Endpoint::from_static("http://memscoped").connect_timeout(PATIENCE);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(|source| DaemonError::Connect {
            socket: socket.to_owned(),
            source,
        })?;
        Ok(Daemon {
            questions: MemscopeClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            kept: TriggersClient::new(channel).max_decoding_message_size(LARGEST),
        })
    }

    /// One that answers nothing.
    #[cfg(test)]
    pub fn that_is_not_there() -> Daemon {
        let channel = Endpoint::from_static("http://memscoped").connect_lazy();
        Daemon {
            questions: MemscopeClient::new(channel.clone()),
            kept: TriggersClient::new(channel),
        }
    }

    /// How the daemon does.
    pub async fn status(&self) -> Result<v1::StatusResponse, DaemonError> {
        ask!(self, questions, status, v1::StatusRequest {})
    }

    /// All processes.
    pub async fn list(&self) -> Result<Vec<v1::Process>, DaemonError> {
        let answer: v1::ListResponse = ask!(self, questions, list, v1::ListRequest {})?;
        Ok(answer.processes)
    }

    /// What a process holds.
    pub async fn stats(&self, pid: u32) -> Result<v1::StatsResponse, DaemonError> {
        ask!(self, questions, stats, v1::StatsRequest { pid })
    }

    /// The steps of a process that are kept.
    pub async fn steps(&self, pid: u32) -> Result<v1::StepsResponse, DaemonError> {
        let question = v1::StepsRequest {
            pid,
            ..v1::StepsRequest::default()
        };
        ask!(self, questions, steps, question)
    }

    /// The largest stacks of a process.
    pub async fn stacks(
        &self,
        pid: u32,
        metric: v1::StackMetric,
        limit: u32,
    ) -> Result<v1::StacksResponse, DaemonError> {
        let view = v1::StackView {
            metric: metric.into(),
            unit: v1::StackUnit::Bytes.into(),
            device: None,
        };
        let question = v1::StacksRequest {
            pid,
            view: Some(view),
            by: v1::StackGrouping::Stack.into(),
            limit,
            ..v1::StacksRequest::default()
        };
        ask!(self, questions, stacks, question)
    }

    /// The snapshots that it keeps.
    pub async fn kept(&self) -> Result<Vec<v1::KeptSnapshot>, DaemonError> {
        let question = v1::ListKeptRequest::default();
        let answer: v1::ListKeptResponse = ask!(self, kept, list_kept, question)?;
        Ok(answer.snapshots)
    }

    /// The file of a snapshot; it is refused if it has more than `most` bytes.
    pub async fn content(&self, snapshot: u64, most: u64) -> Result<Vec<u8>, DaemonError> {
        let question = "get_kept";
        let mut stream: Streaming<v1::ExportChunk> =
            ask!(self, kept, get_kept, v1::GetKeptRequest { snapshot })?;
        let refused = |source| DaemonError::Refused {
            question,
            source: Box::new(source),
        };
        let mut content = Vec::new();
        loop {
            let chunk = tokio::time::timeout(PATIENCE, stream.message()).await;
            let chunk = chunk.map_err(|_| DaemonError::Late { question })?;
            match chunk.map_err(refused)? {
                Some(chunk) if chunk.content.is_empty() => return Ok(content),
                Some(chunk) if content.len() as u64 + chunk.content.len() as u64 <= most => {
                    content.extend(chunk.content);
                }
                Some(_) => {
                    let status = Status::out_of_range("the file is larger than it was said to be");
                    return Err(refused(status));
                }
                // Without its end it is not whole.
                None => return Err(refused(Status::data_loss("the file ends too early"))),
            }
        }
    }

    /// Events of these kinds as they come; none: of all kinds.
    pub async fn events(&self, kinds: &[&str]) -> Result<Streaming<v1::Event>, DaemonError> {
        let question = v1::EventsRequest {
            pid: None,
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
        };
        ask!(self, questions, events, question)
    }
}
