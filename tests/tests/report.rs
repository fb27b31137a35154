//! `report`: its figures are those that a plain reader computes from the same pickles of a real PyTorch, XProf opens it, names out of
//! hostile files are only shown, and a report is there as a whole or not at all.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Asking, Daemon, Device, Said, TempDir, Torch, Value, number, root, scratch, sim_of,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// No daemon is asked: the socket is none.
fn report(words: &[&str], output: &Path) -> Said {
    let mut all = vec!["--socket", "/nonexistent/socket", "--json", "report"];
    all.extend(words);
    all.extend(["-o", output.to_str().unwrap()]);
    Asking::new(all).ask()
}

/// What a plain reader in Python computes from a pickle.
fn plain(pickle: &Path) -> Value {
    let script = root().join("tests/report/figures.py");
    said(sim_of(Device::Cuda).script(&script).arg(pickle))
}

/// What a plain reader in Python says of a report, which it computes again from the pickle.
fn checked(pickle: &Path, made: &Path) -> Value {
    let script = root().join("tests/report/figures.py");
    said(sim_of(Device::Cuda).script(&script).arg(pickle).arg(made))
}

fn said(command: &mut Command) -> Value {
    let out = command.output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {errors}");
    serde_json::from_slice(&out.stdout).unwrap()
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&read(folder, name)).unwrap()
}

/// The value behind a word at the beginning of a line.
fn line<'t>(text: &'t str, word: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word} in {text}")).trim()
}

/// Two pickles of one process: one before it trains on, one after.
fn pickles(folder: &TempDir) -> [PathBuf; 2] {
    let mut torch = Torch::start(&[]);
    torch.ask("alloc early 3000000");
    torch.ask("history");
    torch.ask("train 2");
    torch.ask("alloc a 31457280");
    torch.ask("allocs many 20 5000");
    let dump = |torch: &mut Torch, name: &str| {
        let path = folder.path().join(name);
        torch.ask(&format!("dump {} 4", path.to_str().unwrap()));
        path
    };
    let before = dump(&mut torch, "rank0_before.pickle");
    torch.ask("free a");
    torch.ask("alloc b 9000000");
    torch.ask("empty_cache");
    torch.ask("train 1");
    let after = dump(&mut torch, "rank1_after.pickle");
    torch.finish();
    [before, after]
}

#[test]
fn figures_are_those_of_a_plain_reader() {
    let folder = scratch();
    let output = folder.path().join("reports");
    for pickle in pickles(&folder) {
        let written = report(&[pickle.to_str().unwrap()], &output).json();
        let made = PathBuf::from(written["folder"].as_str().unwrap());
        let checked = checked(&pickle, &made);
        assert_eq!(checked["differences"], Value::Array(vec![]));
        assert!(number(&checked["values"]) > 1000, "{checked:#}");
        assert_eq!(
            checked["figures"]["viz"], checked["figures"]["allocated"],
            "PyTorch's own _memory_viz is there"
        );
        for plot in [
            "memory_overview",
            "memory_by_category",
            "top_allocations",
            "fragmentation",
            "memory_timeline",
        ] {
            let file = fs::read(made.join(format!("{plot}.png"))).unwrap();
            assert!(
                file.starts_with(b"\x89PNG\r\n\x1a\n") && file.len() > 2000,
                "{plot}"
            );
        }
        assert_eq!(
            fs::read_link(output.join("latest")).unwrap().as_os_str(),
            made.file_name().unwrap()
        );
    }
}

/// The plain reader looks into each file: one of another pickle's report is found among the right ones, and a wrong peak, which may be the
/// same of both.
#[test]
fn the_plain_reader_finds_what_is_wrong() {
    let folder = scratch();
    let output = folder.path().join("reports");
    let pickles = pickles(&folder);
    let [made, other] = pickles.each_ref().map(|pickle| {
        let written = report(&[pickle.to_str().unwrap()], &output).json();
        PathBuf::from(written["folder"].as_str().unwrap())
    });
    for (name, word) in [
        ("analysis_report.txt", "text, SUMMARY"),
        ("report.html", "page, Summary"),
        ("peak.json", "peak.json, total_memory"),
        ("memory_profile.pb", "timeline"),
    ] {
        let right = fs::read(made.join(name)).unwrap();
        let mut wrong = fs::read(other.join(name)).unwrap();
        if name == "peak.json" {
            let mut peak = json(&made, name);
            peak["total_memory"] = Value::from(1);
            wrong = peak.to_string().into_bytes();
        }
        fs::write(made.join(name), wrong).unwrap();
        let differences = checked(&pickles[0], &made)["differences"].to_string();
        assert!(differences.contains(word), "{name}: {differences}");
        fs::write(made.join(name), right).unwrap();
    }
}

#[test]
fn two_runs_are_compared_by_keywords_and_call_stacks() {
    let folder = scratch();
    let output = folder.path().join("reports");
    let [before, after] = pickles(&folder);
    let words = [
        after.to_str().unwrap(),
        "--against",
        before.to_str().unwrap(),
    ];
    let written = report(&words, &output).json();
    let made = PathBuf::from(written["folder"].as_str().unwrap());
    let text = read(&made, "comparison.txt");
    let [a, b] = [plain(&before), plain(&after)].map(|plain| {
        let sums = plain["keywords"].as_object().unwrap().clone();
        let sums = sums.into_iter().map(|(name, bytes)| (name, number(&bytes)));
        sums.collect::<BTreeMap<String, u64>>()
    });
    for category in a.keys().chain(b.keys()) {
        let of = |sums: &BTreeMap<String, u64>| sums.get(category).copied().unwrap_or(0);
        let said: Vec<&str> = line(&text, &format!("{category} "))
            .split_whitespace()
            .collect();
        let change = of(&b) as i64 - of(&a) as i64;
        let [a, b] = [of(&a), of(&b)].map(memscope_units::bytes);
        let expected = format!("{a} {b} {}", memscope_units::signed_bytes(change));
        assert!(
            said.join(" ").starts_with(&expected),
            "{category}: {said:?} is not {expected}"
        );
    }
    let diff = json(&made, "diff.json");
    let added = diff["added_call_stacks"].to_string();
    assert_eq!(diff["base_total_memory"], {
        let plain = plain(&before);
        number(&plain["dynamic"]) + number(&plain["static"])
    });
    assert!(
        number(&diff["added_memory"]) > 0 || added == "[]",
        "{diff:#}"
    );
}

#[test]
fn xprof_opens_it_and_says_the_same() {
    let python = root().join("target/xprof/bin/python");
    let hint = "cargo xtask setup --xprof makes it";
    assert!(python.exists(), "no {}; {hint}", python.display());
    let folder = scratch();
    let output = folder.path().join("reports");
    let [pickle, _] = pickles(&folder);
    let written = report(&[pickle.to_str().unwrap()], &output).json();
    let made = PathBuf::from(written["folder"].as_str().unwrap());
    let script = root().join("tests/report/open_in_xprof.py");
    let answer = said(Command::new(python).arg(script).arg(made.join("xprof")));
    let plain = plain(&pickle);
    let of = |profile: &Value| profile["memory_profile_per_allocator"]["rank0_gpu0"].clone();
    let read = of(&answer["read"]);
    let summary = json(&made, "memory_profile.json");
    let computed = &answer["computed"]["rank0.xplane.pb"];
    let computed = &computed["memoryProfilePerAllocator"]["rank0_gpu0"];
    let text = |value: &Value| -> u64 {
        value
            .as_str()
            .map_or_else(|| value.as_u64(), |text| text.parse().ok())
            .unwrap_or(0)
    };
    let ours = &read["profile_summary"];
    let theirs = &computed["profileSummary"];
    assert!(
        text(&ours["peak_stats"]["heap_allocated_bytes"]) > 0,
        "{ours:#}"
    );
    for (our, their) in [
        ("heap_allocated_bytes", "heapAllocatedBytes"),
        ("free_memory_bytes", "freeMemoryBytes"),
    ] {
        assert_eq!(
            text(&ours["peak_stats"][our]),
            text(&theirs["peakStats"][their]),
            "{computed:#}"
        );
    }
    assert_eq!(
        text(&ours["memory_capacity"]),
        text(&theirs["memoryCapacity"])
    );
    let gib = text(&ours["memory_capacity"]) as f64 / f64::from(1 << 30);
    assert!(
        (summary["memory_capacity_gib"].as_f64().unwrap() - gib).abs() <= 0.005,
        "{summary}"
    );
    // What lived at the peak: the same rows, with the same number of occurrences.
    let rows =
        |profile: &Value,
         [active, count, snapshots, special, index, extra, what, bytes]: [&str; 8]| {
            let mut rows: Vec<(u64, u64)> = Vec::new();
            for one in profile[active].as_array().unwrap() {
                let place = |key: &str| {
                    one[key]
                        .as_str()
                        .map_or(0, |text| text.parse::<i64>().unwrap())
                };
                let what = match place(index) {
                    at if at >= 0 && place(extra) < 0 => &profile[snapshots][at as usize][what],
                    _ => &profile[special][place(extra).max(0) as usize],
                };
                rows.push((text(&what[bytes]), text(&one[count])));
            }
            rows.sort_unstable();
            rows
        };
    let ours = rows(
        &read,
        [
            "active_allocations",
            "num_occurrences",
            "memory_profile_snapshots",
            "special_allocations",
            "snapshot_index",
            "special_index",
            "activity_metadata",
            "allocation_bytes",
        ],
    );
    let theirs = rows(
        computed,
        [
            "activeAllocations",
            "numOccurrences",
            "memoryProfileSnapshots",
            "specialAllocations",
            "snapshotIndex",
            "specialIndex",
            "activityMetadata",
            "allocationBytes",
        ],
    );
    assert_eq!(ours, theirs, "{computed:#}");
    assert!(number(&plain["allocations"]) > 0);
}

/// A pickle whose names try to become markup, scripts and paths.
fn hostile(folder: &Path) -> PathBuf {
    let path = folder.join("hostile.pickle");
    let script = "import pickle, sys
evil = '</td><script>alert(1)</script><img src=x onerror=alert(2)>\\n\\x1b[31m\\u202e\"\\' & ../../x'
frames = [{'name': evil, 'filename': evil + '.py', 'line': 7}]
block = {'address': 4096, 'size': 1024, 'requested_size': 1000, 'state': 'active_allocated', 'frames': frames}
segment = {'device': 0, 'address': 4096, 'total_size': 1024, 'stream': 0, 'segment_type': evil, 'blocks': [block]}
entry = {'action': 'alloc', 'addr': 4096, 'size': 1000, 'stream': 0, 'time_us': 1, 'frames': frames}
with open(sys.argv[1], 'wb') as file:
    pickle.dump({'segments': [segment], 'device_traces': [[entry]]}, file, protocol=4)";
    let made = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    path
}

#[test]
fn names_of_a_hostile_file_are_only_shown() {
    let folder = scratch();
    let pickle = hostile(folder.path());
    let output = folder.path().join("reports");
    let name = "../<script>alert(3)</script>";
    let written = report(&[pickle.to_str().unwrap(), "--name", name], &output).json();
    let made = PathBuf::from(written["folder"].as_str().unwrap());
    assert_eq!(made.parent().unwrap(), output);
    let page = read(&made, "report.html").to_lowercase();
    assert!(page.contains("alert(1)"), "the name is shown");
    for word in [
        "<script",
        "<img",
        "<iframe",
        "javascript:",
        "src=\"",
        "href=",
    ] {
        assert!(!page.contains(word), "{word} in {page}");
    }
    assert!(page.contains("default-src 'none'"));
    let text = read(&made, "analysis_report.txt");
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// A pickle of these entries (action, address, MiB, microseconds) and of one segment with these blocks (address, MiB).
fn small_pickle(folder: &Path, name: &str, entries: &str, blocks: &str) -> PathBuf {
    let path = folder.join(name);
    let script = format!(
        "import pickle, sys
MIB = 1 << 20
trace = [dict(action=a, addr=at * MIB, size=size * MIB, stream=0, time_us=us, frames=[]) for a, at, size, us in {entries}]
held, at = [], 0
for begin, size in {blocks} + [(500, 0)]:
    if at < begin: held.append(dict(address=at * MIB, size=(begin - at) * MIB, requested_size=0, state='inactive'))
    if size: held.append(dict(address=begin * MIB, size=size * MIB, requested_size=size * MIB, state='active_allocated'))
    at = begin + size
segment = dict(device=0, address=0, total_size=500 * MIB, stream=0, segment_type='large', blocks=held)
with open(sys.argv[1], 'wb') as file:
    pickle.dump(dict(segments=[segment], device_traces=[trace]), file, protocol=4)"
    );
    let made = Command::new("python3")
        .args(["-c", &script])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    path
}

/// A recording that went on with another `max_entries` has its newest entry first, and one with `skip_actions` lacks what came: neither
/// says when most was there.
#[test]
fn no_peak_is_reported_that_may_never_have_been() {
    let folder = scratch();
    let output = folder.path().join("reports");
    let moved = "[('alloc', 200, 300, 50), ('alloc', 0, 100, 10), ('free_requested', 0, 100, 20), ('free_completed', 0, 100, 21), \
                 ('alloc', 0, 7, 60)]";
    let gone = "[('free_requested', 0, 60, 10), ('free_completed', 0, 60, 11), ('free_requested', 0, 60, 20), ('free_completed', 0, 60, 21)]";
    let lacks = "no entries of allocations";
    for (name, entries, blocks, code, said) in [
        (
            "moved",
            moved,
            "[(0, 7), (200, 300)]",
            "import_times_moved",
            "earlier time",
        ),
        (
            "gone",
            gone,
            "[(200, 300)]",
            "import_actions_left_out",
            lacks,
        ),
    ] {
        let pickle = small_pickle(folder.path(), &format!("{name}.pickle"), entries, blocks);
        let written = report(&[pickle.to_str().unwrap()], &output).json();
        let made = PathBuf::from(written["folder"].as_str().unwrap());
        let page = read(&made, "report.html");
        for said in ["Peak and course are not known", said] {
            assert!(page.contains(said), "no {said} in {page}");
        }
        for file in ["peak.json", "memory_profile.json", "memory_profile.pb"] {
            assert!(!made.join(file).exists(), "{file}");
        }
        // A recording of the same says no more.
        let words = ["--recording", pickle.to_str().unwrap(), "stats", "--json"];
        let stats = Asking::new(words).ask().json();
        assert!(stats["devices"][0]["peak_allocated_bytes"].is_null());
        let notes = stats["coverage"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["code"] == code), "{stats:#}");
    }
}

#[test]
fn what_cannot_be_reported_is_refused_and_nothing_is_left() {
    let folder = scratch();
    let output = folder.path().join("reports");
    let code = folder.path().join("code.pickle");
    fs::write(&code, b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.").unwrap();
    report(&[code.to_str().unwrap()], &output).refused(1, &["opcode", "never run"]);
    let missing = folder.path().join("missing.pickle");
    report(&[missing.to_str().unwrap()], &output).refused(1, &["missing.pickle", "No such file"]);
    let text = folder.path().join("text.json");
    fs::write(&text, "{}").unwrap();
    report(&[text.to_str().unwrap()], &output).refused(1, &["pickle"]);
    let left: Vec<_> = fs::read_dir(&output).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // A file where the folder should be, and a folder where the link should be.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let pickle = hostile(folder.path());
    report(&[pickle.to_str().unwrap()], &file).refused(1, &["no report can be written into"]);
    fs::create_dir(output.join("latest")).unwrap();
    report(&[pickle.to_str().unwrap()], &output).refused(2, &["latest", "no symbolic link"]);
    assert_eq!(fs::read_dir(&output).unwrap().count(), 1);
    // A disk that is full.
    let full = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""])
        .arg(memscope_tests::tool("memscope-ctl"))
        .args(["--socket", "/nonexistent/socket", "report"])
        .arg(&pickle)
        .arg("-o")
        .arg(folder.path().join("full"))
        .output()
        .unwrap();
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    let left: Vec<_> = fs::read_dir(folder.path().join("full")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_living_process_and_its_recording_are_reported() {
    let mut daemon = Daemon::start();
    let folder = scratch();
    let output = folder.path().join("reports");
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 3");
    torch.ask("alloc a 31457280");
    let told = torch.ask("totals");
    let pid = torch.pid_text();
    let words = [
        "report",
        "--pid",
        &pid,
        "-o",
        output.to_str().unwrap(),
        "--json",
    ];
    let written = daemon.ctl(&words).json();
    let made = PathBuf::from(written["folder"].as_str().unwrap());
    let allocated = number(&told["devices"][0]["allocated"]);
    let text = read(&made, "analysis_report.txt");
    assert_eq!(line(&text, "Allocated"), memscope_units::bytes(allocated));
    let page = read(&made, "report.html");
    for word in [
        "<h2>Leaks</h2>",
        "<h2>What it is for</h2>",
        "<h2>Summary</h2>",
    ] {
        assert!(page.contains(word), "no {word} in {page}");
    }
    // What it was for at the peak is what `owners` says of that moment.
    let peak = page.split("<h2>What it was for at the peak</h2>").nth(1);
    let peak = peak.unwrap_or_else(|| panic!("nothing of the peak in {page}"));
    let owners = daemon.json(&["owners", "--pid", &pid, "--at", "peak"]);
    let categories = owners["devices"][0]["categories"].as_array().unwrap();
    assert!(!categories.is_empty(), "{owners:#}");
    for category in categories {
        let bytes = memscope_units::bytes(number(&category["blocks"]["bytes"]));
        assert!(peak.contains(&bytes), "no {category} in {peak}");
    }
    daemon.stop();
    torch.finish();
    let recording = daemon.recording();
    let words = [
        "--recording",
        recording.to_str().unwrap(),
        "--json",
        "report",
        "-o",
        output.to_str().unwrap(),
    ];
    let written = Asking::new(words).ask().json();
    let made = PathBuf::from(written["folder"].as_str().unwrap());
    assert!(read(&made, "report.html").contains("<h2>Leaks</h2>"));
}
