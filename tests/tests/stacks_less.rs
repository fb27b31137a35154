//! Less than every stack whole: cut to a depth, sampled by bytes, and fewer where they cost too much.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::Met;
use memscope_tests::{Daemon, LONG, Torch, Value, coverage, number, until};

fn attached(daemon: &Daemon, torch: &Torch, more: &[&str]) {
    let pid = torch.pid_text();
    let mut words = vec!["attach", "--pid", &pid, "--level", "trace"];
    words.extend(more);
    daemon.json(&words);
}

fn rows(daemon: &Daemon, torch: &Torch, metric: &str) -> Vec<Value> {
    let pid = torch.pid_text();
    let ask = ["stacks", "--pid", &pid, "--metric", metric, "--limit", "0"];
    daemon.json(&ask)["rows"].as_array().unwrap().clone()
}

#[test]
fn cut_to_a_depth() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    attached(&daemon, &torch, &["--stack-depth", "3"]);
    torch.ask("alloc a 30000000");
    torch.ask("shapes 60");
    let rows = rows(&daemon, &torch, "allocated");
    assert!(rows.len() > 3);
    for row in &rows {
        let frames = row["frames"].as_array().unwrap();
        assert!(frames.len() <= 3, "{row:#}");
        // A thread's whole stack may be as short.
        if row["truncated"] == true {
            assert_eq!(frames.len(), 3, "{row:#}");
        }
    }
    let innermost = |row: &&Value| row["frames"][0]["name"] == "alloc";
    assert_eq!(rows.iter().filter(innermost).count(), 1);
    let cut = rows.iter().filter(|row| row["truncated"] == true);
    assert!(cut.count() > 3);
    torch.finish();
    Met {
        what: "frames of a stack",
        most: "`--stack-depth`".to_owned(),
        beyond: "the outer frames are left out",
        told: "`truncated` at the stack",
        test: "cut_to_a_depth",
    }
    .is_told();
}

/// Of many small blocks a few are taken, and stand for all; a large one stands for itself.
#[test]
fn sampled_by_bytes() {
    const PORTIONS: u64 = 10;
    const BLOCKS: u64 = 20_000;
    const SIZE: u64 = 5120;
    // Where stacks cost too much, fewer are taken than is asked for here; `within_a_budget` has that.
    let daemon = Daemon::with(&["--stack-budget", "off"]);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    attached(&daemon, &torch, &["--stack-sample", "256KiB"]);
    torch.ask("alloc a 30000000");
    // An answer has all records that were made before the question. With one after each portion no portion overruns the ring, however little
    // the daemon gets to run.
    for portion in 0..PORTIONS {
        torch.ask(&format!(
            "allocs many{portion} {} {SIZE}",
            BLOCKS / PORTIONS
        ));
        daemon.stats(torch.pid());
    }
    let of = |rows: &[Value], name: &str| -> [u64; 2] {
        let own = |row: &&Value| {
            let mut frames = row["frames"].as_array().unwrap().iter();
            frames.any(|frame| frame["name"] == name)
        };
        let sum = |key: &str| {
            let rows = rows.iter().filter(own);
            rows.map(|row| number(&row["amounts"]["live"][key])).sum()
        };
        [sum("count"), sum("bytes")]
    };
    let taken = rows(&daemon, &torch, "live");
    assert_eq!(
        of(&taken, "alloc"),
        [1, 30_000_128],
        "larger than what one stack stands for"
    );
    // 390 of them are to be expected, give or take 20: six times that is a chance of one in a thousand million.
    let [count, bytes] = of(&taken, "allocs");
    let near = |estimate: u64, real: u64| estimate.abs_diff(real) < real * 30 / 100;
    assert!(near(bytes, BLOCKS * SIZE), "{bytes} of {}", BLOCKS * SIZE);
    assert!(near(count, BLOCKS), "{count} of {BLOCKS}");
    // Sizes and totals are exact all the same.
    let told = torch.ask("totals");
    let stats = daemon.stats(torch.pid());
    assert_eq!(
        stats["devices"][0]["allocated_bytes"],
        told["devices"][0]["allocated"]
    );
    assert!(coverage(&stats).contains(&"stacks_sampled"), "{stats:#}");
    for portion in 0..PORTIONS {
        torch.ask(&format!("free many{portion}"));
        assert_eq!(daemon.stats(torch.pid())["lost_records"], 0);
    }
    assert_eq!(
        of(&rows(&daemon, &torch, "live"), "allocs"),
        [0, 0],
        "all that came went"
    );
    torch.finish();
}

/// Where no stacks are taken nothing is said of them.
#[test]
fn nothing_is_sampled_without_probes() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    let pid = torch.pid_text();
    daemon.json(&[
        "attach",
        "--pid",
        &pid,
        "--level",
        "read",
        "--stack-sample",
        "1MiB",
    ]);
    let stats = daemon.stats(torch.pid());
    assert!(!coverage(&stats).contains(&"stacks_sampled"), "{stats:#}");
    torch.finish();
}

#[test]
fn wrong_words() {
    let daemon = Daemon::start();
    let torch = Torch::start(&[]);
    let pid = torch.pid_text();
    for (words, wanted) in [
        (["--stack-sample", "3MiB"], "power of two"),
        (["--stack-sample", "4GiB"], "up to 2 GiB"),
        (["--stack-sample", "1MB"], "MiB"),
        (["--stack-depth", "0"], "1..=1024"),
        (["--stack-depth", "1025"], "1..=1024"),
    ] {
        let said = daemon.ctl(&[&["attach", "--pid", &pid][..], &words].concat());
        assert_ne!(said.code, 0);
        assert!(said.to_string().contains(wanted), "{said}");
    }
}

/// More than stacks may cost: fewer are taken, that is said, and when the load is over it is as before.
#[test]
fn within_a_budget() {
    let daemon = Daemon::with(&["--stack-budget", "1"]);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    torch.hammer("python", 2);
    attached(&daemon, &torch, &[]);
    torch.ask("go");
    let reduced = |daemon: &Daemon, torch: &Torch| {
        let stats = daemon.stats(torch.pid());
        let notes = stats["coverage"].as_array().unwrap().iter();
        let text = |note: &Value| note["text"].as_str().unwrap().to_owned();
        let mut notes = notes.filter(|note| note["code"] == "stacks_reduced");
        notes.next().map(text)
    };
    let text = until(LONG, "fewer stacks are taken", || reduced(&daemon, &torch));
    assert!(text.contains("may take 1.0 %"), "{text}");
    torch.ask("hold");
    until(LONG, "all are taken again", || {
        reduced(&daemon, &torch).is_none().then_some(())
    });
    torch.ask("alloc a 30000000");
    let rows = rows(&daemon, &torch, "live");
    let own = rows.iter().find(|row| row["frames"][0]["name"] == "alloc");
    assert_eq!(number(&own.unwrap()["amounts"]["live"]["count"]), 1);
    let told = torch.ask("totals");
    let stats = until(LONG, "every block is known", || {
        let stats = daemon.stats(torch.pid());
        memscope_tests::claims_to_know(&stats).then_some(stats)
    });
    memscope_tests::assert_totals(&stats, &told);
    torch.finish();
    Met {
        what: "part of a process's time that its stacks may cost",
        most: "`--stack-budget`".to_owned(),
        beyond: "fewer stacks are taken until it is within it again",
        told: "`stacks_reduced` in coverage",
        test: "within_a_budget",
    }
    .is_told();
}
