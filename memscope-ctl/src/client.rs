//! The connection to a daemon. No wait is longer than `--timeout`, except for events, which may never come: there a host is asked from time
//! to time whether it is still there.

use crate::address::Address;
use crate::failure::Failure;
use crate::process::Processes;
use crate::tls::Tls;
use hyper_util::rt::TokioIo;
use memscope_proto::v1;
use memscope_service::memscope_client::MemscopeClient;
use memscope_service::triggers_client::TriggersClient;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status, Streaming};

/// Largest message, in bytes, that is accepted. The daemon keeps its messages below 4 MiB, but an older one may not.
const LARGEST: usize = 64 << 20;
/// How long a node may be silent before it is asked whether it is still there, and how long it may take to say so. One that has lost its
/// power or its network ends no connection.
const ALIVE: Duration = Duration::from_secs(30);

/// Generated client of the service that answers questions about processes.
pub(crate) type Rpc = MemscopeClient<Channel>;
/// Generated client of the service for triggers and the snapshots that they took.
pub(crate) type Triggers = TriggersClient<Channel>;

/// A connection to one daemon, with the time limit and the strictness of its questions.
#[derive(Clone)]
pub(crate) struct Client {
    rpc: Rpc,
    triggers: Triggers,
    address: Address,
    timeout: Duration,
    strict: bool,
}

/// A connected stream, whatever it is made of.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What a connection may take of this program's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Largest message, in bytes, that is accepted.
    pub(crate) message: usize,
    /// Bytes that may be under way before they are read; `None`: as many as the transport thinks best.
    pub(crate) window: Option<u32>,
}

impl Room {
    /// The room of the only connection.
    pub(crate) const ALONE: Room = Room {
        message: LARGEST,
        window: None,
    };
}

impl Client {
    /// Connects to the daemon at `address`. `timeout` limits this, and later each answer.
    pub(crate) async fn connect(
        address: &Address,
        tls: Option<&Tls>,
        room: Room,
        timeout: Duration,
    ) -> Result<Client, Failure> {
        let late = |_| Failure::Timeout {
            address: address.clone(),
            what: "accept the connection",
            after: timeout,
        };
        // The socket is connected here and not by the transport, which would hide the reason of a failure.
        let stream = tokio::time::timeout(timeout, stream_to(address, tls))
            .await
            .map_err(late)??;
        let alive = match address {
            Address::Host { .. } => Some(ALIVE),
            // The kernel says when the other end of a socket is gone.
            Address::Unix(_) | Address::Recording(_) => None,
        };
        Client::over(stream, address, room, timeout, alive).await
    }

    /// Speaks to the daemon over a stream that leads to it. `alive` is how long it may be silent before it is asked whether it is still
    /// there, and how long it may take to say so.
    async fn over(
        stream: Box<dyn Stream>,
        address: &Address,
        room: Room,
        timeout: Duration,
        alive: Option<Duration>,
    ) -> Result<Client, Failure> {
        let late = |_| Failure::Timeout {
            address: address.clone(),
            what: "accept the connection",
            after: timeout,
        };
        let stream = Arc::new(Mutex::new(Some(stream)));
        let connector = tower::service_fn(move |_: Uri| {
            let stream = Arc::clone(&stream);
            async move {
                let taken = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
                // The transport must not connect again by itself: that connection could reach another daemon.
                taken
                    .map(TokioIo::new)
                    .ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset))
            }
        });
        let mut endpoint = Endpoint::from_static("http://memscoped")
            .initial_stream_window_size(room.window)
            .initial_connection_window_size(room.window);
        if let Some(alive) = alive {
            endpoint = endpoint
                .http2_keep_alive_interval(alive)
                .keep_alive_timeout(alive)
                .keep_alive_while_idle(true);
        }
        let connecting = endpoint.connect_with_connector(connector);
        let channel = tokio::time::timeout(timeout, connecting)
            .await
            .map_err(late)?
            .map_err(|source| Failure::Broken {
                address: address.clone(),
                source: Box::new(source),
            })?;
        Ok(Client {
            triggers: TriggersClient::new(channel.clone()).max_decoding_message_size(room.message),
            rpc: MemscopeClient::new(channel).max_decoding_message_size(room.message),
            address: address.clone(),
            timeout,
            strict: false,
        })
    }

    /// The same connection with another time limit for each answer.
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

    /// The failure that the daemon's answer is too large.
    pub(crate) fn too_large(&self) -> Failure {
        Failure::TooLarge {
            address: self.address.clone(),
        }
    }

    fn late(&self) -> Failure {
        Failure::Timeout {
            address: self.address.clone(),
            what: "answer",
            after: self.timeout,
        }
    }

    /// Asks one question and waits for its answer, or for the beginning of an answer that is a stream.
    pub(crate) async fn ask<Q, A, F, R>(&self, question: Q, call: F) -> Result<A, Failure>
    where
        F: FnOnce(Rpc, Request<Q>) -> R,
        R: Future<Output = Result<Response<A>, Status>>,
    {
        self.answer(call(self.rpc.clone(), self.request(question)))
            .await
    }

    /// Asks one question about triggers, or about the snapshots that they took.
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
            Ok(Err(status)) => Err(Failure::from_status(status, self.address.clone())),
            Ok(Ok(answer)) => Ok(answer.into_inner()),
        }
    }

    /// The next part of a streamed answer, which must come within the timeout; `None` at the end of the stream.
    pub(crate) async fn next<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Failure> {
        match tokio::time::timeout(self.timeout, stream.message()).await {
            Err(_) => Err(self.late()),
            Ok(part) => part.map_err(|status| Failure::from_status(status, self.address.clone())),
        }
    }

    /// The next part of a streamed answer. `patience` limits the wait; without it there is no limit, because nobody
    /// knows when the next event comes.
    pub(crate) async fn next_within<T>(
        &self,
        stream: &mut Streaming<T>,
        patience: Option<Duration>,
    ) -> Result<Option<T>, Failure> {
        let Some(after) = patience else {
            let part = stream.message().await;
            return part.map_err(|status| Failure::from_status(status, self.address.clone()));
        };
        match tokio::time::timeout(after, stream.message()).await {
            Err(_) => Err(Failure::NoEvent { after }),
            Ok(part) => part.map_err(|status| Failure::from_status(status, self.address.clone())),
        }
    }

    /// Process that the user means: the named one, else the only one that is traced. Where none is traced any more, it
    /// is the only one that was.
    pub(crate) async fn choose(&self, pid: Option<u32>) -> Result<u32, Failure> {
        if let Some(pid) = pid {
            return Ok(pid);
        }
        only_one(&self.list().await?.processes)
    }

    /// Processes that the user means: the named ones, else all that are traced. Where none is traced any more, these
    /// are
    /// all that were.
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

    /// Lists the processes that are or were traced.
    pub(crate) async fn list(&self) -> Result<v1::ListResponse, Failure> {
        self.ask(v1::ListRequest {}, async |mut rpc, request| {
            rpc.list(request).await
        })
        .await
    }

    /// Asks for the state of the daemon: version, journal, losses, libraries, rules.
    pub(crate) async fn status(&self) -> Result<v1::StatusResponse, Failure> {
        self.ask(v1::StatusRequest {}, async |mut rpc, request| {
            rpc.status(request).await
        })
        .await
    }

    /// Asks what a process holds on each device.
    pub(crate) async fn stats(&self, pid: u32) -> Result<v1::StatsResponse, Failure> {
        self.ask(v1::StatsRequest { pid }, async |mut rpc, request| {
            rpc.stats(request).await
        })
        .await
    }

    /// Asks what grows in a process.
    pub(crate) async fn leaks(
        &self,
        question: v1::LeaksRequest,
    ) -> Result<v1::LeaksResponse, Failure> {
        self.ask(question, async |mut rpc, request| rpc.leaks(request).await)
            .await
    }
}

/// Pids of all traced processes, without those that have loaded no library of a device yet. Where there is none, of those as well;
/// where none is traced any more, of all that were.
pub(crate) fn all(processes: &[v1::Process]) -> Vec<u32> {
    let attached = |one: &&v1::Process| one.state() == v1::ProcessState::Attached;
    // Those that have loaded no library of a device yet have nothing to show.
    let at_work = |one: &&v1::Process| attached(one) && !one.waits_for_device;
    let of = |chosen: Vec<&v1::Process>| {
        let mut pids: Vec<u32> = chosen
            .into_iter()
            .filter_map(|process| Some(process.facts.as_ref()?.pid))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    };
    let choices = [
        of(processes.iter().filter(at_work).collect()),
        of(processes.iter().filter(attached).collect()),
        of(processes.iter().collect()),
    ];
    let mut choices = choices.into_iter();
    choices.find(|pids| !pids.is_empty()).unwrap_or_default()
}

/// The only traced process; where none is traced any more, the only one that was.
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

/// Connects to the address, with TLS where it is a host.
async fn stream_to(address: &Address, tls: Option<&Tls>) -> Result<Box<dyn Stream>, Failure> {
    let not_connected = |source| not_connected(address, source);
    match address {
        // A recording has a socket once it is replayed, which is not known here.
        Address::Recording(path) => Err(Failure::NoRecording {
            path: path.clone(),
            source: io::ErrorKind::Unsupported.into(),
        }),
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(not_connected)?;
            Ok(Box::new(stream))
        }
        Address::Host {
            host,
            port,
            verified_as,
        } => {
            let tls = tls.ok_or_else(|| Failure::no_certificates(address))?;
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(not_connected)?;
            // Questions are small, and each waits for its answer.
            stream.set_nodelay(true).map_err(not_connected)?;
            let begun = tls.begin(stream, host, verified_as.as_deref()).await;
            let stream = begun.map_err(|source| Failure::NotTrusted {
                address: address.clone(),
                source,
            })?;
            Ok(Box::new(stream))
        }
    }
}

fn not_connected(address: &Address, source: io::Error) -> Failure {
    let address = address.clone();
    match source.kind() {
        io::ErrorKind::PermissionDenied => Failure::Forbidden { address, source },
        _ => Failure::NoDaemon { address, source },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_rpc::fake::{self, FakeDaemon};
    use memscope_rpc::{ListenOptions, Listener, ServeOptions, serve};
    use tokio::sync::oneshot;

    /// Hands on what two streams say to one another until it is told to stop, and ends neither of them then:
    /// as a node that has lost its power.
    async fn hand_on(
        mut client: tokio::io::DuplexStream,
        mut daemon: UnixStream,
        stop: oneshot::Receiver<()>,
    ) {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut daemon) => {}
            _ = stop => {}
        }
        std::future::pending::<()>().await;
    }

    /// Nobody knows when the next event comes, but whether the daemon is there can be known.
    #[tokio::test]
    async fn a_stream_of_a_node_that_vanished_ends() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let listener = Listener::bind(&ListenOptions::private(socket.clone())).unwrap();
        let daemon = Arc::new(FakeDaemon::with([fake::process(7, 0)]));
        let options = ServeOptions {
            identify: Arc::new(|_| Some(memscope_rpc::Caller::local(0, 0, None))),
            ..ServeOptions::default()
        };
        let served = tokio::spawn(serve(listener, daemon, options, std::future::pending()));
        let (near, far) = tokio::io::duplex(1 << 16);
        let (stop, stopped) = oneshot::channel();
        let to_daemon = UnixStream::connect(&socket).await.unwrap();
        let between = tokio::spawn(hand_on(far, to_daemon, stopped));
        let address = Address::Unix(socket);
        let patience = Duration::from_secs(60);
        let client = Client::over(
            Box::new(near),
            &address,
            Room::ALONE,
            patience,
            Some(Duration::from_secs(1)),
        );
        let client = client.await.unwrap();
        let question = v1::EventsRequest::default();
        let events = async |mut rpc: Rpc, request| rpc.events(request).await;
        let mut stream = client.ask(question, events).await.unwrap();
        stop.send(()).unwrap();
        // The patience is there so that the test ends where the wait does not.
        let ended = client.next_within(&mut stream, Some(patience)).await;
        assert!(matches!(ended, Err(Failure::Broken { .. })), "{ended:?}");
        between.abort();
        served.abort();
    }

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
