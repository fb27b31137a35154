//! Triggers and the snapshots that they took, on the command line.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, one_process};
use memscope_rpc::Caller;
use memscope_rpc::fake::{self, FakeDaemon};
use std::fs;
use std::sync::Arc;

#[track_caller]
fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|l| l.trim_end() == *line),
            "no {line:?} in:\n{text}"
        );
    }
}

fn kept_by(daemon: FakeDaemon) -> FakeDaemon {
    {
        let mut state = daemon.triggers.lock().unwrap();
        let content: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        state.kept.push((fake::kept(11, 4242, 1000), content));
        state
            .kept
            .push((fake::kept(12, 99, 1001), b"small".to_vec()));
    }
    daemon
}

#[test]
fn a_trigger_comes_and_goes() {
    let server = Server::start(one_process());
    let none = server.ctl(&["trigger", "list"]);
    assert_eq!(
        none.out,
        "There is no trigger: no snapshot is taken by itself.\n"
    );
    let added = server.ctl(&["trigger", "add", "reserved > 2048MiB"]);
    assert_eq!(added.code, 0, "{}", added.err);
    assert_eq!(
        added.out,
        "Trigger 1: a snapshot when reserved > 2GiB in every traced process, 1 now.\n"
    );
    let words = [
        "trigger", "add", "oom", "on", "device", "0", "--pid", "4242",
    ];
    let added = server.ctl(&words);
    assert_eq!(
        added.out,
        "Trigger 2: a snapshot when oom on device 0 in process 4242.\n"
    );
    {
        let mut state = server.daemon.triggers.lock().unwrap();
        state.triggers[1].watching = 0;
        let mut busy = fake::trigger(3, "growth > 1GiB in 1h", 1000).unwrap();
        busy.skipped.push(("failed".into(), 2));
        state.triggers.push(busy);
    }
    let list = server.ctl(&["trigger", "list"]);
    assert_has(
        &list.out,
        &[
            " TRIGGER  WHEN                 PROCESS                USER  FIRED  WRITTEN  SKIPPED                                LAST",
            "       1  reserved > 2GiB      all, 1 now                0      0        0",
            "       2  oom on device 0      4242, not watched now     0      0        0",
            "       3  growth > 1GiB in 1h  all, 1 now             1000      3        2  1 paused, 2 failed  2025-06-15 15:06:40 UTC",
        ],
    );
    let json = server.ctl(&["--json", "trigger", "list"]).json();
    let third = &json["triggers"][2];
    assert_eq!(third["skipped"][1]["cause"], "failed");
    assert_eq!(third["last_unix_ns"], 1_750_000_000_000_000_000u64);
    assert!(json["triggers"][0]["pid"].is_null());
    assert_eq!(json["triggers"][1]["pid"], 4242);
    let removed = server.ctl(&["trigger", "remove", "1"]);
    assert_eq!(removed.out, "Removed trigger 1.\n");
    let again = server.ctl(&["trigger", "remove", "1"]);
    assert_eq!(again.code, 4);
    assert!(again.err.contains("there is no trigger 1"), "{}", again.err);
}

#[test]
fn mistakes_say_where_and_what_would_be_right() {
    let server = Server::start(one_process());
    for (when, said, hint) in [
        ("reserved > 30 GG", "column 15: \"GG\" is no unit", "GiB"),
        ("reserved", "column 9: reserved needs a value", "in quotes"),
        ("step 12", "column 6: \"12\" stands where =", "step = 100"),
    ] {
        let answer = server.ctl(&["trigger", "add", when]);
        assert_eq!(answer.code, 2, "{}", answer.err);
        assert!(answer.err.contains(said), "{}", answer.err);
        let (_, after) = answer.err.split_once("\n  try: ").unwrap();
        assert!(after.contains(hint), "{}", answer.err);
        let json = server.ctl(&["--json", "trigger", "add", when]).json();
        assert_eq!(json["error"]["code"], "invalid");
    }
    let answer = server.ctl(&["trigger", "add", "oom", "--pid", "77"]);
    assert_eq!(answer.code, 4, "{}", answer.err);
    assert_eq!(server.ctl(&["trigger", "add"]).code, 2);
    assert_eq!(server.ctl(&["trigger"]).code, 2);
    server.daemon.triggers.lock().unwrap().off = true;
    let answer = server.ctl(&["trigger", "add", "oom"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("--snapshots-keep"), "{}", answer.err);
}

#[test]
fn what_was_taken_is_listed() {
    let server = Server::start(kept_by(one_process()));
    let list = server.ctl(&["snapshots"]);
    assert_has(
        &list.out,
        &[
            " SNAPSHOT                     TIME   PID  COMMAND  TRIGGER        SIZE  FILE",
            "       11  2025-06-15 15:06:40 UTC  4242  python   oom      292.97 KiB  /var/lib/memscope/snapshots/000011.pickle",
            "Why",
            "  11: ran out of memory on device 0",
            "  12: ran out of memory on device 0; without what was there before the attach",
            "585.94 KiB in 2; at most 16 and 1.00 GiB are kept, of all users together.",
        ],
    );
    let json = server.ctl(&["--json", "snapshots", "--pid", "99"]).json();
    assert_eq!(json["snapshots"].as_array().unwrap().len(), 1);
    let kept = &json["snapshots"][0];
    assert_eq!(kept["snapshot"], 12);
    assert_eq!(kept["without_baseline"], true);
    assert_eq!(kept["path"], "/var/lib/memscope/snapshots/000012.pickle");
    assert_eq!(json["limit_bytes"], 1 << 30);
    let none = server.ctl(&["snapshots", "--pid", "5"]);
    assert_eq!(none.out, "No snapshot is kept that was taken by itself.\n");
}

#[test]
fn a_file_is_got_whole_or_not_at_all() {
    let server = Server::start(kept_by(one_process()));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.pickle");
    let path = file.to_str().unwrap();
    let got = server.ctl(&["snapshots", "get", "11", "-o", path]);
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(got.out.contains("781.25 KiB (800,000)"), "{}", got.out);
    let content = fs::read(&file).unwrap();
    assert_eq!(content[399_996..400_000], 99_999u32.to_le_bytes());
    assert_eq!(content.len(), 800_000);
    let json = server.ctl(&["snapshots", "--json", "get", "12", "-o", path]);
    assert_eq!((json.json()["bytes"].clone(), json.code), (5.into(), 0));
    assert_eq!(server.ctl(&["snapshots", "get", "12"]).out, "small");

    let none = server.ctl(&["snapshots", "get", "13", "-o", path]);
    assert_eq!(none.code, 4);
    assert!(none.err.contains("there is no snapshot 13"), "{}", none.err);
    assert_eq!(fs::read(&file).unwrap(), b"small");
    let both = server.ctl(&["snapshots", "--pid", "99", "get", "12"]);
    assert_eq!(both.code, 2, "{}", both.err);
}

#[test]
fn a_user_gets_what_is_theirs() {
    let identify: memscope_rpc::Identify = Arc::new(|_| Some(Caller::local(1000, 1000, None)));
    let server = Server::start_with(kept_by(one_process()), identify);
    assert_eq!(server.ctl(&["snapshots", "get", "11"]).code, 0);
    let foreign = server.ctl(&["snapshots", "get", "12"]);
    assert_eq!(foreign.code, 4);
    let list = server.ctl(&["--json", "snapshots"]).json();
    assert_eq!(list["snapshots"].as_array().unwrap().len(), 1);
}

#[test]
fn a_recording_takes_nothing_by_itself() {
    for words in [&["trigger", "list"][..], &["snapshots"]] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut all = vec!["--recording", file.path().to_str().unwrap()];
        all.extend(words);
        let answer = common::ctl(std::path::Path::new("/nonexistent"), &all);
        assert_eq!(answer.code, 2, "{}", answer.err);
        assert!(answer.err.contains("--at"), "{}", answer.err);
    }
}
