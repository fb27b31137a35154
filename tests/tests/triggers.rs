//! Snapshots that are taken by themselves, of real PyTorch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::{
    Asking, Calls, Daemon, Library, MIB, Torch, Value, coverage, device, eventually, executable,
    json, number, scratch, sim, tool,
};

/// Triggers need no rest here: the tests do things one after another.
const NO_PAUSE: [&str; 2] = ["--snapshot-pause", "0"];

/// What is kept, oldest first, once everything that fired is written.
fn kept(daemon: &Daemon) -> Vec<Value> {
    eventually("what fired is written", || {
        let triggers = daemon.json(&["trigger", "list"]);
        let triggers = triggers["triggers"].as_array().unwrap();
        triggers.iter().all(|trigger| {
            let skipped = trigger["skipped"].as_array().unwrap().iter();
            let skipped: u64 = skipped.map(|cause| number(&cause["count"])).sum();
            number(&trigger["fired"]) == number(&trigger["written"]) + skipped
        })
    });
    let answer = daemon.json(&["snapshots"]);
    answer["snapshots"].as_array().unwrap().clone()
}

/// One trigger of the list.
#[track_caller]
fn trigger(daemon: &Daemon, number: u64) -> Value {
    let answer = daemon.json(&["trigger", "list"]);
    memscope_tests::find(&answer["triggers"], "trigger", number)
        .unwrap_or_else(|| panic!("no trigger {number} in {answer:#}"))
        .clone()
}

#[track_caller]
fn add(daemon: &Daemon, when: &str, pid: u32) -> u64 {
    let words = ["trigger", "add", when, "--pid", &pid.to_string()];
    number(&daemon.json(&words)["trigger"]["trigger"])
}

/// The kept file holds what PyTorch holds now.
#[track_caller]
fn is_pytorchs(torch: &mut Torch, kept: &Value) -> Value {
    let path = kept["path"].as_str().unwrap();
    let told = torch.ask(&format!("compare {path}"));
    assert_eq!(told["exported"], told["own"], "{kept:#}");
    assert!(told["own"].as_array().is_some_and(|own| !own.is_empty()));
    told
}

/// What lies beside the file.
fn about(kept: &Value) -> Value {
    let path = PathBuf::from(kept["path"].as_str().unwrap());
    let text = std::fs::read(path.with_extension("about.json")).unwrap();
    document(&text)
}

fn document(text: &[u8]) -> Value {
    String::from_utf8_lossy(text).parse().unwrap()
}

/// Attaches a process that holds memory already, and waits until that is known.
#[track_caller]
fn attach_late(daemon: &Daemon, torch: &Torch) {
    daemon.attach(torch.pid(), "trace");
    eventually("what was there is read", || {
        coverage(&daemon.stats(torch.pid())).contains(&"baseline_read")
    });
}

fn reserved(daemon: &Daemon, torch: &Torch) -> u64 {
    number(&device(&daemon.stats(torch.pid()), 0)["reserved_bytes"])
}

#[test]
fn a_level_fires_once_for_each_crossing_and_gives_pytorchs_own_snapshot() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    attach_late(&daemon, &torch);
    torch.ask("train 2");
    let base = reserved(&daemon, &torch);
    let at = |more: u64| format!("reserved > {}", base + more * MIB);
    let levels = [
        add(&daemon, &at(50), torch.pid()),
        add(&daemon, &at(130), torch.pid()),
    ];
    assert_eq!(kept(&daemon), [json!(null); 0]);
    let fired = |daemon: &Daemon| levels.map(|n| number(&trigger(daemon, n)["fired"]));

    for crossing in 1..=3 {
        // A segment of 100 MiB, with one block in it.
        torch.ask("alloc a 104857600");
        assert_eq!(fired(&daemon), [crossing, crossing - 1]);
        let all = kept(&daemon);
        let newest = all.last().unwrap();
        is_pytorchs(&mut torch, newest);
        assert_eq!(newest["without_baseline"], false, "{newest:#}");
        let reason = newest["reason"].as_str().unwrap();
        assert!(reason.contains("reserved rose above"), "{reason}");

        // Above it is above; and the block moves within it.
        torch.ask("free a");
        torch.ask("alloc a 104857600");
        torch.ask("train 2");
        assert_eq!(fired(&daemon), [crossing, crossing - 1]);
        torch.ask("alloc b 52428800");
        assert_eq!(fired(&daemon), [crossing, crossing]);
        let all = kept(&daemon);
        is_pytorchs(&mut torch, all.last().unwrap());
        assert_eq!(all.len() as u64, 2 * crossing);

        torch.ask("free a");
        torch.ask("free b");
        torch.ask("empty_cache");
    }
    let all = kept(&daemon);
    let beside = about(&all[0]);
    assert_eq!(beside["pid"], torch.pid());
    // Reserved is a whole number of MiB.
    let level = (base + 50 * MIB) / MIB;
    assert_eq!(beside["when"], format!("reserved > {level}MiB"));
    torch.finish();
}

#[test]
fn what_lies_free_and_does_not_serve() {
    let words = [
        &NO_PAUSE[..],
        &[
            "--snapshot-when",
            "fragmentation > 50% with reserved > 40MiB",
            "--no-oom-snapshots",
        ],
    ]
    .concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    let fired = |daemon: &Daemon| number(&trigger(daemon, 1)["fired"]);
    torch.ask("allocs many 10 12582912");
    torch.ask("alloc kept 12582912");
    torch.ask("free many");
    assert_eq!(fired(&daemon), 0, "free room alone is no fragment");
    torch.ask("alloc fits 12000000");
    assert_eq!(fired(&daemon), 0, "it serves");
    // 108 MiB lie free, in pieces of 12.
    torch.ask("alloc large 25165824");
    assert_eq!(fired(&daemon), 1);
    let all = kept(&daemon);
    is_pytorchs(&mut torch, &all[0]);
    let beside = about(&all[0]);
    assert_eq!(beside["largest_free_bytes"], 12 * MIB, "{beside:#}");
    assert_eq!(beside["free_bytes"], 9 * 12 * MIB);
    assert!(
        all[0]["reason"]
            .as_str()
            .unwrap()
            .contains("108.00 MiB of 132.00 MiB"),
        "{}",
        all[0]
    );
    torch.ask("alloc more 25165824");
    assert_eq!(fired(&daemon), 1, "it is so still");
    assert_eq!(trigger(&daemon, 1)["from_start"], true);
    torch.finish();
}

#[test]
fn a_leak_grows_and_breathing_does_not() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut torch = Torch::start(&[]);
    torch.ask("train 3");
    attach_late(&daemon, &torch);
    let grown = add(&daemon, "growth > 60MiB in 8s", torch.pid());
    let fired = |daemon: &Daemon| number(&trigger(daemon, grown)["fired"]);
    // Each step allocates and frees some MiB, and three tensors of 8 MiB go round.
    torch.ask("leak 100 8000000 100 3");
    assert_eq!(fired(&daemon), 0);
    torch.ask("leak 60 8000000 100");
    // The floor follows within a quarter of the time.
    eventually("the leak is told", || fired(&daemon) >= 2);
    for one in kept(&daemon) {
        let reason = one["reason"].as_str().unwrap();
        assert!(
            reason.contains("the floor of allocated on device 0 rose by"),
            "{reason}"
        );
        let beside = about(&one);
        let allocated = number(&beside["allocated_bytes"]);
        assert!(allocated > 60 * MIB, "{beside:#}");
    }
    torch.finish();
}

/// The state of the moment at which PyTorch reports: what no block used is released and in the trace, the
/// blocks are as they were when the request came.
#[test]
fn running_out_of_memory_after_releasing_what_was_cached() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    attach_late(&daemon, &torch);
    torch.ask("alloc cached 104857600");
    torch.ask("alloc used 3000000");
    torch.ask("free cached");
    let pid = torch.pid_text();
    let before = daemon.json(&["snapshot", "--pid", &pid, "--format", "json"]);
    torch.ask("oom 5");
    let all = kept(&daemon);
    assert_eq!(all.len(), 1, "the other four came too soon: {all:#?}");
    let oom = &all[0];
    assert_eq!(
        (&oom["when"], &oom["pid"]),
        (&json!("oom"), &json!(torch.pid()))
    );
    assert_eq!(oom["comm"], "python", "{oom:#}");
    assert!(
        oom["reason"]
            .as_str()
            .unwrap()
            .contains("a request of 1.00 PiB failed"),
        "{oom:#}"
    );
    is_pytorchs(&mut torch, oom);

    let script = "import json, pickle, sys\n\
                  snapshot = pickle.load(open(sys.argv[1], 'rb'))\n\
                  blocks = [[b['address'], b['size']] for s in snapshot['segments'] for b in s['blocks'] if b['state'] != 'inactive']\n\
                  actions = [entry['action'] for entry in snapshot['device_traces'][0]]\n\
                  print(json.dumps({'blocks': sorted(blocks), 'actions': actions}))";
    let output = Command::new("python3")
        .args(["-c", script, oom["path"].as_str().unwrap()])
        .output()
        .unwrap();
    let told = document(&output.stdout);
    let mut blocks: Vec<[u64; 2]> = before["segments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|segment| segment["blocks"].as_array().unwrap())
        .filter(|block| block["state"] != "inactive")
        .map(|block| [number(&block["address"]), number(&block["size_bytes"])])
        .collect();
    blocks.sort_unstable();
    assert_eq!(told["blocks"], json!(blocks), "as when the request came");
    let actions = told["actions"].as_array().unwrap();
    let [.., released, report] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!([released, report], ["segment_free", "oom"]);

    let oom = trigger(&daemon, 1);
    assert_eq!((&oom["fired"], &oom["written"]), (&json!(5), &json!(1)));
    assert_eq!(oom["skipped"], json!([{"cause": "paused", "count": 4}]));
    let said = daemon.json(&["status"])["messages"].to_string();
    assert!(said.contains("ran out of memory on device 0"), "{said}");
    assert!(said.contains("nor will be of that within 10 s"), "{said}");
    torch.finish();
}

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
    assert_eq!(kept(&daemon).len(), 1);
    for _ in 0..6 {
        again.ask("oom");
        kept(&daemon);
    }
    let all = kept(&daemon);
    let told: Vec<(u64, u64)> = all
        .iter()
        .map(|k| (number(&k["snapshot"]), number(&k["pid"])))
        .collect();
    let (one, other) = (u64::from(once.pid()), u64::from(again.pid()));
    assert_eq!(told, [(1, one), (6, other), (7, other)]);
    is_pytorchs(&mut once, &all[0]);
    is_pytorchs(&mut again, &all[2]);
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
    assert_eq!(kept(&daemon).len(), 3, "they outlive their processes");
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
        kept(&daemon);
    }
    let sizes: Vec<u64> = kept(&daemon).iter().map(|k| number(&k["bytes"])).collect();
    assert!(sizes.iter().sum::<u64>() <= MIB, "{sizes:?}");
    assert!(!sizes.is_empty());
    // A trace that is longer than all that may be kept.
    torch.ask("churn 30000");
    torch.ask("oom");
    let after: Vec<u64> = kept(&daemon).iter().map(|k| number(&k["bytes"])).collect();
    assert_eq!(after, sizes, "it takes nobody's place");
    assert_eq!(
        trigger(&daemon, 1)["skipped"],
        json!([{"cause": "too_large", "count": 1}])
    );
    torch.finish();
}

#[test]
fn a_trigger_for_one_process_ends_with_it() {
    let daemon = Daemon::with(&["--no-oom-snapshots"]);
    let none = daemon.ctl(&["trigger", "list"]);
    assert!(none.text().contains("There is no trigger"), "{none}");
    let mut torch = Torch::start(&[]);
    daemon
        .ctl(&["trigger", "add", "oom", "--pid", &torch.pid_text()])
        .refused(4, &["not traced"]);
    daemon.attach(torch.pid(), "trace");
    let number_of_it = add(&daemon, "allocated > 100MiB", torch.pid());
    let watching = |daemon: &Daemon| number(&trigger(daemon, number_of_it)["watching"]);
    assert_eq!(watching(&daemon), 1);
    daemon.detach(torch.pid());
    assert_eq!(watching(&daemon), 0);
    torch.ask("alloc unseen 200000000");
    torch.ask("free unseen");
    daemon.attach(torch.pid(), "blocks");
    assert_eq!(watching(&daemon), 1, "it has waited");
    torch.ask("alloc a 200000000");
    assert_eq!(number(&trigger(&daemon, number_of_it)["fired"]), 1);
    torch.finish();
    eventually("it ends with the process", || {
        daemon.json(&["trigger", "list"])["triggers"] == json!([])
    });
    assert_eq!(kept(&daemon).len(), 1);
}

#[test]
fn what_was_there_before_and_is_not_known_is_said() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut calls = Calls::start(&[]);
    calls.call("cudaMalloc old 5000000");
    daemon.attach(calls.pid(), "segments");
    // Which device the thread has chosen is known from here on.
    calls.call("cudaSetDevice 0");
    add(&daemon, "allocated > 1MiB on device 0", calls.pid());
    calls.call("cudaMalloc new 3000000");
    let all = kept(&daemon);
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

/// A process that stands above already: its blocks are read first, then it is snapshot with them.
#[test]
fn a_late_attach_waits_for_the_baseline() {
    let daemon = Daemon::with(&["--snapshot-when", "reserved > 90MiB"]);
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    torch.ask("alloc old 104857600");
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    torch.ask("free a");
    eventually("it fires", || !kept(&daemon).is_empty());
    let all = kept(&daemon);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["without_baseline"], false, "{all:#?}");
    is_pytorchs(&mut torch, &all[0]);
    let stats = daemon.stats(torch.pid());
    assert!(coverage(&stats).contains(&"baseline_read"), "{stats:#}");
    torch.finish();
}

#[test]
fn other_formats_and_words_that_are_no_condition() {
    let daemon = Daemon::with(&["--snapshot-format", "html"]);
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train");
    torch.ask("oom");
    let all = kept(&daemon);
    assert_eq!(all[0]["format"], "html");
    let page = std::fs::read(all[0]["path"].as_str().unwrap()).unwrap();
    assert!(page.starts_with(b"<!doctype html>") || page.starts_with(b"<!DOCTYPE html>"));

    for (when, words) in [
        ("step == 100", &["column 1", "steps are not known yet"][..]),
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
    assert_eq!(kept(&daemon).len(), 1);
    torch.finish();

    let refused = Command::new(tool("memscoped"))
        .args(["--snapshot-when", "step 12"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("steps are not known yet"), "{said}");
}

/// Rounded sizes and the allocator's own totals suffice for all that there is to watch.
#[test]
fn at_level_blocks() {
    let words = [
        &NO_PAUSE[..],
        &[
            "--snapshot-when",
            "reserved > 60MiB",
            "--snapshot-when",
            "fragmentation > 50% with reserved > 40MiB",
        ],
    ]
    .concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "blocks");
    torch.ask("allocs many 4 12582912");
    torch.ask("oom");
    torch.ask("free many");
    // 48 MiB lie free, in pieces of 12.
    torch.ask("alloc large 25165824");
    let told: Vec<Value> = kept(&daemon).iter().map(|k| k["when"].clone()).collect();
    assert_eq!(
        told,
        [
            "oom",
            "reserved > 60MiB",
            "fragmentation > 50% with reserved > 40MiB"
        ]
    );
    torch.finish();
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
        assert_eq!(kept(&daemon), [json!(null); 0]);
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
            trigger(&daemon, 1)["skipped"],
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
    let all = kept(&daemon);
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

/// Two processes and two devices: each level counts by itself.
#[test]
fn each_device_and_each_process_by_itself() {
    let words = [&NO_PAUSE[..], &["--snapshot-when", "allocated > 50MiB"]].concat();
    let daemon = Daemon::with(&words);
    let mut first = Torch::start(&[("SIMCUDA_DEVICES", "2")]);
    let mut second = Torch::start(&[]);
    for torch in [&mut first, &mut second] {
        daemon.attach(torch.pid(), "trace");
    }
    let only = add(&daemon, "allocated > 50MiB on device 1", first.pid());
    // 40 MiB here and there are 120 together, and none is above.
    first.ask("alloc a 41943040");
    first.ask("alloc b 41943040 1");
    second.ask("alloc a 41943040");
    daemon.stats(first.pid());
    daemon.stats(second.pid());
    assert_eq!(kept(&daemon), [json!(null); 0]);
    first.ask("alloc c 20971520 1");
    let all = kept(&daemon);
    let told: Vec<_> = all.iter().map(|k| (&k["pid"], &k["device"])).collect();
    let one = json!(first.pid());
    assert_eq!(told, [(&one, &json!(1)), (&one, &json!(1))], "{all:#?}");
    is_pytorchs(&mut first, &all[1]);
    second.ask("alloc b 20971520");
    let all = kept(&daemon);
    assert_eq!(all.len(), 3);
    assert_eq!(
        (&all[2]["pid"], &all[2]["device"]),
        (&json!(second.pid()), &json!(0))
    );
    is_pytorchs(&mut second, &all[2]);
    assert_eq!(number(&trigger(&daemon, only)["fired"]), 1);
    first.finish();
    second.finish();
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
    let all = kept(&daemon);
    let oom = trigger(&daemon, 1);
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
