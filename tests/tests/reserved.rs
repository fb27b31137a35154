//! What a pool holds from the driver, at a level at which only its reports of blocks tell of it: it gives memory back without
//! a report.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Daemon, LONG, MIB, Torch, Value, assert_totals, compared, coverage, device, number, until,
};

const EXPANDABLE: [(&str, &str); 1] = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];

/// Some memory, in pools of both sizes, of which half can be given back.
fn take(torch: &mut Torch, round: u32) -> Value {
    torch.ask(&format!("alloc kept{round} {}", 20 * MIB));
    torch.ask(&format!("alloc gone{round} {}", 24 * MIB + 1));
    torch.ask(&format!("allocs small{round} 40 100000"));
    torch.ask(&format!("free small{round}"));
    torch.ask(&format!("free gone{round}"))
}

/// Gives back what can be, without another allocation: every answer has what is held now.
#[track_caller]
fn give_back(daemon: &Daemon, torch: &mut Torch, before: &Value) {
    assert_totals(&daemon.stats(torch.pid()), before);
    let told = torch.ask("empty_cache");
    let (was, is) = (held(before), held(&told));
    assert!(is + 20 * MIB < was, "{was} before, {is} after");
    let stats = daemon.stats(torch.pid());
    assert_totals(&stats, &told);
    let watch = ["watch", "--pid", &torch.pid_text(), "--count", "1"];
    assert_eq!(
        number(&device(&daemon.json(&watch), 0)["reserved_bytes"]),
        is
    );
    assert_eq!(
        daemon.process(torch.pid()).unwrap()["reserved_bytes"],
        is,
        "ps"
    );
    let pictures = compared(daemon, torch);
    assert_eq!(pictures["exported"], pictures["own"]);
    // A reading was made for the picture; the total still is the allocator's.
    assert_totals(&daemon.stats(torch.pid()), &told);
}

fn held(told: &Value) -> u64 {
    number(&told["devices"][0]["reserved"])
}

fn early(variables: &[(&str, &str)]) {
    let daemon = Daemon::start();
    let mut torch = Torch::start(variables);
    daemon.attach(torch.pid(), "blocks");
    for round in 0..3 {
        let told = take(&mut torch, round);
        give_back(&daemon, &mut torch, &told);
    }
    torch.finish();
}

fn late(variables: &[(&str, &str)]) {
    let daemon = Daemon::start();
    let mut torch = Torch::start(variables);
    take(&mut torch, 0);
    let told = take(&mut torch, 1);
    daemon.attach(torch.pid(), "blocks");
    until(LONG, "what was there before is read", || {
        let stats = daemon.stats(torch.pid());
        coverage(&stats).contains(&"baseline_read").then_some(())
    });
    // Of this no call told when it came.
    give_back(&daemon, &mut torch, &told);
    // Partly of before, partly of now.
    take(&mut torch, 2);
    torch.ask("free kept0");
    let told = torch.ask("free kept2");
    give_back(&daemon, &mut torch, &told);
    torch.finish();
}

#[test]
fn attached_before() {
    early(&[]);
}

#[test]
fn attached_before_expandable() {
    early(&EXPANDABLE);
}

#[test]
fn attached_after() {
    late(&[]);
}

#[test]
fn attached_after_expandable() {
    late(&EXPANDABLE);
}
