//! What memscope says of PyTorch against what PyTorch says of itself.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Daemon, LONG, Torch, assert_histories, assert_totals, coverage, device, number, scratch, until,
};

/// Once it is proven that a block tells whether its free completes at once, the completion has no trap of its own: the call of
/// `record_trace` in `free` tells both, and frees that wait are told by other calls. Events complete late here, so that frees
/// wait for some time, across allocations, and some still wait in the end.
#[test]
fn frees_that_wait_and_frees_that_do_not() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[("SIMCUDA_EVENT_DELAY_US", "3000")]);
    torch.ask("history");
    let pid = torch.pid();
    let attached = daemon.attach(pid, "trace");
    until(
        LONG,
        "the probes on reports and on completed frees to go",
        || {
            torch.ask("churn 50");
            // One probe is on reports, and one on the call by which completed frees are told.
            let sites = number(&daemon.stats(pid)["placement"]["sites"]);
            (sites == number(&attached["sites"]) - 2).then_some(())
        },
    );
    for rounds in [300, 7, 40, 500] {
        torch.ask(&format!("shared {rounds}"));
        let told = torch.ask("churn 20");
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        assert_eq!(stats["lost_records"], 0);
    }
    assert_histories(&daemon, &mut torch);
    torch.ask("empty_cache");
    torch.ask("train 2");
    let lengths = assert_histories(&daemon, &mut torch);
    assert!(lengths[0] > 3000, "only {lengths:?} entries");
    torch.finish();
}

/// A training run with a side stream, running out of memory, and an emptied cache.
fn moments() -> Vec<&'static str> {
    vec![
        "alloc first 3000000",
        "train",
        "train",
        "oom",
        "train",
        "alloc other 700 1",
        "train",
        "empty_cache",
        "train",
        "drop",
        "train",
        "free first",
        "allocs many 500 3000",
        "train 2",
        "alloc big 50000000",
        "free many",
        "churn 200",
        "empty_cache",
        "train",
        "oom 3",
        "free big",
        "free other",
        "empty_cache",
        "drop",
        "alloc last 1",
    ]
}

#[test]
fn history_and_totals_of_a_training_run() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[("SIMCUDA_DEVICES", "2")]);
    torch.ask("history");
    let pid = torch.pid();
    let attached = daemon.attach(pid, "trace");
    assert_eq!(attached["level"], "trace");
    let moments = moments();
    assert!(moments.len() >= 20);
    for moment in &moments {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        assert_eq!(stats["lost_records"], 0);
    }
    let lengths = assert_histories(&daemon, &mut torch);
    assert!(
        lengths[0] > 2000 && lengths[1] > 0,
        "only {lengths:?} entries"
    );

    // Until the allocator's layout is proven two probes report each block; after that one must do.
    let proven = until(LONG, "the allocator's layout is proven", || {
        torch.ask("churn 50");
        let stats = daemon.stats(pid);
        let ways = stats["placement"]["ways"].to_string();
        (!ways.contains("reportMemoryUsage")).then_some(stats)
    });
    assert!(
        proven["placement"]["ways"]
            .to_string()
            .contains("record_trace"),
        "{proven:#}"
    );
    assert!(!coverage(&proven).contains(&"both_ways"), "{proven:#}");
    for moment in &moments {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
    }
    let later = assert_histories(&daemon, &mut torch);
    assert!(later[0] > lengths[0] + 2000);

    let stats = daemon.stats(pid);
    assert_eq!(stats["lost_records"], 0);
    assert_eq!(
        device(&stats, 0)["baseline_bytes"],
        0,
        "nothing was there before"
    );
    assert_eq!(
        device(&stats, 0)["resync_count"],
        0,
        "every total was the ledger's own: {stats:#}"
    );
    assert!(number(&device(&stats, 0)["oom_count"]) >= 8);
    torch.finish();
}

/// The exported pickle has the same segments and blocks as PyTorch's own snapshot.
#[test]
fn exported_snapshot() {
    let daemon = Daemon::start();
    let folder = scratch();
    let file = folder.path().join("snapshot.pickle");
    let file = file.to_str().unwrap();
    let mut torch = Torch::start(&[("SIMCUDA_DEVICES", "2")]);
    daemon.attach(torch.pid(), "trace");
    for moment in [
        "train 2",
        "alloc a 3000000",
        "alloc there 5000000 1",
        "oom",
        "train",
        "empty_cache",
        "drop",
    ] {
        torch.ask(moment);
        daemon
            .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", file])
            .text();
        let told = torch.ask(&format!("compare {file}"));
        assert_eq!(
            told["exported"], told["own"],
            "after {moment}: memscope's, PyTorch's"
        );
        assert!(!told["own"].as_array().unwrap().is_empty(), "{told}");
        assert!(number(&told["traces"][0]) > 0, "{told}");
    }
    torch.finish();
}

/// At level segments the pool is not looked into: what it holds is known, what it hands out is not.
#[test]
fn totals_at_level_segments() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[("CUDA_VISIBLE_DEVICES", "0")]);
    let pid = torch.pid();
    let attached = daemon.attach(pid, "segments");
    assert_eq!(attached["level"], "segments");
    for moment in moments() {
        let told = torch.ask(&moment.replace("700 1", "700 0"));
        let stats = daemon.stats(pid);
        let zero = device(&stats, 0);
        assert_eq!(
            zero["driver"]["bytes"], told["devices"][0]["reserved"],
            "after {moment}: {stats:#}"
        );
        assert!(
            zero["allocated_bytes"].is_null(),
            "not known at this level: {stats:#}"
        );
        assert!(coverage(&stats).contains(&"level_segments"), "{stats:#}");
        assert_eq!(stats["lost_records"], 0);
    }
    torch.finish();
}

#[test]
fn totals_at_level_blocks() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    let pid = torch.pid();
    let attached = daemon.attach(pid, "blocks");
    assert_eq!(attached["level"], "blocks");
    for moment in moments() {
        let told = torch.ask(&moment.replace("700 1", "700 0"));
        // At this level the totals travel with blocks, so an emptied cache shows with the next one.
        let told = if moment == "empty_cache" {
            torch.ask("alloc next 600")
        } else {
            told
        };
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        assert_eq!(stats["lost_records"], 0);
    }
    torch.finish();
}

#[test]
fn attached_in_the_middle() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("allocs old 40 3000000");
    let before = torch.ask("train 3");
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    // A sum at once, and blocks as soon as the allocator's structures are read.
    let stats = daemon.stats(pid);
    let codes = coverage(&stats);
    assert!(
        codes.contains(&"attached_late") || codes.contains(&"baseline_read"),
        "{stats:#}"
    );
    until(LONG, "the allocator's structures were read", || {
        coverage(&daemon.stats(pid))
            .contains(&"baseline_read")
            .then_some(())
    });

    // One event is enough for all totals.
    let told = torch.ask("alloc one 700");
    let stats = daemon.stats(pid);
    assert_totals(&stats, &told);
    let baseline = number(&device(&stats, 0)["baseline_bytes"]);
    assert_eq!(
        baseline,
        number(&before["devices"][0]["allocated"]),
        "all that was there before"
    );
    assert!(
        number(&device(&stats, 0)["live_blocks"]) > 40,
        "the old blocks are known one by one: {stats:#}"
    );
    assert!(coverage(&stats).contains(&"baseline_read"), "{stats:#}");

    let mut last = baseline;
    for moment in [
        "free old",
        "train",
        "empty_cache",
        "train 2",
        "drop",
        "alloc two 900",
        "free one",
    ] {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        let now = number(&device(&stats, 0)["baseline_bytes"]);
        assert!(
            now <= last,
            "the baseline grew from {last} to {now} with {moment}"
        );
        assert!(now <= number(&device(&stats, 0)["allocated_bytes"]));
        if moment == "free old" {
            assert_eq!(
                last - now,
                40 * 3_000_320,
                "the old blocks were of the baseline"
            );
        }
        last = now;
    }
    let stats = daemon.stats(pid);
    // What is left of it is cuBLAS's workspace, which PyTorch keeps.
    assert!(
        last < baseline / 4,
        "{last} of {baseline} still count as baseline"
    );
    assert_eq!(device(&stats, 0)["orphan_free_count"], 0, "{stats:#}");
    assert_eq!(stats["lost_records"], 0);
    torch.finish();
}
