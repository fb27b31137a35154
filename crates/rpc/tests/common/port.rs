//! A server with a TCP port, and what is sent to it as plain HTTP.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use super::tls::{Client, PATIENCE};
use super::{ADA, as_user};
use http_body_util::Full;
use memscope_rpc::fake::FakeDaemon;
use memscope_rpc::{
    Audit, Door, Doors, ListenOptions, Listener, ServeOptions, Tls, TlsFiles, serve,
};
use memscope_tests::Value;
use memscope_tests::certificates::{Authority, Issued, ServerFiles, Time};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::ServiceExt as _;

/// How often the server looks at its files here.
const LOOK: Duration = Duration::from_millis(20);

/// A server with a TCP port, and the authorities that its certificates come from.
pub struct Server {
    pub daemon: Arc<FakeDaemon>,
    pub folder: tempfile::TempDir,
    pub own: Authority,
    pub clients: Authority,
    pub files: ServerFiles,
    pub address: SocketAddr,
    pub told: Arc<Mutex<Vec<String>>>,
    pub stop: oneshot::Sender<()>,
    pub task: JoinHandle<()>,
}

impl Server {
    pub fn start(daemon: FakeDaemon, default_role: &str) -> Server {
        Server::start_with(daemon, default_role, as_user(ADA), "127.0.0.1:0")
    }

    pub fn start_with(
        daemon: FakeDaemon,
        default_role: &str,
        options: ServeOptions,
        listen: &str,
    ) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let (own, clients) = (Authority::new("servers"), Authority::new("clients"));
        let files = ServerFiles::write(folder.path(), &own, &clients);
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        let tell: memscope_rpc::Tell = Arc::new(move |text| into.lock().unwrap().push(text));
        let tls = Tls::load_and_look(
            TlsFiles {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                client_ca: files.client_ca.clone(),
                client_crl: Some(files.client_crl.clone()),
            },
            default_role.parse().unwrap(),
            Arc::clone(&tell),
            LOOK,
        )
        .unwrap();
        let port = Door::open(listen, &tls).unwrap();
        let address = port.address();
        let socket = Listener::bind(&ListenOptions::private(folder.path().join("s.sock"))).unwrap();
        let options = ServeOptions {
            audit: Some(Audit::new(folder.path(), tell)),
            ..options
        };
        let (stop, stopped) = oneshot::channel();
        let doors = Doors {
            socket,
            ports: vec![port],
        };
        let daemon = Arc::new(daemon);
        let served = Arc::clone(&daemon);
        let task = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            serve(doors, served, options, stopped).await.unwrap();
        });
        Server {
            daemon,
            folder,
            own,
            clients,
            files,
            address,
            told,
            stop,
            task,
        }
    }

    /// A client with a certificate of these units.
    pub fn with_roles(&self, units: &[&str]) -> Client {
        self.client(Some(&self.clients.client("ops", units, Time::Now)))
    }

    pub fn client(&self, issued: Option<&Issued>) -> Client {
        Client::new(self.address, &self.own, issued)
    }

    pub fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("audit.jsonl"));
        let text = text.unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Polls until a condition is true.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One request with an empty message. `None`: it is answered, or its answer has begun.
pub async fn call(channel: &Channel, path: &str) -> Option<Status> {
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from_static(&[0; 5]))))
        .unwrap();
    let mut channel = channel.clone();
    let answer = channel.ready().await.unwrap().call(request);
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap();
    Status::from_header_map(answer.unwrap().headers()).filter(|status| status.code() != Code::Ok)
}

/// One request of HTTP/2 with this body, as it is answered.
pub async fn post(
    channel: &Channel,
    path: &str,
    kind: &str,
    body: &'static [u8],
) -> http::Response<Body> {
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", kind)
        .body(Body::new(Full::new(Bytes::from_static(body))))
        .unwrap();
    let mut channel = channel.clone();
    let answer = channel.ready().await.unwrap().call(request);
    tokio::time::timeout(PATIENCE, answer)
        .await
        .unwrap()
        .unwrap()
}
