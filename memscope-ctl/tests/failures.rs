//! Exit codes and error messages.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Server, command, ctl, one_process, run, two_processes, unread};
use memscope_rpc::Refusal;
use memscope_rpc::fake::FakeDaemon;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[track_caller]
fn assert_told(answer: &Answer, code: i32, what: &str) {
    assert_eq!(answer.code, code, "{}{}", answer.out, answer.err);
    assert!(answer.err.starts_with("memscope-ctl: "), "{}", answer.err);
    assert!(answer.err.contains(what), "no {what:?} in: {}", answer.err);
    assert!(answer.err.contains("\n  try: "), "{}", answer.err);
}

/// A command's own options come first, and those of every command under their own heading.
#[test]
fn help_has_headings() {
    for name in ["leaks", "snapshot", "attach", "events"] {
        let answer = ctl(Path::new("/nowhere"), &[name, "--help"]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        let (own, global) = answer
            .out
            .split_once("\nOptions of every command:\n")
            .unwrap();
        let (_, own) = own.split_once("\nOptions:\n").unwrap();
        assert!(own.contains("      --pid <PID>"), "{name}: {own}");
        for option in ["--socket", "--recording", "--timeout", "--fleet"] {
            let option = format!("      {option} <");
            assert!(
                global.contains(&option),
                "{name}: no {option:?} in {global}"
            );
            assert!(!own.contains(&option), "{name}: {option:?} in {own}");
        }
    }
}

#[test]
fn a_dead_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    assert_told(&ctl(&socket, &["ps"]), 3, "no daemon answers at");
    // A socket that a killed daemon left behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_told(&ctl(&socket, &["stats"]), 3, "Connection refused");
    // A file that is no socket.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_told(&ctl(&file, &["ps"]), 3, "no daemon answers at");
}

#[test]
fn a_daemon_that_ends_while_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let thread = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert_told(&ctl(&socket, &["ps"]), 3, "the connection to the daemon");
    thread.join().unwrap();
}

#[test]
fn a_hanging_daemon() {
    let server = Server::start(FakeDaemon::hanging());
    for args in [
        &["stats", "--pid", "1"][..],
        &["attach", "--pid", "1"],
        &["ps"],
        &["watch"],
        &["snapshot", "--pid", "1", "--format", "json"],
    ] {
        let begin = Instant::now();
        let mut all = vec!["--timeout", "0.3"];
        all.extend(args);
        assert_told(&server.ctl(&all), 6, "within 300 ms");
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
    // A daemon that accepts the connection and never answers.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_told(
        &ctl(&socket, &["--timeout", "300ms", "ps"]),
        6,
        "within 300 ms",
    );
}

#[test]
fn nobody_waits_longer_than_told_for_an_event() {
    let server = Server::start(one_process());
    let words = ["--timeout", "0.3", "events", "--kind", "finding"];
    assert_told(&server.ctl(&words), 6, "no event came within 300ms");
}

#[test]
fn bad_flags() {
    let server = Server::start(one_process());
    for args in [
        &["frobnicate"][..],
        &[],
        &["attach"],
        &["attach", "--pid", "0"],
        &["attach", "--pid", "x"],
        &["attach", "--pid", "1", "--all"],
        &["attach", "--all", "--children"],
        &["attach", "--pid", "1", "--level", "deep"],
        &["detach"],
        &["leaks", "--min-age", "soon"],
        &["watch", "--interval", "0s"],
        &["watch", "--count", "0"],
        &["fluctuation", "--intervals", "0"],
        &["--timeout", "0", "ps"],
        &["snapshot", "--format", "png"],
        &["snapshot", "-o", "/nonexistent/then.svg"],
        &["flamegraph", "-o", "/nonexistent/live.html"],
        &["attach", "1", "--pid", "1"],
    ] {
        let answer = server.ctl(args);
        assert_eq!(answer.code, 2, "{args:?}: {}{}", answer.out, answer.err);
        assert!(!answer.err.is_empty());
    }
    // What is typed again and again is told how it is meant.
    for (args, told) in [
        (
            &["leaks", "--at", "step:3"][..],
            "these commands have --at: ",
        ),
        (
            &["watch", "train.py"],
            "a process is named by its number, which memscope-ctl ps shows",
        ),
        (
            &["diff", "--from", "now", "--to", "-5s"],
            "the first moment lies after the second",
        ),
        (
            &["stacks", "--from", "step:9", "--at", "step:3"],
            "the first moment lies after the second",
        ),
    ] {
        let answer = server.ctl(args);
        assert_eq!(answer.code, 2, "{args:?}: {}{}", answer.out, answer.err);
        assert!(answer.err.contains(told), "{args:?}: {}", answer.err);
        assert!(
            !answer.err.contains("as a value"),
            "{args:?}: {}",
            answer.err
        );
    }
    // An error that only the daemon can find.
    let answer = server.ctl(&["attach", "--comm", "a_name_that_is_too_long"]);
    assert_told(&answer, 2, "cannot be the short name of a process");
}

#[test]
fn help_documents_the_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let answer = ctl(&folder.path().join("s"), &["--help"]);
    assert_eq!(answer.code, 0);
    for line in [
        "   6  no answer within --timeout",
        "  10  found: something grows or leaked (leaks and check-leaks, --exit-code)",
        "  11  cannot tell: ",
    ] {
        assert!(answer.out.contains(line), "{}", answer.out);
    }
}

#[test]
fn processes_that_are_not_there() {
    let none = Server::start(FakeDaemon::default());
    assert_told(&none.ctl(&["stats"]), 4, "no process is traced");
    assert_told(
        &none.ctl(&["detach", "--pid", "5"]),
        4,
        "process 5 is not traced",
    );
    assert_told(
        &none.ctl(&["detach", "--rule", "5"]),
        4,
        "there is no rule 5",
    );
    let two = Server::start(two_processes());
    assert_told(
        &two.ctl(&["snapshot"]),
        2,
        "several processes are traced: 99, 4242",
    );
    assert_eq!(two.ctl(&["stats", "--pid", "99"]).code, 0);
    // The answers that exist are shown, and the errors of the others as well.
    for words in [
        &["stats", "--pid", "99,5,4242"][..],
        &["stats", "99,5,4242"],
    ] {
        let answer = two.ctl(words);
        assert_told(&answer, 4, "process 5 is not traced");
        assert!(
            answer.out.contains("(pid 99)") && answer.out.contains("(pid 4242)"),
            "{}",
            answer.out
        );
    }
}

#[test]
fn refusals() {
    let server = Server::start(FakeDaemon::default());
    let cases = [
        (
            Refusal::NoSuchProcess { pid: 7 },
            4,
            "there is no process 7",
        ),
        (Refusal::DiedDuringAttach { pid: 7 }, 4, "ended while"),
        (
            Refusal::NotPermitted {
                what: "trace everything".into(),
            },
            5,
            "you may not trace everything",
        ),
        (
            Refusal::NoDeviceLibraries {
                pid: 7,
                comm: "bash".into(),
            },
            1,
            "process 7 (bash) uses no GPU or NPU",
        ),
        (
            Refusal::StrippedLibrary {
                pid: 7,
                path: "/x/libc10_cuda.so".into(),
                missing: "record_trace".into(),
            },
            1,
            "/x/libc10_cuda.so, which is stripped",
        ),
        (
            Refusal::Busy {
                what: "too many snapshots at once".into(),
            },
            1,
            "the daemon is busy: too many snapshots at once",
        ),
    ];
    for (refusal, code, what) in cases {
        *server.daemon.refuse.lock().unwrap() = Some(refusal);
        assert_told(&server.ctl(&["attach", "--pid", "7"]), code, what);
    }
}

#[test]
fn growth_has_an_exit_code() {
    let server = Server::start(one_process());
    assert_eq!(server.ctl(&["leaks", "--exit-code"]).code, 10);
    assert_eq!(server.ctl(&["leaks"]).code, 0);
}

#[test]
fn a_closed_output_is_no_failure() {
    let server = Server::start(one_process());
    let mut child = command(
        &server.socket(),
        &["snapshot", "--format", "json", "--pid", "4242"],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");

    let mut process = memscope_rpc::fake::process(4242, 0);
    process.process.state = memscope_ledger::report::ProcessState::Attached;
    let server = Server::start(FakeDaemon::with([process]));
    let mut child = command(&server.socket(), &["watch", "--interval", "10ms", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");

    // What was found has its exit code, whoever reads of it.
    for server in [Server::start(one_process()), Server::start(two_processes())] {
        for json in [&[][..], &["--json"]] {
            let ask = |args: &[&str]| unread(command(&server.socket(), &[args, json].concat()));
            assert_eq!(ask(&["leaks", "--exit-code"]), 10);
            assert_eq!(ask(&["leaks"]), 0);
        }
    }
}

/// Whoever asked for so many events takes exit code 0 for all of them.
#[test]
fn events_that_do_not_come_any_more() {
    for (args, code) in [(&["events"][..], 0), (&["events", "--count", "1"], 3)] {
        let mut server = Server::start(one_process());
        let child = command(&server.socket(), args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        memscope_tests::eventually("it follows events", || server.daemon.hub.readers() > 0);
        server.stop();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            said.contains("before so many events came"),
            code == 3,
            "{said}"
        );
    }
}

/// The state directory is one of this machine, whatever daemon is asked.
#[test]
fn earlier_runs_of_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--connect", "node7:9465", "ps", "--earlier"];
    let answer = ctl(&folder.path().join("s"), &args);
    assert_told(
        &answer,
        2,
        "earlier runs are read from a state directory of this machine",
    );
}

#[test]
fn a_full_disk_is_a_failure() {
    let server = Server::start(one_process());
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = command(&server.socket(), &["stats"]);
    command.stdout(full).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"));
}

#[test]
fn the_socket_may_come_from_the_environment() {
    let server = Server::start(one_process());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_memscope-ctl"));
    command.env("MEMSCOPE_SOCKET", server.socket()).arg("ps");
    assert_eq!(run(command).code, 0);
}
