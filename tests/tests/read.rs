//! Level `read`: no probe in the process, and yet its state is PyTorch's own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Daemon, LONG, Torch, Value, assert_totals, changed_bytes, coverage, device, number, scratch,
    text_of, until,
};

/// Libraries that probes would stand in.
const PROBED: &[&str] = &[
    "libcudart.so",
    "libcuda.so",
    "libc10.so",
    "libc10_cuda.so",
    "ld-linux",
];

/// The exported state and PyTorch's own are one.
#[track_caller]
fn assert_equal(daemon: &Daemon, torch: &mut Torch, when: &str) {
    let folder = scratch();
    let file = folder.path().join("snapshot.pickle");
    let file = file.to_str().unwrap();
    daemon
        .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", file])
        .text();
    let told = torch.ask(&format!("compare {file}"));
    assert_eq!(told["exported"], told["own"], "{when}");
}

fn at_each_pause(variables: &[(&str, &str)], every: &str) {
    let daemon = Daemon::start();
    let mut torch = Torch::start(variables);
    torch.ask("train 2");
    let pid = torch.pid();
    let attached = daemon.json(&[
        "attach",
        "--pid",
        &torch.pid_text(),
        "--level",
        "read",
        "--every",
        every,
    ]);
    let attached = &attached["processes"][0];
    assert_eq!(attached["level"], "read", "{attached:#}");
    assert_eq!(attached["sites"], 0, "{attached:#}");
    let baseline = &attached["baseline"];
    assert!(number(&baseline["blocks"]) > 10, "{attached:#}");
    assert!(
        number(&baseline["cost"]["bytes_read"]) > 1000,
        "{attached:#}"
    );
    for command in [
        "alloc a 3000000",
        "train",
        "alloc there 5000000 1",
        "alloc b 70000",
        "allocs many 300 3000",
        "free a",
        "threads 4 50",
        "train 3",
        "empty_cache",
        "alloc c 9000000",
        "oom",
        "free b",
        "free many",
        "churn 1000",
        "alloc b 70001",
        "empty_cache",
        "train",
        "free there",
        "drop",
        "empty_cache",
    ] {
        let told = torch.ask(command);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        assert_eq!(stats["level"], "read");
        assert!(stats["reading"]["duration_ns"].is_number(), "{stats:#}");
        let codes = coverage(&stats);
        assert!(codes.contains(&"level_read"), "{codes:?}");
        // What went between two readings went unseen by nature: that is no loss.
        assert!(!codes.contains(&"inexact_after_loss"), "{codes:?}");
        assert_equal(&daemon, &mut torch, command);
    }
    let texts = text_of(pid, PROBED);
    assert!(texts.len() >= 4, "{texts:?}");
    assert_eq!(changed_bytes(pid, &texts), Vec::<u64>::new());
    assert_eq!(daemon.json(&["status"])["sites"], 0);
    torch.finish();
}

#[test]
fn equal_on_two_devices() {
    at_each_pause(&[("SIMCUDA_DEVICES", "2")], "0s");
}

#[test]
fn equal_with_expandable_segments() {
    at_each_pause(
        &[
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
            ("SIMCUDA_DEVICES", "2"),
        ],
        "200ms",
    );
}

/// Readings on their own account: nobody asks, and growth, course and journal are there.
#[test]
fn growth_shows_in_the_readings() {
    let mut daemon = Daemon::start();
    let mut leaky = Torch::start(&[]);
    let mut twin = Torch::start(&[]);
    for torch in [&mut leaky, &mut twin] {
        torch.ask("train 3");
        daemon.json(&[
            "attach",
            "--pid",
            &torch.pid_text(),
            "--level",
            "read",
            "--every",
            "200ms",
        ]);
    }
    let before = number(&daemon.stats(leaky.pid())["as_of"]);
    let (steps, size) = (60, 1_500_000);
    for _ in 0..steps / 3 {
        leaky.tell(&format!("leak 3 {size} 60"));
        twin.tell(&format!("leak 3 {size} 60 3"));
        for torch in [&mut leaky, &mut twin] {
            // However slow the machine is, readings see it come bit by bit. The list makes none.
            let held = torch.hear()["devices"][0]["allocated"].clone();
            until(LONG, "a reading has it", || {
                let listed = daemon.process(torch.pid())?;
                (listed["allocated_bytes"] == held).then_some(())
            });
        }
    }
    let pid = leaky.pid_text();
    let stats = daemon.stats(leaky.pid());
    let zero = device(&stats, 0);
    assert!(number(&zero["readings"]) >= steps / 3, "{stats:#}");
    assert!(number(&zero["alloc_count"]) >= steps, "{stats:#}");
    let answer = daemon.json(&["leaks", "--pid", &pid]);
    let growing: Vec<&Value> = answer["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|group| group["verdict"] == "growing")
        .collect();
    assert_eq!(growing.len(), 1, "{answer:#}");
    assert_eq!(growing[0]["size_bytes"], size, "{answer:#}");
    assert_eq!(growing[0]["live_count"], steps, "{answer:#}");
    let clean = daemon.json(&["leaks", "--pid", &twin.pid_text()]);
    assert!(!clean.to_string().contains("\"growing\""), "{clean:#}");

    let course = daemon.json(&["fluctuation", "--pid", &pid, "--window", "0s"]);
    let overall = &course["devices"][0]["overall"];
    assert!(
        number(&overall["max_allocated_bytes"]) - number(&overall["min_allocated_bytes"])
            >= (steps - 1) * size,
        "{course:#}"
    );
    // Two readings make a difference.
    let difference = |daemon: &Daemon, more: &[&str]| {
        let mut words = vec!["diff", "--pid", &pid, "--from"];
        let from = before.to_string();
        words.push(&from);
        words.extend(more);
        daemon.json(&words)
    };
    let diff = difference(&daemon, &[]);
    assert!(
        diff.to_string().contains(&size.to_string()),
        "the leaked size came: {diff:#}"
    );
    let live = daemon.json(&["snapshot", "--pid", &pid, "--format", "json"]);
    torch_ends(leaky);
    torch_ends(twin);
    daemon.stop();
    let epoch = daemon.recording();
    let event = format!("event:{}", live["header"]["as_of_event"]["sequence"]);
    let replayed = memscope_tests::Asking::new([
        "--recording",
        epoch.to_str().unwrap(),
        "snapshot",
        "--pid",
        &pid,
        "--format",
        "json",
        "--at",
        &event,
    ])
    .ask()
    .document();
    assert_eq!(replayed["segments"], live["segments"]);
}

fn torch_ends(mut torch: Torch) {
    torch.finish();
}

/// Sizes, ages and fragmentation add up to PyTorch's own statistics.
#[test]
fn the_division_of_the_pool() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train 3");
    torch.ask("alloc a 30000000");
    torch.ask("allocs many 300 3000");
    daemon.attach(torch.pid(), "read");
    let pid = torch.pid_text();
    let before = number(&daemon.stats(torch.pid())["as_of"]).to_string();
    torch.ask("allocs more 100 70000");
    torch.ask("free a");
    let stats = torch.ask("memory_stats")["stats"].clone();
    let answer = daemon.json(&["pool", "--pid", &pid, "--from", &before]);
    let pool = device(&answer, 0);
    for (ours, theirs) in [
        (&pool["reserved_bytes"], "reserved_bytes.all.current"),
        (&pool["allocated"]["bytes"], "allocated_bytes.all.current"),
        (&pool["allocated"]["count"], "allocation.all.current"),
        (&pool["requested_bytes"], "requested_bytes.all.current"),
    ] {
        assert_eq!(*ours, stats[theirs], "{theirs}; {pool:#}");
    }
    let idle = number(&pool["idle_segments"]["bytes"]);
    assert_eq!(
        number(&pool["free"]["bytes"]) - idle,
        number(&stats["inactive_split_bytes.all.current"]),
        "{pool:#}"
    );
    assert!(idle >= 30_000_000, "{pool:#}");
    let class = |up_to: u64| {
        let classes = pool["classes"].as_array().unwrap();
        let found = classes.iter().find(|class| class["up_to_bytes"] == up_to);
        found.cloned().unwrap()
    };
    let grown = class(128 << 10);
    let bytes = |amount: &Value| number(&amount["bytes"]);
    assert!(
        bytes(&grown["live"]) - bytes(&grown["before"]) >= 100 * 70_144,
        "{grown:#}"
    );
    assert_eq!(number(&grown["by_age"][0]["count"]), 100, "{grown:#}");
    let gone = class(32 << 20);
    assert_eq!(
        (bytes(&gone["live"]), number(&gone["before"]["count"])),
        (0, 1)
    );
    let said = daemon.ctl(&["pool", "--pid", &pid]);
    let text = said.text();
    assert!(
        text.contains("fragmentation") && text.contains("AGE UNKNOWN"),
        "{text}"
    );
    torch.finish();
}

/// What cannot be read says so, and what would see it.
#[test]
fn what_cannot_be_read_says_why() {
    let daemon = Daemon::start();
    let mut plain = memscope_tests::Calls::start(&[]);
    let said = daemon.ctl(&[
        "attach",
        "--pid",
        &plain.pid().to_string(),
        "--level",
        "read",
    ]);
    assert_ne!(said.code, 0);
    assert!(said.errors.contains("caching allocator"), "{said}");
    assert!(said.errors.contains("other levels"), "{said}");
    plain.finish();

    let mut other = Torch::start(&[("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")]);
    other.ask("init");
    daemon.attach(other.pid(), "read");
    let stats = daemon.stats(other.pid());
    assert!(coverage(&stats).contains(&"pool_not_readable"), "{stats:#}");
    other.finish();

    let mut early = Torch::start(&[]);
    let attached = daemon.attach(early.pid(), "read");
    assert_eq!(attached["baseline"], Value::Null, "nothing was there yet");
    let told = early.ask("alloc a 3000000");
    let stats = until(LONG, "the first reading", || {
        let stats = daemon.stats(early.pid());
        (!stats["devices"].as_array().unwrap().is_empty()).then_some(stats)
    });
    assert_totals(&stats, &told);
    early.finish();

    let said = daemon.ctl(&["attach", "--all", "--level", "trace", "--every", "5s"]);
    assert_eq!(said.code, 2, "{said}");
    assert!(said.errors.contains("level read"), "{said}");
}

/// All that a process holds is in a private pool: it is held all the same.
#[test]
fn what_is_only_in_a_private_pool() {
    for variables in [
        &[][..],
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
    ] {
        let daemon = Daemon::start();
        let mut torch = Torch::start(variables);
        torch.ask("in_pool a 20000000");
        daemon.attach(torch.pid(), "read");
        for command in [
            "in_pool b 70000",
            "free a",
            "in_pool c 30000000",
            "free b",
            "free c",
        ] {
            let told = torch.ask(command);
            assert_totals(&daemon.stats(torch.pid()), &told);
            assert_equal(&daemon, &mut torch, command);
        }
        torch.finish();

        // From the start of nothing but what is free there.
        let mut torch = Torch::start(variables);
        torch.ask("in_pool a 20000000");
        let told = torch.ask("free a");
        daemon.attach(torch.pid(), "read");
        assert_totals(&daemon.stats(torch.pid()), &told);
        assert_equal(&daemon, &mut torch, "free");
        torch.finish();
    }
}
