//! The tables that people see.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Server, one_process, two_processes};
use memscope_rpc::fake::{self, FakeDaemon};

#[track_caller]
fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|l| l.trim_end() == *line),
            "no {line:?} in:\n{text}"
        );
    }
}

#[test]
fn stats_is_exact_and_says_what_it_does_not_show() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["stats"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    assert_has(
        &answer.out,
        &[
            "python (pid 4242), exited  as of 2025-06-15 15:06:40 UTC, event 4711, no records lost",
            "level trace, allocator native, 61 probes; blocks of the pool are seen at record_trace",
            " allocated                1.23 GiB (1,320,702,444)      unknown",
            "   of it baseline                 4.00 KiB (4,096)      unknown",
            " live blocks                           at least 12  at least 12",
            " page-locked host memory  8.00 KiB (8,192) in 2",
            "What these numbers do not show",
            "  attached_late: Blocks from before the attach are known as a sum only.",
        ],
    );
    // Rows of which there is nothing to show are left out.
    for none in [
        "out of memory",
        "managed",
        "imported",
        "frees of unknown blocks",
    ] {
        assert!(!answer.out.contains(none), "{none} in {}", answer.out);
    }
}

#[test]
fn steps_tells_how_many_and_how_that_is_known() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["steps", "--last", "3", "--survivors", "5"]);
    assert_eq!(answer.code, 0);
    assert_has(
        &answer.out,
        &[
            "3 steps, 1 s each: 3 calls of Optimizer.step#AdamW.step at train.py:42.",
            "Device 0 (pool), 2 steps after the first: lowest 1.00 MiB (1.00 MiB to 1.00 MiB), highest 4.00 MiB (4.00 MiB to 4.00 MiB), floor +512 B per step, 200 allocations, 198 frees",
            "  smallest gap 25.0000 %: 1.00 MiB of 4.00 MiB in step 2",
            "    3       0   1 s  1.00 MiB  4.00 MiB  2.00 MiB  8.00 MiB      66.7 %     100     99",
            "1 block outlived its step, 512 B; some may have gone since.",
            "    2       0  512 B  0x7f0000000000          unknown",
        ],
    );
    let document: serde_json::Value =
        serde_json::from_str(&server.ctl(&["--json", "steps"]).out).expect("JSON");
    assert_eq!(document["summary"]["source"], "optimizer");
    assert_eq!(document["rows"][2]["step"], 3);
    assert!(document["launches"].is_null());
}

#[test]
fn mark_and_record() {
    let server = Server::start(one_process());
    let marked = server.ctl(&["mark", "here"]);
    assert_eq!(marked.code, 0);
    assert_has(&marked.out, &["Marked process 4242 at event 4711."]);
    assert_eq!(server.ctl(&["mark"]).code, 2, "a name, or --step");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.mscope");
    let path = file.to_str().expect("UTF-8");
    let recorded = server.ctl(&["record", "-o", path]);
    assert_eq!(recorded.code, 0, "{}", recorded.err);
    assert_eq!(std::fs::read(&file).expect("the file"), b"a recording");
    // The daemon says what could not be read for it.
    assert_has(
        &recorded.out,
        &["A part of what was traced is missing in this: a part of it is missing"],
    );
    std::fs::remove_file(&file).expect("the file");
    let strict = server.ctl(&["--strict", "record", "-o", path]);
    assert_eq!(strict.code, 11, "{}", strict.err);
    assert_has(
        &strict.err,
        &["memscope-ctl: the answer is not exact: recording_damaged: a part of it is missing"],
    );
    assert!(!file.exists());
}

#[test]
fn leaks_tells_what_grows() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["leaks", "--min-age", "5s"]);
    assert_eq!(answer.code, 0);
    assert_has(
        &answer.out,
        &[
            "1 line of the program grew: 38.00 MiB in 1 m.",
            "train.py:42 (train): +1.00 MiB a step.",
            " VERDICT  SURE  DEVICE       HELD    GREW BY   PER STEP  BLOCKS  LINE",
            " grew     80 %       0  40.00 MiB  38.00 MiB  +1.00 MiB      40  train.py:42 (train)",
            "  /home/me/train.py:42 (train)",
            "    +878.91 KiB to +1.05 MiB a step; since step 7; The floor rose in 38 of 40 intervals.",
            "What these numbers do not show",
        ],
    );
    assert!(!answer.out.contains("STREAM"), "{}", answer.out);
    let all = server.ctl(&["leaks", "--min-age", "5s", "--all-groups"]);
    assert_has(
        &all.out,
        &[
            " grew     80 %       0  40.00 MiB  38.00 MiB  +1.00 MiB      40  train.py:42 (train)",
            " VERDICT  SURE  DEVICE      SIZE  LIVE       HELD    GREW BY   PER STEP  OLDEST  FROM",
            " grew     80 %       0  1.00 MiB    40  40.00 MiB  38.00 MiB  +1.00 MiB    40 s  pool",
            "  1.00 MiB, grew: The floor rose in 38 of 40 intervals.; +878.91 KiB to +1.05 MiB a step, since step 7, 3 others went, the longest after 2 steps",
            "    /home/me/train.py:42 (train)",
        ],
    );
    let old = server.ctl(&["leaks", "--min-age", "2m", "--exit-code"]);
    assert_eq!(old.code, 0);
    assert_has(&old.out, &["Nothing grew, watched for 1 m."]);
    // The sums are over all groups, not only over those that are shown.
    let mut process = fake::process(4242, 0);
    process.groups = vec![fake::group(); 20];
    let server = Server::start(FakeDaemon::with([process]));
    let one = server.ctl(&["leaks", "--limit", "1"]);
    assert_has(
        &one.out,
        &[
            "20 lines of the program grew: 760.00 MiB in 1 m.",
            "Most of it: train.py:42 (train): +1.00 MiB a step.",
            " and 19 smaller ones left out",
        ],
    );
}

#[test]
fn leaks_that_are_too_young_are_no_all_clear() {
    let mut process = fake::process(4242, 0);
    process.groups.clear();
    process.young = Some(fake::young());
    let server = Server::start(FakeDaemon::with([process.clone()]));
    let answer = server.ctl(&["leaks", "--exit-code"]);
    assert_eq!(answer.code, 11);
    assert_has(
        &answer.out,
        &["Too early to tell: 20 groups rose in every step, 89 of 100 steps seen."],
    );
    assert!(!answer.out.contains("Nothing gr"), "{}", answer.out);
    assert_eq!(server.ctl(&["leaks"]).code, 0);
    let json = server.ctl(&["leaks", "--json"]).out;
    assert!(
        json.replace(char::is_whitespace, "")
            .contains("\"needed_steps\":100"),
        "{json}"
    );
    // Growth is reported, even if other groups are too young to be judged.
    process.groups = vec![fake::group()];
    let server = Server::start(FakeDaemon::with([process]));
    let both = server.ctl(&["leaks", "--exit-code"]);
    assert_eq!(both.code, 10);
    assert_has(
        &both.out,
        &["Too early to tell of others: 20 groups rose in every step, 89 of 100 steps seen."],
    );
}

/// At level `read`, before the first reading, nothing can be said about growth.
#[test]
fn what_was_never_read_is_no_all_clear() {
    let mut process = fake::noted(4242, 0, &["level_read", "totals_unknown"]);
    process.groups.clear();
    let server = Server::start(FakeDaemon::with([process]));
    let answer = server.ctl(&["leaks", "--exit-code"]);
    assert_eq!(answer.code, 11);
    assert_has(
        &answer.out,
        &["Cannot tell: nothing has been read of this process yet."],
    );
    assert!(!answer.out.contains("Nothing gr"), "{}", answer.out);
}

#[test]
fn leaks_tells_what_was_given_back() {
    let mut process = fake::process(4242, 0);
    process.groups.clear();
    process.given_back = vec![fake::given_back()];
    let server = Server::start(FakeDaemon::with([process]));
    let answer = server.ctl(&["leaks", "--exit-code"]);
    assert_eq!(answer.code, 0);
    assert_has(
        &answer.out,
        &[
            "Nothing grew, watched for 1 m.",
            "Given back",
            "  9.00 MiB in blocks of 1.00 MiB, had grown since step 12: the last went 5 s ago in step 310; the pool still reserves 18.00 MiB that nothing uses",
            "    /home/me/train.py:42 (train)",
        ],
    );
}

#[test]
fn the_other_tables() {
    let server = Server::start(one_process());
    let ps = server.ctl(&["ps"]).out;
    assert!(ps.contains("  PID  TRACED  "), "{ps}");
    assert!(ps.contains(" 4242  exited  "), "{ps}");
    assert!(
        ps.contains("  TRACED      KNOWN FROM") && ps.contains("  01-01 00:0"),
        "{ps}"
    );
    assert!(
        ps.contains("1.23 GiB  2.00 GiB  +1.00 MiB/step  GREW 80 %  3     python train.py"),
        "{ps}"
    );
    assert_has(
        &server.ctl(&["status"]).out,
        &[
            " attach method  uprobe_multi",
            " lost           nothing",
            " journal        writing, 1.00 MiB (1,048,576), /var/lib/memscope/journal",
            " LIBRARY               SITES  PROCESSES  WAYS IN",
            " /venv/libc10_cuda.so      2          1  record_trace",
        ],
    );
    let fluctuation = server.ctl(&["fluctuation", "--intervals", "1"]).out;
    assert_has(
        &fluctuation,
        &["Device 0 (pool): allocated 500 B to 1000 B, swing 50.0 %, floor +13 B/s"],
    );
    let watch = server.ctl(&["watch", "--count", "1"]).out;
    assert!(
        watch.contains("4242 device 0, 1000 B to 1000 B in the last"),
        "{watch}"
    );
    assert!(watch.contains("Not exact for 4242: "), "{watch}");
    assert!(!watch.contains('\x1b'), "{watch}");
}

#[test]
fn attach_and_detach_say_what_they_did() {
    let server = Server::start(FakeDaemon::default());
    assert_has(
        &server
            .ctl(&["attach", "--pid", "4242", "--level", "blocks"])
            .out,
        &[
            "Attached python (pid 4242): level blocks, 61 probes; blocks of the pool are seen at record_trace",
            "There before: not known yet, it is still being read; stats shows it when it is known",
            "Cost: Two traps for each block.",
            "What these numbers do not show",
        ],
    );
    assert_eq!(
        server.ctl(&["detach", "--pid", "4242"]).out,
        "Detached pid 4242.\n"
    );
    assert_eq!(
        server.ctl(&["detach", "--all"]).out,
        "Nothing was traced.\n"
    );
    let rule = server.ctl(&["attach", "--all"]).out;
    assert!(
        rule.starts_with("Rule 1 attaches what matches from now on;"),
        "{rule}"
    );
}

#[test]
fn doctor_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let answer = common::ctl(&folder.path().join("s.sock"), &["doctor"]);
    assert!(answer.out.contains("CHECK"), "{}", answer.out);
    assert!(
        answer.out.contains("try: start it: sudo memscoped"),
        "{}",
        answer.out
    );
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let mut process = fake::process(4242, 0);
    process.process.facts.comm = "\x1b]0;pwned\x07".into();
    process.process.facts.cmdline = vec!["a\x1b[2J\nb".into()];
    process.coverage[0].text = "\x1b[31m".into();
    let server = Server::start(FakeDaemon::with([process]));
    for command in ["stats", "ps", "leaks", "fluctuation"] {
        let answer = server.ctl(&[command]);
        assert_eq!(answer.code, 0);
        assert!(!answer.out.contains(['\x1b', '\x07']), "{}", answer.out);
    }
}

/// On a terminal of 100 columns nothing is wider, neither tables nor sentences. Numbers are never cut.
#[test]
fn answers_fit_the_terminal() {
    let server = Server::start(two_processes());
    for words in [
        &["ps"][..],
        &["status"],
        &["stats"],
        &["leaks"],
        &["stacks"],
        &["steps", "--pid", "99"],
        &["pool", "--pid", "99"],
        &["marks", "--pid", "99"],
        &["fluctuation", "--pid", "99"],
        &["watch", "--count", "1"],
        &["devices"],
        &["doctor"],
    ] {
        let mut command = common::command(&server.socket(), words);
        command.env("COLUMNS", "100");
        let answer = common::run(command);
        assert!(!answer.out.is_empty(), "{words:?}: {}", answer.err);
        for line in answer.out.lines() {
            let width = line.chars().count();
            assert!(
                width <= 100,
                "{words:?}: {width} columns:\n{line}\nin\n{}",
                answer.out
            );
        }
        let untouched = server.ctl(words);
        let digits = |text: &str| {
            text.chars()
                .filter(char::is_ascii_digit)
                .collect::<String>()
        };
        if !matches!(words[0], "doctor" | "watch" | "status" | "stacks") {
            assert_eq!(digits(&answer.out), digits(&untouched.out), "{words:?}");
        }
    }
}
