//! The page of limits is true, and what no other test meets of what users may have.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::{Met, constant, is_complete};
use memscope_tests::{
    Calls, Daemon, Library, Program, bpf_entries, coverage, executable, find, number, sim,
};

#[test]
fn the_page_has_every_limit_and_nothing_else() {
    is_complete();
}

#[test]
fn too_many_rules_and_triggers() {
    let daemon = Daemon::start();
    let calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    for number in 0..64 {
        let name = format!("no-such-{number}");
        daemon.ctl(&["attach", "--comm", &name]).text();
    }
    daemon
        .ctl(&["attach", "--comm", "one-more"])
        .refused(2, &["too many rules", "64 of root", "8 of one"]);
    let mut added = 0;
    let refused = loop {
        let condition = format!("allocated > {}MiB", added + 1);
        let said = daemon.ctl(&["trigger", "add", &condition]);
        if said.code != 0 {
            break said;
        }
        added += 1;
    };
    refused.refused(2, &["too many triggers", "64 of root", "16 of one"]);
    assert!((1..=64).contains(&added), "{added}");
    let file = "memscope-daemon/src/tracer/mod.rs";
    Met {
        what: "rules for processes that come later",
        most: format!(
            "{} of root, and as many of all others; {} of one of them",
            constant(file, "MOST_RULES"),
            constant(file, "MOST_RULES_OF_A_USER")
        ),
        beyond: "further ones are refused",
        told: "error `invalid` with the numbers",
        test: "too_many_rules_and_triggers",
    }
    .is_told();
    let file = "memscope-daemon/src/triggers/mod.rs";
    Met {
        what: "triggers",
        most: format!(
            "{} of root, and as many of all others; {} of one of them",
            constant(file, "MOST"),
            constant(file, "MOST_OF_A_USER")
        ),
        beyond: "further ones are refused",
        told: "error `invalid` with the numbers",
        test: "too_many_rules_and_triggers",
    }
    .is_told();
    drop(calls);
}

/// A process that makes contexts without end takes the room of all. That is told to whoever meets it, and its end or its
/// detach makes room.
#[test]
fn more_contexts_than_the_programs_follow() {
    const ROOM: u64 = 1 << 14;
    let daemon = Daemon::start();
    let mut hostile = Program::start(
        "the hostile process",
        sim().native(executable("hostile.c", Library::Runtime)),
    );
    hostile.hear();
    let mut quiet = Calls::start(&[]);
    daemon.attach(hostile.pid(), "segments");
    daemon.attach(quiet.pid(), "segments");
    let made = hostile.ask(&format!("contexts {}", ROOM + 10));
    assert_eq!(made["result"], 0, "{made}");
    assert_eq!(bpf_entries(daemon.pid(), "CONTEXTS") as u64, ROOM);
    let stats = daemon.stats(hostile.pid());
    assert!(coverage(&stats).contains(&"device_table_full"), "{stats:#}");
    let status = daemon.json(&["status"]);
    let full = find(&status["drops"], "cause", "device_table_full").expect("a cause");
    assert_eq!(number(&full["count"]), 10, "{status:#}");
    // Who needs no context of its own has no loss.
    quiet.call("cudaSetDevice 0");
    quiet.call("cudaMalloc a 1000");
    let stats = daemon.stats(quiet.pid());
    assert_eq!(stats["devices"][0]["driver"]["bytes"], 1000, "{stats:#}");
    daemon.detach(hostile.pid());
    assert!(bpf_entries(daemon.pid(), "CONTEXTS") < 10);
    Met {
        what: "contexts of which the programs know the device",
        most: constant("memscope-ebpf/src/probes/device.rs", "CONTEXTS_MOST"),
        beyond: "what is allocated under a further one may be on an unknown device, until an end or a detach makes room",
        told: "`device_table_full` in `status` and in coverage",
        test: "more_contexts_than_the_programs_follow",
    }
    .is_told();
    hostile.finish();
}
