//! What cannot be done is refused with a word, a way out and an exit code; nothing panics or hangs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::limits::Met;
use memscope_tests::{
    Asking, Calls, Daemon, LONG, Library, NOBODY, Program, Torch, Value, coverage, eventually,
    executable, find, json, library, number, public, scratch, sim, tool, until,
};

/// There every probe would be in place, and see nothing.
#[test]
fn in_a_pid_namespace_of_its_own_it_does_not_start() {
    let prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut daemon = Daemon::launch(&prefix, &[]);
    let status = daemon.wait();
    assert!(!status.success(), "{status}");
    let log = daemon.log();
    assert!(log.contains("--pid=host"), "{log}");
}

#[test]
fn processes_that_cannot_be_attached() {
    let daemon = Daemon::start();
    // One that touches no device.
    let mut idle = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = idle.id().to_string();
    daemon
        .ctl(&["attach", "--pid", &pid])
        .refused(1, &["no GPU or NPU", "doctor", "--children"]);
    let said = daemon.ctl(&["--json", "attach", "--pid", &pid]);
    assert_eq!(
        (said.code, &said.document()["error"]["code"]),
        (1, &json!("no_device_libraries"))
    );
    daemon
        .ctl(&["stats", "--pid", &pid])
        .refused(4, &["not traced", "attach"]);
    daemon
        .ctl(&["detach", "--pid", &pid])
        .refused(4, &["not traced"]);
    // One that has ended and is not waited for; then one that does not exist.
    idle.kill().unwrap();
    eventually("it is a zombie", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| text.contains(") Z "))
    });
    let said = daemon.ctl(&["attach", "--pid", &pid]);
    assert!(said.code == 1 || said.code == 4, "{said}");
    said.refused(said.code, &[&pid]);
    idle.wait().unwrap();
    daemon
        .ctl(&["attach", "--pid", &pid])
        .refused(4, &["no process"]);
    daemon
        .ctl(&["attach", "--pid", "4194304"])
        .refused(4, &["no process"]);
    // A kernel thread, a thread, the daemon itself.
    daemon
        .ctl(&["attach", "--pid", "2"])
        .refused(1, &["nothing to probe"]);
    let own = daemon.pid().to_string();
    daemon.ctl(&["attach", "--pid", &own]).refused(1, &[]);
    let thread = std::fs::read_dir(format!("/proc/{own}/task")).unwrap();
    let thread = thread
        .map(|t| t.unwrap().file_name().into_string().unwrap())
        .find(|t| *t != own)
        .unwrap();
    daemon
        .ctl(&["attach", "--pid", &thread])
        .refused(2, &["thread"]);
    // Twice.
    let mut calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    daemon
        .ctl(&["attach", "--pid", &calls.pid_text()])
        .refused(1, &["already", "detach"]);
    // A library with a device's name and nothing in it.
    let empty = library(
        "nothing.c",
        "libcudart.so.13",
        Library::None,
        &["-Wl,-soname,libcudart.so.13"],
    );
    let mut late = Program::start(
        "the late process",
        sim().native(executable("late.c", Library::None)),
    );
    late.hear();
    late.ask(&format!("load {}", empty.display()));
    let said = daemon.ctl(&["attach", "--pid", &late.pid_text()]);
    said.refused(1, &[empty.file_name().unwrap().to_str().unwrap()]);
    // None of it did any harm.
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc a 1000");
    assert_eq!(
        daemon.stats(calls.pid())["devices"][0]["driver"]["bytes"],
        1000
    );
    calls.finish();
    late.finish();
}

#[test]
fn it_dies_during_the_attach() {
    let daemon = Daemon::start();
    let mut codes = std::collections::BTreeSet::new();
    for round in 0..24u64 {
        let mut calls = Calls::start(&[]);
        let pid = calls.pid();
        let ask = daemon.ask(&["attach", "--pid", &pid.to_string(), "--level", "segments"]);
        let asking = std::thread::spawn(move || ask.ask());
        // No condition to wait for: the moment itself is what is tried.
        std::thread::sleep(std::time::Duration::from_millis(2 * round));
        calls.kill();
        let said = asking.join().expect("no panic");
        assert!([0, 1, 4].contains(&said.code), "{said}");
        if said.code != 0 {
            said.refused(said.code, &[&pid.to_string()]);
        }
        codes.insert(said.code);
        eventually("nothing of it is traced", || {
            daemon.json(&["status"])["traced_processes"] == 0
        });
    }
    assert!(codes.contains(&0) || codes.contains(&4), "{codes:?}");
    assert_eq!(daemon.json(&["status"])["sites"], 0);
}

#[test]
fn command_lines_that_make_no_sense() {
    for arguments in [
        &["attach"][..],
        &["attach", "--pid", "0"],
        &["attach", "--pid", "-1"],
        &["attach", "--pid", "x"],
        &["attach", "--pid", "1", "--all"],
        &["attach", "--all", "--children"],
        &["attach", "--pid", "1", "--level", "deepest"],
        &["detach"],
        &["stats", "--pid", "99999999999"],
        &["leaks", "--min-age", "soon"],
        &["snapshot", "--format", "xml"],
        &["watch", "--count", "0"],
        &["--timeout", "never", "status"],
        &["no-such-command"],
        &[],
    ] {
        let said = Asking::new(arguments).ask();
        assert_eq!(said.code, 2, "{said}");
        assert!(!said.errors.is_empty(), "{said}");
    }
    for arguments in [
        &["--ring-mib", "3"][..],
        &["--ring-mib", "0"],
        &["--links", "rope"],
        &["--no-such-flag"],
    ] {
        let mut daemon = Daemon::launch(&[], arguments);
        assert_eq!(daemon.wait().code(), Some(2), "{}", daemon.log());
        assert!(daemon.log().contains("--help"), "{}", daemon.log());
    }
    // Names that are too long, or lead out of the tree.
    let daemon = Daemon::start();
    daemon
        .ctl(&["attach", "--comm", "a-name-of-more-than-fifteen-bytes"])
        .refused(2, &["15"]);
    daemon.ctl(&["attach", "--comm", ""]).refused(2, &[]);
    daemon
        .ctl(&["stats"])
        .refused(4, &["no process is traced", "attach"]);
}

#[test]
fn no_daemon() {
    let folder = scratch();
    let socket = folder.path().join("sock");
    let ask = |arguments: &[&str]| {
        Asking::new(
            ["--socket", socket.to_str().unwrap()]
                .iter()
                .chain(arguments),
        )
        .ask()
    };
    ask(&["status"]).refused(3, &["no daemon", "memscoped"]);
    assert_eq!(
        ask(&["--json", "ps"]).document()["error"]["code"],
        "no_daemon"
    );

    // One that was killed leaves its socket; the next one takes it.
    let mut daemon = Daemon::start();
    daemon.kill();
    daemon.ctl(&["status"]).refused(3, &["no daemon"]);
    let mut second = Command::new(tool("memscoped"));
    second
        .arg("--socket")
        .arg(daemon.socket())
        .arg("--state-dir")
        .arg(daemon.state());
    let mut second = Program::start("the second daemon", second);
    eventually("the second daemon answers", || {
        daemon.ctl(&["status"]).code == 0
    });
    // A third does not.
    let mut third = Command::new(tool("memscoped"));
    third
        .arg("--socket")
        .arg(daemon.socket())
        .arg("--state-dir")
        .arg(folder.path());
    let mut third = Program::start("the third daemon", third);
    assert_eq!(third.wait().code(), Some(1));
    assert!(
        third.errors().contains("another daemon"),
        "{}",
        third.errors()
    );
    assert_eq!(daemon.ctl(&["status"]).code, 0);
    second.signal(libc::SIGTERM);
    assert!(second.wait().success());

    // One that hangs.
    let daemon = Daemon::start();
    daemon.signal(libc::SIGSTOP);
    let said = daemon.ctl(&["--timeout", "1", "status"]);
    daemon.signal(libc::SIGCONT);
    said.refused(6, &["--timeout"]);
    assert_eq!(daemon.ctl(&["status"]).code, 0);
}

#[test]
fn processes_of_others() {
    let daemon = Daemon::start();
    let folder = scratch();
    let ctl = public(folder.path(), &tool("memscope-ctl"));
    let socket = daemon.socket();
    let nobody = |arguments: &[&str]| {
        let prefix = [
            &NOBODY[..],
            &[ctl.to_str().unwrap(), "--socket", socket.to_str().unwrap()],
        ]
        .concat();
        Asking::raw(&prefix, arguments).ask()
    };
    let mut roots = Calls::start(&[]);
    daemon.attach(roots.pid(), "segments");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert!(mode == 0o600 || mode == 0o660, "mode {mode:o}");
    nobody(&["status"]).refused(5, &["may not connect", "sudo"]);

    daemon.open_to_all();
    let root_pid = roots.pid_text();
    nobody(&["attach", "--pid", &root_pid]).refused(4, &["no process", "you may see"]);
    nobody(&["stats", "--pid", &root_pid]).refused(4, &["not traced"]);
    nobody(&["leaks", "--pid", &root_pid]).refused(4, &["not traced"]);
    nobody(&["snapshot", "--pid", &root_pid, "--format", "json"]).refused(4, &["not traced"]);
    nobody(&["detach", "--pid", &root_pid]).refused(4, &["not traced"]);
    assert_eq!(nobody(&["--json", "ps"]).json()["processes"], json!([]));
    assert_eq!(
        nobody(&["--json", "detach", "--all"]).json()["pids"],
        json!([])
    );

    // Its own it may.
    let program = public(folder.path(), &executable("calls.c", Library::Runtime));
    for file in [sim().runtime(), sim().driver()] {
        public(folder.path(), &file);
    }
    let run = |program: &Path| {
        let mut command = Command::new(NOBODY[0]);
        command
            .args(&NOBODY[1..])
            .arg(program)
            .env("LD_LIBRARY_PATH", folder.path());
        Calls::from_command(command)
    };
    // Not where the kernel keeps its memory from nobody as well.
    let closed = public(folder.path(), &executable("undumpable.c", Library::None));
    let closed = run(&closed);
    nobody(&["attach", "--pid", &closed.pid_text()])
        .refused(5, &["keeps its memory from its own user"]);
    drop(closed);
    let mut own = run(&program);
    nobody(&["attach", "--pid", &own.pid_text(), "--level", "segments"]).text();
    own.call("cudaSetDevice 0");
    own.call("cudaMalloc a 2222");
    let stats = nobody(&["--json", "stats", "--pid", &own.pid_text()]).json();
    assert_eq!(stats["devices"][0]["driver"]["bytes"], 2222, "{stats:#}");
    let list = nobody(&["--json", "ps"]).json();
    assert_eq!(list["processes"].as_array().unwrap().len(), 1, "{list:#}");
    assert_eq!(
        daemon.json(&["ps"])["processes"].as_array().unwrap().len(),
        2,
        "root sees all"
    );
    // Whom nobody may not look at is named, with the reason.
    let examined = nobody(&["--json", "doctor"]).document();
    let unreadable = examined["unreadable"].as_array().unwrap();
    assert!(unreadable.contains(&json!(roots.pid())), "{examined:#}");
    let examined = nobody(&["doctor"]);
    for words in [
        " could not be looked at (",
        "reading the mappings of another user's process needs root",
    ] {
        assert!(examined.output.contains(words), "{examined}");
    }
    // What all processes together make is root's to know.
    let status = nobody(&["--json", "status"]).json();
    assert_eq!(status["traced_processes"], 1, "{status:#}");
    assert_eq!(status["totals_left_out"], true, "{status:#}");
    assert!(status["memory"].is_null(), "{status:#}");
    assert!(number(&daemon.json(&["status"])["records"]) > 0);
    let said = nobody(&["status"]);
    assert!(said.text().contains("root sees those of all processes"));
    // A rule of nobody's is for nobody's processes.
    let answer = nobody(&["--json", "attach", "--comm", "calls"]).json();
    assert_eq!(answer["processes"], json!([]), "{answer:#}");
    assert!(
        find(&daemon.json(&["ps"])["processes"], "pid", roots.pid())
            .is_some_and(|p| p["state"] == "attached")
    );
    // The files that it writes are the caller's, and not through the daemon.
    let file = folder.path().join("not-mine");
    let said = nobody(&[
        "snapshot",
        "--pid",
        &own.pid_text(),
        "-o",
        file.to_str().unwrap(),
    ]);
    said.refused(1, &[]);
    nobody(&["detach", "--pid", &own.pid_text()]).text();
    own.finish();
    roots.finish();
}

#[test]
fn a_full_disk_under_the_journal() {
    let journal = |daemon: &Daemon| daemon.json(&["status"])["journal"].clone();
    // Too small to begin with: it traces, and waits for room.
    let daemon = Daemon::on_a_disk_of("512k", &[]);
    let now = journal(&daemon);
    assert_eq!(now["state"], "full", "{now:#}");
    let problem = now["problem"].as_str().unwrap();
    assert!(problem.contains("no space"), "{now:#}");
    let said = daemon.json(&["status"])["messages"].to_string();
    assert!(said.contains("the journal waits for its disk"), "{said}");
    let mut calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc a 123");
    let bytes = |daemon: &Daemon, pid| daemon.stats(pid)["devices"][0]["driver"]["bytes"].clone();
    assert_eq!(bytes(&daemon, calls.pid()), 123);
    let larger = Command::new("nsenter")
        // The daemon's own root, in case that the tests run in a root of their own.
        .args(["--mount", "--root", "--target", &daemon.pid().to_string()])
        .args(["mount", "-o", "remount,size=64m"])
        .arg(daemon.state())
        .status();
    assert!(larger.unwrap().success());
    until(LONG, "the journal begins", || {
        (journal(&daemon)["state"] == "writing").then_some(())
    });
    assert_eq!(bytes(&daemon, calls.pid()), 123);
    // What came before it begins is known in it.
    let snapshot = ["snapshot", "--pid", &calls.pid_text(), "--format", "json"];
    until(LONG, "it has its checkpoint", || {
        let said = daemon.ctl(&[&snapshot[..], &["--at", "-0s"]].concat());
        (said.code == 0).then_some(())
    });
    calls.finish();
    drop(daemon);

    // Full while it runs: the oldest part goes first. When nothing is left that could go, the journal stops, tracing goes
    // on, and both are said. When there is room again, the journal goes on by itself.
    let daemon = Daemon::on_a_disk_of("4m", &["--journal-mib", "16"]);
    let mut calls = Calls::start(&[]);
    let mut allocated = 0;
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    let begins = number(&journal(&daemon)["known_from_unix_ns"]);
    until(LONG, "the oldest part of the journal has gone", || {
        calls.call("pairs 5000 4096");
        allocated += 5000;
        let now = journal(&daemon);
        assert_eq!(now["state"], "writing", "{now:#}");
        (number(&now["known_from_unix_ns"]) > begins).then_some(())
    });
    // Somebody else fills the disk.
    let state = daemon.state();
    let inside = format!("/proc/{}/root{}", daemon.pid(), state.display());
    let filler = Path::new(&inside).join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    let full = until(LONG, "the disk is full", || {
        while file.write_all(&[1; 4096]).is_ok() {}
        calls.call("pairs 5000 4096");
        allocated += 5000;
        let now = journal(&daemon);
        (now["state"] != "writing").then_some(now)
    });
    assert_eq!(full["state"], "full", "{full:#}");
    let problem = full["problem"].as_str().unwrap();
    assert!(problem.contains("space"), "{full:#}");
    until(LONG, "that is said", || {
        // The journal tries again and again, and takes what becomes free where its oldest part goes.
        while file.write_all(&[1; 4096]).is_ok() {}
        calls.call("pairs 5000 4096");
        allocated += 5000;
        let said = daemon.ctl(&["status"]);
        said.text().contains("full").then_some(())
    });
    // What is in it can be asked for, and copied; what came later is not in it, and why is said.
    let past = ["snapshot", "--pid", &pid.to_string(), "--format", "json"];
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.memscope");
    until(LONG, "it is asked for what it has", || {
        while file.write_all(&[1; 4096]).is_ok() {}
        calls.call("pairs 5000 4096");
        allocated += 5000;
        let later = daemon.ctl(&[&past[..], &["--at", "-0s"]].concat());
        let later = later.to_string();
        let (_, stopped) = later.split_once("the journal has stopped at ")?;
        let (stopped, _) = stopped.split_once(" (")?;
        let said = daemon.ctl(&["record", "--output", copy.to_str().unwrap()]);
        assert_eq!(said.code, 0, "{said}");
        let at = daemon.ctl(&[&past[..], &["--at", stopped]].concat());
        let is_told = said.text().contains("what came later is not in it");
        let at = (at.code == 0).then(|| at.document())?;
        let event = format!("event:{}", at["header"]["as_of_event"]["sequence"]);
        let course = ["fluctuation", "--pid", &pid.to_string(), "--from", &event];
        let course = daemon.json(&[&course[..], &["--to", stopped]].concat());
        assert!(!coverage(&course).contains(&"course_coarse"), "{course:#}");
        is_told.then_some(())
    });
    calls.call("cudaMalloc a 123");
    allocated += 1;
    let check = || {
        let stats = daemon.stats(pid);
        assert_eq!(stats["devices"][0]["driver"]["bytes"], 123);
        assert_eq!(stats["lost_records"], 0);
        assert_eq!(number(&stats["devices"][0]["alloc_count"]), allocated);
    };
    check();
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    let now = until(LONG, "the journal goes on", || {
        let now = journal(&daemon);
        (now["state"] == "writing").then_some(now)
    });
    assert!(now["problem"].is_null(), "{now:#}");
    assert!(number(&now["refused_records"]) > 0, "{now:#}");
    check();
    // What comes from here on is as it was when it is asked for later.
    let snapshot = ["snapshot", "--pid", &pid.to_string(), "--format", "json"];
    let then = daemon.json(&snapshot);
    calls.call("cudaMalloc b 1000");
    let event = &then["header"]["as_of_event"]["sequence"];
    let at = format!("event:{event}");
    let later = until(LONG, "the new part has its checkpoint", || {
        let said = daemon.ctl(&[&snapshot[..], &["--at", &at]].concat());
        (said.code == 0).then(|| said.document())
    });
    assert_eq!(later["segments"], then["segments"]);
    assert!(!coverage(&later["header"]).contains(&"recording_damaged"));
    calls.finish();
    Met {
        what: "the disk under the journal",
        most: "what is free on it".to_owned(),
        beyond: "the oldest parts of the journal go; when none is left, the journal stops until there is room, and tracing goes on",
        told: "`full` and `refused_records` of the journal in `status`",
        test: "a_full_disk_under_the_journal",
    }
    .is_told();
}

/// Without what depends on the moment of the question.
fn timeless(mut answer: Value) -> Value {
    for key in ["as_of", "as_of_boot_ns", "as_of_event"] {
        answer.as_object_mut().unwrap().remove(key);
    }
    answer
}

#[test]
fn recordings() {
    let mut daemon = Daemon::with(&["--journal-mib", "64"]);
    let mut torch = Torch::start(&[]);
    let mut calls = Calls::start(&[]);
    daemon.attach(torch.pid(), "trace");
    daemon.attach(calls.pid(), "segments");
    for moment in ["train 3", "oom", "alloc a 5000000", "churn 100", "drop"] {
        torch.ask(moment);
    }
    calls.call("cudaSetDevice 0");
    calls.call("many some 20 1000");
    torch.finish();
    calls.finish();
    for pid in [torch.pid(), calls.pid()] {
        eventually("its end is seen", || {
            daemon.process(pid).is_some_and(|p| p["state"] == "exited")
        });
    }
    let live: Vec<Value> = [torch.pid(), calls.pid()]
        .iter()
        .map(|pid| timeless(daemon.stats(*pid)))
        .collect();
    let live_trace =
        daemon.json(&["snapshot", "--pid", &torch.pid_text(), "--format", "json"])["trace"].clone();
    daemon.stop();

    // The recording answers as the daemon did.
    let journals = daemon.state().join("journal");
    let journal = recording(&journals);
    let ask = |recording: &Path, arguments: &[&str]| {
        Asking::new(
            ["--recording", recording.to_str().unwrap()]
                .iter()
                .chain(arguments),
        )
        .ask()
    };
    for (pid, live) in [torch.pid(), calls.pid()].iter().zip(&live) {
        let replayed = ask(&journal, &["--json", "stats", "--pid", &pid.to_string()]).json();
        assert_eq!(timeless(replayed), *live, "the recording's, the daemon's");
    }
    let trace = ask(
        &journal,
        &["snapshot", "--pid", &torch.pid_text(), "--format", "json"],
    )
    .json()["trace"]
        .clone();
    assert_eq!(trace, live_trace);
    let status = ask(&journal, &["--json", "status"]).json();
    assert_eq!(status["journal"]["state"], "replay", "{status:#}");
    // Of several, the latest is meant.
    let by_name = ask(&journal, &["ps"]);
    assert_eq!(ask(&journals, &["ps"]).text(), by_name.text());
    ask(&journal, &["attach", "--all"]).refused(2, &["recording"]);
    ask(&journal, &["stats", "--pid", "1"]).refused(4, &["not traced"]);
    ask(&journal, &["pool"]).refused(2, &["several"]);
    let both = ask(&journal, &["--json", "stats"]).json();
    assert_eq!(both.as_array().unwrap().len(), 2, "{both:#}");

    // Truncated.
    let segment = first_segment(&journal);
    let whole = std::fs::read(&segment).unwrap();
    let folder = scratch();
    let file = folder.path().join("cut.msj");
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut readable = 0;
    for part in [
        used,
        used - 1,
        used * 3 / 4,
        used / 2,
        5000,
        200,
        128,
        100,
        7,
        1,
        0,
    ] {
        std::fs::write(&file, &whole[..part]).unwrap();
        let said = ask(&file, &["--json", "stats", "--pid", &torch.pid_text()]);
        match said.code {
            0 => {
                readable += 1;
                let stats = said.document();
                assert!(
                    number(&stats["process"]["events"]) <= number(&live[0]["process"]["events"])
                );
            }
            1 => {
                said.refused(1, &["cut.msj"]);
            }
            4 => {
                said.refused(4, &["not traced"]);
            }
            _ => panic!("{said}"),
        }
    }
    assert!(readable >= 3, "half a recording can be read");
    // Damaged: nothing that is in it may end in a panic, and damage is said.
    let mut seed = 88172645463325252u64;
    for _ in 0..12 {
        let mut bytes = whole[..=used].to_vec();
        let mut places = Vec::new();
        for _ in 0..3 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let at = (seed as usize) % bytes.len();
            bytes[at] ^= (seed >> 32) as u8 | 1;
            places.push(at);
        }
        std::fs::write(&file, &bytes).unwrap();
        let said = ask(&file, &["--json", "stats", "--pid", &torch.pid_text()]);
        assert!([0, 1, 4].contains(&said.code), "{said}");
        if said.code == 0 {
            let stats = said.document();
            assert!(
                coverage(&stats).contains(&"recording_damaged"),
                "damaged at {places:?} of {used}: {}",
                stats["coverage"]
            );
        }
    }
    // Foreign.
    std::fs::write(&file, "a text, and no recording at all\n".repeat(100)).unwrap();
    ask(&file, &["ps"]).refused(1, &["recording"]);
    ask(Path::new("/bin/ls"), &["ps"]).refused(1, &["recording"]);
    ask(folder.path().join("nothing").as_path(), &["ps"])
        .refused(1, &["recording", "No such file"]);
    let empty = scratch();
    ask(empty.path(), &["ps"]).refused(1, &["recording"]);
}

/// The only recording among a daemon's journals.
fn recording(journals: &Path) -> PathBuf {
    std::fs::read_dir(journals)
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap()
}

fn first_segment(journal: &Path) -> PathBuf {
    let mut segments: Vec<PathBuf> = std::fs::read_dir(journal)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    segments.sort();
    segments.remove(0)
}
