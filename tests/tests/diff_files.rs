//! `diff` of two files: PyTorch's own snapshots, memscope's, and recordings; what is no snapshot is refused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memscope_tests::{Asking, Daemon, MIB, Said, TempDir, Torch, Value, number, scratch};

/// No daemon is asked: the socket is none.
fn diff(before: &Path, after: &Path, more: &[&str]) -> Said {
    let mut words = vec!["--socket", "/nonexistent/socket", "diff"];
    words.extend([before.to_str().unwrap(), after.to_str().unwrap()]);
    words.extend(more);
    Asking::new(words).ask()
}

/// What came and what went, by size asked for: count and bytes of each.
fn changes(diff: &Value) -> BTreeMap<u64, [u64; 4]> {
    let groups = diff["groups"].as_array().unwrap();
    let changed = |group: &&Value| group["came"]["count"] != 0 || group["went"]["count"] != 0;
    let row = |group: &Value| {
        let of = |what: &str, key: &str| number(&group[what][key]);
        (
            number(&group["size_bytes"]),
            [
                of("came", "count"),
                of("came", "bytes"),
                of("went", "count"),
                of("went", "bytes"),
            ],
        )
    };
    groups.iter().filter(changed).map(row).collect()
}

struct Files {
    folder: TempDir,
    before: BTreeMap<&'static str, PathBuf>,
    after: BTreeMap<&'static str, PathBuf>,
    told: [Value; 2],
    recording: PathBuf,
    _daemon: Daemon,
}

const KINDS: [&str; 8] = ["2", "3", "4", "5", "json", "list", "ours", "ours-json"];

/// Two moments of one process in every kind of file, with PyTorch's totals at each.
fn files() -> Files {
    let mut daemon = Daemon::start();
    let folder = scratch();
    let mut torch = Torch::start(&[]);
    torch.ask("history");
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 2");
    torch.ask("alloc a 31457280");
    torch.ask("allocs many 20 5000");
    let mut write = |name: &str| {
        let mut made = BTreeMap::new();
        for kind in KINDS {
            let file = folder.path().join(format!("{name}.{kind}"));
            let path = file.to_str().unwrap();
            match kind {
                "ours" | "ours-json" => {
                    let format = if kind == "ours" { "memory-viz" } else { "json" };
                    let pid = torch.pid_text();
                    daemon
                        .ctl(&["snapshot", "--pid", &pid, "--format", format, "-o", path])
                        .text();
                }
                protocol => {
                    torch.ask(&format!("dump {path} {protocol}"));
                }
            }
            made.insert(kind, file);
        }
        let told = torch.ask("totals");
        if name == "before" {
            torch.ask("free a");
            torch.ask("alloc b 9000000");
            torch.ask("allocs more 7 70000");
            // Freed and made anew: a block that is alike is not the same.
            torch.ask("free many");
            torch.ask("allocs many 20 5000");
            torch.ask("empty_cache");
        }
        (made, told)
    };
    let (before, first) = write("before");
    let (after, second) = write("after");
    // In this order: what a process gives up at its end is no part of the second moment.
    daemon.stop();
    torch.finish();
    Files {
        folder,
        before,
        after,
        told: [first, second],
        recording: daemon.recording(),
        _daemon: daemon,
    }
}

/// What came and went by the lines that allocated it, of PyTorch's own pickles and of memscope's.
#[test]
fn by_stack() {
    let files = files();
    for kind in ["4", "json", "ours"] {
        let (before, after) = (&files.before[kind], &files.after[kind]);
        let answer = diff(before, after, &["--json", "--by", "stack"]).json();
        let mut changed = BTreeMap::new();
        for stack in answer["stacks"].as_array().unwrap() {
            let frames = stack["frames"].as_array().unwrap();
            let name = frames.first().map_or("", |frame| frame.as_str().unwrap());
            let name = name.split(' ').next().unwrap().to_owned();
            let sums: &mut [u64; 2] = changed.entry(name).or_default();
            sums[0] += number(&stack["came"]["bytes"]);
            sums[1] += number(&stack["went"]["bytes"]);
        }
        assert_eq!(
            changed["alloc"],
            [9_000_448, 30 * MIB],
            "{kind}: {answer:#}"
        );
        let text = diff(before, after, &["--by", "stack"]);
        assert!(text.text().contains("    alloc     /"), "{text}");
        assert!(text.text().contains("agent.py:"), "{text}");
    }
    // Moments of a recording, by the same word.
    let recording = files.recording.to_str().unwrap();
    let ours = diff(&files.before["ours"], &files.after["ours"], &["--json"]).json();
    let [from, to] = ["from", "to"].map(|end| number(&ours[end]["as_of"]).to_string());
    let words = [
        "--recording",
        recording,
        "diff",
        "--from",
        &from,
        "--to",
        &to,
        "--by",
        "stack",
        "--json",
    ];
    let rows = Asking::new(words).ask().json()["rows"].clone();
    let named = |row: &&Value| row["frames"][0]["name"] == "alloc";
    let rows: Vec<&Value> = rows.as_array().unwrap().iter().filter(named).collect();
    let sum = |key: &str| -> u64 {
        let bytes = rows.iter().map(|row| number(&row["amounts"][key]["bytes"]));
        bytes.sum()
    };
    assert_eq!(
        [sum("before"), sum("live")],
        [30 * MIB, 9_000_448],
        "{rows:#?}"
    );
}

#[test]
fn every_kind_of_file_tells_the_same() {
    let files = files();
    // Counted by size; PyTorch's own files do not say whose they are.
    let by_number = BTreeMap::from([
        (70_000, [7, 7 * 70_144, 0, 0]),
        (30 * MIB, [0, 0, 1, 30 * MIB]),
        (9_000_000, [1, 9_000_448, 0, 0]),
    ]);
    let mut by_block = by_number.clone();
    by_block.insert(5000, [20, 20 * 5120, 20, 20 * 5120]);
    for kind in KINDS {
        let (before, after) = (&files.before[kind], &files.after[kind]);
        let ours = kind.starts_with("ours");
        let answer = diff(before, after, &["--json"]).json();
        let wanted = if ours { &by_block } else { &by_number };
        assert_eq!(changes(&answer), *wanted, "{kind}");
        let matched = if ours { "block" } else { "number" };
        assert_eq!(answer["matched_by"], matched, "{kind}");
        let answer = diff(before, after, &["--json", "--same-process"]).json();
        let mut same = changes(&answer);
        if kind == "list" {
            // Without a trace nothing tells that a block at the same place is another one.
            same.remove(&5000);
            assert_eq!(same, by_number, "{kind}, of one process");
        } else {
            assert_eq!(same, by_block, "{kind}, of one process");
        }
        let zero = &answer["devices"][0];
        for (at, told) in [("before", &files.told[0]), ("after", &files.told[1])] {
            let theirs = &told["devices"][0];
            assert_eq!(zero[format!("allocated_{at}_bytes")], theirs["allocated"]);
            assert_eq!(zero[format!("reserved_{at}_bytes")], theirs["reserved"]);
        }
        assert_eq!(
            changes(&diff(after, after, &["--json"]).json()),
            BTreeMap::new()
        );
    }
    // PyTorch's against ours, and ours against a recording's last moment.
    let mixed = diff(&files.before["4"], &files.after["ours"], &["--json"]);
    assert_eq!(changes(&mixed.json()), by_number);
    let recorded = diff(&files.before["ours"], &files.recording, &["--json"]).json();
    assert_eq!(changes(&recorded), by_block, "{recorded:#}");
    assert_eq!(recorded["matched_by"], "block");

    // For people: the largest change first.
    let said = diff(&files.before["ours"], &files.after["ours-json"], &[]);
    let text = said.text();
    let place = |size: &str| text.find(size).unwrap_or_else(|| panic!("{size}: {text}"));
    assert!(place("30.00 MiB") < place("8.58 MiB"), "{text}");
    assert!(place("8.58 MiB") < place("68.36 KiB"), "{text}");
    assert!(
        text.contains("one by one") && text.contains("before.ours"),
        "{text}"
    );
    let said = diff(&files.before["4"], &files.after["4"], &["--limit", "1"]);
    assert!(said.text().contains("--same-process"), "{said}");
    assert!(
        said.text().contains("2 groups with smaller changes"),
        "{said}"
    );
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let files = files();
    let good = &files.before["4"];
    let bad = files.folder.path().join("bad");
    let refused = |what: &str, words: &[&str]| {
        for pair in [[good, &bad], [&bad, good]] {
            let said = diff(pair[0], pair[1], &[]);
            said.refused(1, &[&[bad.to_str().unwrap()], words].concat());
            assert!(said.output.is_empty(), "{what}: {said}");
        }
        let said = diff(good, &bad, &["--json"]);
        assert_eq!(said.document()["error"]["code"], "no_snapshot", "{what}");
    };
    let write = |bytes: &[u8]| std::fs::write(&bad, bytes).unwrap();

    write(b"");
    refused("nothing", &["empty"]);
    write("a text, and no snapshot at all\n".repeat(100).as_bytes());
    refused("a text", &["neither"]);
    let whole = std::fs::read(good).unwrap();
    for part in [2, 3, 50, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        write(&whole[..part]);
        refused("a pickle cut off", &["ends early"]);
    }
    let whole = std::fs::read(&files.before["ours-json"]).unwrap();
    for part in [1, 100, whole.len() / 2, whole.len() - 3] {
        write(&whole[..part]);
        refused("a document cut off", &["JSON"]);
    }
    // Brackets without an end, as a pickle and as a document.
    write(&[&b"\x80\x04"[..], &b"]".repeat(1_000_000)].concat());
    refused("lists in lists", &["ends early, after 1000002 bytes"]);
    write("[".repeat(1_000_000).as_bytes());
    refused("a document of brackets", &["JSON", "line 1"]);
    // A text of four gigabytes that is not there.
    write(b"\x80\x04X\xff\xff\xff\xff");
    refused("a huge length", &["byte 7"]);
    // A list that holds itself.
    write(b"\x80\x04]q\x00h\x00a.");
    refused("an endless list", &["segment 0"]);
    // A pickle that would run something is not run.
    let proof = files.folder.path().join("was-run");
    let hostile = format!("cposix\nsystem\n(X\x20\0\0\0touch {:<26}tR.", "x");
    write(&[b"\x80\x02", hostile.as_bytes()].concat());
    refused("a pickle that names code", &["opcode", "never run"]);
    assert!(!proof.exists());
    // Good pickles of something else.
    write(b"\x80\x04]\x94(K\x01K\x02e.");
    refused("a list of numbers", &["segment 0"]);
    write(b"\x80\x04}\x94\x8c\x08segments\x94K\x05s.");
    refused("no list", &["segments"]);
    write(b"{\"segments\": [{\"address\": -5}]}");
    refused("a wrong document", &["JSON"]);
    // Not there, and not readable.
    std::fs::remove_file(&bad).unwrap();
    refused("no file", &["No such file"]);
    // A folder that is no recording.
    std::fs::create_dir(&bad).unwrap();
    diff(good, &bad, &[]).refused(1, &[bad.to_str().unwrap(), "recording"]);

    for words in [
        &["diff"][..],
        &["diff", "one"],
        &["diff", "one", "two", "three"],
        &["diff", "one", "two", "--from", "-5m"],
        &["diff", "--from", "-5m", "--same-process"],
        &["--recording", "r", "diff", "one", "two"],
    ] {
        let said = Asking::new(words).ask();
        assert_eq!(said.code, 2, "{said}");
    }
}
