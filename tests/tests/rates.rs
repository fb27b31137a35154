//! Records that are lost are counted, exactly, and what can be right again becomes so.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Calls, Daemon, Torch, Value, assert_totals, coverage, device, number};

#[test]
fn every_lost_record_is_counted() {
    const PAIRS: u64 = 20_000;
    let daemon = Daemon::with(&["--ring-mib", "1"]);
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc kept 1000");
    let seen = |stats: &Value| {
        number(&device(stats, 0)["alloc_count"]) + number(&device(stats, 0)["free_count"])
    };
    let before = daemon.stats(pid);
    assert_eq!(
        (seen(&before), &before["lost_records"]),
        (1, &Value::from(0))
    );

    daemon.signal(libc::SIGSTOP);
    calls.call(&format!("pairs {PAIRS} 4096"));
    daemon.signal(libc::SIGCONT);
    let stats = daemon.stats(pid);
    let lost = number(&stats["lost_records"]);
    assert!(lost > 0, "20,000 pairs do not fit into a MiB: {stats:#}");
    assert_eq!(
        seen(&stats) - 1 + lost,
        2 * PAIRS,
        "seen and lost: {stats:#}"
    );
    let gaps = stats["gaps"].as_array().unwrap();
    let in_gaps: u64 = gaps.iter().map(|gap| number(&gap["records"])).sum();
    assert_eq!(in_gaps, lost, "{gaps:?}");
    for gap in gaps {
        assert!(number(&gap["from_boot_ns"]) >= number(&before["as_of_boot_ns"]) - 1_000_000_000);
        assert!(number(&gap["from_boot_ns"]) <= number(&gap["to_boot_ns"]));
        assert!(number(&gap["to_boot_ns"]) <= number(&stats["as_of_boot_ns"]));
    }
    assert!(coverage(&stats).contains(&"records_lost"), "{stats:#}");
    let status = daemon.json(&["status"]);
    let drops = status["drops"].as_array().unwrap();
    let full = drops
        .iter()
        .find(|drop| drop["cause"] == "ring_share_taken")
        .expect("a cause");
    assert_eq!(full["count"], lost);
    // The process's own list says it as well.
    assert_eq!(daemon.process(pid).unwrap()["lost_records"], lost);

    // Nothing is lost any more.
    calls.call("pairs 2000 4096");
    let later = daemon.stats(pid);
    assert_eq!(number(&later["lost_records"]), lost);
    assert_eq!(seen(&later), seen(&stats) + 4000);
    calls.finish();
}

#[test]
fn totals_recover_from_a_loss() {
    for level in ["trace", "blocks"] {
        let daemon = Daemon::with(&["--ring-mib", "1"]);
        let mut torch = Torch::start(&[]);
        let pid = torch.pid();
        daemon.attach(pid, level);
        torch.ask("allocs before 20 5000");
        torch.ask("train 2");
        daemon.signal(libc::SIGSTOP);
        torch.ask("free before");
        torch.ask("allocs during 30 7000");
        torch.ask("churn 20000");
        torch.ask("allocs lost 100 9000");
        daemon.signal(libc::SIGCONT);
        let lost = number(&daemon.stats(pid)["lost_records"]);
        assert!(lost > 0, "at level {level}");
        for moment in [
            "alloc after 600",
            "train 2",
            "free lost",
            "free during",
            "drop",
            "empty_cache",
            "alloc last 900",
        ] {
            let told = torch.ask(moment);
            let told = if moment == "empty_cache" {
                torch.ask("churn 1")
            } else {
                told
            };
            let stats = daemon.stats(pid);
            assert_totals(&stats, &told);
            assert_eq!(number(&stats["lost_records"]), lost, "at level {level}");
            assert!(coverage(&stats).contains(&"records_lost"));
        }
        torch.finish();
    }
}
