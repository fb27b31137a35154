//! The JSON that programs rely on.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, one_process, two_processes};
use memscope_ledger::event::{Body, CoverageNote};
use memscope_rpc::fake;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn stats_has_the_names_that_are_kept() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["stats", "--pid", "4242", "--json"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let stats = answer.json();
    assert_eq!(stats["pid"], json!(4242));
    assert_eq!(stats["as_of"], json!(1_750_000_000_000_000_000_u64));
    assert_eq!(stats["as_of_boot_ns"], json!(90_000_000_000_u64));
    assert_eq!(stats["as_of_event"], json!({"epoch": 1, "sequence": 4711}));
    assert_eq!(stats["lost_records"], json!(0));
    let device = &stats["devices"][0];
    assert_eq!(device["device"], json!(0));
    assert_eq!(device["allocated_bytes"], json!(1_320_702_444));
    assert_eq!(device["reserved_bytes"], json!(2_147_483_648_u64));
    assert_eq!(device["peak_allocated_bytes"], json!(1_320_703_468));
    assert_eq!(device["baseline_bytes"], json!(4096));
    assert_eq!(device["live_blocks"], json!(12));
    // An unknown value is null, and its key is there.
    assert_eq!(device.get("total_bytes"), Some(&Value::Null));
    let unknown = &stats["devices"][1];
    for name in [
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "baseline_bytes",
    ] {
        assert_eq!(unknown.get(name), Some(&Value::Null), "{name}");
    }
    assert_eq!(unknown["source"], "driver");
    assert_eq!(stats["level"], "trace");
    assert_eq!(stats["backend"], json!({"kind": "native", "name": null}));
    assert_eq!(stats["coverage"][0]["code"], "attached_late");
    assert_eq!(stats["process"]["comm"], "python");
    assert_eq!(
        stats["process"]["environment"][0],
        json!({"name": "RANK", "value": "3"})
    );
}

#[test]
fn every_answer_has_its_shape() {
    let server = Server::start(one_process());
    let leaks = server.ctl(&["leaks", "--json"]).json();
    assert_eq!(leaks["groups"][0]["verdict"], "growing");
    assert_eq!(leaks["groups"][0]["size_bytes"], json!(1_048_576));
    assert_eq!(leaks.get("seconds_to_full"), Some(&Value::Null));
    let fluctuation = server
        .ctl(&["fluctuation", "--intervals", "3", "--json"])
        .json();
    assert_eq!(
        fluctuation["devices"][0]["intervals"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        fluctuation["devices"][0]["overall"]["min_allocated_bytes"],
        json!(500)
    );
    let ps = server.ctl(&["ps", "--json"]).json();
    assert_eq!(keys(&ps), ["processes"]);
    assert_eq!(ps["processes"][0]["state"], "exited");
    let attached = ps["processes"][0]["attached_boot_ns"].as_u64().unwrap();
    assert_eq!(
        ps["processes"][0]["known_from_unix_ns"],
        attached + 1_000_000_000
    );
    let status = server.ctl(&["status", "--json"]).json();
    assert_eq!(status["journal"]["state"], "writing");
    assert_eq!(status.get("replay"), Some(&Value::Null));
    let attach = server.ctl(&["attach", "--comm", "python", "--json"]).json();
    assert_eq!(
        (&attach["rule"], &attach["processes"][0]["sites"]),
        (&json!(1), &json!(61))
    );
    let detach = server.ctl(&["detach", "--all", "--json"]).json();
    assert_eq!(detach, json!({"pids": [4242], "rules": []}));
}

#[test]
fn an_error_is_a_document_too() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["stats", "--pid", "7", "--json"]);
    assert_eq!(answer.code, 4);
    let document = answer.json();
    assert_eq!(keys(&document), ["error"]);
    assert_eq!(document["error"]["code"], "not_traced");
    assert_eq!(document["error"]["message"], "process 7 is not traced");
    assert!(
        document["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("attach --pid 7")
    );
    assert!(
        answer
            .err
            .starts_with("memscope-ctl: process 7 is not traced\n  try: ")
    );
}

#[test]
fn watch_prints_a_document_a_line() {
    let mut process = fake::process(4242, 0);
    // The test's own pid and ids are used, so that it counts as a live process that the caller may see.
    process.process.state = memscope_ledger::report::ProcessState::Attached;
    let server = Server::start(memscope_rpc::fake::FakeDaemon::with([process]));
    let answer = server.ctl(&["watch", "--interval", "10ms", "--count", "3", "--json"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let lines: Vec<_> = answer.out.lines().collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        assert_eq!(
            serde_json::from_str::<Value>(line).unwrap()["pid"],
            json!(4242)
        );
    }
}

#[test]
fn events_are_lines() {
    let server = Server::start(two_processes());
    let socket = server.socket();
    let reader = std::thread::spawn(move || {
        common::ctl(&socket, &["events", "--pid", "4242", "--count", "2"])
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.daemon.hub.readers() == 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let note = CoverageNote {
        code: "ipc_import".into(),
        text: "x".into(),
    };
    let hub = &server.daemon.hub;
    hub.publish(&fake::event(99, 0, 1, Body::Exited));
    hub.publish(&fake::event(4242, 0, 2, Body::Coverage(note)));
    hub.publish(&fake::event(4242, 0, 3, Body::Exited));
    let answer = reader.join().unwrap();
    assert_eq!(answer.code, 0);
    let lines: Vec<Value> = answer
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["kind"], "coverage");
    assert_eq!(lines[0]["body"]["code"], "ipc_import");
    assert_eq!(
        (&lines[1]["kind"], &lines[1]["pid"]),
        (&json!("exited"), &json!(4242))
    );
    assert_eq!(lines[1].get("time_unix_ns"), Some(&Value::Null));
}

#[test]
fn doctor_needs_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let answer = common::ctl(&folder.path().join("s.sock"), &["doctor", "--json"]);
    let document = answer.json();
    assert!(document["checks"].as_array().unwrap().len() > 8);
    assert!(document["processes"].is_array());
    assert!(document["daemon"].is_null());
    assert_eq!(document["daemon_error"]["code"], "no_daemon");
    let server = Server::start(one_process());
    let document = server.ctl(&["doctor", "--json"]).json();
    assert_eq!(
        document["daemon"]["libraries"][0]["ways"][0],
        "record_trace"
    );
}

#[test]
fn several_processes_are_a_list_of_documents() {
    let server = Server::start(two_processes());
    for command in ["stats", "leaks", "stacks"] {
        let one = server.ctl(&[command, "--pid", "99", "--json"]).json();
        let other = server.ctl(&[command, "4242", "--json"]).json();
        assert_eq!(one["pid"], 99, "{command}");
        let all = server.ctl(&[command, "--json"]);
        assert_eq!((all.code, all.err.as_str()), (0, ""), "{command}");
        assert_eq!(all.json(), json!([one, other]), "{command}");
        let named = server.ctl(&[command, "4242", "99", "4242", "--json"]);
        assert_eq!(named.json(), json!([other, one]), "{command}");
        // A process that cannot be asked has its error in the list.
        let some = server.ctl(&[command, "--pid", "4242,7", "--json"]);
        assert_eq!((some.code, &some.json()[0]), (4, &other), "{command}");
        assert_eq!(
            some.json()[1]["error"]["code"],
            "not_traced",
            "{command}: {}",
            some.out
        );
    }
    let looks = server.ctl(&["watch", "--count", "2", "--json"]);
    let pids: Vec<Value> = looks
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["pid"].clone())
        .collect();
    // Both have ended, so there is no second round.
    assert_eq!(pids, [99, 4242], "{}", looks.out);
}
