//! Records lost because the ring is small, the load is not, and the daemon gets no processor for a while. The
//! gap is told, and the state is PyTorch's own again, while the load goes on and at rest.
//!
//! `MEMSCOPE_ROUNDS=20 cargo test -p memscope-tests --test overrun -- --nocapture` prints the rows of
//! docs/evidence/late-attach.md.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::time::Instant;

use memscope_tests::{
    Asking, Daemon, LONG, Torch, Value, assert_totals, claims_to_know, compared, coverage, number,
    until,
};

const THREADS: u32 = 8;
const ROUNDS: u32 = 3;
/// Allocations and frees of one overrun: some times what a ring of a MiB holds, and so few that PyTorch's
/// history holds all of them.
const BURST: u64 = 25_000;
/// What goes on while the state is read again: threads, and their pause in microseconds.
const LESS: &str = "go 2 200";

type Counts = BTreeMap<String, u64>;

/// Entries by action in memscope's trace.
fn ours(daemon: &Daemon, pid: &str) -> Counts {
    let snapshot = daemon.json(&["snapshot", "--pid", pid, "--format", "json"]);
    assert_eq!(snapshot["header"]["trace_dropped"], 0, "all of it is kept");
    let mut counts = Counts::new();
    for entry in snapshot["trace"].as_array().unwrap() {
        let action = entry["action"].as_str().unwrap().to_owned();
        *counts.entry(action).or_default() += 1;
    }
    counts
}

/// The same in PyTorch's own.
fn theirs(torch: &mut Torch) -> Counts {
    let told = torch.ask("history_counts");
    let counts = told["counts"].as_object().unwrap().iter();
    counts
        .map(|(action, count)| (action.clone(), number(count)))
        .collect()
}

fn lost(daemon: &Daemon, pid: u32) -> u64 {
    number(&daemon.stats(pid)["lost_records"])
}

/// Has the threads make more records than the ring holds while the daemon does not run, as on a machine with
/// much else to do. Otherwise a fast machine's daemon keeps up, and nothing is lost.
fn starve(daemon: &Daemon, torch: &mut Torch) {
    let signal = |signal| {
        // SAFETY: no memory; the daemon is our child and not waited for yet.
        assert_eq!(unsafe { libc::kill(daemon.pid() as i32, signal) }, 0);
    };
    let due = torch.operations() + BURST;
    signal(libc::SIGSTOP);
    torch.ask("go");
    until(LONG, "the threads allocate", || {
        (torch.operations() >= due).then_some(())
    });
    signal(libc::SIGCONT);
}

/// Overruns the ring until segments and frees are among what is lost; gives PyTorch's counts and ours.
fn overrun(daemon: &Daemon, torch: &mut Torch) -> (Counts, Counts) {
    let pid = torch.pid();
    for _ in 0..20 {
        let before = lost(daemon, pid);
        starve(daemon, torch);
        torch.ask("hold");
        until(LONG, "records are lost", || {
            (lost(daemon, pid) > before).then_some(())
        });
        let (theirs, ours) = (theirs(torch), ours(daemon, &torch.pid_text()));
        let missing = |action: &str| {
            let of = |counts: &Counts| counts.get(action).copied().unwrap_or_default();
            of(&theirs) > of(&ours)
        };
        if ["alloc", "free_completed", "segment_alloc", "segment_free"]
            .into_iter()
            .all(missing)
        {
            return (theirs, ours);
        }
    }
    panic!("no segment is lost: {:#}", daemon.stats(pid));
}

#[track_caller]
fn assert_gap_is_told(stats: &Value) {
    let lost = number(&stats["lost_records"]);
    assert!(lost > 0, "{stats:#}");
    assert!(coverage(stats).contains(&"records_lost"), "{stats:#}");
    let gaps = stats["gaps"].as_array().unwrap();
    assert!(!gaps.is_empty(), "{stats:#}");
    for gap in gaps {
        assert!(number(&gap["records"]) > 0, "{gap}");
        assert!(number(&gap["from_boot_ns"]) <= number(&gap["to_boot_ns"]));
    }
}

#[test]
fn the_state_is_right_again() {
    let asked = std::env::var("MEMSCOPE_ROUNDS").ok();
    let rounds = asked.as_ref().map_or(ROUNDS, |text| text.parse().unwrap());
    // The journal must hold all of it: a fast machine makes millions of records.
    let mut daemon = Daemon::with(&[
        "--ring-mib",
        "1",
        "--trace-entries",
        "3000000",
        "--journal-mib",
        "2048",
    ]);
    let mut torch = Torch::start(&[]);
    torch.ask("history bare");
    torch.hammer("native", THREADS);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    let (theirs, ours) = overrun(&daemon, &mut torch);
    println!("PyTorch's entries: {theirs:?}\nmemscope's: {ours:?}");
    torch.ask("end_history");
    assert_gap_is_told(&daemon.stats(pid));

    let mut table = Vec::new();
    for round in 0..rounds {
        // Lost again, and then the load goes on, but so that the ring can take it.
        let before = lost(&daemon, pid);
        starve(&daemon, &mut torch);
        let (began, at_rest) = (Instant::now(), round % 2 == 1);
        torch.ask(if at_rest { "hold" } else { LESS });
        let stats = until(LONG, "every block is known again", || {
            let stats = daemon.stats(pid);
            (number(&stats["lost_records"]) > before && claims_to_know(&stats)).then_some(stats)
        });
        let healed = began.elapsed();
        assert_gap_is_told(&stats);
        // Read before the threads are held: the load went on.
        let told = torch.ask("hold");
        let stats = until(LONG, "nothing was lost since", || {
            let stats = daemon.stats(pid);
            claims_to_know(&stats).then_some(stats)
        });
        assert_totals(&stats, &told);
        let told = compared(&daemon, &mut torch);
        assert_eq!(told["exported"], told["own"], "round {round}: {stats:#}");
        assert!(!told["own"].as_array().unwrap().is_empty());
        table.push((at_rest, number(&stats["lost_records"]) - before, healed));
    }
    if asked.is_some() {
        for (at_rest, lost, healed) in table {
            let load = if at_rest { "at rest" } else { "going on" };
            println!(
                "| {} | {load} | {lost} | {:.3} |",
                torch.version,
                healed.as_secs_f64()
            );
        }
    }
    // Losses and readings are in the log: whoever reads it knows as much.
    let pid = torch.pid_text();
    let ask = ["snapshot", "--pid", &pid, "--format", "json"];
    let live = daemon.json(&ask);
    assert!(claims_to_know(&live["header"]), "{:#}", live["header"]);
    daemon.stop();
    torch.finish();
    let recording = daemon.recording();
    let at = format!("event:{}", live["header"]["as_of_event"]["sequence"]);
    let words = ["--recording", recording.to_str().unwrap()];
    let replayed = Asking::new(words.iter().chain(&ask).chain(&["--at", &at]))
        .ask()
        .json();
    assert_eq!(replayed["segments"], live["segments"]);
    assert_eq!(replayed["header"]["coverage"], live["header"]["coverage"]);
}
