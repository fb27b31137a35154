//! A fake daemon on a real socket, and the real program that asks it.

#![allow(dead_code, clippy::unwrap_used)]

use memscope_proto::v1::CoverageNote;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Exporter, Identify, ListenOptions, Listener, ServeOptions, serve};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Time after which a run of the program counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Server {
    pub daemon: Arc<FakeDaemon>,
    pub folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `daemon`, and treats every caller as root.
    pub fn start(daemon: FakeDaemon) -> Self {
        let identify: Identify = Arc::new(|_| Some(memscope_rpc::Caller::local(0, 0, None)));
        Self::start_with(daemon, identify)
    }

    pub fn start_with(daemon: FakeDaemon, identify: Identify) -> Self {
        let mut server = Server {
            daemon: Arc::new(daemon),
            folder: tempfile::tempdir().unwrap(),
            stop: None,
            thread: None,
        };
        server.serve(identify);
        server
    }

    /// Ends, and leaves the folder and the daemon as they are.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Serves the same daemon once more, and treats every caller as root.
    pub fn serve_again(&mut self) {
        self.serve(Arc::new(|_| Some(memscope_rpc::Caller::local(0, 0, None))));
    }

    fn serve(&mut self, identify: Identify) {
        let path = self.socket();
        let served = Arc::clone(&self.daemon);
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Listener::bind(&ListenOptions::private(path)).unwrap();
                ready.send(()).unwrap();
                let options = ServeOptions {
                    identify,
                    exporter: Some(exporter()),
                    ..ServeOptions::default()
                };
                let stopped = async {
                    let _ = stopped.await;
                };
                serve(listener, served, options, stopped).await.unwrap();
            });
        });
        is_ready.recv().unwrap();
        (self.stop, self.thread) = (Some(stop), Some(thread));
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    /// Runs the program against this daemon.
    pub fn ctl(&self, args: &[&str]) -> Answer {
        ctl(&self.socket(), args)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An "export" whose bytes say how long the trace is. For a process with 13 entries it fails. For one with 14 it is a pickle.
pub fn exporter() -> Exporter {
    Arc::new(|report, out: &mut dyn Write, tell| {
        if report.trace.len() == 14 {
            return out.write_all(&noted(&report.coverage));
        }
        out.write_all(&[0x80, 4])?;
        for part in 0..50_000 {
            tell(part, 50_000);
            out.write_all(b"pickle")?;
        }
        if report.trace.len() == 13 {
            return Err(std::io::Error::other("unlucky"));
        }
        writeln!(out, "{}", report.trace.len())
    })
}

/// A pickle of memscope's without segments, with these notes.
pub fn noted(notes: &[CoverageNote]) -> Vec<u8> {
    let text = |text: &str| [&[0x8c, text.len() as u8], text.as_bytes()].concat();
    let note = |note: &CoverageNote| {
        let kinds: Vec<u8> = note.affects.iter().flat_map(|kind| text(kind)).collect();
        let affects = [&text("affects")[..], b"](", &kinds, b"e"].concat();
        let said = [
            text("code"),
            text(&note.code),
            text("text"),
            text(&note.text),
        ]
        .concat();
        [&b"}("[..], &said, &affects, b"u"].concat()
    };
    let notes: Vec<u8> = notes.iter().flat_map(note).collect();
    let notes = [&b"}"[..], &text("coverage"), b"](", &notes, b"es"].concat();
    let segments = [&text("segments")[..], b"]", &text("memscope")].concat();
    [&b"\x80\x04}("[..], &segments, &notes, b"u."].concat()
}

/// Output and exit code of the program.
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

pub fn command(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memscope-ctl"));
    command
        .env_remove("MEMSCOPE_SOCKET")
        .env_remove("MEMSCOPED")
        // The terminal of the person who runs the tests may be narrow.
        .env_remove("COLUMNS")
        .arg("--socket")
        .arg(socket)
        .args(args)
        .stdin(Stdio::null());
    command
}

pub fn ctl(socket: &Path, args: &[&str]) -> Answer {
    run(command(socket, args))
}

pub fn run(mut command: Command) -> Answer {
    let begin = Instant::now();
    let output: Output = command.output().unwrap();
    assert!(begin.elapsed() < PATIENCE, "it hung: {command:?}");
    let answer = Answer {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert!(!answer.err.contains("panicked"), "{}", answer.err);
    answer
}

/// Exit code of the program where nobody reads what it prints; it has nothing to complain about.
pub fn unread(mut command: Command) -> i32 {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn();
    let output = output.unwrap().wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    output.status.code().unwrap_or(-1)
}

pub fn one_process() -> FakeDaemon {
    FakeDaemon::with([fake::process(4242, 0)])
}

pub fn two_processes() -> FakeDaemon {
    FakeDaemon::with([fake::process(4242, 0), fake::process(99, 0)])
}
