//! Traced processes that do on purpose what costs the daemon the most: it answers others meanwhile, and their numbers
//! stay exact.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::{Met, constant};
use memscope_tests::{
    Calls, Daemon, LONG, Library, Program, Value, coverage, executable, json, number, sim, until,
};

fn hostile() -> Program {
    let command = sim().native(executable("hostile.c", Library::Runtime));
    let mut program = Program::start("the hostile process", command);
    program.hear();
    program
}

/// Bytes that a process holds on all devices.
fn held(daemon: &Daemon, pid: u32) -> u64 {
    let stats = daemon.stats(pid);
    assert_eq!(stats["lost_records"], 0, "{stats:#}");
    let devices = stats["devices"].as_array().unwrap().iter();
    devices.map(|d| number(&d["driver"]["bytes"])).sum()
}

/// Each call of the dynamic linker's hook was a notice to the daemon, and each notice another search of the whole
/// process. The records of all others waited behind them in the ring.
#[test]
fn the_linkers_hook_in_a_loop() {
    const CALLS: u64 = 200_000;
    let daemon = Daemon::start();
    let mut hostile = hostile();
    let mut neighbour = Calls::start(&[]);
    daemon.attach(hostile.pid(), "segments");
    daemon.attach(neighbour.pid(), "segments");
    let before = number(&daemon.json(&["status"])["records"]);
    hostile.tell(&format!("hook {CALLS}"));
    let mut asked = 0;
    let mut bytes = 0;
    while hostile.heard().is_none() {
        asked += 1;
        neighbour.call(&format!("cudaMalloc m{asked} {asked}"));
        bytes += asked;
        daemon.json(&["status"]);
    }
    assert_eq!(held(&daemon, neighbour.pid()), bytes);
    let records = number(&daemon.json(&["status"])["records"]) - before;
    assert!(
        records < CALLS / 4 + asked,
        "{records} records of {CALLS} calls of the hook"
    );
    // What is mapped after all that is looked at.
    assert_eq!(hostile.ask("malloc 4096")["result"], 0);
    assert_eq!(held(&daemon, hostile.pid()), 4096);
    hostile.finish();
}

/// A daemon that lets a user's processes take next to none of its time at once: what many hundreds of children would be needed for takes
/// a few. Hundreds of them are a load for the whole machine: with so many processes that have mapped a file, the kernel takes milliseconds
/// for each probe in it that it removes, in which nobody else has probes placed and nobody forks.
fn with_small_shares() -> Daemon {
    Daemon::wrapped(&["env", "MEMSCOPE_TEST_BURST_MS=1"], &[])
}

/// The tracer attached one child after the other, and everybody else waited behind them. How many are attached before others come
/// depends on the machine, so more and more are tried.
#[test]
fn children_wait_for_others() {
    let mut tried = [50, 100, 200].into_iter();
    let is_before = tried.any(|children| attached_before_a_neighbour(children) < children);
    assert!(is_before, "all children were attached first");
}

/// How many processes are attached when the attach of a neighbour is answered, that was asked for when all children were there. All are
/// attached in the end.
fn attached_before_a_neighbour(children: usize) -> usize {
    let daemon = with_small_shares();
    let mut hostile = hostile();
    let mut neighbour = Calls::start(&[]);
    assert_eq!(hostile.ask("user 65534")["result"], 0);
    let pid = hostile.pid().to_string();
    daemon.json(&["attach", "--pid", &pid, "--children", "--level", "segments"]);
    assert_eq!(hostile.ask(&format!("forks {children}"))["result"], 0);
    let attached = || {
        let list = daemon.json(&["ps"]);
        let processes = list["processes"].as_array().unwrap();
        let is_attached = |one: &&Value| one["state"] == "attached";
        processes.iter().filter(is_attached).count()
    };
    until(LONG, "the first child is attached", || {
        (attached() > 1).then_some(())
    });
    daemon.attach(neighbour.pid(), "segments");
    let by_then = attached();
    until(LONG, "all are attached", || {
        (attached() == children + 2).then_some(())
    });
    hostile.finish();
    neighbour.finish();
    by_then
}

/// What waits to be followed is on no list yet. Whoever detached it was told that it was not traced, and it was attached soon after.
#[test]
fn a_child_that_waits_can_be_detached() {
    let mut tried = [50, 100, 200].into_iter();
    let waited = tried.any(detached_before_it_was_attached);
    assert!(waited, "all children were attached first");
}

/// Detaches the newest of so many children, and says whether it was still to be attached. All others are attached in the end, and it is not.
fn detached_before_it_was_attached(children: usize) -> bool {
    let daemon = with_small_shares();
    let mut hostile = hostile();
    assert_eq!(hostile.ask("user 65534")["result"], 0);
    let pid = hostile.pid();
    daemon.json(&[
        "attach",
        "--pid",
        &pid.to_string(),
        "--children",
        "--level",
        "segments",
    ]);
    assert_eq!(hostile.ask(&format!("forks {children}"))["result"], 0);
    let all = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let newest: u32 = all.split_whitespace().last().unwrap().parse().unwrap();
    // Until then the daemon may not have heard of it.
    let answer = until(LONG, "the newest is known", || {
        let said = daemon.ctl(&["--json", "detach", "--pid", &newest.to_string()]);
        (said.code == 0).then(|| said.json())
    });
    assert_eq!(answer["pids"], json!([newest]));
    let listed = |pid: u32| daemon.process(pid).is_some();
    let waited = !listed(newest);
    until(LONG, "all others are attached", || {
        let list = daemon.json(&["ps"]);
        let processes = list["processes"].as_array().unwrap();
        let is_attached = |one: &&Value| one["state"] == "attached";
        (processes.iter().filter(is_attached).count() == children).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(
        !waited || !listed(newest),
        "it was attached after its detach"
    );
    hostile.finish();
    waited
}

/// The ring is everybody's. A process that sends more than the daemon reads loses its own records, and not those of
/// others.
#[test]
fn one_process_does_not_take_the_whole_ring() {
    let daemon = Daemon::with(&["--ring-mib", "1"]);
    let mut loud = Calls::start(&[]);
    let mut quiet = Calls::start(&[]);
    daemon.attach(loud.pid(), "segments");
    daemon.attach(quiet.pid(), "segments");
    daemon.signal(libc::SIGSTOP);
    loud.call("pairs 20000 4096");
    for number in 1..=100 {
        quiet.call(&format!("cudaMalloc q{number} {number}"));
    }
    daemon.signal(libc::SIGCONT);
    // Nothing of the quiet one is lost (which this asserts), and what it holds is right.
    assert_eq!(held(&daemon, quiet.pid()), 5050);
    let stats = daemon.stats(loud.pid());
    let lost = number(&stats["lost_records"]);
    assert!(lost > 20_000, "{stats:#}");
    assert!(coverage(&stats).contains(&"records_lost"), "{stats:#}");
    let status = daemon.json(&["status"]);
    let drops = status["drops"].as_array().unwrap();
    let taken = drops
        .iter()
        .find(|drop| drop["cause"] == "ring_share_taken");
    assert_eq!(taken.expect("a cause")["count"], lost, "{drops:?}");
    // When the daemon has read what there is, the loud one has its share again.
    loud.call("pairs 500 4096");
    assert_eq!(number(&daemon.stats(loud.pid())["lost_records"]), lost);
    // Over a long time nothing is counted twice or forgotten: many rings full, and no record is lost.
    for _ in 0..20 {
        loud.call("pairs 500 4096");
        daemon.stats(loud.pid());
    }
    assert_eq!(number(&daemon.stats(loud.pid())["lost_records"]), lost);
    Met {
        what: "unread bytes of one process in the ring",
        most: format!(
            "{} times what is free in it",
            constant("memscope-common/src/map.rs", "RING_SHARE")
        ),
        beyond: "its own records are lost, nobody else's; they are counted, and the state is read again",
        told: "`ring_share_taken` in `status`, `records_lost` in coverage",
        test: "one_process_does_not_take_the_whole_ring",
    }
    .is_told();
}
