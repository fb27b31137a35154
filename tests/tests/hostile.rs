//! Traced processes that do on purpose what costs the daemon the most: it answers others meanwhile, and their numbers
//! stay exact.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Calls, Daemon, Library, Program, executable, number, sim};

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
    eprintln!("{records} records, asked {asked} times");
    // What is mapped after all that is looked at.
    assert_eq!(hostile.ask("malloc 4096")["result"], 0);
    assert_eq!(held(&daemon, hostile.pid()), 4096);
    hostile.finish();
}
