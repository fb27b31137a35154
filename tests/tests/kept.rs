//! Snapshots that are taken by themselves: what becomes of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::limits::Met;
use memscope_tests::{
    Asking, Calls, Daemon, Library, MIB, NO_PAUSE, Torch, about, assert_pytorchs, executable, json,
    number, scratch, sim, tool,
};

#[test]
fn a_loop_of_one_process_leaves_anothers_only_snapshot() {
    let words = [&NO_PAUSE[..], &["--snapshots-keep", "3"]].concat();
    let daemon = Daemon::with(&words);
    let mut once = Torch::start(&[]);
    let mut again = Torch::start(&[]);
    for torch in [&mut once, &mut again] {
        daemon.attach(torch.pid(), "trace");
        torch.ask("alloc a 3000000");
    }
    once.ask("oom");
    assert_eq!(daemon.kept().len(), 1);
    for _ in 0..6 {
        again.ask("oom");
        daemon.kept();
    }
    let all = daemon.kept();
    let told: Vec<(u64, u64)> = all
        .iter()
        .map(|k| (number(&k["snapshot"]), number(&k["pid"])))
        .collect();
    let (one, other) = (u64::from(once.pid()), u64::from(again.pid()));
    assert_eq!(told, [(1, one), (6, other), (7, other)]);
    assert_pytorchs(&mut once, &all[0]);
    assert_pytorchs(&mut again, &all[2]);
    // On the disk is what is listed, and what each is.
    let folder = daemon.state().join("snapshots");
    let names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for one in &all {
        let path = Path::new(one["path"].as_str().unwrap());
        let found = std::fs::metadata(path).unwrap();
        assert_eq!(found.len(), number(&one["bytes"]));
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
    }
    let chosen = daemon.json(&["snapshots", "--pid", &once.pid_text()]);
    assert_eq!(chosen["snapshots"].as_array().unwrap().len(), 1);
    once.finish();
    again.finish();
    assert_eq!(daemon.kept().len(), 3, "they outlive their processes");
    Met {
        what: "kept snapshots",
        most: "`--snapshots-keep`".to_owned(),
        beyond: "the process that has the most loses its oldest",
        told: "the list `snapshots`",
        test: "a_loop_of_one_process_leaves_anothers_only_snapshot",
    }
    .is_told();
}

#[test]
fn bytes_are_bounded_too() {
    let words = [&NO_PAUSE[..], &["--snapshots-mib", "1"]].concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train");
    for _ in 0..4 {
        torch.ask("oom");
        daemon.kept();
    }
    let sizes: Vec<u64> = daemon.kept().iter().map(|k| number(&k["bytes"])).collect();
    assert!(sizes.iter().sum::<u64>() <= MIB, "{sizes:?}");
    assert!(!sizes.is_empty());
    // A trace that is longer than all that may be kept.
    torch.churn(&daemon, 30000);
    torch.ask("oom");
    let after: Vec<u64> = daemon.kept().iter().map(|k| number(&k["bytes"])).collect();
    assert_eq!(after, sizes, "it takes nobody's place");
    assert_eq!(
        daemon.trigger(1)["skipped"],
        json!([{"cause": "too_large", "count": 1}])
    );
    torch.finish();
    Met {
        what: "bytes of kept snapshots",
        most: "`--snapshots-mib`".to_owned(),
        beyond: "the oldest of whoever has the most go; one that is larger than all may be takes nobody's place",
        told: "`too_large` in `trigger list`",
        test: "bytes_are_bounded_too",
    }
    .is_told();
}

#[test]
fn what_was_there_before_and_is_not_known_is_said() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut calls = Calls::start(&[]);
    calls.call("cudaMalloc old 5000000");
    daemon.attach(calls.pid(), "segments");
    // Which device the thread has chosen is known from here on.
    calls.call("cudaSetDevice 0");
    daemon.add_trigger("allocated > 1MiB on device 0", calls.pid());
    calls.call("cudaMalloc new 3000000");
    let all = daemon.kept();
    assert_eq!(all.len(), 1, "{all:#?}");
    assert_eq!(all[0]["without_baseline"], true);
    let path = all[0]["path"].as_str().unwrap();
    assert!(
        path.ends_with("-allocated-without-baseline.pickle"),
        "{path}"
    );
    let said = daemon.json(&["status"])["messages"].to_string();
    assert!(
        said.contains("without what was there before the attach"),
        "{said}"
    );
    let text = daemon.ctl(&["snapshots"]);
    assert!(text.text().contains("; without what was there"), "{text}");
    assert_eq!(about(&all[0])["coverage"][0][0], "driver_baseline_unknown");
    calls.finish();
}

#[test]
fn other_formats_and_words_that_are_no_condition() {
    let daemon = Daemon::with(&["--snapshot-format", "html"]);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train");
    torch.ask("oom");
    let all = daemon.kept();
    assert_eq!(all[0]["format"], "html");
    let page = std::fs::read(all[0]["path"].as_str().unwrap()).unwrap();
    assert!(page.starts_with(b"<!doctype html>") || page.starts_with(b"<!DOCTYPE html>"));

    for (when, words) in [
        ("step > 100", &["column 6", "step = 100"][..]),
        ("reservd > 3GiB", &["column 1", "reserved"]),
        ("reserved > 3 GGiB", &["column 14", "gib"]),
        ("reserved", &["column 9", "quotes"]),
        ("growth > 3GiB", &["column 14", "in"]),
        ("fragmentation > 300%", &["column 17", "100%"]),
        ("oom on device 500", &["column 15", "127"]),
    ] {
        daemon.ctl(&["trigger", "add", when]).refused(2, words);
    }
    let triggers = daemon.json(&["trigger", "list"]);
    assert_eq!(triggers["triggers"].as_array().unwrap().len(), 1);
    let removed = daemon.ctl(&["trigger", "remove", "1"]);
    assert!(removed.text().contains("Removed trigger 1"), "{removed}");
    torch.ask("oom");
    daemon.stats(torch.pid());
    assert_eq!(daemon.kept().len(), 1);
    torch.finish();

    let refused = Command::new(tool("memscoped"))
        .args(["--snapshot-when", "step 12"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("stands where = should"), "{said}");
}

#[test]
fn none_are_taken_where_none_are_kept() {
    let daemon = Daemon::with(&["--snapshots-keep", "0"]);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    torch.ask("oom");
    daemon.stats(torch.pid());
    daemon
        .ctl(&["trigger", "add", "oom"])
        .refused(1, &["no snapshots by itself", "--snapshots-keep"]);
    assert_eq!(daemon.json(&["snapshots"])["snapshots"], json!([]));
    assert!(!daemon.state().join("snapshots").exists());
    torch.finish();
}

/// Tracing goes on, and what is wrong is said.
#[test]
fn a_place_that_takes_nothing() {
    for (prepare, said) in [
        ("echo x > $E2E_STATE/snapshots", "cannot be kept in"),
        (
            "mkdir $E2E_STATE/snapshots && mount -t tmpfs -o size=16k none $E2E_STATE/snapshots",
            "No space left on device",
        ),
    ] {
        let script = format!("mkdir -p $E2E_STATE && {prepare} && exec \"$@\"");
        let daemon = Daemon::wrapped(&["unshare", "-m", "sh", "-c", &script, "sh"], &NO_PAUSE);
        let mut torch = Torch::start(&[]);
        daemon.attach(torch.pid(), "trace");
        torch.ask("train");
        torch.ask("oom 2");
        assert_eq!(daemon.kept(), [json!(null); 0]);
        let told = torch.ask("alloc a 3000000");
        memscope_tests::assert_totals(&daemon.stats(torch.pid()), &told);
        let messages = daemon.json(&["status"])["messages"].to_string();
        assert!(messages.contains(said), "{messages}");
        assert_eq!(
            messages.matches("could not be written to").count(),
            1,
            "once: {messages}"
        );
        assert_eq!(
            daemon.trigger(1)["skipped"],
            json!([{"cause": "failed", "count": 2}])
        );
        let inside = format!("/proc/{}/root{}", daemon.pid(), daemon.state().display());
        let left = std::fs::read_dir(Path::new(&inside).join("snapshots"));
        assert_eq!(
            left.map_or(0, Iterator::count),
            0,
            "nothing half written stays"
        );
        torch.finish();
    }
}

#[test]
fn users_have_what_is_theirs() {
    let daemon = Daemon::with(&NO_PAUSE);
    let folder = scratch();
    let public = |file: &Path| {
        let copy = folder.path().join(file.file_name().unwrap());
        std::fs::copy(file, &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        copy
    };
    for open in [folder.path(), daemon.folder()] {
        std::fs::set_permissions(open, PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(daemon.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    let ctl = public(&tool("memscope-ctl"));
    let socket = daemon.socket();
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let theirs = |arguments: &[&str]| {
        let program = [ctl.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
        Asking::raw(&[&nobody[..], &program].concat(), arguments).ask()
    };

    for file in [sim().runtime(), sim().driver()] {
        public(&file);
    }
    let mut command = Command::new(nobody[0]);
    command
        .args(&nobody[1..])
        .arg(public(&executable("calls.c", Library::Runtime)))
        .env("LD_LIBRARY_PATH", folder.path());
    let mut own = Calls::from_command(command);
    let mut roots = Calls::start(&[]);
    for program in [&mut own, &mut roots] {
        daemon.attach(program.pid(), "segments");
        program.call("cudaSetDevice 0");
    }
    let added = theirs(&["--json", "trigger", "add", "allocated > 1MiB"]).json();
    let mine = number(&added["trigger"]["trigger"]);
    assert_eq!(added["trigger"]["watching"], 1, "of two: {added:#}");
    let foreign = ["trigger", "add", "oom", "--pid", &roots.pid_text()];
    theirs(&foreign).refused(4, &["not traced"]);
    theirs(&["trigger", "remove", "1"]).refused(5, &["root"]);
    daemon.ctl(&["trigger", "add", "allocated > 2MiB"]).text();
    for program in [&mut own, &mut roots] {
        program.call("cudaMalloc a 3000000");
    }
    let all = daemon.kept();
    let of = |pid: u32| all.iter().filter(|k| k["pid"] == pid).count();
    assert_eq!((of(own.pid()), of(roots.pid())), (2, 1), "{all:#?}");

    let list = theirs(&["--json", "snapshots"]).json();
    let list = list["snapshots"].as_array().unwrap();
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|k| k["pid"] == own.pid()));
    let other = all.iter().find(|k| k["pid"] == roots.pid()).unwrap();
    let (shown, hidden) = (
        list[0]["snapshot"].to_string(),
        other["snapshot"].to_string(),
    );
    let got = theirs(&["snapshots", "get", &shown]);
    let path = list[0]["path"].as_str().unwrap();
    let file = std::fs::read(path).unwrap();
    assert_eq!(
        got.text().as_bytes(),
        String::from_utf8_lossy(&file).as_bytes()
    );
    theirs(&["snapshots", "get", &hidden]).refused(4, &["no snapshot"]);
    let copy = folder.path().join("root.pickle");
    let words = ["snapshots", "get", &hidden, "-o", copy.to_str().unwrap()];
    daemon.ctl(&words).text();
    assert_eq!(
        std::fs::read(copy).unwrap(),
        std::fs::read(other["path"].as_str().unwrap()).unwrap()
    );

    let triggers = theirs(&["--json", "trigger", "list"]).json();
    let fired: Vec<_> = triggers["triggers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["fired"].clone())
        .collect();
    // Root's watch others as well: what they did there is not told.
    assert_eq!(fired, [json!(null), json!(1), json!(null)], "{triggers:#}");
    theirs(&["trigger", "remove", &mine.to_string()]).text();
    own.finish();
    roots.finish();
}

/// A snapshot is taken while the process that it is of is being told of; nothing waits for it.
#[test]
fn many_at_once() {
    let words = [&NO_PAUSE[..], &["--snapshots-keep", "64"]].concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train");
    torch.ask("oom 100");
    let told = torch.ask("alloc a 3000000");
    memscope_tests::assert_totals(&daemon.stats(torch.pid()), &told);
    let all = daemon.kept();
    let oom = daemon.trigger(1);
    assert_eq!(oom["fired"], 100);
    let skipped = oom["skipped"].as_array().unwrap();
    assert!(
        skipped.iter().all(|cause| cause["cause"] == "busy"),
        "{oom:#}"
    );
    assert_eq!(all.len() as u64, number(&oom["written"]).min(64));
    let script = "import pickle, sys\n\
                  for file in sys.argv[1:]: pickle.load(open(file, 'rb'))";
    let output = Command::new("python3")
        .args(["-c", script])
        .args(all.iter().map(|k| k["path"].as_str().unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    torch.finish();
}
