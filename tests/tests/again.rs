//! A process that is attached a second time: nothing that the programs kept of the first time is believed, and nothing of
//! it is left in their tables.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use memscope_tests::{
    Calls, Daemon, Torch, Value, bpf_entries, coverage, device, eventually, find, number, scratch,
};

/// What a device holds from the driver: count and bytes. `None`: those of which nobody knows the device.
fn held(stats: &Value, ordinal: Option<i64>) -> Option<(u64, u64)> {
    let found = find(&stats["devices"], "device", ordinal)?;
    let driver = &found["driver"];
    Some((number(&driver["count"]), number(&driver["bytes"])))
}

/// Tables of threads and contexts, which a detach empties.
const BY_THREAD: [&str; 4] = ["INFLIGHT", "THREAD_DEVICE", "CONTEXTS", "REGION_CALLS"];

#[track_caller]
fn assert_empty(daemon: &Daemon) {
    for table in BY_THREAD {
        assert_eq!(bpf_entries(daemon.pid(), table), 0, "{table}");
    }
}

#[test]
fn the_device_of_the_first_time_is_not_believed() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[("SIMCUDA_DEVICES", "2")]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 1");
    calls.call("cudaMalloc first 1000");
    assert_eq!(held(&daemon.stats(pid), Some(1)), Some((1, 1000)));
    assert_eq!(bpf_entries(daemon.pid(), "THREAD_DEVICE"), 1);
    daemon.detach(pid);
    assert_empty(&daemon);

    // Nobody sees this one.
    calls.call("cudaSetDevice 0");
    daemon.attach(pid, "segments");
    calls.call("cudaMalloc second 5000");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats, Some(1)), None, "{stats:#}");
    assert_eq!(held(&stats, None), Some((1, 5000)), "{stats:#}");
    assert!(coverage(&stats).contains(&"device_unknown"), "{stats:#}");
    // From here on it is known.
    calls.call("cudaSetDevice 1");
    calls.call("cudaMalloc third 7000");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats, Some(1)), Some((1, 7000)), "{stats:#}");

    // A process that ends leaves as little.
    calls.finish();
    eventually("the process's end is noticed", || {
        daemon.process(pid).is_some_and(|p| p["state"] == "exited")
    });
    eventually("its entries are gone", || {
        BY_THREAD
            .iter()
            .all(|table| bpf_entries(daemon.pid(), table) == 0)
    });
}

#[test]
fn a_detach_in_the_middle_of_a_call() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    calls.call("cudaSetDevice 0");
    daemon.attach(pid, "segments");
    assert_eq!(calls.ask("blocked first 1000")["blocked"], true);
    assert_eq!(bpf_entries(daemon.pid(), "INFLIGHT"), 1);
    daemon.detach(pid);
    assert_empty(&daemon);
    assert_eq!(calls.ask("")["result"], 0, "it ends while nobody looks");

    // Its frame lay above this one's: it would be inside that call.
    daemon.attach(pid, "segments");
    calls.call("deep cudaSetDevice 0");
    calls.call("deep cudaMalloc second 5000");
    calls.call("deep cudaMalloc third 7000");
    let stats = daemon.stats(pid);
    assert_eq!(number(&device(&stats, 0)["alloc_count"]), 2, "{stats:#}");
    assert_eq!(held(&stats, Some(0)), Some((2, 12000)), "{stats:#}");

    // This one begins under one attach and ends under the next.
    assert_eq!(calls.ask("blocked fourth 9000")["blocked"], true);
    daemon.detach(pid);
    daemon.attach(pid, "segments");
    assert_eq!(calls.ask("")["result"], 0);
    calls.call("cudaSetDevice 0");
    calls.call("deep cudaMalloc fifth 11000");
    calls.call("cudaMalloc sixth 13000");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats, Some(0)), Some((2, 24000)), "{stats:#}");
    daemon.detach(pid);
    assert_empty(&daemon);
    calls.finish();
}

/// What a process had while it was detached is not known: such a moment is refused, and a comparison across it says what it cannot tell.
#[test]
fn a_moment_between_detach_and_attach_is_not_answered() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid_text();
    torch.ask("alloc kept 10000000");
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc other 20000000");
    daemon.json(&["mark", "--pid", &pid, "before"]);
    let folder = scratch();
    let snapshot = |name: &str, format: &str| {
        let file = folder.path().join(name).display().to_string();
        let words = ["snapshot", "--pid", &pid, "--format", format, "-o", &file];
        daemon.ctl(&words).text();
        file
    };
    let formats = ["memory-viz", "json"];
    let before = formats.map(|format| snapshot(&format!("before.{format}"), format));
    let moment = |daemon: &Daemon| number(&daemon.stats(torch.pid())["as_of"]).to_string();
    let traced = moment(&daemon);
    daemon.detach(torch.pid());
    torch.ask("free other");
    torch.ask("alloc large 100000000");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let between = now.as_nanos().to_string();
    // The moment must lie behind one that the daemon knows.
    let mut beside = Torch::start(&[]);
    beside.ask("alloc any 1000000");
    daemon.attach(beside.pid(), "trace");
    beside.ask("alloc more 1000000");
    let at = |words: &[&str], moment: &str| {
        let words = [words, &["--pid", &pid, "--at", moment]].concat();
        daemon.ctl(&words)
    };
    let refused = ["lies after process", "it was not traced then"];
    at(&["pool"], &between).refused(2, &refused);
    at(&["pool"], &traced).text();

    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc small 1000000");
    at(&["pool"], &between).refused(2, &refused);
    let diff = |words: &[&str]| {
        let words = [words, &["diff", "--pid", &pid, "--from", &traced]].concat();
        daemon.ctl(&words)
    };
    diff(&["--strict"]).refused(11, &["attached_anew"]);
    assert!(diff(&[]).text().contains("attached_anew"));
    for (format, before) in formats.iter().zip(&before) {
        let after = snapshot(&format!("after.{format}"), format);
        let files = daemon.ctl(&["diff", before, &after]);
        assert!(files.text().contains("matched_by_place"), "{files}");
        daemon
            .ctl(&["--strict", "diff", before, &after])
            .refused(11, &["matched_by_place"]);
    }
    // The mark is of the attach before, and its moment is still known.
    let marked = daemon.ctl(&["diff", "--pid", &pid, "--from", "mark:before"]);
    assert!(marked.text().contains("attached_anew"));
    let unknown = daemon.ctl(&["diff", "--pid", &pid, "--from", "mark:other"]);
    unknown.refused(2, &["is no mark that is kept", "event:NUMBER"]);
    let stacks = daemon.ctl(&[
        "stacks", "--pid", &pid, "--metric", "growth", "--from", &traced,
    ]);
    assert!(stacks.text().contains("attached_anew"));
    torch.finish();
    beside.finish();
}
