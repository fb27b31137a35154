//! Steps of real PyTorch programs that know nothing of memscope, against their own count; marks; findings; and that a recording
//! answers as the daemon did.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Asking, Daemon, LONG, Library, Program, Torch, Value, library, number, scratch, sim, until,
    workload_line,
};

fn start(kind: &str) -> Torch {
    let marks = library("marks.c", "libms_tools_ext.so", Library::None, &[]);
    let mut command = sim().python("loops.py");
    command.arg(kind).env("MARKS", marks);
    Torch::from_command(command)
}

/// Source and count of steps, while the program rests.
fn steps(daemon: &Daemon, torch: &Torch) -> (String, Option<u64>, Value) {
    let answer = daemon.json(&["steps", "--pid", &torch.pid_text(), "--last", "0"]);
    let summary = &answer["summary"];
    (
        summary["source"].as_str().unwrap_or_default().to_owned(),
        summary["count"].as_u64(),
        answer.clone(),
    )
}

/// Attached after some iterations and followed for others: steps are those of the loop since then.
fn is_counted(kind: &str, source: &str) {
    is_counted_with("python", kind, source);
}

/// The same with these stacks.
fn is_counted_with(stacks: &str, kind: &str, source: &str) {
    let daemon = Daemon::start();
    let mut torch = start(kind);
    let before = number(&torch.ask("8")["count"]);
    daemon.json(&["attach", "--pid", &torch.pid_text(), "--stacks", stacks]);
    for portion in ["20", "1", "40", "7"] {
        let own = number(&torch.ask(portion)["count"]) - before;
        let (told, count, answer) = steps(&daemon, &torch);
        if own < 40 && told != source {
            // A pattern takes its time.
            continue;
        }
        assert_eq!(
            (told.as_str(), count),
            (source, Some(own)),
            "{kind}: {answer}"
        );
    }
    let (_, _, answer) = steps(&daemon, &torch);
    let rows = answer["rows"].as_array().unwrap();
    let numbers: Vec<u64> = rows.iter().map(|row| number(&row["step"])).collect();
    assert!(numbers.len() >= 7, "{kind}: {answer}");
    assert!(
        numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{kind}: {numbers:?}"
    );
    for row in rows {
        let level = |name: &str| number(&row[name]);
        assert!(
            level("min_allocated_bytes") <= level("end_allocated_bytes"),
            "{row}"
        );
        assert!(
            level("end_allocated_bytes") <= level("max_allocated_bytes"),
            "{row}"
        );
    }
    torch.finish();
}

#[test]
fn of_an_optimizer() {
    is_counted("optimizer", "optimizer");
}

#[test]
fn of_an_optimizer_by_hand() {
    is_counted("by_hand", "backward");
}

#[test]
fn of_accumulated_gradients() {
    is_counted("accumulation", "optimizer");
}

#[test]
fn of_two_optimizers() {
    is_counted("two_optimizers", "optimizer");
}

/// Compiled frames have no lines here, and those of one call differ from time to time.
#[test]
fn of_optimizers_whose_stacks_have_compiled_frames() {
    is_counted_with("all", "two_optimizers", "optimizer");
    // Without Python's frames nothing tells apart two optimizers of one name.
    is_counted_with("native", "optimizer", "optimizer");
}

#[test]
fn of_two_loops() {
    is_counted("two_loops", "optimizer");
}

/// Steps are the program's, whichever line makes them, and so is what is leaked in each.
#[test]
fn rates_of_two_loops() {
    let daemon = Daemon::start();
    let mut torch = start("two_loops");
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    torch.ask("40");
    for so_far in [60, 100, 150, 300] {
        let (_, count, answer) = steps(&daemon, &torch);
        let more = so_far - count.unwrap();
        torch.ask(&more.to_string());
        let (_, count, _) = steps(&daemon, &torch);
        assert_eq!(count, Some(so_far), "{answer}");
    }
    let answer = daemon.json(&["leaks", "--pid", &pid]);
    let group = &answer["groups"][0];
    assert_eq!(group["verdict"], "growing", "{answer}");
    assert_eq!(group["line"]["line"], workload_line("loops.py", "# MAIN"));
    // 12,000 bytes take 12,288 of the pool.
    assert_eq!(group["growth_bytes_per_step"], 12288.0, "{group}");
    let end = |name: &str| group[format!("growth_bytes_per_step_{name}")].as_f64();
    assert!(
        end("low") < Some(12288.0) && end("high") > Some(12288.0),
        "{group}"
    );
    torch.finish();
}

#[test]
fn of_inference() {
    is_counted("inference", "pattern");
}

#[test]
fn of_msmemscopes_ranges() {
    is_counted("mstx", "mark");
}

#[test]
fn of_memscopes_own_library() {
    is_counted("library", "mark");
}

#[test]
fn of_accumulated_gradients_by_hand() {
    // The phase of the four passes is only known from the start.
    let daemon = Daemon::start();
    let mut torch = start("accumulation_by_hand");
    daemon.attach(torch.pid(), "trace");
    for portion in ["40", "1", "25"] {
        let own = number(&torch.ask(portion)["count"]);
        let (source, count, answer) = steps(&daemon, &torch);
        assert_eq!(
            (source.as_str(), count),
            ("backward", Some(own)),
            "{answer}"
        );
    }
    torch.finish();
}

#[test]
fn generation_of_varying_length_has_none() {
    let daemon = Daemon::start();
    let mut torch = start("generation");
    daemon.attach(torch.pid(), "trace");
    for _ in 0..6 {
        torch.ask("150");
        let (source, count, answer) = steps(&daemon, &torch);
        assert_eq!((source.as_str(), count), ("unknown", None), "{answer}");
    }
    let said = daemon.ctl(&["steps", "--pid", &torch.pid_text()]);
    assert!(said.text().contains("Steps are not known"), "{said:?}");
    torch.finish();
}

#[test]
fn marks_of_the_program_and_of_others() {
    let daemon = Daemon::start();
    let mut torch = start("marked");
    let pid = torch.pid_text();
    daemon
        .ctl(&[
            "attach",
            "--pid",
            &pid,
            "--steps",
            "iteration *",
            "--launches",
        ])
        .text();
    let mut events = daemon.ask(&[
        "events",
        "--pid",
        &pid,
        "--kind",
        "mark,framework_mark",
        "--count",
        "100",
    ]);
    events = events.with("RUST_BACKTRACE", "0");
    let listening = std::thread::spawn(move || events.ask());
    let own = number(&torch.ask("30")["count"]);
    let (source, count, answer) = steps(&daemon, &torch);
    assert_eq!((source.as_str(), count), ("named", Some(own)), "{answer}");
    assert!(number(&answer["launches"]) > own * 20, "{answer}");
    let mut own = number(&torch.ask("10")["count"]);
    while !listening.is_finished() {
        own = number(&torch.ask("10")["count"]);
    }
    let heard = listening.join().unwrap();
    let marks: Vec<Value> = heard
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .inspect(|event| assert_eq!(event["kind"], "mark", "{event}"))
        .collect();
    let has = |source: &str, kind: &str, name: &str| {
        marks.iter().any(|event| {
            let body = &event["body"];
            body["source"] == source
                && body["kind"] == kind
                && body["name"].as_str().unwrap().starts_with(name)
        })
    };
    assert!(
        has("nvtx", "begin", "part") && has("nvtx", "end", ""),
        "{marks:?}"
    );
    assert!(has("record_function", "begin", "iteration "), "{marks:?}");
    assert!(
        has("record_function", "begin", "Optimizer.step#SGD.step"),
        "{marks:?}"
    );
    assert!(has("backward", "instant", ""), "{marks:?}");
    // From outside: it tells of steps, but what was picked is better.
    let told = daemon.json(&["mark", "--pid", &pid, "--step"]);
    assert!(number(&told["event"]["sequence"]) > 0, "{told}");
    let (_, count, _) = steps(&daemon, &torch);
    assert_eq!(count, Some(own));
    daemon
        .ctl(&["mark", "--pid", &pid, &"x".repeat(129)])
        .refused(2, &["129 bytes is too long", "at most 128"]);
    daemon.ctl(&["mark", "--pid", "1", "here"]).refused(4, &[]);
    torch.finish();
}

#[test]
fn a_finding_is_said_once_and_withdrawn() {
    let mut daemon = Daemon::start();
    let mut torch = start("leak");
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    let events = daemon.ask(&["events", "--pid", &pid, "--kind", "finding,exited"]);
    let heard = std::thread::spawn(move || events.ask());
    torch.ask("300");
    let leak = workload_line("loops.py", "# LEAK");
    let answer = daemon.json(&["leaks", "--pid", &pid]);
    let group = &answer["groups"][0];
    assert_eq!(group["verdict"], "growing", "{answer}");
    assert_eq!(group["line"]["line"], leak, "{group}");
    assert_eq!(group["growth_bytes_per_step"], 12288.0, "{group}");
    // Its first blocks came by another stack: the interpreter specialises a loop after some passes.
    assert!(number(&group["first_step"]) <= 20, "{group}");
    assert!(group["confidence"].as_f64().unwrap() > 0.8, "{group}");
    until(LONG, "the finding is in the log", || {
        let log = daemon.log();
        (log.matches("memory keeps growing").count() == 1).then_some(())
    });
    // It gives them back, and does not grow for as long as it has grown.
    torch.ask("110");
    until(LONG, "the finding is withdrawn", || {
        torch.ask("401");
        daemon.log().contains("no longer grows").then_some(())
    });
    torch.finish();
    daemon.stop();
    let heard = heard.join().unwrap();
    let findings: Vec<Value> = heard
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .inspect(|event| assert_eq!(event["missed"], 0, "{event}"))
        .filter(|event| event["kind"] == "finding" && event["body"]["line"] == leak)
        .collect();
    let first = &findings[0]["body"];
    assert_eq!(
        (&first["number"], &first["withdrawn"]),
        (&1.into(), &false.into())
    );
    assert!(first["file"].as_str().unwrap().ends_with("loops.py"));
    // The log says the same, once.
    let log = daemon.log();
    let said = |words: &str| {
        let line = format!("line={leak}");
        let lines = log
            .lines()
            .filter(|l| l.contains(words) && l.contains("number=1 ") && l.contains(&line));
        lines.count()
    };
    assert_eq!(said("memory keeps growing"), 1, "{log}");
    assert_eq!(said("no longer grows"), 1, "{log}");
}

/// Where no step comes any more, what is given back is known all the same, and said.
#[test]
fn a_leak_that_was_given_back_is_none() {
    let daemon = Daemon::start();
    let mut torch = start("given_back");
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    let leaks = |code: i32| {
        let said = daemon.ctl(&["--json", "leaks", "--pid", &pid, "--exit-code"]);
        assert_eq!(said.code, code, "{said}");
        said.document()
    };
    torch.ask("60");
    let young = leaks(11);
    assert_eq!(number(&young["young"]["needed_steps"]), 100, "{young}");
    torch.ask("90");
    let grown = leaks(10);
    assert!(
        grown["given_back"].as_array().unwrap().is_empty(),
        "{grown}"
    );
    until(LONG, "the finding is in the log", || {
        daemon.log().contains("memory keeps growing").then_some(())
    });
    torch.ask("1");
    let answer = leaks(0);
    for group in answer["groups"].as_array().unwrap() {
        assert!(
            number(&group["growth_bytes"]) <= number(&group["live_bytes"]),
            "{group}"
        );
    }
    let back = &answer["given_back"][0];
    assert_eq!(
        back["line"]["line"],
        workload_line("loops.py", "# KEPT"),
        "{answer}"
    );
    assert!(number(&back["bytes"]) >= 140 * 120_000, "{answer}");
    assert!(
        number(&back["reserved_unused_bytes"]) >= 140 * 120_000,
        "{answer}"
    );
    until(LONG, "the finding is withdrawn", || {
        let log = daemon.log();
        let mut lines = log.lines().filter(|line| line.contains("no longer grows"));
        lines
            .any(|line| line.contains("were given back"))
            .then_some(())
    });
    torch.finish();
}

const QUESTIONS: [&[&str]; 10] = [
    &["stats"],
    // What holds the blocks is read from the process, and is in no recording.
    &["leaks", "--all-groups", "--limit", "0", "--no-holders"],
    &["steps", "--last", "0", "--survivors", "100"],
    &["fluctuation", "--window", "0s"],
    &["pool", "--at", "step:200"],
    &["stacks", "--limit", "50"],
    &["snapshot", "--format", "json"],
    &["diff", "--from", "step:100", "--to", "step:250"],
    &["snapshot", "--format", "json", "--at", "step:120"],
    &["leaks", "--sure-after", "10", "--no-holders"],
];

/// Answers are the same, byte for byte, from a recording in another place, when daemon and program are gone.
#[test]
fn a_recording_answers_as_the_daemon_did() {
    let mut daemon = Daemon::start();
    let mut torch = start("leak");
    torch.ask("5");
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    torch.ask("300");
    daemon
        .ctl(&["mark", "--pid", &pid, "before the questions"])
        .text();
    let mut answers = Vec::new();
    for question in QUESTIONS {
        let mut words = vec!["--json"];
        words.extend(question);
        words.extend(["--pid", &pid]);
        let said = daemon.ctl(&words);
        let text = said.text().to_owned();
        let document: Value = serde_json::from_str(&text).unwrap();
        answers.push((words.join(" "), text, document));
    }
    let folder = scratch();
    let file = folder.path().join("run.mscope");
    let path = file.to_str().unwrap().to_owned();
    daemon.ctl(&["record", "-o", &path]).text();
    torch.finish();
    daemon.stop();
    for (words, text, document) in &answers {
        if words.contains("--at") || words.contains("--to") {
            let mut asked = vec!["--recording", &path];
            asked.extend(words.split(' '));
            assert_eq!(Asking::new(&asked).ask().text(), text, "{words}");
            continue;
        }
        let header = match document.get("header") {
            Some(header) => header,
            None => document,
        };
        let part = |value: &Value| number(value).to_string();
        let (event, boot) = match header.get("as_of_event") {
            Some(event) if event.is_object() => {
                (part(&event["sequence"]), part(&header["as_of_boot_ns"]))
            }
            _ => panic!("no moment in the answer to {words}: {header}"),
        };
        let as_of = format!("{event}@{boot}");
        let mut asked = vec!["--recording", &path, "--as-of", &as_of];
        asked.extend(words.split(' '));
        let again = Asking::new(&asked).ask();
        assert_eq!(again.text(), text, "{words}");
    }
    // A recording that is cut off anywhere still opens, up to its last whole batch.
    let whole = std::fs::read(&file).unwrap();
    let batches = batches(&whole);
    for share in [97, 60, 31, 9] {
        let length = whole.len() * share / 100;
        let cut = folder.path().join(format!("cut-{share}.mscope"));
        std::fs::write(&cut, &whole[..length]).unwrap();
        let said = Asking::new(["--recording", cut.to_str().unwrap(), "--json", "stats"]).ask();
        let stats: Value = serde_json::from_str(said.text()).unwrap();
        let mut left = batches.iter().filter(|(end, _)| *end <= length);
        let (_, last) = left.next_back().expect("a batch in what is left");
        assert_eq!(
            number(&stats["as_of_event"]["sequence"]),
            *last,
            "{share} %: {stats}"
        );
    }
}

/// Of each batch of a recording where it ends and the number of its last record: a segment has 128 bytes of header, with the length
/// of its checkpoint at 112; a batch has 40, with the length of what is stored at 4, its records' count at 12 and the
/// first one's number at 16.
fn batches(file: &[u8]) -> Vec<(usize, u64)> {
    let mut found: Vec<(usize, u64)> = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let field = |from: usize, to: usize| {
            let mut bytes = [0; 8];
            bytes[..to - from].copy_from_slice(&file[at + from..at + to]);
            u64::from_le_bytes(bytes)
        };
        if &file[at..at + 8] == b"memscope" {
            at += 128 + field(112, 120) as usize;
            continue;
        }
        assert_eq!(&file[at..at + 4], b"MSJ2", "at {at}");
        let first = field(16, 24);
        let count = field(12, 16);
        at += 40 + field(4, 8) as usize;
        found.push((at, first + count - 1));
    }
    found
}

/// Rows of an exported dump: event type and the rest of the line.
fn rows<'a>(text: &'a str, event: &str, kind: &str) -> Vec<&'a str> {
    let words = format!(",{event},{kind},");
    text.lines().filter(|line| line.contains(&words)).collect()
}

#[test]
fn exported_as_msmemscopes_files_and_imported_again() {
    let daemon = Daemon::start();
    let mut torch = start("leak");
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    for _ in 0..3 {
        daemon
            .ctl(&["mark", "--pid", &pid, "three of these"])
            .text();
        daemon.ctl(&["mark", "--pid", &pid, "--step"]).text();
        torch.ask("40");
    }
    let stats = daemon.stats(torch.pid());
    let device = memscope_tests::device(&stats, 0);
    let folder = scratch();
    let out = folder.path().join("dumps");
    let out = out.to_str().unwrap();
    for format in ["csv", "db"] {
        let format = format!("msmemscope-{format}");
        let made = daemon.json(&[
            "export",
            "--format",
            &format,
            "--pid",
            &pid,
            "-o",
            &format!("{out}-{format}"),
        ]);
        assert!(number(&made["rows"]) > 2000, "{made}");
    }
    daemon
        .ctl(&[
            "export",
            "--format",
            "msmemscope-csv",
            "--pid",
            "1",
            "-o",
            out,
        ])
        .refused(1, &["no event of process 1"]);
    let find = |format: &str, ending: &str| {
        let root = std::path::PathBuf::from(format!("{out}-msmemscope-{format}"));
        let tree = std::fs::read_dir(root)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        assert!(tree.join("config.json").is_file());
        let dumps = std::fs::read_dir(tree.join("device_0/dump")).unwrap();
        let mut files = dumps.flatten().map(|entry| entry.path());
        files
            .find(|path| path.to_str().unwrap().ends_with(ending))
            .unwrap()
    };
    let csv = find("csv", ".csv");
    find("db", ".db");
    let text = std::fs::read_to_string(&csv).unwrap();
    // Those of before the attach are told as blocks of a shadow.
    let shadows = text.matches("shadow:true").count() as u64;
    let came = rows(&text, "MALLOC", "PTA").len() as u64;
    assert_eq!(
        came - shadows,
        number(&device["alloc_count"]),
        "MALLOC rows"
    );
    assert!(rows(&text, "FREE", "PTA").len() as u64 >= number(&device["free_count"]));
    assert_eq!(text.matches("\"three of these\"").count(), 3);
    let leak = workload_line("loops.py", "# LEAK");
    assert!(text.contains(&format!("loops.py({leak}): leak")));
    let csv = csv.to_str().unwrap();
    let report = Asking::new(["--json", "check-leaks", csv, "--mark", "three of these"]).ask();
    let between_marks = report.json();
    // Steps are rows of another kind; the marks stand right before them here.
    let between_steps = Asking::new(["--json", "check-leaks", csv, "--mark", "step"]).ask();
    let between_steps = between_steps.json();
    assert_eq!(between_steps["devices"], between_marks["devices"]);
    assert_eq!(between_steps["devices"][0]["marks"], 3, "{between_steps:#}");
    Asking::new(["check-leaks", csv, "--mark", "none of these"])
        .ask()
        .refused(1, &["three of these"]);
    // And back: what lives is what lived.
    let recording = folder.path().join("imported");
    let recording = recording.to_str().unwrap();
    Asking::new(["import", csv, "-o", recording]).ask().text();
    let again = Asking::new(["--recording", recording, "--json", "stats"])
        .ask()
        .document();
    let again = memscope_tests::device(&again, 0);
    for figure in ["allocated_bytes", "live_blocks"] {
        assert_eq!(again[figure], device[figure], "{figure}");
    }
    torch.finish();
}

/// The lines of a monitor that is a part of the program, and those that memscope writes of the same steps.
fn lines_of_the_monitor(every: &str) {
    let daemon = Daemon::start();
    let command = sim().python_with_package("kempner.py");
    let mut program = Program::start("kempner.py", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid]);
    let told = program.ask(every);
    let own: Vec<&str> = told["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    assert!(own.len() >= 6, "{own:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshots");
    let path = path.to_str().unwrap();
    let kempner = ["steps", "--pid", &pid, "--format", "kempner", "--last", "0"];
    let more = [
        "--every",
        every,
        "--snapshot-step",
        "20",
        "--snapshot-dir",
        path,
    ];
    let said = daemon.ctl(&[&kempner[..], &more].concat());
    let text = said.text();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("[step "))
        .collect();
    assert_eq!(lines, own);
    let snapshot = format!("{path}/snapshot_step_20_device_0.pickle");
    assert!(std::fs::metadata(&snapshot).unwrap().len() > 1000);
    let last = daemon.ctl(&[&kempner[..5], &["--every", every, "--last", "3"]].concat());
    assert!(last.text().contains(own[own.len() - 1]));
    let count = last
        .text()
        .lines()
        .filter(|line| line.starts_with("[step "))
        .count();
    assert_eq!(count, 3);
}

#[test]
fn steps_are_told_as_a_monitor_in_the_program_tells_them() {
    lines_of_the_monitor("1");
    lines_of_the_monitor("5");
}

/// What PyTorch says at the end of each step: held bytes, the peak since the step before, and reserved bytes.
fn levels_are_pytorchs(kind: &str, how: &[&str]) {
    let daemon = Daemon::start();
    let mut command = sim().python("updates.py");
    command.arg(kind);
    let mut program = Program::start("updates.py", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&[&["attach", "--pid", &pid], how].concat());
    let told = program.ask("12");
    let own: Vec<Vec<u64>> = serde_json::from_value(told["steps"].clone()).unwrap();
    assert!(own.len() >= 9, "{own:?}");
    let answer = daemon.json(&["steps", "--pid", &pid, "--last", "0", "--survivors", "1000"]);
    assert_eq!(answer["summary"]["count"], own.len(), "{kind}: {answer:#}");
    assert_eq!(answer["summary"]["source"], "optimizer");
    let has_blocks = !how.contains(&"segments");
    let figures = [
        "end_allocated_bytes",
        "max_allocated_bytes",
        "end_reserved_bytes",
    ];
    let rows = answer["rows"].as_array().unwrap();
    let shown = rows.iter().map(|row| {
        let figure = |name: &&str| number(&row[*name]);
        (number(&row["step"]), figures.iter().map(figure).collect())
    });
    let shown: Vec<(u64, Vec<u64>)> = shown.collect();
    let own = (1..).zip(own);
    if has_blocks {
        let own: Vec<(u64, Vec<u64>)> = own.collect();
        assert_eq!(shown, own, "{kind} {how:?}: {answer:#}");
        let at = [
            "snapshot",
            "--pid",
            &pid,
            "--at",
            "step:1",
            "--format",
            "memory-viz-json",
        ];
        let held = daemon.ctl(&at).document();
        let segments = held["segments"].as_array().unwrap().iter();
        let held: u64 = segments.map(|one| number(&one["allocated_size"])).sum();
        assert_eq!(held, own[0].1[0], "{kind} {how:?}");
    } else {
        // In a step in which the driver gave nothing there is no row, and the segment from before the attach is not known.
        let own: std::collections::BTreeMap<u64, Vec<u64>> = own.collect();
        for (step, figures) in shown {
            assert_eq!(figures[2] + (2 << 20), own[&step][2], "{kind}: {answer:#}");
        }
    }
    program.finish();
}

#[test]
fn what_an_optimizer_allocates_is_of_the_step_that_it_ends() {
    for level in ["trace", "blocks", "segments"] {
        levels_are_pytorchs("plain", &["--level", level]);
    }
    for stacks in ["none", "all"] {
        levels_are_pytorchs("plain", &["--stacks", stacks]);
    }
}

#[test]
fn a_step_of_several_passes_or_optimizers_ends_with_the_last() {
    let kinds = [
        "accumulated",
        "gan",
        "one_line",
        "hooked",
        "nested",
        "raising",
    ];
    for kind in kinds {
        levels_are_pytorchs(kind, &[]);
    }
}
