//! What is left after a detach, after the daemon's end, and after its death: nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    BpfKind, Calls, Daemon, Objects, Torch, assert_totals, bpf_exists, changed_bytes, device,
    eventually, number, text_of,
};

/// Libraries that probes stand in.
const PROBED: &[&str] = &[
    "libcudart.so",
    "libcuda.so",
    "libc10.so",
    "libc10_cuda.so",
    "ld-linux",
    "libc.so",
];

/// The text of the process is its files' again. (Another test's daemon may have a rule for all
/// processes; then it takes until that one ends.)
#[track_caller]
fn assert_clean(pid: u32) {
    let texts = text_of(pid, PROBED);
    assert!(texts.len() >= 2, "{texts:?}");
    eventually("every byte is the file's again", || {
        changed_bytes(pid, &texts).is_empty()
    });
}

#[track_caller]
fn assert_gone(objects: &Objects) {
    for object in objects {
        eventually(&format!("the kernel forgets {object:?}"), || {
            !bpf_exists(*object)
        });
    }
}

#[test]
fn nothing_is_left() {
    let mut daemon = Daemon::start();
    let idle = BpfKind::held_by(daemon.pid());
    assert!(
        idle.iter().any(|(kind, _)| *kind == BpfKind::Program),
        "{idle:?}"
    );
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    assert_clean(pid);

    // Every level, one after the other, in one process.
    for (round, level) in ["segments", "blocks", "trace", "trace"]
        .into_iter()
        .enumerate()
    {
        let attached = daemon.attach(pid, level);
        let texts = text_of(pid, PROBED);
        let changed = changed_bytes(pid, &texts);
        let sites = number(&attached["sites"]);
        // A breakpoint is a byte, an optimised one five; returns have sites of their own in places.
        assert!(
            changed.len() as u64 >= sites / 2,
            "{sites} sites, {} bytes differ",
            changed.len()
        );
        let probed = BpfKind::held_by(daemon.pid());
        assert!(idle.is_subset(&probed));
        let new: Objects = probed.difference(&idle).copied().collect();
        assert!(
            new.iter().any(|(kind, _)| *kind == BpfKind::Link),
            "{new:?}"
        );
        let told = torch.ask("train");
        if level != "segments" {
            assert_totals(&daemon.stats(pid), &told);
        }
        daemon.detach(pid);
        assert_clean(pid);
        assert_eq!(BpfKind::held_by(daemon.pid()), idle, "after round {round}");
        assert_gone(&new);
        let before = daemon.stats(pid);
        assert_eq!(before["process"]["state"], "detached");
        torch.ask("train");
        assert_eq!(
            daemon.stats(pid)["process"]["events"],
            before["process"]["events"],
            "no event after the detach"
        );
        assert_eq!(daemon.json(&["status"])["sites"], 0);
    }
    daemon
        .ctl(&["detach", "--pid", &torch.pid_text()])
        .refused(4, &["not traced"]);

    // The daemon ends while it is attached.
    daemon.attach(pid, "trace");
    torch.ask("train");
    let held = BpfKind::held_by(daemon.pid());
    daemon.stop();
    assert_clean(pid);
    assert_gone(&held);
    let left: Vec<String> = std::fs::read_dir(daemon.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        left.iter().all(|name| name == "log" || name == "state"),
        "{left:?}"
    );
    let mut state: Vec<_> = std::fs::read_dir(daemon.state())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    state.sort();
    assert_eq!(
        state,
        [
            "attachments.json",
            "audit.jsonl",
            "journal",
            "snapshots",
            "watching.json"
        ]
    );
    let snapshots = std::fs::read_dir(daemon.state().join("snapshots")).unwrap();
    assert_eq!(snapshots.count(), 0, "nothing fired");

    // And is killed while it is attached.
    let mut second = Daemon::start();
    second.attach(pid, "trace");
    let told = torch.ask("train");
    assert_totals(&second.stats(pid), &told);
    let held = BpfKind::held_by(second.pid());
    second.kill();
    assert_clean(pid);
    assert_gone(&held);
    torch.ask("train");
    torch.finish();
}

/// Perf events are what kernels before 6.6 have. To take away those of one process takes seconds, for which a job that had ended kept the
/// next one waiting.
#[test]
fn perf_events_too() {
    let mut daemon = Daemon::with(&["--links", "perf"]);
    let mut ended = Calls::start(&[]);
    let mut calls = Calls::start(&[]);
    let (ended_pid, pid) = (ended.pid(), calls.pid());
    let idle = BpfKind::held_by(daemon.pid());
    daemon.attach(ended_pid, "segments");
    let of_ended = BpfKind::held_by(daemon.pid());
    let of_ended: Objects = of_ended.difference(&idle).copied().collect();
    assert!(of_ended.len() > 10, "{of_ended:?}");
    ended.finish();
    eventually("its end is told", || {
        let process = daemon.process(ended_pid);
        process.is_some_and(|one| one["state"] == "exited")
    });
    daemon.attach(pid, "segments");
    let left = of_ended.iter().filter(|link| bpf_exists(**link)).count();
    assert!(left > 0, "it waited for all {}", of_ended.len());
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc a 5000");
    assert_eq!(
        number(&device(&daemon.stats(pid), 0)["driver"]["bytes"]),
        5000
    );
    let held = BpfKind::held_by(daemon.pid());
    daemon.stop();
    assert_clean(pid);
    assert_gone(&of_ended);
    assert_gone(&held);
    calls.call("cudaFree a");
    calls.finish();
}
