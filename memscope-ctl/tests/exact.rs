//! `--strict`, the wording of numbers that are not exact, and moments with a name.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Server, one_process};
use memscope_rpc::Moment;
use memscope_rpc::fake::{self, FakeDaemon};

fn noted(codes: &[&str]) -> Server {
    Server::start(FakeDaemon::with([fake::noted(4242, 0, codes)]))
}

#[track_caller]
fn has(answer: &Answer, words: &str) {
    // The widths of the columns do not matter.
    let said = answer.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(words), "no {words:?} in:\n{}", answer.out);
}

#[test]
fn strict_refuses_what_is_not_exact_with_a_code_of_its_own() {
    let server = noted(&["records_lost"]);
    assert_eq!(server.ctl(&["stats"]).code, 0);
    let answer = server.ctl(&["--strict", "stats", "--json"]);
    assert_eq!(answer.code, 11, "{}", answer.err);
    assert_eq!(answer.json()["error"]["code"], "not_exact");
    assert!(
        answer.err.contains("records_lost: it is records_lost"),
        "{}",
        answer.err
    );
    for words in [
        &["watch", "--strict"][..],
        &["fluctuation", "--strict"],
        &["steps", "--strict"],
    ] {
        let answer = server.ctl(words);
        assert_eq!((answer.code, answer.out.as_str()), (11, ""), "{words:?}");
    }
    // These answers contain only numbers that a loss does not touch, or no numbers of that kind.
    for words in [&["pool", "--strict"][..], &["ps", "--strict"]] {
        assert_eq!(server.ctl(words).code, 0, "{words:?}");
    }
}

#[test]
fn strict_writes_no_file_that_is_not_exact() {
    let server = noted(&["attached_late"]);
    let file = server.folder.path().join("s.pickle");
    let path = file.to_str().unwrap();
    for format in ["memory-viz", "json"] {
        let answer = server.ctl(&["snapshot", "--strict", "--format", format, "-o", path]);
        assert_eq!(answer.code, 11, "{}", answer.err);
        assert!(!file.exists());
    }
    let server = noted(&["baseline_read"]);
    let file = server.folder.path().join("s.pickle");
    let path = file.to_str().unwrap();
    let answer = server.ctl(&["snapshot", "--strict", "-o", path]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(file.exists());
}

/// A file cannot always carry what limits its numbers, so whoever asks for it is told: beneath the file's name, in the JSON
/// document, or on standard error where the file itself is printed.
#[test]
fn whoever_writes_a_file_is_told_what_limits_it() {
    let server = noted(&["attached_late"]);
    let deep = "stacks_reduced: Some stacks are deeper than what is taken of them.";
    for (command, name, said) in [
        ("snapshot", "s.pickle", "attached_late: it is attached_late"),
        ("flamegraph", "s.folded", deep),
    ] {
        let file = server.folder.path().join(name);
        let path = file.to_str().unwrap();
        let answer = server.ctl(&[command, "-o", path]);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""));
        has(&answer, ", as of 20");
        has(&answer, &format!("What these numbers do not show {said}"));
        let json = server.ctl(&[command, "-o", path, "--json"]).json();
        let code = json["coverage"][0]["code"].as_str().unwrap();
        assert!(said.starts_with(code), "{json:#}");
        assert!(json["as_of"].as_u64().unwrap() > 0, "{json:#}");
        let printed = server.ctl(&[command]);
        assert_eq!(printed.code, 0);
        assert_eq!(printed.err, format!("memscope-ctl: {said}\n"));
    }
    // Where nothing limits it, nothing is said.
    let server = noted(&[]);
    let answer = server.ctl(&["snapshot"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
}

/// A report has more in it than the snapshot of a moment that it begins with: peaks, and what happened over time.
#[test]
fn a_report_of_a_process_can_be_strict() {
    for (code, exit) in [("records_lost", 11), ("baseline_read", 0)] {
        let mut process = fake::noted(4242, 0, &[code]);
        // Its export is a pickle.
        process.snapshot = (0, 0, 14);
        let server = Server::start(FakeDaemon::with([process]));
        let folder = server.folder.path().join("reports");
        let path = folder.to_str().unwrap();
        let answer = server.ctl(&["report", "--pid", "4242", "--strict", "-o", path]);
        assert_eq!(answer.code, exit, "{code}: {}{}", answer.out, answer.err);
        let left = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(left == 0, exit == 11, "nothing is written");
    }
}

/// The number itself says how exactly it is known, and not only a note beneath it.
#[test]
fn a_lower_bound_is_called_one_and_a_doubtful_total_is_unknown() {
    let exact = noted(&[]).ctl(&["stats"]);
    has(&exact, " allocated 1.23 GiB (1,320,702,444)");
    has(&exact, " live blocks 12 12");
    has(
        &exact,
        "counts and peaks since 2025-06-15 15:05:40 UTC, when it was attached",
    );
    let late = noted(&["attached_late"]).ctl(&["stats"]);
    has(&late, " allocated 1.23 GiB (1,320,702,444)");
    has(&late, " live blocks at least 12 at least 12");
    let lost = noted(&["records_lost"]).ctl(&["stats"]);
    has(&lost, " allocations at least 100");
    has(&lost, " peak allocated at least 1.23 GiB");
    has(&lost, " allocated 1.23 GiB (1,320,702,444)");
    let doubtful = noted(&["totals_old"]).ctl(&["stats"]);
    has(&doubtful, " allocated unknown unknown");
    let doubtful = noted(&["inexact_after_loss"]).ctl(&["stats"]);
    has(&doubtful, " live blocks unknown unknown");
}

#[test]
fn pool_and_diff_say_it_in_the_same_line() {
    let late = noted(&["attached_late"]);
    let pool = late.ctl(&["pool"]);
    has(&pool, " allocated at least ");
    has(&pool, "fragmentation: 1 - largest/free unknown");
    has(&pool, "Of the blocks that are known:");
    let diff = late.ctl(&["diff", "--from", "-1m"]);
    has(&diff, "allocated at least ");
    has(&diff, "came at least ");
    let lost = noted(&["inexact_after_loss"]);
    has(&lost.ctl(&["pool"]), " allocated unknown");
    has(&lost.ctl(&["diff", "--from", "-1m"]), "came unknown");
    let exact = noted(&[]);
    let said = exact.ctl(&["diff", "--from", "-1m"]).out + &exact.ctl(&["pool"]).out;
    assert!(!said.contains("at least") && !said.contains("that are known"));
}

#[test]
fn marks_are_listed_and_are_moments() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["marks"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    has(
        &answer,
        "2025-06-15 15:05:50 UTC new data set 2 instant outside 3 40",
    );
    has(&answer, "evaluation 1 range memscope 77 unknown 20");
    has(&answer, "300 were made by the program; 1 are kept, 1 shown");
    has(
        &answer,
        "4,711 were made by PyTorch itself; 1 are kept, 0 shown (--all shows them)",
    );
    assert!(!answer.out.contains("Optimizer"), "{}", answer.out);
    let all = server.ctl(&["marks", "--all", "--json"]).json();
    assert_eq!(all["marks"].as_array().unwrap().len(), 4);
    assert_eq!(all["marks"][2]["origin"], "framework");
    assert_eq!(all["marks"][3]["kind"], "instant");
    assert_eq!(all["counts"][1]["count"], 300);

    let asked = || std::mem::take(&mut *server.daemon.asked.lock().unwrap());
    for words in [
        &["snapshot", "--format", "json", "--at", "mark:new data set"][..],
        &["stacks", "--at", "mark:new data set#2"],
        &[
            "flamegraph",
            "--format",
            "folded",
            "--at",
            "mark:new data set",
        ],
    ] {
        let answer = server.ctl(words);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert_eq!(asked(), [Some(Moment::Event(40))], "{words:?}");
    }
    for words in [
        &["diff", "--from", "mark:evaluation"][..],
        &["pool", "--from", "mark:evaluation"],
        &["stacks", "--from", "mark:evaluation"],
    ] {
        let answer = server.ctl(words);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert_eq!(asked(), [None, Some(Moment::Event(20))], "{words:?}");
    }
    let answer = server.ctl(&["pool", "--from", "mark:nothing"]);
    assert_eq!(answer.code, 2);
    assert!(
        answer.err.contains("is no mark that is kept"),
        "{}",
        answer.err
    );
}

#[test]
fn exit_codes_are_in_the_help() {
    let help = noted(&[]).ctl(&["--help"]).out;
    for line in ["  10  found", "  11  cannot tell"] {
        assert!(help.contains(line), "{help}");
    }
}
