//! The daemon's budget of memory: a process that makes it keep more and more is given up, its neighbour stays exact, and
//! a recording says the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::Met;
use memscope_tests::{
    Asking, Calls, Daemon, Library, MIB, Program, SHORT, Said, Value, coverage, executable, find,
    number, sim, until,
};

const BUDGET: u64 = 128 * MIB;

/// Anonymous memory of a process in bytes.
fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

fn held(stats: &Value) -> u64 {
    assert_eq!(stats["lost_records"], 0, "{stats:#}");
    let devices = stats["devices"].as_array().unwrap().iter();
    devices.map(|d| number(&d["driver"]["bytes"])).sum()
}

fn given_up(status: &Value) -> u64 {
    let shed = find(&status["memory"]["shed"], "cause", "process");
    number(&shed.expect("a count")["count"])
}

#[test]
fn a_process_that_takes_the_memory_is_given_up_and_its_neighbour_stays_exact() {
    let daemon = Daemon::with(&["--memory", "128MiB"]);
    let command = sim().native(executable("hostile.c", Library::Runtime));
    let mut loud = Program::start("the loud process", command);
    loud.hear();
    let mut quiet = Calls::start(&[]);
    daemon.attach(loud.pid(), "segments");
    daemon.attach(quiet.pid(), "segments");
    loud.tell("leak 700000");
    let (mut asked, mut bytes, mut most) = (0, 0, 0);
    while loud.heard().is_none() {
        asked += 1;
        quiet.call(&format!("cudaMalloc m{asked} {asked}"));
        bytes += asked;
        let status = daemon.json(&["status"]);
        assert_eq!(number(&status["memory"]["limit_bytes"]), BUDGET);
        most = most.max(anonymous(daemon.pid()));
    }
    until(SHORT, "the loud one is given up", || {
        let status = daemon.json(&["status"]);
        (given_up(&status) == 1).then_some(())
    });
    most = most.max(anonymous(daemon.pid()));
    assert!(most < BUDGET, "{} MiB", most / MIB);
    println!("at most {} MiB of {} MiB", most / MIB, BUDGET / MIB);
    // What the neighbour holds is right, and nothing limits it.
    let stats = daemon.stats(quiet.pid());
    assert_eq!(held(&stats), bytes);
    let spoilt = ["trace_shed", "history_shed", "stacks_shed", "given_up"];
    let notes = coverage(&stats);
    assert!(!notes.iter().any(|code| spoilt.contains(code)), "{notes:?}");
    // The numbers of the loud one are not smaller than they should be: there are none.
    let loud_pid = loud.pid();
    let ask_live = |words: &[&str]| daemon.ctl(words);
    check(&ask_live, loud_pid);
    // It goes on, untraced.
    assert_eq!(loud.ask("malloc 4096")["result"], 0);
    quiet.call("cudaMalloc last 1");
    let stats = daemon.stats(quiet.pid());
    assert_eq!(held(&stats), bytes + 1);
    // The recording says the same.
    let recording = daemon.recording();
    let quiet_pid = quiet.pid().to_string();
    drop(quiet);
    loud.finish();
    let recording = recording.to_str().unwrap();
    let ask_recording =
        |words: &[&str]| Asking::new(["--recording", recording].iter().chain(words)).ask();
    check(&ask_recording, loud_pid);
    let stats = ask_recording(&["--json", "stats", "--pid", &quiet_pid]).json();
    assert_eq!(held(&stats), bytes + 1);
    Met {
        what: "memory of the daemon",
        most: "`--memory`".to_owned(),
        beyond: "processes that have ended go; then the process that takes the most loses its trace, its history, its stacks, and at last everything",
        told: "`shed` in `status`; `trace_shed`, `history_shed`, `stacks_shed` in coverage; error `given_up`",
        test: "a_process_that_takes_the_memory_is_given_up_and_its_neighbour_stays_exact",
    }
    .is_told();
}

/// The process is listed as given up, and questions about it are refused.
fn check(ask: &dyn Fn(&[&str]) -> Said, pid: u32) {
    let list = ask(&["--json", "ps"]).json();
    let processes = list["processes"].as_array().unwrap();
    let one = processes
        .iter()
        .find(|one| {
            [&one["facts"]["pid"], &one["pid"]]
                .iter()
                .any(|of| of.as_u64() == Some(pid.into()))
        })
        .unwrap_or_else(|| panic!("no process {pid} in {list:#}"));
    assert_eq!(one["state"], "given_up", "{one:#}");
    assert!(one["allocated_bytes"].is_null(), "{one:#}");
    for question in ["stats", "leaks", "stacks"] {
        ask(&[question, "--pid", &pid.to_string()]).refused(11, &["given up", "--memory"]);
    }
}
