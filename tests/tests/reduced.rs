//! A leak that grows on while less is recorded of stacks: its growth is neither ended nor withdrawn.
//!
//! Stacks are made dear by threads of the program itself, which allocate without a pause; what they may cost is this
//! daemon's own setting.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Daemon, LONG, Torch, Value, coverage, number, until};

/// What each step leaks. It rests 100 ms then, so that its own stacks are far within the budget also on a slow machine.
const LEAKED: u64 = 1_500_000;

fn is_reduced(daemon: &Daemon, torch: &Torch) -> bool {
    coverage(&daemon.stats(torch.pid())).contains(&"stacks_reduced")
}

/// How many findings on the leaking line were said, and how many findings were withdrawn.
fn said(daemon: &Daemon, line: &Value) -> (usize, usize) {
    let log = daemon.log();
    let of_line = format!("line={line} ");
    let lines = |words: &str| log.lines().filter(|l| l.contains(words)).count();
    let found = log
        .lines()
        .filter(|l| l.contains("memory keeps growing") && format!("{l} ").contains(&of_line));
    (found.count(), lines("no longer grows"))
}

/// Leaks for some steps more, and looks: the row that was found, and by how many blocks of its size all rows grew.
fn look(daemon: &Daemon, torch: &mut Torch, line: &Value, steps: u32) -> (Value, u64) {
    torch.ask(&format!("leak {steps} {LEAKED} 100"));
    let answer = daemon.json(&["leaks", "--pid", &torch.pid_text(), "--limit", "0"]);
    let rows = answer["groups"].as_array().unwrap();
    for row in rows {
        let (grown, held) = (number(&row["growth_bytes"]), number(&row["live_bytes"]));
        assert!(grown <= held, "{row:#}");
    }
    let own = rows.iter().find(|row| row["line"]["line"] == *line);
    let own = own.unwrap_or_else(|| panic!("no row has line {line}: {answer:#}"));
    assert_eq!(own["verdict"], "growing", "{answer:#}");
    // The threads' own blocks, whose stacks are not taken either, may look like growth for a while.
    let of_leak = rows
        .iter()
        .filter(|row| row["size_bytes"] == LEAKED && row["verdict"] == "growing");
    let grown = of_leak.map(|row| number(&row["growth_count"])).sum();
    (own.clone(), grown)
}

#[test]
fn growth_goes_on() {
    let daemon = Daemon::with(&["--stack-budget", "1", "--ring-mib", "64"]);
    let mut torch = Torch::start(&[]);
    torch.ask("train 5");
    torch.hammer("python", 2);
    daemon.attach(torch.pid(), "trace");
    torch.ask(&format!("leak 130 {LEAKED} 100"));
    let answer = daemon.json(&["leaks", "--pid", &torch.pid_text()]);
    let line = answer["groups"][0]["line"]["line"].clone();
    assert!(line.is_u64(), "{answer:#}");
    // It leaks without a pause: before, while and after less is recorded.
    let (mut steps, mut least) = (130, 0);
    let mut leak = |torch: &mut Torch, more: u32| {
        let (row, grown) = look(&daemon, torch, &line, more);
        steps += u64::from(more);
        assert!(grown >= least, "{grown} after {least}: {row:#}");
        // All that came since the attach but the warm-up, and no more than there is: a block in each step.
        assert!(
            grown <= steps && grown > steps * 3 / 4,
            "{grown} of {steps}: {row:#}"
        );
        least = grown;
    };
    until(LONG, "the finding is said", || {
        leak(&mut torch, 5);
        (said(&daemon, &line).0 > 0).then_some(())
    });
    let before = said(&daemon, &line);
    // On a busy machine less may be recorded already.
    assert_eq!(before, (1, 0), "{}", daemon.log());

    torch.ask("go");
    until(LONG, "fewer stacks are taken", || {
        leak(&mut torch, 5);
        is_reduced(&daemon, &torch).then_some(())
    });
    for _ in 0..8 {
        leak(&mut torch, 15);
    }
    assert!(is_reduced(&daemon, &torch));
    assert_eq!(said(&daemon, &line), before, "{}", daemon.log());
    torch.ask("hold");
    torch.finish();
}
