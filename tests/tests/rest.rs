//! What the daemon does and takes while the processes that it traces rest.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memscope_tests::{Calls, Daemon, eventually, held, number};

/// How often each thread of a process has given up a processor by itself, by name.
fn wakes(pid: u32) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let folder: PathBuf = thread.unwrap().path();
        // A thread may end meanwhile.
        let (Ok(name), Ok(status)) = (
            std::fs::read_to_string(folder.join("comm")),
            std::fs::read_to_string(folder.join("status")),
        ) else {
            continue;
        };
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        *all.entry(name.trim().to_owned()).or_default() +=
            count.unwrap().trim().parse::<u64>().unwrap();
    }
    all
}

/// How often a thread woke in a second.
fn wakes_in_a_second(pid: u32) -> impl Fn(&str) -> u64 {
    let before = wakes(pid);
    std::thread::sleep(Duration::from_secs(1));
    let after = wakes(pid);
    move |name| after[name] - before[name]
}

/// Resident KiB of a process's mappings of BPF maps.
fn resident_of_maps_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut of_map = false;
    let mut sum = 0;
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            of_map = line.contains("bpf-map");
        } else if let (true, Some(rest)) = (of_map, line.strip_prefix("Rss:")) {
            sum += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    sum
}

#[test]
fn it_wakes_seldom_while_processes_rest_and_misses_nothing_then() {
    let daemon = Daemon::start();
    let mut all: Vec<Calls> = (0..4).map(|_| Calls::start(&[])).collect();
    for calls in &mut all {
        daemon.attach(calls.pid(), "segments");
        calls.call("cudaSetDevice 0");
    }
    for round in 1..=3 {
        // With a look each 40 ms, and each 200 ms, it would be 25 and 5.
        eventually("the daemon's threads wake seldom", || {
            let woke = wakes_in_a_second(daemon.pid());
            woke("keeper") <= 3 && woke("tracer") <= 3
        });
        for calls in &mut all {
            calls.tell("threads 2 50");
        }
        for calls in &mut all {
            let counted = calls.hear();
            let stats = daemon.stats(calls.pid());
            assert_eq!(number(&stats["lost_records"]), 0, "round {round}");
            assert_eq!(
                held(&stats),
                (number(&counted["live"]), number(&counted["live_bytes"])),
                "round {round}"
            );
        }
    }
    eventually("the daemon rests again", || {
        wakes_in_a_second(daemon.pid())("tracer") <= 3
    });
    // Nobody asks for this one before it is found.
    let pid = all[0].pid();
    all[0].finish();
    eventually("the end of a process is noticed", || {
        daemon
            .process(pid)
            .is_some_and(|one| one["state"] == "exited")
    });
    for calls in &mut all[1..] {
        calls.finish();
    }
}

#[test]
fn of_a_large_ring_little_is_mapped() {
    let daemon = Daemon::with(&["--ring-mib", "64"]);
    let mut calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    calls.tell("threads 4 500");
    let counted = calls.hear();
    let stats = daemon.stats(calls.pid());
    assert_eq!(
        held(&stats),
        (number(&counted["live"]), number(&counted["live_bytes"]))
    );
    // The table of processes, and a window of the ring.
    let resident = resident_of_maps_kib(daemon.pid());
    assert!((4..4 << 10).contains(&resident), "{resident} KiB");
    calls.finish();
}

/// How many instructions the kernel followed in each program of a daemon before it took the program.
fn followed(pid: u32) -> Vec<u64> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    let counts = texts.filter_map(|text| {
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("verified_insns:"))?;
        Some(count.trim().parse().unwrap())
    });
    counts.collect()
}

/// A kernel follows a program on all of its ways, and refuses it where that takes a million instructions. Each version follows more or
/// fewer, so there has to be room to spare, and a daemon that starts waits for it.
#[test]
fn the_kernel_takes_its_programs_with_room_to_spare() {
    const MOST: u64 = 250_000;
    let daemon = Daemon::start();
    let followed = followed(daemon.pid());
    assert!(followed.len() > 10, "{followed:?}");
    assert!(followed.iter().all(|count| *count < MOST), "{followed:?}");
}
