//! Moments that have passed, as the script itself saw them then: `snapshot --at` gives what
//! `torch.cuda.memory._snapshot()` gave, from the running daemon and from its recording.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Asking, Daemon, LONG, Torch, claims_to_know, number, scratch, until};

/// A moment that the script remembers.
struct Moment {
    after: String,
    number: u64,
    unix_ns: u64,
}

/// Has the script take its own snapshot.
fn remember(torch: &mut Torch, after: &str) -> Moment {
    let told = torch.ask("remember");
    Moment {
        after: after.to_owned(),
        number: number(&told["number"]),
        unix_ns: number(&told["unix_ns"]),
    }
}

/// Each moment equals the script's, by the answers of `ask`. Gives how many trace entries were compared.
fn assert_moments(torch: &mut Torch, moments: &[Moment], ask: impl Fn(&[&str]) -> Asking) -> u64 {
    let folder = scratch();
    let file = folder.path().join("then.pickle");
    let file = file.to_str().unwrap();
    let pid = torch.pid_text();
    let (mut entries, mut states) = (0, std::collections::BTreeSet::new());
    for moment in moments {
        let at = moment.unix_ns.to_string();
        ask(&["snapshot", "--pid", &pid, "--at", &at, "-o", file])
            .ask()
            .text();
        let told = torch.ask(&format!("compare_moment {} {file}", moment.number));
        assert_eq!(
            told["exported"], told["own"],
            "after {}: memscope's, PyTorch's",
            moment.after
        );
        entries += number(&told["entries"]);
        states.insert(told["own"][0].to_string());
    }
    assert!(
        states.len() > moments.len() / 2,
        "the moments differ: {} states",
        states.len()
    );
    entries
}

/// Live, and from the recording.
fn assert_both(mut daemon: Daemon, mut torch: Torch, moments: &[Moment]) {
    assert!(moments.len() >= 10);
    let live = assert_moments(&mut torch, moments, |words| daemon.ask(words));
    daemon.stop();
    let recording = daemon.recording();
    let recorded = assert_moments(&mut torch, moments, |words| {
        Asking::new(
            ["--recording", recording.to_str().unwrap()]
                .iter()
                .chain(words),
        )
    });
    assert_eq!(live, recorded);
    assert!(live > 1000, "{live} entries compared");
    torch.finish();
}

const COMMANDS: [&str; 11] = [
    "train",
    "alloc a 3000000",
    "allocs many 300 3000",
    "train 2",
    "oom",
    "free a",
    "empty_cache",
    "alloc c 30000000",
    "train",
    "free many",
    "drop",
];

fn ten_moments(variables: &[(&str, &str)], before: &[&str]) {
    let daemon = Daemon::start();
    let mut torch = Torch::start(variables);
    torch.ask("history");
    for command in before {
        torch.ask(command);
    }
    daemon.attach(torch.pid(), "trace");
    let mut moments = Vec::new();
    for command in COMMANDS {
        torch.ask(command);
        moments.push(remember(&mut torch, command));
    }
    assert_both(daemon, torch, &moments);
}

#[test]
fn attached_from_the_start() {
    ten_moments(&[], &[]);
}

#[test]
fn attached_late_on_two_devices() {
    ten_moments(
        &[("SIMCUDA_DEVICES", "2")],
        &["train 2", "alloc there 5000000 1", "alloc old 70000"],
    );
}

#[test]
fn expandable_segments_attached_late() {
    ten_moments(
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        &["train 2", "alloc old 30000000"],
    );
}

/// Eight threads stand still for an instant, ten times.
#[test]
fn between_the_operations_of_eight_threads() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("history bare");
    torch.hammer("native", 8);
    // So that nothing is lost: what a loss leaves behind is tested elsewhere.
    let go_on = |torch: &mut Torch| {
        let due = torch.operations() + 2000;
        torch.ask("go 8 300");
        until(LONG, "the threads allocate", || {
            (torch.operations() >= due).then_some(())
        });
    };
    go_on(&mut torch);
    daemon.attach(torch.pid(), "trace");
    let mut moments = Vec::new();
    for round in 0..10 {
        go_on(&mut torch);
        torch.ask("hold");
        let stats = daemon.stats(torch.pid());
        if claims_to_know(&stats) && stats["lost_records"] == 0 {
            moments.push(remember(&mut torch, &format!("round {round}")));
        }
    }
    assert_both(daemon, torch, &moments);
}
