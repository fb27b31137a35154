//! The connection to the collector: one request, one answer, by either protocol.
//!
//! A request that gets no answer in time is given up, and its connection with it. What cannot be sent because there is no connection, or
//! because what is at its other end speaks something else, may arrive the next time.

use super::options::Protocol;
use super::queue::{Message, Signal};
use super::settings::Settings;
use crate::error_chain;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::http::Error as RequestError;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use memscope_otlp::{Answer, of_grpc, of_http, partial_logs, partial_metrics};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use prost::Message as _;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tonic::Code;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long a request may take, with the connection that is made for it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER: usize = 64 << 10;
/// Who asks.
const AGENT: &str = concat!("memscoped/", env!("CARGO_PKG_VERSION"));

/// A connected stream, whatever it is made of.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection by which requests go.
enum Connection {
    Grpc(Channel),
    Http(SendRequest<Full<Bytes>>, Driver),
}

/// The task that moves the bytes of a connection. It ends with the connection's owner.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why there is no answer over HTTP.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("no connection")]
    Connect(#[source] io::Error),
    #[error("the connection broke, or something else than HTTP is spoken there")]
    Http(#[source] hyper::Error),
    #[error("the request cannot be made")]
    Request(#[source] RequestError),
    #[error("the answer cannot be read, or has more than {ANSWER} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The collector. It is connected to when there is something to send.
pub(super) struct Collector {
    settings: Arc<Settings>,
    connection: Option<Connection>,
}

impl Collector {
    pub(super) fn new(settings: Arc<Settings>) -> Collector {
        Collector {
            settings,
            connection: None,
        }
    }

    /// Sends a message and waits for the answer.
    pub(super) async fn send(&mut self, message: &Message) -> Answer {
        // It is put back only if it is of use for the next request.
        let connection = self.connection.take();
        let settings = Arc::clone(&self.settings);
        let sending = async {
            match settings.protocol {
                Protocol::Grpc => by_grpc(&settings, connection, message).await,
                Protocol::HttpProtobuf => by_http(&settings, connection, message).await,
            }
        };
        let Ok((answer, connection)) = tokio::time::timeout(TIMEOUT, sending).await else {
            let why = format!("no answer within {} s", TIMEOUT.as_secs());
            return Answer::Again { after: None, why };
        };
        self.connection = connection;
        answer
    }
}

/// Connects to the collector.
async fn connect(settings: &Settings) -> io::Result<Box<dyn Stream>> {
    let host = settings.endpoint.host();
    let stream = TcpStream::connect((host, settings.endpoint.port())).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &settings.tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tls.connect(name, stream).await?))
}

async fn by_grpc(
    settings: &Arc<Settings>,
    connection: Option<Connection>,
    message: &Message,
) -> (Answer, Option<Connection>) {
    let channel = match connection {
        Some(Connection::Grpc(channel)) => channel,
        _ => channel(settings),
    };
    let headers = settings.headers.clone();
    let answer = match message {
        Message::Metrics(message) => {
            let request = request(message.clone(), headers);
            let mut client = MetricsServiceClient::new(channel.clone());
            let answer = client.export(request).await;
            answer.map(|answer| partial_metrics(answer.get_ref()))
        }
        Message::Logs(message) => {
            let request = request(message.clone(), headers);
            let mut client = LogsServiceClient::new(channel.clone());
            let answer = client.export(request).await;
            answer.map(|answer| partial_logs(answer.get_ref()))
        }
    };
    match answer {
        Ok(answer) => (answer, Some(Connection::Grpc(channel))),
        Err(status) => match std::error::Error::source(&status) {
            // A status with a cause is of our own end: no collector could be asked.
            Some(cause) => {
                let why = error_chain(cause);
                (Answer::Again { after: None, why }, None)
            }
            None => {
                let code = Code::into(status.code());
                let answer = of_grpc(code, status.message(), status.details());
                (answer, Some(Connection::Grpc(channel)))
            }
        },
    }
}

fn request<T>(message: T, headers: HeaderMap) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    // A little longer than we wait ourselves, who say what that was.
    request.set_timeout(TIMEOUT + Duration::from_secs(1));
    request
}

/// A channel that connects when it is used.
fn channel(settings: &Arc<Settings>) -> Channel {
    let connects = Arc::clone(settings);
    let connector = tower::service_fn(move |_: Uri| {
        let settings = Arc::clone(&connects);
        async move { connect(&settings).await.map(TokioIo::new) }
    });
    // TLS is begun by the connector, so the transport must not look for it in the URL.
    let mut endpoint =
        Endpoint::from_static("http://collector").origin(settings.endpoint.uri().clone());
    if let Ok(named) = endpoint.clone().user_agent(AGENT) {
        endpoint = named;
    }
    endpoint.connect_with_connector_lazy(connector)
}

async fn by_http(
    settings: &Settings,
    connection: Option<Connection>,
    message: &Message,
) -> (Answer, Option<Connection>) {
    let was_kept = connection.is_some();
    let mut posted = post(settings, connection, message).await;
    // A collector closes connections that were silent for some time, and may have done so just now.
    if was_kept && matches!(posted, Err(Broken::Http(_))) {
        posted = post(settings, None, message).await;
    }
    match posted {
        Ok((answer, connection)) => (answer, Some(connection)),
        Err(why) => {
            let why = error_chain(&why);
            (Answer::Again { after: None, why }, None)
        }
    }
}

async fn post(
    settings: &Settings,
    connection: Option<Connection>,
    message: &Message,
) -> Result<(Answer, Connection), Broken> {
    let kept = match connection {
        Some(Connection::Http(mut sender, driver)) => {
            let is_open = sender.ready().await.is_ok();
            is_open.then_some((sender, driver))
        }
        _ => None,
    };
    let (mut sender, driver) = match kept {
        Some(kept) => kept,
        None => shake(settings).await?,
    };
    let signal = match message {
        Message::Metrics(_) => Signal::Metrics,
        Message::Logs(_) => Signal::Logs,
    };
    let authority = settings.endpoint.uri().authority();
    let host = authority.map_or("", |authority| authority.as_str());
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(settings.endpoint.path_of(signal.word()))
        .body(Full::new(Bytes::from(message.encoded())))
        .map_err(Broken::Request)?;
    let headers = request.headers_mut();
    headers.extend(settings.headers.clone());
    let host = HeaderValue::from_str(host).map_err(|error| Broken::Request(error.into()))?;
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    let protobuf = HeaderValue::from_static("application/x-protobuf");
    headers.insert(CONTENT_TYPE, protobuf);
    let response = sender.send_request(request).await.map_err(Broken::Http)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER).collect().await;
    let body = body.map_err(Broken::Body)?.to_bytes();
    let after = head.headers.get(RETRY_AFTER);
    let after = after.and_then(|value| value.to_str().ok());
    let answer = match head.status.is_success() {
        true => accepted(signal, body),
        false => of_http(head.status.as_u16(), after, &body, SystemTime::now()),
    };
    Ok((answer, Connection::Http(sender, driver)))
}

/// Connects, and agrees on HTTP.
async fn shake(settings: &Settings) -> Result<(SendRequest<Full<Bytes>>, Driver), Broken> {
    let stream = connect(settings).await.map_err(Broken::Connect)?;
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, driven) = shaken.map_err(Broken::Http)?;
    // Its errors come out where the request is sent.
    let driver = tokio::spawn(async move { drop(driven.await) });
    Ok((sender, Driver(driver.abort_handle())))
}

/// What an answer of success says. One that is no message of OTLP says nothing more than that.
fn accepted(signal: Signal, body: Bytes) -> Answer {
    match signal {
        Signal::Metrics => {
            let message = ExportMetricsServiceResponse::decode(body);
            partial_metrics(&message.unwrap_or_default())
        }
        Signal::Logs => {
            let message = ExportLogsServiceResponse::decode(body);
            partial_logs(&message.unwrap_or_default())
        }
    }
}
