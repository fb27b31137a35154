//! Moments with a name in real PyTorch programs, live and from a recording; and answers that have to be exact.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Asking, Daemon, LONG, Library, Said, Torch, Value, library, number, scratch, sim, until,
};

fn snapshot(daemon: &Daemon, pid: &str, at: &str) -> Value {
    let words = ["snapshot", "--pid", pid, "--format", "json", "--at", at];
    daemon.ctl(&words).json()["segments"].clone()
}

fn named<'a>(answer: &'a Value, name: &str) -> Vec<&'a Value> {
    let marks = answer["marks"].as_array().unwrap();
    marks.iter().filter(|mark| mark["name"] == name).collect()
}

#[test]
fn a_name_is_a_moment_in_every_command() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    let mut then = Vec::new();
    for (command, name) in [
        ("alloc a 3000000", "new data set"),
        ("alloc b 5000000", "evaluation"),
        ("train 2", "new data set"),
        ("free a", "end"),
    ] {
        torch.ask(command);
        let told = daemon.json(&["mark", "--pid", &pid, name]);
        let event = number(&told["event"]["sequence"]);
        then.push((event, snapshot(&daemon, &pid, &format!("event:{event}"))));
    }
    let marks = daemon.json(&["marks", "--pid", &pid]);
    let both = named(&marks, "new data set");
    assert_eq!(both.len(), 2, "{marks:#}");
    for (mark, (nth, at)) in both.iter().zip([(1, 0), (2, 2)]) {
        assert_eq!(number(&mark["nth"]), nth, "{mark}");
        assert_eq!(number(&mark["event"]["sequence"]), then[at].0, "{mark}");
        assert_eq!(mark["origin"], "people", "{mark}");
    }
    for (at, place) in [
        ("mark:new data set", 2),
        ("mark:new data set#1", 0),
        ("mark:evaluation", 1),
        ("mark:end", 3),
    ] {
        assert_eq!(snapshot(&daemon, &pid, at), then[place].1, "{at}");
    }
    let distinct: std::collections::BTreeSet<String> = then
        .iter()
        .map(|(_, segments)| segments.to_string())
        .collect();
    assert_eq!(distinct.len(), 4, "the moments differ");

    let ask = |words: &[&str]| daemon.ctl(&[&["--json"][..], words, &["--pid", &pid][..]].concat());
    let diff = ask(&[
        "diff",
        "--from",
        "mark:new data set#1",
        "--to",
        "mark:evaluation",
    ]);
    let came = &diff.json()["devices"][0]["came"];
    assert_eq!(
        (number(&came["count"]), number(&came["bytes"])),
        (1, 5_000_192),
        "{diff}"
    );
    for words in [
        &["pool", "--from", "mark:evaluation", "--at", "mark:end"][..],
        &["stacks", "--from", "mark:evaluation"],
        &["stacks", "--at", "mark:evaluation"],
    ] {
        ask(words).json();
    }
    let folder = scratch();
    let drawn = folder.path().join("grown.svg");
    let words = [
        "flamegraph",
        "--from",
        "mark:evaluation",
        "-o",
        drawn.to_str().unwrap(),
    ];
    ask(&words).json();
    assert!(drawn.exists());
    ask(&["pool", "--from", "mark:new data set#3"]).refused(2, &["#1 to #2"]);
    ask(&["pool", "--from", "mark:never"]).refused(2, &["no mark", "memscope-ctl marks"]);

    // A recording has the same names.
    let file = folder.path().join("run.mscope");
    let path = file.to_str().unwrap();
    daemon.ctl(&["record", "-o", path]).text();
    let recorded = |words: &[&str]| -> Said {
        Asking::new([&["--recording", path][..], words, &["--pid", &pid][..]].concat()).ask()
    };
    assert_eq!(
        recorded(&["marks", "--json"]).json()["marks"],
        marks["marks"]
    );
    for (at, place) in [("mark:new data set", 2), ("mark:new data set#1", 0)] {
        let again = recorded(&["snapshot", "--format", "json", "--at", at]).json();
        assert_eq!(again["segments"], then[place].1, "{at}");
    }
    let diff = recorded(&[
        "--json",
        "diff",
        "--from",
        "mark:new data set#1",
        "--to",
        "mark:evaluation",
    ]);
    assert_eq!(&diff.json()["devices"][0]["came"], came);

    torch.finish();
    daemon
        .ctl(&["mark", "--pid", &pid, "too late"])
        .refused(4, &[&pid, "has ended at 2"]);
    let after = daemon.json(&["marks", "--pid", &pid]);
    assert_eq!(after["marks"], marks["marks"]);
}

#[test]
fn a_process_that_is_no_longer_traced_cannot_be_marked() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    daemon.detach(torch.pid());
    daemon
        .ctl(&["mark", "--pid", &torch.pid_text(), "too late"])
        .refused(4, &["was detached at 2"]);
    torch.finish();
}

#[test]
fn many_marks_do_not_push_out_a_rare_one() {
    let daemon = Daemon::start();
    let marks = library("marks.c", "libms_tools_ext.so", Library::None, &[]);
    let mut command = sim().python("loops.py");
    command.arg("marked").env("MARKS", marks);
    let mut torch = Torch::from_command(command);
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    torch.ask("5");
    daemon.json(&["mark", "--pid", &pid, "look here"]);
    torch.ask("200");
    let answer = daemon.json(&["marks", "--pid", &pid, "--all", "--last", "0"]);
    assert_eq!(named(&answer, "look here").len(), 1, "{answer:#}");
    assert_eq!(named(&answer, "part").len(), 64, "{answer:#}");
    let steps = named(&answer, "Optimizer.step#SGD.step");
    assert_eq!(steps.len(), 64);
    // Two in each of 205 rounds.
    let last = steps.last().unwrap();
    assert_eq!(
        (number(&last["nth"]), &last["origin"]),
        (410, &"framework".into()),
        "{last}"
    );
    assert_eq!(last["kind"], "begin", "{last}");
    // Names that differ each time are the program's, and each is kept as long as there is room.
    assert_eq!(named(&answer, "iteration 7").len(), 1);
    let shown = daemon.ctl(&["marks", "--pid", &pid]);
    assert!(!shown.text().contains("Optimizer.step"), "{shown}");
    assert!(shown.text().contains("by PyTorch itself"), "{shown}");
    torch.finish();
}

#[test]
fn strict_tells_what_is_exact_from_what_is_not() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train 2");
    let pid = torch.pid_text();
    let strict = |command: &str| daemon.ctl(&["--strict", command, "--pid", &pid]);
    // Only the calls of the runtime: what the pool handed out is not seen.
    daemon.attach(torch.pid(), "segments");
    torch.ask("alloc a 3000000");
    for command in ["stats", "pool", "leaks"] {
        let said = strict(command);
        said.refused(11, &["not exact", "level_segments"]);
        assert_eq!(said.output, "", "{said}");
    }
    daemon.ctl(&["stats", "--pid", &pid]).text();
    daemon.detach(torch.pid());
    // Every block is known, those from before the attach as well.
    daemon.attach(torch.pid(), "trace");
    until(LONG, "exact numbers", || {
        torch.ask("train 1");
        (strict("pool").code == 0).then_some(())
    });
    // `stats` also has what was taken beside the pool, and of the time before the attach that is not known.
    let notes = daemon.stats(torch.pid())["coverage"].clone();
    for note in notes.as_array().unwrap() {
        let kinds = note["affects"].as_array().unwrap();
        let other = ["totals", "blocks", "history", "regions"];
        let spoils = |kind: &Value| other.iter().any(|other| kind == other);
        assert!(!kinds.iter().any(spoils), "{notes:#}");
    }
    strict("stats").refused(11, &["not exact", "direct_baseline_unknown"]);
    let stats = daemon.ctl(&["stats", "--pid", &pid]);
    assert!(stats.text().contains("at least"), "{stats}");
    torch.finish();
}
