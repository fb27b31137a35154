//! The connection to a daemon. Nothing here waits longer than `--timeout`.

use crate::failure::Failure;
use crate::process::Processes;
use hyper_util::rt::TokioIo;
use memscope_proto::v1;
use memscope_service::memscope_client::MemscopeClient;
use memscope_service::triggers_client::TriggersClient;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status, Streaming};

/// Largest answer that is taken; the daemon keeps them below 4 MiB, an older one may not.
const LARGEST: usize = 64 << 20;

/// The generated client.
pub(crate) type Rpc = MemscopeClient<Channel>;
/// The same for what is taken by itself.
pub(crate) type Triggers = TriggersClient<Channel>;

/// A daemon that can be asked.
#[derive(Clone)]
pub(crate) struct Client {
    rpc: Rpc,
    triggers: Triggers,
    socket: PathBuf,
    timeout: Duration,
    strict: bool,
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(socket: &Path, timeout: Duration) -> Result<Client, Failure> {
        let late = |_| Failure::Timeout {
            socket: socket.to_owned(),
            what: "accept the connection",
            after: timeout,
        };
        // Connected here and not by the transport, which would wrap the reason away.
        let stream = tokio::time::timeout(timeout, UnixStream::connect(socket))
            .await
            .map_err(late)?
            .map_err(|source| not_connected(socket, source))?;
        let stream = Arc::new(Mutex::new(Some(stream)));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = Arc::clone(&stream);
            async move {
                let taken = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
                // A second connection would be to another daemon.
                taken
                    .map(TokioIo::new)
                    .ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset))
            }
        });
        let endpoint = Endpoint::from_static("http://memscoped");
        let connecting = endpoint.connect_with_connector(connector);
        let channel = tokio::time::timeout(timeout, connecting)
            .await
            .map_err(late)?
            .map_err(|source| Failure::Broken {
                socket: socket.to_owned(),
                source: Box::new(source),
            })?;
        Ok(Client {
            triggers: TriggersClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            rpc: MemscopeClient::new(channel).max_decoding_message_size(LARGEST),
            socket: socket.to_owned(),
            timeout,
            strict: false,
        })
    }

    /// The same connection with another patience.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Client {
        Client { timeout, ..self }
    }

    /// The same connection; with `strict`, answers that are not exact are refused.
    pub(crate) fn strict(self, strict: bool) -> Client {
        Client { strict, ..self }
    }

    fn request<Q>(&self, question: Q) -> Request<Q> {
        let mut request = Request::new(question);
        if self.strict {
            let yes = tonic::metadata::MetadataValue::from_static("1");
            request.metadata_mut().insert(memscope_proto::STRICT, yes);
        }
        request
    }

    fn late(&self) -> Failure {
        Failure::Timeout {
            socket: self.socket.clone(),
            what: "answer",
            after: self.timeout,
        }
    }

    /// Asks one question.
    pub(crate) async fn ask<Q, A, F, R>(&self, question: Q, call: F) -> Result<A, Failure>
    where
        F: FnOnce(Rpc, Request<Q>) -> R,
        R: Future<Output = Result<Response<A>, Status>>,
    {
        self.answer(call(self.rpc.clone(), self.request(question)))
            .await
    }

    /// Asks one question about what is taken by itself.
    pub(crate) async fn ask_triggers<Q, A, F, R>(&self, question: Q, call: F) -> Result<A, Failure>
    where
        F: FnOnce(Triggers, Request<Q>) -> R,
        R: Future<Output = Result<Response<A>, Status>>,
    {
        self.answer(call(self.triggers.clone(), self.request(question)))
            .await
    }

    async fn answer<A>(
        &self,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, Failure> {
        match tokio::time::timeout(self.timeout, call).await {
            Err(_) => Err(self.late()),
            Ok(Err(status)) => Err(Failure::from_status(status, self.socket.clone())),
            Ok(Ok(answer)) => Ok(answer.into_inner()),
        }
    }

    /// The next part of a streamed answer, which must come within the timeout.
    pub(crate) async fn next<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Failure> {
        match tokio::time::timeout(self.timeout, stream.message()).await {
            Err(_) => Err(self.late()),
            Ok(part) => part.map_err(|status| Failure::from_status(status, self.socket.clone())),
        }
    }

    /// The next part, within this time, or however long it takes: of events, nobody knows when one comes.
    pub(crate) async fn next_within<T>(
        &self,
        stream: &mut Streaming<T>,
        patience: Option<Duration>,
    ) -> Result<Option<T>, Failure> {
        let Some(after) = patience else {
            let part = stream.message().await;
            return part.map_err(|status| Failure::from_status(status, self.socket.clone()));
        };
        match tokio::time::timeout(after, stream.message()).await {
            Err(_) => Err(Failure::NoEvent { after }),
            Ok(part) => part.map_err(|status| Failure::from_status(status, self.socket.clone())),
        }
    }

    /// The process that is meant: the one named, else the only one there is.
    pub(crate) async fn choose(&self, pid: Option<u32>) -> Result<u32, Failure> {
        if let Some(pid) = pid {
            return Ok(pid);
        }
        only_one(&self.list().await?.processes)
    }

    /// The processes that are meant: those named, else all.
    pub(crate) async fn chosen(&self, processes: &Processes) -> Result<Vec<u32>, Failure> {
        let named = processes.named();
        if !named.is_empty() {
            return Ok(named);
        }
        match all(&self.list().await?.processes) {
            none if none.is_empty() => Err(Failure::NothingTraced),
            pids => Ok(pids),
        }
    }

    /// All that are or were traced.
    pub(crate) async fn list(&self) -> Result<v1::ListResponse, Failure> {
        self.ask(v1::ListRequest {}, async |mut rpc, request| {
            rpc.list(request).await
        })
        .await
    }

    /// How the daemon does.
    pub(crate) async fn status(&self) -> Result<v1::StatusResponse, Failure> {
        self.ask(v1::StatusRequest {}, async |mut rpc, request| {
            rpc.status(request).await
        })
        .await
    }

    /// What a process holds.
    pub(crate) async fn stats(&self, pid: u32) -> Result<v1::StatsResponse, Failure> {
        self.ask(v1::StatsRequest { pid }, async |mut rpc, request| {
            rpc.stats(request).await
        })
        .await
    }

    /// What grows in a process.
    pub(crate) async fn leaks(
        &self,
        question: v1::LeaksRequest,
    ) -> Result<v1::LeaksResponse, Failure> {
        self.ask(question, async |mut rpc, request| rpc.leaks(request).await)
            .await
    }
}

/// All traced processes, else all that there were.
fn all(processes: &[v1::Process]) -> Vec<u32> {
    let pids = |traced_only: bool| {
        let mut pids: Vec<u32> = processes
            .iter()
            .filter(|p| !traced_only || p.state() == v1::ProcessState::Attached)
            .filter_map(|process| Some(process.facts.as_ref()?.pid))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    };
    let traced = pids(true);
    if traced.is_empty() {
        pids(false)
    } else {
        traced
    }
}

/// The only traced process, else the only one there was.
fn only_one(processes: &[v1::Process]) -> Result<u32, Failure> {
    match all(processes).as_slice() {
        [] => Err(Failure::NothingTraced),
        [pid] => Ok(*pid),
        several => Err(Failure::SeveralTraced {
            pids: several
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

fn not_connected(socket: &Path, source: io::Error) -> Failure {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => Failure::Forbidden { socket, source },
        _ => Failure::NoDaemon { socket, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, state: v1::ProcessState) -> v1::Process {
        v1::Process {
            facts: Some(v1::ProcessFacts {
                pid,
                ..Default::default()
            }),
            state: state.into(),
            ..Default::default()
        }
    }

    #[test]
    fn chooses_the_only_one() {
        use v1::ProcessState::{Attached, Exited, Replaced};
        assert!(matches!(only_one(&[]), Err(Failure::NothingTraced)));
        let one = [process(1, Exited), process(2, Attached)];
        assert!(matches!(only_one(&one), Ok(2)));
        let ended = [process(3, Replaced), process(3, Exited)];
        assert!(matches!(only_one(&ended), Ok(3)));
        let two = [process(9, Attached), process(2, Attached)];
        match only_one(&two) {
            Err(Failure::SeveralTraced { pids }) => assert_eq!(pids, "2, 9"),
            other => panic!("{other:?}"),
        }
    }
}
