//! More code objects in stacks than the programs' table has room for: what cannot be followed gets no name rather than a
//! wrong one, coverage says so, and an end makes room.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use memscope_tests::limits::{Met, constant};
use memscope_tests::{
    Daemon, LONG, Library, Program, Value, bpf_entries, coverage, eventually, find, number, sim,
    until, workload,
};

/// Code objects that the table has room for.
const ROOM: usize = 1 << 16;

struct Codes {
    program: Program,
}

impl Codes {
    fn start(daemon: &Daemon) -> Codes {
        // It needs no C library, and so no simulated device.
        let runtime = memscope_tests::library(
            "runtime.c",
            "libcudart.so.13",
            Library::None,
            &["-fPIC", "-nostdlib", "-Wl,-soname,libcudart.so.13"],
        );
        let mut command = Command::new(sim().python("").get_program());
        command.arg(workload("codes.py")).arg(runtime);
        let mut program = Program::start("the interpreter", command);
        program.hear_within(LONG);
        let codes = Codes { program };
        codes.attach(daemon);
        codes
    }

    fn attach(&self, daemon: &Daemon) {
        let pid = self.program.pid_text();
        daemon.json(&[
            "attach", "--pid", &pid, "--level", "segments", "--stacks", "python",
        ]);
    }

    fn ask(&mut self, command: &str) -> Value {
        self.program.tell(command);
        self.program.hear_within(LONG)
    }

    /// Has functions made that allocate, each read by the daemon before it is freed and the next comes to lie in its place.
    /// What each of them allocated, by its name.
    fn make(&mut self, daemon: &Daemon, first: u64) -> BTreeMap<String, u64> {
        let mut made = BTreeMap::new();
        let mut places = BTreeSet::new();
        for name in first..first + 10 {
            let size = name * 1_000_000;
            places.insert(number(&self.ask(&format!("make {name} {size}"))));
            made.insert(format!("made_{name}"), size);
            daemon.stats(self.pid());
        }
        assert!(places.len() < 10, "one lies where another lay: {places:?}");
        made
    }

    fn pid(&self) -> u32 {
        self.program.pid()
    }

    fn end(mut self) {
        self.program.tell("end");
        assert!(self.program.wait().success());
    }
}

/// What the stacks allocated that have a function `made_…` in them, by its name.
fn by_name(daemon: &Daemon, pid: u32) -> BTreeMap<String, u64> {
    let pid = pid.to_string();
    let answer = daemon.json(&[
        "stacks",
        "--pid",
        &pid,
        "--metric",
        "allocated",
        "--limit",
        "0",
    ]);
    let mut sums = BTreeMap::new();
    for row in answer["rows"].as_array().unwrap() {
        let mut frames = row["frames"].as_array().unwrap().iter();
        let made = frames.find_map(|frame| frame["name"].as_str()?.strip_prefix("made_"));
        if let Some(made) = made {
            *sums.entry(format!("made_{made}")).or_default() +=
                number(&row["amounts"]["allocated"]["bytes"]);
        }
    }
    sums
}

#[test]
fn a_full_table_of_code_objects_gives_no_wrong_names() {
    let daemon = Daemon::with(&["--stack-budget", "off", "--ring-mib", "64"]);
    let mut first = Codes::start(&daemon);
    let mut second = Codes::start(&daemon);
    let mut third = Codes::start(&daemon);
    let mut made = third.make(&daemon, 10);
    assert_eq!(by_name(&daemon, third.pid()), made, "there is room");
    third.ask("drop");

    for codes in [&mut first, &mut second] {
        codes.ask("fill 40000");
    }
    assert_eq!(bpf_entries(daemon.pid(), "CODES"), ROOM, "it is full");
    // Nobody would tell of the death of one of these, and its name would be that of the next in its place.
    third.make(&daemon, 20);
    assert_eq!(
        by_name(&daemon, third.pid()),
        made,
        "none of these has a name"
    );
    for (codes, full) in [(&first, false), (&second, true), (&third, true)] {
        let stats = daemon.stats(codes.pid());
        let said = coverage(&stats).contains(&"code_table_full");
        assert_eq!(said, full, "{stats:#}");
    }
    let status = daemon.json(&["status"]);
    let lost = find(&status["drops"], "cause", "code_table_full");
    assert!(lost.is_some(), "{status:#}");

    // A detach makes room, and what could not be named before can be now.
    let held = bpf_entries(daemon.pid(), "CODES");
    daemon.detach(second.pid());
    let left = bpf_entries(daemon.pid(), "CODES");
    assert!(left > 40_000 && left < held - 20_000, "{left} of {held}");
    made.extend(third.make(&daemon, 30));
    assert_eq!(by_name(&daemon, third.pid()), made);

    // Attached again it begins anew.
    second.attach(&daemon);
    second.ask("fill 1000");
    let stats = daemon.stats(second.pid());
    assert!(!coverage(&stats).contains(&"code_table_full"), "{stats:#}");

    let pid = first.pid();
    first.end();
    until(LONG, "the end is noticed", || {
        (daemon.process(pid)?["state"] == "exited").then_some(())
    });
    eventually("an end makes room, too", || {
        bpf_entries(daemon.pid(), "CODES") < 3000
    });
    daemon.detach(second.pid());
    daemon.detach(third.pid());
    assert_eq!(bpf_entries(daemon.pid(), "CODES"), 0);
    second.end();
    third.end();
    Met {
        what: "code objects that the programs follow",
        most: constant("memscope-ebpf/src/python.rs", "CODES_MOST"),
        beyond: "frames of further ones have no name, until an end or a detach makes room",
        told: "`code_table_full` in `status` and in coverage",
        test: "a_full_table_of_code_objects_gives_no_wrong_names",
    }
    .is_told();
}
