//! The HTTP server for metrics.
//!
//! Owns: who may reach it, how many connections there may be and how long each may be silent. It knows one path. Refuses: everything else.

use crate::metrics::source::Source;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use memscope_metrics::open_metrics;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

/// Largest number of connections. One more closes the oldest: those that scrape come again, those that only hold a place do not count.
const MOST_CONNECTIONS: usize = 64;
/// How long a connection may take to send the head of a request, and may be silent between two.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;
/// How long nothing is accepted after accepting failed.
const PAUSE: Duration = Duration::from_millis(100);
/// The path.
const PATH: &str = "/metrics";

/// From where metrics can be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachable {
    /// From this machine only.
    FromHere,
    /// From wherever the address can be reached, by everybody.
    ByEverybody,
}

impl Reachable {
    /// Whether metrics may be handed out at this address.
    ///
    /// # Errors
    /// If others could reach it and that is not wanted.
    pub fn permits(self, address: SocketAddr) -> Result<(), BindError> {
        match self == Reachable::FromHere && !address.ip().is_loopback() {
            true => Err(BindError::Open { address }),
            false => Ok(()),
        }
    }
}

/// Why metrics cannot be handed out.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is not one of this machine's own.
    #[error(
        "metrics at {address} could be read by everybody who reaches that address, without a password or certificate — choose an address \
         such as 127.0.0.1:9464, or say --metrics-for-everybody if the network lets only the right ones through"
    )]
    Open {
        /// Address that other machines can reach.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("metrics cannot be handed out at {address} — is another program listening there?")]
    Io {
        /// Address at which listening failed.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A socket at which metrics are handed out.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

impl Endpoint {
    /// Listens. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address is taken or none of this machine, or others could reach it and that is not wanted.
    pub async fn bind(address: SocketAddr, reachable: Reachable) -> Result<Endpoint, BindError> {
        reachable.permits(address)?;
        let io = |source| BindError::Io { address, source };
        let listener = TcpListener::bind(address).await.map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        Ok(Endpoint { listener, address })
    }

    /// Where it listens; the port is the real one also if none was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands out metrics for as long as this is polled. Its connections end with it.
    pub async fn serve(self, source: Arc<Source>) {
        let mut connections = JoinSet::new();
        let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    while connections.try_join_next().is_some() {}
                    oldest_first.retain(|one| !one.is_finished());
                    if oldest_first.len() >= MOST_CONNECTIONS
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        oldest.abort();
                    }
                    let served = connection(stream, Arc::clone(&source));
                    oldest_first.push_back(connections.spawn(served));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection for metrics could not be accepted: trying again soon");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn connection(stream: tokio::net::TcpStream, source: Arc<Source>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let source = Arc::clone(&source);
        async move { Ok::<_, Infallible>(answer(&request, &source).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection for metrics ended early");
    }
}

async fn answer(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return text(
            StatusCode::NOT_FOUND,
            "memscoped has its metrics at /metrics\n",
        );
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "metrics can only be read: GET /metrics\n",
        );
        answer
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let taken = source.taken().await;
    let written = taken
        .and_then(|taken| open_metrics(taken.metrics.clone()).map_err(|error| error.to_string()));
    match written {
        Ok(metrics) => {
            let mut answer = Response::new(Full::new(Bytes::from(metrics)));
            let kind = HeaderValue::from_static(memscope_metrics::CONTENT_TYPE);
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            answer
        }
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
    }
}

fn text(status: StatusCode, words: &str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(words.as_bytes())));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
