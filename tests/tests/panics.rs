//! A thread that panics ends the daemon, and nothing of it is left; an answer that panics is nobody else's affair.
//!
//! Builds with debug assertions panic where a file in the folder of `MEMSCOPE_TEST_PANIC` names a thread.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    BpfKind, Calls, Daemon, TempDir, bpf_exists, changed_bytes, device, eventually, number,
    scratch, text_of,
};

fn daemon() -> (TempDir, Daemon) {
    let folder = scratch();
    let variable = format!("MEMSCOPE_TEST_PANIC={}", folder.path().display());
    let daemon = Daemon::wrapped(&["env", &variable], &[]);
    (folder, daemon)
}

fn ends_with(thread: &str) {
    let (folder, mut daemon) = daemon();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaMalloc before 1000");
    let held = BpfKind::held_by(daemon.pid());
    assert!(
        held.iter().any(|(kind, _)| *kind == BpfKind::Link),
        "{held:?}"
    );
    let texts = text_of(pid, &["libcudart.so", "libcuda.so"]);
    assert!(!changed_bytes(pid, &texts).is_empty(), "probes stand");

    std::fs::write(folder.path().join(thread), "").unwrap();
    // Not all of them have something to do without an order. Whether it is answered does not matter.
    let _ = daemon.ctl(&["detach", "--pid", &calls.pid_text()]);
    let status = daemon.wait();
    assert_eq!(status.code(), Some(101), "{status}: {}", daemon.log());
    let log = daemon.log();
    let said = log.lines().find(|line| line.starts_with("memscoped: "));
    let said = said.unwrap_or_else(|| panic!("no last words: {log}"));
    assert!(
        said.contains(&format!("the thread {thread} panicked at "))
            && said.contains(&format!("a test asked {thread} for it")),
        "{said}"
    );
    for object in &held {
        eventually(&format!("the kernel forgets {object:?}"), || {
            !bpf_exists(*object)
        });
    }
    eventually("every byte is the file's again", || {
        changed_bytes(pid, &texts).is_empty()
    });
    calls.call("cudaMalloc after 1000");
    calls.finish();
}

#[test]
fn the_keeper() {
    ends_with("keeper");
}

#[test]
fn the_tracer() {
    ends_with("tracer");
}

#[test]
fn the_unwinder() {
    ends_with("unwinder");
}

#[test]
fn an_answer() {
    let (folder, mut daemon) = daemon();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc one 1000");
    let file = folder.path().join("answers");
    std::fs::write(&file, "").unwrap();
    let said = daemon.ctl(&["stats", "--pid", &calls.pid_text()]);
    assert_ne!(said.code, 0, "{said}");
    std::fs::remove_file(&file).unwrap();
    calls.call("cudaMalloc two 2000");
    let stats = daemon.stats(pid);
    assert_eq!(number(&device(&stats, 0)["driver"]["bytes"]), 3000);
    daemon.signal(libc::SIGTERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
    calls.finish();
}

/// What reads a stranger's files may meet one over which a library panics. That costs the names, and not the daemon.
#[test]
fn a_panic_over_a_file_costs_its_names_only() {
    let (folder, mut daemon) = daemon();
    std::fs::write(folder.path().join("symbols"), "").unwrap();
    let mut calls = Calls::start(&[]);
    daemon.ctl(&["attach", "--pid", &calls.pid_text(), "--stacks", "native"]);
    calls.call("cudaMalloc one 1000");
    eventually("it has panicked", || {
        daemon.log().contains("finding names of functions panicked")
    });
    calls.call("cudaMalloc two 1000");
    let stats = daemon.stats(calls.pid());
    let devices = stats["devices"].as_array().unwrap().iter();
    let held: u64 = devices.map(|d| number(&d["driver"]["bytes"])).sum();
    assert_eq!(held, 2000, "{stats:#}");
    daemon.signal(libc::SIGTERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
    calls.finish();
}
