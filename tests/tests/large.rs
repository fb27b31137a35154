//! Attached to a process that holds many blocks and goes on working at full speed: what was there before is known, equal to
//! PyTorch's own snapshot, or the answer says that it is not known until there is a moment to read it.
//!
//! `MEMSCOPE_BLOCKS=400000 MEMSCOPE_PAUSE_US=0 cargo test --release -p memscope-tests --test large -- --nocapture --test-threads 1` prints a row for each level.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use memscope_tests::{
    Daemon, LONG, Torch, assert_totals, claims_to_know, compared, coverage, number, until,
};

/// Live blocks, unless told otherwise.
const BLOCKS: u64 = 8_000;
/// Threads that allocate and free, and each one's pause between two operations: a daemon that is built for tests, on a machine that
/// does other things as well, is to keep up.
const THREADS: u32 = 2;
const PAUSE_US: u64 = 200;
/// How long a measured attach may go on trying.
const MEASURED: Duration = Duration::from_secs(60);

fn attached(level: &str) {
    let asked = std::env::var("MEMSCOPE_BLOCKS").ok();
    let blocks = asked.as_ref().map_or(BLOCKS, |text| text.parse().unwrap());
    let pause = std::env::var("MEMSCOPE_PAUSE_US").ok();
    let pause = pause.map_or(PAUSE_US, |text| text.parse().unwrap());
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask(&format!("crowd {blocks}"));
    torch.hammer("python", THREADS);
    torch.ask(&format!("go {THREADS} {pause}"));
    let pid = torch.pid();
    let first = torch.operations();
    until(LONG, "the threads work", || {
        (torch.operations() > first + 1000).then_some(())
    });
    let (began, before) = (Instant::now(), torch.operations());
    let attached = daemon.attach(pid, level);
    let answered = began.elapsed();
    let notes = attached["coverage"].as_array().unwrap();
    assert!(
        attached["baseline"].is_object()
            || attached["baseline_pending"] == true
            || notes.iter().any(|note| note["code"] == "baseline_not_read"),
        "the answer says nothing of what was there before: {attached:#}"
    );
    let stats = until(
        LONG,
        "what was there before is known, or said not to be",
        || {
            let stats = daemon.stats(pid);
            let known = stats["reading"].is_object() && claims_to_know(&stats);
            let said = coverage(&stats).contains(&"baseline_not_read");
            let enough = asked.is_none() || began.elapsed() > MEASURED;
            (known || said && enough).then_some(stats)
        },
    );
    let known = began.elapsed();
    let at_work = stats["reading"].is_object();
    let done = torch.operations() - before;
    let told = torch.ask("hold");
    let after = until(
        LONG,
        "what was there before is known of a process at rest",
        || {
            let stats = daemon.stats(pid);
            claims_to_know(&stats).then_some(stats)
        },
    );
    assert_totals(&after, &told);
    let live: u64 = after["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|d| d["live_blocks"].as_u64())
        .sum();
    assert!(live >= blocks, "{live} of {blocks}");
    let told = compared(&daemon, &mut torch);
    if level == "trace" {
        assert!(told["exported"] == told["own"], "the snapshots differ");
    }
    if asked.is_some() {
        let cost = &stats["reading"];
        println!(
            "| {} | {level} | {blocks} | {at_work} | {:.2} | {:.2} | {:.2} | {} | {:.1} | {} | {} |",
            torch.version,
            answered.as_secs_f64(),
            known.as_secs_f64(),
            cost["duration_ns"].as_f64().unwrap_or(f64::NAN) / 1e9,
            cost["raced"],
            cost["bytes_read"].as_f64().unwrap_or(f64::NAN) / f64::from(1 << 20),
            done,
            number(&stats["lost_records"]),
        );
    }
    torch.finish();
}

#[test]
fn at_level_trace() {
    attached("trace");
}

#[test]
fn at_level_blocks() {
    attached("blocks");
}
