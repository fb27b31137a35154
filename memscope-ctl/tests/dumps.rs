//! Commands on msMemScope's files, which ask no daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, command, ctl, run, unread};
use memscope_proto::v1::CoverageNote;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs the program where no daemon answers.
fn ask(args: &[&str]) -> Answer {
    ctl(Path::new("/nonexistent/s.sock"), args)
}

fn golden(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/dump/tests/golden/");
    format!("{folder}{name}")
}

fn expected(name: &str) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

#[test]
fn leaks_between_marks() {
    let file = golden("offline_leaks_1.csv");
    let question = [
        "check-leaks",
        &file,
        "--mark",
        "memscope golden",
        "--start-index",
        "1",
    ];
    let answer = ask(&question);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let messages = expected("offline_leaks_1.expected.json")["1"]["messages"].clone();
    for line in messages.as_array().unwrap() {
        assert!(
            answer.out.lines().any(|own| own == line),
            "{line}\n{}",
            answer.out
        );
    }
    assert!(answer.out.contains("Device 2 has fewer than 3 data points"));

    let json = ask(&[&question[..], &["--json", "--exit-code"]].concat());
    assert_eq!(json.code, 10);
    let asked = [&question[..], &["--exit-code"]].concat();
    let closed = unread(command(Path::new("/nonexistent/s.sock"), &asked));
    assert_eq!(closed, 10);
    let devices = json.json()["devices"].clone();
    assert_eq!(devices[0]["verdict"], "leaks");
    assert_eq!(devices[0]["leaks"][0]["id"], 63);
    assert_eq!(devices[0]["leaks"][0]["size_bytes"], 33 << 20);
    let few = devices
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["device"] == "2")
        .unwrap();
    assert_eq!(few["verdict"], "too_few_marks");
    assert!(few["leaked_bytes"].is_null());
}

#[test]
fn marks_that_are_not_there() {
    let file = golden("offline_leaks_1.csv");
    let answer = ask(&["check-leaks", &file, "--mark", "step", "--json"]);
    assert_eq!(answer.code, 1);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "no_marks");
    assert_eq!(
        error["message"],
        "no mark is called \"step\"; the marks there are: \"another mark\", \"memscope golden\""
    );
    let answer = ask(&[
        "check-leaks",
        &file,
        "--mark",
        "memscope golden",
        "--start-index",
        "9",
    ]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("--start-index"), "{}", answer.err);
}

#[test]
fn inefficient_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let file = golden("inefficient_1.csv");
    let types = [
        "inefficient",
        &file,
        "--idle-threshold",
        "60",
        "--type",
        "early_allocation",
        "--json",
    ];
    let answer = ask(&types).json();
    let blocks = answer["blocks"].as_array().unwrap();
    let of = &expected("inefficient_1.expected.json")["early_only"]["by_malloc_row_id"];
    assert_eq!(blocks.len(), of.as_object().unwrap().len());
    for block in blocks {
        assert_eq!(block["types"], of[block["id"].to_string()], "{block}");
    }
    for name in ["out.csv", "out.db"] {
        let out = folder.path().join(name);
        let out = out.to_str().unwrap();
        let answer = ask(&[
            "inefficient",
            &file,
            "--min-size",
            "1MiB",
            "--idle-threshold",
            "25",
            "-o",
            out,
        ]);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""));
        assert!(answer.out.contains("early_allocation: ") && answer.out.contains(" left out"));
        // The output may be the input file itself.
        let again = ask(&[
            "inefficient",
            out,
            "--min-size",
            "1MiB",
            "--idle-threshold",
            "25",
            "-o",
            out,
            "--json",
        ]);
        assert_eq!(
            again.json()["blocks"].as_array().unwrap().len(),
            21,
            "{name}"
        );
    }
    let text = fs::read_to_string(folder.path().join("out.csv")).unwrap();
    assert_eq!(text.matches("inefficient_type:").count(), 21);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    // What an earlier run found, and this one does not, is not marked any more.
    let out = folder.path().join("out.csv");
    let out = out.to_str().unwrap();
    let sizes = ["--min-size", "1TiB", "--idle-threshold", "25"];
    let answer = ask(&[&["inefficient", out, "-o", out][..], &sizes].concat());
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let text = fs::read_to_string(out).unwrap();
    assert_eq!(text.matches("inefficient_type:").count(), 0);
}

#[test]
fn a_dump_and_a_recording_are_not_asked_at_once() {
    let file = golden("inefficient_1.csv");
    for words in [
        &["uses", "0x10", "--dump", &file][..],
        &["inefficient", &file],
    ] {
        let answer = ask(&[&["--recording", "run.mscope"][..], words].concat());
        assert_eq!(answer.code, 2, "{words:?}: {}", answer.err);
        assert!(
            answer.err.contains("leave out --recording"),
            "{}",
            answer.err
        );
    }
}

/// Nobody writes into it, and what was read of it would be gone.
#[test]
fn a_pipe_is_not_imported() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let out = folder.path().join("run.mscope");
    let answer = ask(&[
        "import",
        pipe.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    let said = "no regular file but a pipe, socket or device";
    assert!(answer.err.contains(said), "{}", answer.err);
    assert!(!out.exists());
}

#[test]
fn two_dumps_compared() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (golden("inefficient_1.csv"), golden("inefficient_2.csv"));
    let out = folder.path().join("memory_compare.csv");
    let answer = ask(&[
        "compare",
        &one,
        &two,
        "-o",
        out.to_str().unwrap(),
        "--limit",
        "3",
    ]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    assert!(answer.out.contains("in both") && answer.out.contains("smaller differences left out"));
    let text = fs::read_to_string(&out).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(",,,Base,Compare"));
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with("Event,Name,Device Id,Allocated Memory(byte)")
    );
    let json = ask(&["compare", &one, &two, "--json"]).json();
    assert_eq!(json["entries"].as_array().unwrap().len(), lines.count());
    let answer = ask(&["compare", &one, &one]);
    assert!(
        answer.out.contains("No operator or kernel differs"),
        "{}",
        answer.out
    );
    let answer = ask(&["compare", &one, &two, "--level", "kernel"]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("has no kernel launches"),
        "{}",
        answer.err
    );
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cases = [
        (path("empty.csv", ""), "is empty"),
        (
            path("other.csv", "a,b\n1,2\n"),
            "does not begin with the header",
        ),
        (path("text.db", "no database"), "is no SQLite file"),
        (
            folder.path().to_str().unwrap().to_owned(),
            "no regular file but a folder",
        ),
        ("/dev/zero".to_owned(), "no regular file"),
        ("/nonexistent.csv".to_owned(), "cannot be read"),
    ];
    for (file, words) in &cases {
        for command in [
            vec!["check-leaks", file, "--mark", "m"],
            vec!["inefficient", file],
            vec!["compare", file, file],
        ] {
            let answer = ask(&[&command[..], &["--json"]].concat());
            assert_eq!(answer.code, 1, "{command:?}");
            assert!(
                answer.err.contains(words) && answer.err.contains("try: "),
                "{}",
                answer.err
            );
            assert_eq!(answer.json()["error"]["code"], "no_dump");
        }
    }
    // Without accesses nobody can say that no block is inefficient.
    let without = golden("offline_leaks_1.csv");
    let answer = ask(&["inefficient", &without, "--json"]);
    assert_eq!(answer.code, 1, "{}", answer.out);
    assert_eq!(answer.json()["error"]["code"], "no_accesses");
    assert!(
        answer.err.contains("--events alloc,free,access,launch"),
        "{}",
        answer.err
    );
    let good = golden("inefficient_1.csv");
    let answer = ask(&["inefficient", &good, "-o", "/nonexistent/out.csv"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("cannot be written"), "{}", answer.err);
    let answer = ask(&["--recording", "r", "inefficient", &good]);
    assert_eq!(answer.code, 2);
}

/// Makes a script in place of memscoped.
fn executable(folder: &Path, script: &str) -> PathBuf {
    let program = folder.join("memscoped");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Runs the program with a script in place of memscoped.
fn with_memscoped(folder: &Path, script: &str, args: &[&str]) -> Answer {
    let program = executable(folder, script);
    let mut asked = command(Path::new("/nonexistent/s.sock"), args);
    asked.env("MEMSCOPED", program);
    run(asked)
}

#[test]
fn an_import_is_memscopeds_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = golden("inefficient_1.csv");
    let args = ["import", &file, "-o", "run.mscope"];
    let script = r#"test "$1 $3 $4" = "--import --output run.mscope" || exit 9
echo '{"recording":"run.mscope","rows":1200,"rows_left_out":7,"events":300,"processes":2}'"#;
    let answer = with_memscoped(folder.path(), script, &args);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    assert!(
        answer
            .out
            .contains("1,200 rows became 300 events of 2 processes in run.mscope")
    );
    assert!(
        answer.out.contains("7 rows have no event"),
        "{}",
        answer.out
    );
    let json = with_memscoped(folder.path(), script, &[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["rows_left_out"], 7);

    let script = "echo 'memscoped: run.mscope is there already' >&2; exit 1";
    let answer = with_memscoped(folder.path(), script, &args);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("run.mscope is there already"),
        "{}",
        answer.err
    );
    let answer = with_memscoped(folder.path(), "echo nonsense", &args);
    assert_eq!(answer.code, 1);
    let answer = with_memscoped(folder.path(), "kill -9 $$", &args);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("it ended"), "{}", answer.err);
    let answer = with_memscoped(
        folder.path(),
        "",
        &["import", "/nonexistent.csv", "-o", "x"],
    );
    assert!(answer.err.contains("cannot be read"), "{}", answer.err);
}

/// A script in place of memscoped that says that the files are in this folder, and of what they lack.
fn dumped(folder: &str, lost: u64, from: &str, warnings: &str) -> String {
    format!(
        r#"echo '{{"folders":["{folder}"],"rows":1,"events_left_out":0,"lost_records":{lost},"known_from_unix_ns":{from},"warnings":[{warnings}]}}'"#
    )
}

/// The commands that have memscoped write what was recorded as a dump.
const OF_A_RECORDING: [&[&str]; 3] = [
    &["export", "--format", "msmemscope-csv", "-o", "out"],
    &["inefficient", "--pid", "4242"],
    &["uses", "0x1", "--pid", "4242"],
];

#[test]
fn a_dump_is_of_the_end_of_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    for words in OF_A_RECORDING {
        let args = [&["--recording", "r", "--as-of", "1@1"][..], words].concat();
        let answer = with_memscoped(folder.path(), &dumped("/nonexistent", 0, "null", ""), &args);
        assert_eq!(answer.code, 2, "{words:?}: {}{}", answer.out, answer.err);
        assert!(answer.err.contains("leave out --as-of"), "{}", answer.err);
    }
}

#[test]
fn what_was_lost_is_not_exact() {
    let folder = tempfile::tempdir().unwrap();
    let dumps = folder.path().join("dumps");
    // What is exported and refused is removed.
    let put = || {
        fs::create_dir_all(&dumps).unwrap();
        let file = dumps.join("memscope_dump_1.csv");
        fs::copy(golden("inefficient_1.csv"), file).unwrap();
    };
    for (words, (lost, from, warning)) in [
        (0, "null", ""),
        (3, "null", ""),
        (0, "1764753084000000000", ""),
        (0, "null", r#""run is damaged at byte 7""#),
    ]
    .into_iter()
    .flat_map(|lacks| OF_A_RECORDING.map(|words| (words, lacks)))
    {
        put();
        let exact = (lost, from, warning) == (0, "null", "");
        let script = dumped(dumps.to_str().unwrap(), lost, from, warning);
        let args = [&["--recording", "r"][..], words].concat();
        let anyhow = with_memscoped(folder.path(), &script, &args);
        let strict = [&args[..], &["--strict", "--json"]].concat();
        let strict = with_memscoped(folder.path(), &script, &strict);
        if exact {
            assert_eq!(strict.code, anyhow.code, "{words:?}: {}", strict.out);
            continue;
        }
        assert_ne!(anyhow.code, 11, "{words:?}");
        if !warning.is_empty() && anyhow.code == 0 {
            let said = anyhow
                .out
                .contains("missing in this: run is damaged at byte 7");
            assert!(said, "{words:?}: {}", anyhow.out);
        }
        assert_eq!(strict.code, 11, "{words:?}: {}", strict.out);
        assert_eq!(strict.json()["error"]["code"], "not_exact");
        assert_eq!(dumps.exists(), words[0] != "export", "{words:?}");
    }
}

/// The notes of a pickle of memscope's limit a report as they limit any other answer.
#[test]
fn a_report_of_files_can_be_strict() {
    let folder = tempfile::tempdir().unwrap();
    let written = |kind: &str| {
        let file = folder.path().join(format!("{kind}.pickle"));
        fs::write(&file, noted(kind)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (file, out) = (&*written("totals"), folder.path().join("reports"));
    let other = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/snapshots/snapshot-4.pickle"
    );
    for words in [&[file][..], &[other, "--against", file]] {
        let args = [&["report", "-o", out.to_str().unwrap()][..], words].concat();
        let answer = ask(&[&["--strict"][..], &args].concat());
        assert_eq!(answer.code, 11, "{}{}", answer.out, answer.err);
        assert!(
            answer.err.contains("records_lost: 3 records"),
            "{}",
            answer.err
        );
        let left = fs::read_dir(&out).into_iter().flatten().count();
        assert_eq!(left, 0, "nothing is written");
    }
    for kind in ["blocks", "layout", "segments", "history", "stacks"] {
        let file = written(kind);
        let answer = ask(&["--strict", "report", &file, "-o", out.to_str().unwrap()]);
        assert_eq!(answer.code, 11, "{kind}: {}{}", answer.out, answer.err);
    }
    let file = written("driver");
    for file in [other, &file] {
        let exact = ask(&["--strict", "report", file, "-o", out.to_str().unwrap()]);
        assert_eq!(exact.code, 0, "{}", exact.err);
    }
}

/// A snapshot of memscope's with a trace of which older entries are gone: the page says so, and the peak is not exact.
#[test]
fn a_report_says_that_the_trace_is_not_whole() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str| [&[0x8c, name.len() as u8], name.as_bytes()].concat();
    let dropped = [&b"}"[..], &key("trace_dropped"), b"K\x05s"].concat();
    let segments = [&key("segments")[..], b"]", &key("memscope")].concat();
    let file = folder.path().join("rank0.pickle");
    fs::write(
        &file,
        [&b"\x80\x04}("[..], &segments, &dropped, b"u."].concat(),
    )
    .unwrap();
    let (file, out) = (file.to_str().unwrap(), folder.path().join("reports"));
    let args = ["report", file, "-o", out.to_str().unwrap()];
    let strict = ask(&[&["--strict"][..], &args].concat());
    assert_eq!(strict.code, 11, "{}{}", strict.out, strict.err);
    let answer = ask(&args);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let page = fs::read_to_string(out.join("latest/report.html")).unwrap();
    assert!(page.contains("5 older entries of the trace"), "{page}");
    assert!(!page.contains("Nothing is known that limits them"));
}

/// Stacks are a reason only where they are shown.
#[test]
fn a_difference_of_files_can_be_strict() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rank0.pickle");
    fs::write(&file, noted("stacks")).unwrap();
    let args = [
        "--strict",
        "diff",
        file.to_str().unwrap(),
        file.to_str().unwrap(),
    ];
    for (more, code) in [(&[][..], 0), (&["--by", "stack"], 11), (&["--json"], 11)] {
        let answer = ask(&[&args[..], more].concat());
        assert_eq!(answer.code, code, "{more:?}: {}{}", answer.out, answer.err);
    }
}

/// A pickle of memscope's of which a note limits this kind of numbers.
fn noted(kind: &str) -> Vec<u8> {
    common::noted(&[CoverageNote {
        code: "records_lost".to_owned(),
        text: "3 records".to_owned(),
        affects: vec![kind.to_owned()],
        ..CoverageNote::default()
    }])
}

/// Whoever asks for a wrong address needs no other way to attach.
#[test]
fn an_address_of_no_block() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--recording", "r", "--json", "uses", "0x1", "--pid", "4242"];
    let script = dumped("/nonexistent", 0, "null", "");
    let answer = with_memscoped(folder.path(), &script, &args);
    assert_eq!(answer.code, 1);
    assert_eq!(answer.json()["error"]["code"], "no_block");
    let hint = answer.json()["error"]["hint"].to_string();
    assert!(
        hint.contains("data_ptr") && !hint.contains("detach"),
        "{hint}"
    );
}

/// A long dump is read in a thread of its own, so that a signal ends the program meanwhile, and the private folder goes.
#[test]
fn a_signal_ends_the_reading_of_a_dump() {
    let header = fs::read_to_string(golden("inefficient_1.csv")).unwrap();
    let header = header.lines().next().unwrap();
    let row = "1,MALLOC,HAL,N/A,1764753084425691000,7,7,0,0x1000,\"{size:512}\",,";
    let script = format!(
        r#"for word; do test "$last" = --output && out=$word; last=$word; done
{{ echo '{header}'; yes '{row}' | head -n 1500000; }} > "$out/memscope_dump_1.csv"
echo '{{"folders":["'"$out"'"],"rows":1,"events_left_out":0,"lost_records":0,"known_from_unix_ns":null}}'"#
    );
    for words in [&["inefficient"][..], &["uses", "0x1"]] {
        for signal in ["-INT", "-TERM"] {
            let folder = tempfile::tempdir().unwrap();
            let room = folder.path().join("room");
            fs::create_dir(&room).unwrap();
            let program = executable(folder.path(), &script);
            let args = [&["--recording", "r"][..], words, &["--pid", "4242"]].concat();
            let mut asked = command(Path::new("/nonexistent/s.sock"), &args);
            asked.env("MEMSCOPED", program).env("TMPDIR", &room);
            let mut child = asked
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let open = format!("/proc/{}/fd", child.id());
            while !reads_a_dump(Path::new(&open)) {
                assert!(child.try_wait().unwrap().is_none(), "it has ended");
                std::thread::yield_now();
            }
            let pid = child.id().to_string();
            let kill = Command::new("kill").args([signal, &pid]).status();
            assert!(kill.unwrap().success());
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                said, "",
                "it has read all rows, and looked at what they say"
            );
            assert_eq!(fs::read_dir(&room).unwrap().count(), 0);
        }
    }
}

/// Whether one of these open files is a dump.
fn reads_a_dump(open: &Path) -> bool {
    let each = fs::read_dir(open).into_iter().flatten().flatten();
    each.filter_map(|one| fs::read_link(one.path()).ok())
        .any(|file| file.ends_with("memscope_dump_1.csv"))
}
