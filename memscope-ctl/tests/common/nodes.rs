//! Many made-up nodes in one process: daemons on Unix sockets, and everything that is wrong with nodes.

#![allow(dead_code, clippy::unwrap_used)]

use memscope_rpc::fake::FakeDaemon;
use memscope_rpc::{Caller, Identify, ListenOptions, Listener, ServeOptions, serve};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::codegen::{Bytes, http};
use tonic::server::NamedService;

use super::common::Answer;

/// Nodes, and the list that names them.
pub struct Nodes {
    pub runtime: Runtime,
    pub folder: tempfile::TempDir,
    pub list: String,
    daemons: Vec<Arc<FakeDaemon>>,
    silent: Vec<std::os::unix::net::UnixListener>,
    release: watch::Sender<bool>,
}

impl Nodes {
    pub fn new() -> Nodes {
        // Each node takes a few files of this process.
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        Nodes {
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
            folder: tempfile::tempdir().unwrap(),
            list: String::new(),
            daemons: Vec::new(),
            silent: Vec::new(),
            release: watch::channel(false).0,
        }
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    fn named(&mut self, name: &str) -> PathBuf {
        let socket = self.socket(name);
        self.list
            .push_str(&format!("{name} unix:{}\n", socket.display()));
        socket
    }

    /// A daemon that is well, and is not in the list.
    pub fn serve(&self, socket: &Path, daemon: Arc<FakeDaemon>) {
        let identify: Identify = Arc::new(|_| Some(Caller::local(0, 0, None)));
        let _inside = self.runtime.enter();
        let listener = Listener::bind(&ListenOptions::private(socket)).unwrap();
        let options = ServeOptions {
            identify,
            ..ServeOptions::default()
        };
        self.runtime
            .spawn(async move { serve(listener, daemon, options, std::future::pending()).await });
    }

    /// A node that is well.
    pub fn healthy(&mut self, name: &str, daemon: FakeDaemon) {
        let socket = self.named(name);
        let daemon = Arc::new(daemon);
        self.serve(&socket, Arc::clone(&daemon));
        self.daemons.push(daemon);
    }

    /// The daemons of the nodes that are well.
    pub fn daemons(&self) -> Vec<Arc<FakeDaemon>> {
        self.daemons.clone()
    }

    /// A node that has no socket.
    pub fn absent(&mut self, name: &str) {
        self.named(name);
    }

    /// A node whose socket a killed daemon left behind.
    pub fn refusing(&mut self, name: &str) {
        let socket = self.named(name);
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    }

    /// A node at which nobody accepts the connection.
    pub fn silent(&mut self, name: &str) {
        let socket = self.named(name);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        self.silent.push(listener);
    }

    /// A node that says nothing before all that are well have been asked.
    pub fn slow(&mut self, name: &str, daemon: FakeDaemon) {
        let behind = self.socket(&format!("{name}-behind"));
        self.serve(&behind, Arc::new(daemon));
        let socket = self.named(name);
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(socket).unwrap();
        let released = self.release.subscribe();
        self.runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (behind, mut released) = (behind.clone(), released.clone());
                tokio::spawn(async move {
                    released.wait_for(|is| *is).await.unwrap();
                    let mut daemon = UnixStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut daemon).await;
                });
            }
        });
    }

    /// A node whose first connection is never answered; further ones are.
    pub fn slow_once(&mut self, name: &str, daemon: FakeDaemon) {
        let behind = self.socket(&format!("{name}-behind"));
        self.serve(&behind, Arc::new(daemon));
        let socket = self.named(name);
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(socket).unwrap();
        self.runtime.spawn(async move {
            let _first = listener.accept().await.unwrap();
            while let Ok((mut client, _)) = listener.accept().await {
                let behind = behind.clone();
                tokio::spawn(async move {
                    let mut daemon = UnixStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut daemon).await;
                });
            }
        });
    }

    /// A node that speaks gRPC and lies.
    pub fn liar(&mut self, name: &str, lie: Lie) {
        let socket = self.named(name);
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = tokio_stream(listener);
        let server = tonic::transport::Server::builder().add_service(Liar(lie));
        self.runtime
            .spawn(async move { server.serve_with_incoming(incoming).await });
    }

    /// Lets slow nodes answer once all that are well have been asked.
    fn release_when_all_were_asked(&self) {
        let daemons = self.daemons.clone();
        let release = self.release.clone();
        self.runtime.spawn(async move {
            let is_asked = |one: &Arc<FakeDaemon>| one.who.load(Ordering::Relaxed) > 0;
            while !daemons.iter().all(is_asked) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = release.send(true);
        });
    }

    /// The same as [`Nodes::ask`], where the subject is not how long an answer may take: all nodes are threads of this process, which a
    /// busy machine may keep waiting for longer than the patience that a fleet has by itself.
    pub fn ask_patiently(&self, args: &[&str]) -> Answer {
        self.ask(1024, &[&["--timeout", "60s"][..], args].concat())
            .0
    }

    /// Asks all nodes, with this many open files allowed. Also returns the most memory that the program took, in KiB.
    pub fn ask(&self, files: u32, args: &[&str]) -> (Answer, u64) {
        let list = self.folder.path().join("nodes.txt");
        std::fs::write(&list, &self.list).unwrap();
        self.release_when_all_were_asked();
        let output = |name: &str| self.folder.path().join(name);
        let create = |name: &str| std::fs::File::create(output(name)).unwrap();
        let begin = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_memscope-ctl"))
            .args(["--fleet", list.to_str().unwrap()])
            .args(args)
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(create("out"))
            .stderr(create("err"))
            .spawn()
            .unwrap();
        let mut most = 0;
        let status = loop {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
            let peak = status.ok().and_then(|text| {
                let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
                line.split_whitespace().nth(1)?.parse::<u64>().ok()
            });
            most = most.max(peak.unwrap_or(0));
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > Duration::from_secs(120) {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it hung: {args:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |name: &str| std::fs::read_to_string(output(name)).unwrap();
        let answer = Answer {
            code: status.code().unwrap_or(-1),
            out: read("out"),
            err: read("err"),
        };
        assert!(!answer.err.contains("panicked"), "{}", answer.err);
        (answer, most)
    }
}

fn tokio_stream(
    listener: UnixListener,
) -> impl futures_util::Stream<Item = std::io::Result<UnixStream>> {
    futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

/// What a liar answers to every question.
#[derive(Clone, Copy, Debug)]
pub enum Lie {
    /// A message that claims to have 3 GiB, and then nothing.
    Claims,
    /// A message that claims to have 3 GiB, and then zeros without end.
    Endless,
    /// A message that may be so long, and then zeros that never come to its end.
    Trickles,
    /// A list of half a million processes of which nothing is known: a small message that becomes a large answer.
    Empty,
}

#[derive(Clone)]
struct Liar(Lie);

impl NamedService for Liar {
    const NAME: &'static str = "memscope.v1.Memscope";
}

impl<B: Send + 'static> tonic::codegen::Service<http::Request<B>> for Liar {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<B>) -> Self::Future {
        let frame = |length: u32| [&[0], &length.to_be_bytes()[..]].concat();
        let first = match self.0 {
            Lie::Claims | Lie::Endless => frame(3 << 30),
            Lie::Trickles => frame(900 << 10),
            Lie::Empty => {
                let message = [0x0a, 0].repeat(500_000);
                [frame(message.len() as u32), message].concat()
            }
        };
        let body = Body {
            first: Some(first.into()),
            lie: self.0,
            pause: None,
        };
        let answer = http::Response::builder()
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(body));
        std::future::ready(Ok(answer.unwrap()))
    }
}

struct Body {
    first: Option<Bytes>,
    lie: Lie,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(first))));
        }
        match self.lie {
            Lie::Claims => Poll::Pending,
            Lie::Endless => {
                let zeros = Bytes::from_static(&[0; 16 << 10]);
                Poll::Ready(Some(Ok(http_body::Frame::data(zeros))))
            }
            Lie::Trickles => {
                let pause = || Box::pin(tokio::time::sleep(Duration::from_millis(50)));
                let waiting = self.pause.get_or_insert_with(pause);
                match waiting.as_mut().poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => {
                        self.pause = None;
                        let zero = Bytes::from_static(&[0]);
                        Poll::Ready(Some(Ok(http_body::Frame::data(zero))))
                    }
                }
            }
            Lie::Empty => {
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                match self.pause.is_some() {
                    true => Poll::Ready(None),
                    false => {
                        self.pause = Some(Box::pin(tokio::time::sleep(Duration::ZERO)));
                        Poll::Ready(Some(Ok(http_body::Frame::trailers(trailers))))
                    }
                }
            }
        }
    }
}
