//! The program itself answers at a TCP port what a recording says.

#![allow(clippy::unwrap_used)]

#[path = "../../crates/rpc/tests/common/tls.rs"]
mod tls;

use memscope_daemon::import::import;
use memscope_proto::v1;
use memscope_tests::certificates::{Authority, ServerFiles, Time};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use tls::Client;

/// Files that may be open where it is started.
const FILES: u64 = 200;

/// A daemon that replays; it ends with this value.
struct Replaying {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Replaying {
    fn start(folder: &Path, recording: &Path, words: &[&str]) -> Replaying {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -Sn {FILES}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_memscoped"))
            .arg("--replay")
            .arg(recording)
            .arg("--socket")
            .arg(folder.join("s.sock"))
            .arg("--state-dir")
            .arg(folder)
            .args(words)
            .env_remove("MEMSCOPE_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Replaying { child, log }
    }

    /// Reads the log up to the line that names the port.
    fn address(&mut self) -> SocketAddr {
        let mut all = String::new();
        loop {
            let begin = all.len();
            let count = self.log.read_line(&mut all).unwrap();
            assert!(count > 0, "it has ended: {all}");
            let line = &all[begin..];
            if let Some((_, rest)) = line.split_once("listening on ") {
                let (address, rest) = rest.split_once(' ').unwrap();
                assert_eq!(rest.trim(), "with TLS");
                return address.parse().unwrap();
            }
        }
    }
}

impl Drop for Replaying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn recording(folder: &Path) -> std::path::PathBuf {
    let dump = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/dump/tests/golden/offline_leaks_1.csv");
    let recording = folder.join("recording");
    import(&dump, &recording).unwrap();
    recording
}

#[tokio::test]
async fn a_recording_is_served_to_holders_of_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let (own, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = ServerFiles::write(folder.path(), &own, &clients);
    let path = |path: &std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (certificate, key) = (path(&files.certificate), path(&files.key));
    let (ca, crl) = (path(&files.client_ca), path(&files.client_crl));
    let words = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
        "--tls-client-crl",
        &crl,
    ];
    let mut daemon = Replaying::start(folder.path(), &recording, &words);
    let address = daemon.address();
    // What a shell allows is too little for it.
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.child.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let now: u64 = files
        .unwrap()
        .split_whitespace()
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    assert!(now > FILES, "{limits}");
    let issue = |units: &[&str]| clients.client("ops", units, Time::Now);
    let see = Client::new(address, &own, Some(&issue(&[])));
    assert_eq!(see.list().await.unwrap(), 1);
    let mut memscope = see.memscope().await;
    let stats = memscope
        .stats(v1::StatsRequest { pid: 4242 })
        .await
        .unwrap();
    assert_eq!(stats.into_inner().pid, 4242);
    let record = memscope.record(v1::RecordRequest::default()).await;
    let refused = record.unwrap_err().to_string();
    assert!(refused.contains("needs the role admin"), "{refused}");
    // That a recording is for everyone on its own socket does not make it so at a port.
    let of_namespace = Client::new(address, &own, Some(&issue(&["memscope:see=ml"])));
    assert_eq!(of_namespace.list().await.unwrap(), 0);
    let nobody = Client::new(address, &own, None);
    assert!(nobody.first_bytes().await.is_err());
    let audit = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    assert_eq!(audit.lines().count(), 1, "{audit}");
    assert!(
        audit.contains("\"record\"") && audit.contains("\"not_permitted\""),
        "{audit}"
    );
}

/// Neither a port without certificates nor certificates that are none start anything.
#[test]
fn without_certificates_nothing_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let said = |words: &[&str]| {
        let mut daemon = Replaying::start(folder.path(), &recording, words);
        let code = daemon.child.wait().unwrap().code();
        let mut all = String::new();
        std::io::Read::read_to_string(&mut daemon.log, &mut all).unwrap();
        (code, all)
    };
    let (code, all) = said(&["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(2), "{all}");
    assert!(all.contains("--tls-cert"), "{all}");
    let none = "/nonexistent/server.pem";
    let words = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        none,
        "--tls-key",
        none,
        "--tls-client-ca",
        none,
    ];
    let (code, all) = said(&words);
    assert_eq!(code, Some(1), "{all}");
    assert!(
        all.contains(none) && all.contains("cannot be read"),
        "{all}"
    );
}
