//! Runs the gRPC services on the socket and on the TCP ports.

use crate::accept::{Admission, Incoming};
use crate::door::{self, Door};
use crate::options::ServeOptions;
use crate::service::Service;
use crate::share::Shares;
use crate::under_way::{LARGEST_REQUEST, ToTheEnd};
use crate::web::{DescriptionError, Methods, Web};
use crate::{Daemon, Listener};
use memscope_proto::FILE_DESCRIPTOR_SET;
use memscope_service::memscope_server::MemscopeServer;
use memscope_service::triggers_server::TriggersServer;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_web::GrpcWebLayer;
use tower::layer::layer_fn;

/// Time that unfinished answers get when the daemon shuts down.
const GRACE: Duration = Duration::from_secs(2);
/// How often a silent connection is pinged, and how long the client may take to answer the ping.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Most requests of one connection at a time. Beyond what one user may have under way, so that nobody is held up by it
/// and told nothing.
const MOST_STREAMS: u32 = 128;
/// Largest size of a request's headers in bytes.
const LARGEST_HEADERS: u32 = 16 << 10;
/// Most requests of one connection that were begun and cancelled before they were looked at. Beyond it the connection
/// is closed.
const MOST_RESET: usize = 20;
/// Connections of the TCP ports that wait to be served.
const WAITING: usize = 16;

/// Where clients come in.
#[derive(Debug)]
pub struct Doors {
    /// The Unix socket.
    pub socket: Listener,
    /// The TCP ports.
    pub ports: Vec<Door>,
}

impl From<Listener> for Doors {
    fn from(socket: Listener) -> Doors {
        Doors {
            socket,
            ports: Vec::new(),
        }
    }
}

/// Why the server could not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The transport failed.
    #[error("the gRPC server failed")]
    Transport(#[from] tonic::transport::Error),
    /// The reflection service could not read the description of the services.
    #[error("the reflection service cannot read the service description")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// Questions cannot be asked in JSON, because the description of the services cannot be read.
    #[error("questions in JSON cannot be read")]
    Description(#[from] DescriptionError),
}

/// Serves until `shutdown` completes. Then unfinished answers get a short time to end (event streams end at once), and
/// the socket is removed.
pub async fn serve(
    doors: impl Into<Doors>,
    daemon: Arc<dyn Daemon>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    serve_until(doors.into(), daemon, options, Box::pin(shutdown)).await
}

/// As [`serve`]. It has no type of a caller in it, so the whole server is compiled once, here, and not with every program and test.
fn serve_until(
    doors: Doors,
    daemon: Arc<dyn Daemon>,
    options: ServeOptions,
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>> {
    Box::pin(serve_all(doors, daemon, options, shutdown))
}

async fn serve_all(
    doors: Doors,
    daemon: Arc<dyn Daemon>,
    options: ServeOptions,
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Result<(), ServeError> {
    let (ending, ended) = watch::channel(false);
    let patience = options.patience;
    let requests = Shares::new("requests under way", options.requests);
    let (sent_within, audit) = (options.sent_within, options.audit.clone());
    let Doors { socket, ports } = doors;
    let has_ports = !ports.is_empty();
    let (socket, claim) = socket.into_parts();
    let admission = Admission::new(&options);
    let local = Incoming::new(socket, &options, Arc::clone(&admission));
    let (sender, remote) = mpsc::channel(WAITING);
    // They end when this is dropped.
    let mut accepting = JoinSet::new();
    for port in ports {
        accepting.spawn(door::accept(port, Arc::clone(&admission), sender.clone()));
    }
    drop(sender);
    let connections = local.merge(ReceiverStream::new(remote));
    let service = Service::new(daemon, options, ended.clone());
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<MemscopeServer<Service>>().await;
    health.set_serving::<TriggersServer<Service>>().await;
    // Some clients ask for version v1 of the reflection service, some for v1alpha, and none tries the other.
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection()
        .build_v1()?
        .max_decoding_message_size(LARGEST_REQUEST);
    let reflection_v1alpha = reflection()
        .build_v1alpha()?
        .max_decoding_message_size(LARGEST_REQUEST);

    let stop = async move {
        shutdown.await;
        health.set_not_serving::<MemscopeServer<Service>>().await;
        health.set_not_serving::<TriggersServer<Service>>().await;
        // Fails only if every stream is gone already.
        let _ = ending.send(true);
    };
    let methods = has_ports.then(Methods::new).transpose()?;
    let of_web = Arc::clone(&requests);
    let server = Server::builder()
        // JSON and gRPC-Web come in it, too. At the Unix socket only gRPC is answered.
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(Some(MOST_STREAMS))
        .http2_max_header_list_size(Some(LARGEST_HEADERS))
        .http2_max_pending_accept_reset_streams(Some(MOST_RESET))
        .layer(layer_fn(move |service| Web {
            service,
            methods: methods.clone(),
            sent_within,
            patience,
            requests: Arc::clone(&of_web),
        }))
        .layer(GrpcWebLayer::new())
        .layer(layer_fn(move |service| ToTheEnd {
            service,
            patience,
            sent_within,
            audit: audit.clone(),
            requests: Arc::clone(&requests),
        }))
        .add_service(health_service.max_decoding_message_size(LARGEST_REQUEST))
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha)
        .add_service(
            TriggersServer::new(service.clone()).max_decoding_message_size(LARGEST_REQUEST),
        )
        .add_service(MemscopeServer::new(service).max_decoding_message_size(LARGEST_REQUEST))
        .serve_with_incoming_shutdown(connections, stop);
    let out_of_time = async move {
        let mut ended = ended;
        // An error means that the sender is gone: the server has ended by itself.
        let _ = ended.wait_for(|ended| *ended).await;
        tokio::time::sleep(GRACE).await;
    };
    let result = tokio::select! {
        result = server => result.map_err(ServeError::from),
        () = out_of_time => Ok(()),
    };
    drop((accepting, claim));
    result
}
