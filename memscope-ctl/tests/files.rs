//! Snapshots that are written to files, and recordings.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Server, command, one_process, run};
use memscope_rpc::fake::{self, FakeDaemon};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn with_snapshot(segments: usize, blocks: usize, entries: usize) -> Server {
    let mut process = fake::process(4242, 0);
    process.snapshot = (segments, blocks, entries);
    Server::start(FakeDaemon::with([process]))
}

#[test]
fn a_pickle_is_whole_or_not_there() {
    let server = Server::start(one_process());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.pickle");
    let path = file.to_str().unwrap();
    let answer = server.ctl(&["snapshot", "-o", path]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.out.contains("memory_viz"), "{}", answer.out);
    let bytes = fs::read(&file).unwrap();
    assert_eq!((bytes.len(), &bytes[..2]), (300_004, &[0x80, 4][..]));
    assert!(bytes.ends_with(b"pickle5\n"));
    let json = server.ctl(&["snapshot", "-o", path, "--json"]).json();
    assert_eq!(json["bytes"], 300_004);

    // A snapshot that fails leaves the old file as it was, and no other file beside it.
    let unlucky = with_snapshot(1, 1, 13);
    let answer = unlucky.ctl(&["snapshot", "-o", path]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("unlucky"), "{}", answer.err);
    assert_eq!(fs::read(&file).unwrap(), bytes);
    assert_eq!(names(folder.path()), ["s.pickle"]);
}

/// Of a command that is interrupted nothing stays beside the file that it was to write.
#[test]
fn an_interrupted_file_leaves_nothing() {
    let server = Server::start(FakeDaemon::hanging());
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.mscope");
        let words = ["record", "-o", file.to_str().unwrap()];
        let mut child = command(&server.socket(), &words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while names(folder.path()).is_empty() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::yield_now();
        }
        // It has not been waited for, so the number is still its own.
        let pid = child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.unwrap().success());
        child.wait().unwrap();
        // The daemon may have answered before the signal came: then the file is there, and whole.
        let left = names(folder.path());
        assert!(
            left.is_empty() || left == ["run.mscope"],
            "{signal}: {left:?}"
        );
    }
}

#[test]
fn the_snapshot_of_a_step_is_written_or_refused() {
    let server = Server::start(one_process());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshots");
    let question = ["steps", "--snapshot-step", "2", "--snapshot-dir"];
    let question = [&question[..], &[path.to_str().unwrap()]].concat();
    let answer = server.ctl(&question);
    assert_eq!(answer.code, 2, "{}", answer.out);
    assert!(
        answer.err.contains("belongs to --format kempner"),
        "{}",
        answer.err
    );
    assert!(!path.exists());
    for more in [
        &["--format", "kempner"][..],
        &["--format", "kempner", "--json"],
    ] {
        let answer = server.ctl(&[&question[..], more].concat());
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert_eq!(names(&path), ["snapshot_step_2_device_0.pickle"]);
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn files_that_cannot_be_written() {
    let server = Server::start(one_process());
    for path in [
        "/nonexistent/s.pickle",
        "/proc/s.pickle",
        "/tmp",
        "/dev/full",
    ] {
        let answer = server.ctl(&["snapshot", "-o", path]);
        assert_eq!(answer.code, 1, "{path}: {}", answer.err);
        assert!(answer.err.contains("cannot be written"), "{}", answer.err);
    }
    // A device is written to and not replaced.
    assert_eq!(server.ctl(&["snapshot", "-o", "/dev/null"]).code, 0);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    // So is a pipe, which has no path of its own where a link leads to it.
    let answer = server.ctl(&["snapshot", "-o", "/dev/stdout"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(!answer.out.is_empty());
    let answer = server.ctl(&["record", "-o", "/dev/stdout"]);
    assert_eq!(
        (answer.code, answer.out.as_str()),
        (0, "a recording"),
        "{}",
        answer.err
    );
}

#[test]
fn a_link_stays_a_link() {
    let server = Server::start(one_process());
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(
        server.ctl(&["snapshot", "-o", link.to_str().unwrap()]).code,
        0
    );
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&file).unwrap().len(), 300_004);

    // Whoever may not read the file may not read what comes in its place.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let answer = server.ctl(&["snapshot", "-o", link.to_str().unwrap()]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A link to a file that is not there yet, through another link.
    let (further, later) = (folder.path().join("further"), folder.path().join("later"));
    std::os::unix::fs::symlink("further", folder.path().join("first")).unwrap();
    std::os::unix::fs::symlink("later", &further).unwrap();
    let first = folder.path().join("first");
    let answer = server.ctl(&["snapshot", "-o", first.to_str().unwrap()]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
    assert!(fs::symlink_metadata(&further).unwrap().is_symlink());
    assert_eq!(fs::read(&later).unwrap().len(), 300_004);
    // Links that lead nowhere are an error, and stay.
    let round = folder.path().join("round");
    std::os::unix::fs::symlink("round", &round).unwrap();
    let answer = server.ctl(&["snapshot", "-o", round.to_str().unwrap()]);
    assert_eq!(answer.code, 1, "{}", answer.out);
    assert!(fs::symlink_metadata(&round).unwrap().is_symlink());
}

#[test]
fn json_puts_split_segments_together() {
    let server = with_snapshot(3, 10_000, 9_000);
    let answer = server.ctl(&["snapshot", "--format", "json"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let document = answer.json();
    assert_eq!(document["header"]["blocks"], 30_000);
    let segments = document["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 3);
    for segment in segments {
        assert_eq!(segment["blocks"].as_array().unwrap().len(), 10_000);
        assert_eq!(segment["continued"], false);
    }
    assert_eq!(document["trace"].as_array().unwrap().len(), 9_000);
    assert_eq!(document["trace"][0]["action"], "alloc");

    let empty = with_snapshot(0, 0, 0)
        .ctl(&["snapshot", "--format", "json"])
        .json();
    assert_eq!(empty["segments"], serde_json::json!([]));
    assert_eq!(empty["trace"], serde_json::json!([]));
}

#[test]
fn binary_does_not_go_to_a_terminal() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let server = Server::start(one_process());
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let open = || {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(name.to_str().unwrap());
        file.unwrap()
    };
    let mut command = command(&server.socket(), &["snapshot"]);
    command.stdout(open()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("is binary and standard output is a terminal"),
        "{text}"
    );
}

/// A stand-in for memscoped that runs `script`; $4 is the socket.
fn replay(script: &str, args: &[&str]) -> (Answer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memscoped");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let recording = folder.path().join("run.mscope");
    fs::write(&recording, "recorded").unwrap();
    let mut command = command(Path::new("/nonexistent"), args);
    command.env("MEMSCOPED", &program);
    command.env("FOLDER", folder.path());
    command.env("SERVER", std::env::current_exe().unwrap());
    command.arg("--recording").arg(&recording);
    (run(command), folder)
}

/// What a person sees on standard error, a terminal, while a file of this format is written.
fn seen(server: &Server, format: &str, file: &Path) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = fs::File::options().read(true).write(true).open(name);
    let path = file.to_str().unwrap();
    let words = ["snapshot", "--format", format, "-o", path];
    let mut child = command(&server.socket(), &words)
        .env("TERM", "xterm")
        .stdout(Stdio::null())
        .stderr(slave.unwrap())
        .spawn()
        .unwrap();
    let mut terminal = fs::File::from(master);
    let mut text = Vec::new();
    // Reading a terminal that nobody holds open any more is an error.
    let _ = std::io::Read::read_to_end(&mut terminal, &mut text);
    assert!(child.wait().unwrap().success());
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_person_sees_how_far_it_is_and_a_file_does_not() {
    let server = with_snapshot(3, 1000, 20_000);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s");
    for format in ["memory-viz", "json"] {
        let text = seen(&server, format, &file);
        assert!(text.contains("waiting for the snapshot"), "{text:?}");
        assert!(text.contains("written"), "{text:?}");
        assert!(text.contains(" %"), "{text:?}");
        // At the end the line is cleared.
        assert!(text.ends_with("\u{1b}[2K"), "{text:?}");
        let path = file.to_str().unwrap();
        let quiet = server.ctl(&["snapshot", "--format", format, "-o", path]);
        assert_eq!((quiet.code, quiet.err.as_str()), (0, ""));
    }
}

/// This is no test of its own: the stand-in below runs it to answer on its socket.
#[test]
#[ignore = "run by a_recording_is_asked"]
fn serve_a_recording() {
    let Some(socket) = std::env::var_os("SOCKET") else {
        return;
    };
    let server = Server::start(one_process());
    fs::hard_link(server.socket(), socket).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_recording_is_asked() {
    let script = r#"
        echo "$1 $2 $3" > "$FOLDER/args"
        echo $$ > "$FOLDER/pid"
        SOCKET="$4" exec "$SERVER" --exact serve_a_recording --ignored"#;
    let (answer, folder) = replay(script, &["stats", "--json"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_eq!(answer.json()["pid"], 4242);
    let args = fs::read_to_string(folder.path().join("args")).unwrap();
    assert!(
        args.starts_with("--replay /") && args.ends_with("run.mscope --socket\n"),
        "{args}"
    );
    // The stand-in was stopped and waited for.
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn recordings_that_cannot_be_replayed() {
    let (answer, _) = replay("echo 'error: not a recording' >&2; exit 1", &["stats"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("cannot replay"), "{}", answer.err);
    assert!(
        answer.err.contains("error: not a recording"),
        "{}",
        answer.err
    );
    assert!(answer.err.contains("\n  try: "), "{}", answer.err);

    let begin = Instant::now();
    let (answer, _) = replay("exec sleep 60", &["--timeout", "300ms", "stats"]);
    assert_eq!(answer.code, 6, "{}", answer.err);
    assert!(begin.elapsed() < Duration::from_secs(10));

    let (answer, _) = replay("exit 0", &["attach", "--pid", "1"]);
    assert_eq!(answer.code, 2);
    let (answer, _) = replay("exit 0", &["doctor"]);
    assert_eq!(answer.code, 2);

    let missing = ["--recording", "/nonexistent/run.mscope", "stats"];
    let answer = common::ctl(Path::new("/nonexistent"), &missing);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("cannot be read: No such file"),
        "{}",
        answer.err
    );

    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = command(Path::new("/nonexistent"), &["stats"]);
    command.env("MEMSCOPED", "/nonexistent/memscoped");
    command.arg("--recording").arg(file.path());
    let answer = run(command);
    assert_eq!(answer.code, 1);
    assert!(
        answer
            .err
            .contains("/nonexistent/memscoped cannot be started"),
        "{}",
        answer.err
    );
}
