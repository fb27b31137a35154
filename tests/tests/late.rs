//! What was there before the attach: read from the allocator's own structures, and equal to PyTorch's
//! own snapshot.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use memscope_tests::{
    Daemon, LONG, Torch, Value, assert_totals, coverage, device, number, scratch, sim, until,
};

/// The state of a process in memscope's export and in PyTorch's own snapshot.
fn compared(daemon: &Daemon, torch: &mut Torch) -> Value {
    let folder = scratch();
    let file = folder.path().join("snapshot.pickle");
    let file = file.to_str().unwrap();
    daemon
        .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", file])
        .text();
    torch.ask(&format!("compare {file}"))
}

/// Waits until the structures were read.
fn read(daemon: &Daemon, pid: u32) -> Value {
    until(LONG, "the allocator's structures were read", || {
        let stats = daemon.stats(pid);
        assert!(
            !coverage(&stats).contains(&"baseline_not_read"),
            "{stats:#}"
        );
        coverage(&stats).contains(&"baseline_read").then_some(stats)
    })
}

/// What was at the peak by stacks is the peak that `stats` tells, and PyTorch's own since `reset_peaks`.
fn peaks_are_pytorchs(daemon: &Daemon, torch: &mut Torch, after: &str) {
    let stats = daemon.stats(torch.pid());
    let stacks = daemon.json(&["stacks", "--pid", &torch.pid_text(), "--metric", "peak"]);
    let by_stacks = |device: &Value| {
        let mut rows = stacks["devices"].as_array().unwrap().iter();
        let row = rows.find(|row| row["device"] == *device);
        row.map_or(0, |row| number(&row["amounts"]["peak"]["bytes"]))
    };
    for row in stats["devices"].as_array().unwrap() {
        let told = number(&row["peak_allocated_bytes"]);
        assert_eq!(by_stacks(&row["device"]), told, "after {after}: {stats:#}");
        if row["device"].is_null() {
            continue;
        }
        let own = torch.ask(&format!("memory_stats {}", row["device"]));
        let own = number(&own["stats"]["allocated_bytes.all.peak"]);
        assert_eq!(told, own, "after {after}: {stats:#}");
    }
}

fn late(level: &str, variables: &[(&str, &str)], before: &[&str], after: &[&str]) {
    let daemon = Daemon::start();
    let mut torch = Torch::start(variables);
    for command in before {
        torch.ask(command);
    }
    torch.ask("reset_peaks");
    let pid = torch.pid();
    daemon.attach(pid, level);
    // No event has come yet: everything that is known was read.
    let stats = read(&daemon, pid);
    let told = compared(&daemon, &mut torch);
    assert_eq!(
        told["exported"], told["own"],
        "right after the attach: {stats:#}"
    );
    assert!(!told["own"].as_array().unwrap().is_empty(), "{told}");
    let zero = device(&stats, 0);
    assert!(number(&zero["baseline_bytes"]) > 0, "{stats:#}");
    assert_eq!(zero["baseline_bytes"], zero["allocated_bytes"], "{stats:#}");
    peaks_are_pytorchs(&daemon, &mut torch, "the attach");
    for command in after {
        torch.ask(command);
        let told = compared(&daemon, &mut torch);
        assert_eq!(told["exported"], told["own"], "after {command}");
        peaks_are_pytorchs(&daemon, &mut torch, command);
    }
    torch.finish();
}

#[test]
fn training_attached_after_its_warm_up() {
    late(
        "trace",
        &[("SIMCUDA_DEVICES", "2")],
        &[
            "train 2",
            "alloc a 3000000",
            "alloc there 5000000 1",
            "alloc b 70000",
        ],
        &[
            "free a",
            "train",
            "empty_cache",
            "alloc c 9000000",
            "free b",
            "drop",
        ],
    );
}

#[test]
fn expandable_segments_attached_late() {
    late(
        "trace",
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        &["train 2", "alloc a 30000000", "alloc b 70000"],
        &["free a", "train", "empty_cache", "drop"],
    );
}

/// Records are lost while the daemon cannot read: segments come and go, old blocks are freed, new ones
/// stay. The loss is told, and the state is right again without the process's help.
#[test]
fn a_loss_heals() {
    let daemon = Daemon::with(&["--ring-mib", "1"]);
    let mut torch = Torch::start(&[]);
    torch.ask("train 2");
    torch.ask("alloc old 30000000");
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    read(&daemon, pid);
    daemon.signal(libc::SIGSTOP);
    for command in [
        "free old",
        "alloc new 50000000",
        "empty_cache",
        "churn 20000",
        "train",
        "alloc b 70000",
    ] {
        torch.ask(command);
    }
    daemon.signal(libc::SIGCONT);
    let told = until(LONG, "the state is right again", || {
        let told = compared(&daemon, &mut torch);
        (told["exported"] == told["own"]).then_some(told)
    });
    assert!(!told["own"].as_array().unwrap().is_empty(), "{told}");
    let stats = daemon.stats(pid);
    assert!(
        number(&stats["lost_records"]) > 0,
        "records were lost: {stats:#}"
    );
    assert!(!stats["gaps"].as_array().unwrap().is_empty(), "{stats:#}");
    // And it stays right.
    for command in ["free new", "train", "drop"] {
        torch.ask(command);
        let told = compared(&daemon, &mut torch);
        assert_eq!(told["exported"], told["own"], "after {command}");
    }
    torch.finish();
}

/// Eight threads allocate without a pause while memscope attaches again and again; when they rest the
/// state is PyTorch's.
#[test]
fn attached_while_eight_threads_allocate() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    let pid = torch.pid();
    for round in 0..3 {
        torch.tell("threads 8 1500");
        daemon.attach(pid, "trace");
        torch.hear();
        until(LONG, "the reading ended", || {
            let stats = daemon.stats(pid);
            let codes = coverage(&stats);
            (codes.contains(&"baseline_read") || codes.contains(&"baseline_not_read")).then_some(())
        });
        let stats = daemon.stats(pid);
        if coverage(&stats).contains(&"baseline_read") {
            let told = compared(&daemon, &mut torch);
            assert_eq!(told["exported"], told["own"], "round {round}: {stats:#}");
        }
        daemon.detach(pid);
    }
    torch.finish();
}

/// PyTorch on a machine whose driver has files in /dev, which a process opens before it takes any memory.
fn beside_device_files() -> Torch {
    let folder = scratch();
    let script = format!(
        "D={} && mount -t tmpfs none $D && cp -a /dev/null /dev/zero /dev/random /dev/urandom $D && mkdir $D/shm && \
         touch $D/nvidia0 $D/nvidia-uvm && mount --move $D /dev && exec \"$0\" \"$@\"",
        folder.path().display()
    );
    let python = sim().python("agent.py");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(python.get_program())
        .args(python.get_args());
    for (name, value) in python.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    Torch::from_command(command)
}

/// A program that has loaded PyTorch but used no device yet had no memory: nothing of it can be missing, also beside the pool.
#[test]
fn attached_before_the_device_was_opened() {
    let daemon = Daemon::start();
    let strict = |torch: &Torch| {
        let pid = torch.pid_text();
        daemon.ctl(&["stats", "--strict", "--pid", &pid])
    };
    let mut early = beside_device_files();
    daemon.attach(early.pid(), "trace");
    early.ask("init");
    early.ask("alloc first 3000000");
    let told = early.ask("totals");
    assert_totals(&daemon.stats(early.pid()), &told);
    strict(&early).text();

    // The same program, when it has opened the device already.
    let mut late = beside_device_files();
    late.ask("init");
    daemon.attach(late.pid(), "trace");
    late.ask("alloc first 3000000");
    strict(&late).refused(11, &["not exact", "direct_baseline_unknown"]);

    early.finish();
    late.finish();
}
