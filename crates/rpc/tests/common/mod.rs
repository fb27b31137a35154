//! A server on a real Unix socket, and clients of it.

#![allow(dead_code, clippy::unwrap_used)]

pub mod port;
pub mod tls;

use hyper_util::rt::TokioIo;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Caller, Identify, ListenOptions, Listener, ServeOptions, serve};
use memscope_service::memscope_client::MemscopeClient;
use std::path::Path;
use std::sync::Arc;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Uri};

pub const ADA: u32 = 1000;
pub const BOB: u32 = 1001;

pub struct Server {
    pub daemon: Arc<FakeDaemon>,
    pub folder: tempfile::TempDir,
    pub stop: oneshot::Sender<()>,
    pub task: JoinHandle<()>,
}

impl Server {
    pub fn start(daemon: FakeDaemon, options: ServeOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener =
            Listener::bind(&ListenOptions::private(folder.path().join("s.sock"))).unwrap();
        let daemon = Arc::new(daemon);
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&daemon);
        let task = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            serve(listener, served, options, stopped).await.unwrap();
        });
        Server {
            daemon,
            folder,
            stop,
            task,
        }
    }

    pub async fn channel(&self) -> Channel {
        connect(&self.folder.path().join("s.sock")).await
    }

    pub async fn client(&self) -> MemscopeClient<Channel> {
        MemscopeClient::new(self.channel().await)
    }
}

pub async fn connect(path: &Path) -> Channel {
    let path = path.to_owned();
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
        .unwrap()
}

/// Options of a server that treats every caller as this user.
pub fn as_user(uid: u32) -> ServeOptions {
    let identify: Identify = Arc::new(move |_| Some(Caller::local(uid, uid, None)));
    ServeOptions {
        identify,
        ..ServeOptions::default()
    }
}

pub fn of_ada_and_bob() -> FakeDaemon {
    FakeDaemon::with([fake::process(11, ADA), fake::process(12, BOB)])
}
