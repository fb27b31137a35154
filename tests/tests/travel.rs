//! Earlier moments, from the journal, live and from the recording.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Daemon, LONG, Torch, Value, coverage, device, number, until};

/// A snapshot as JSON.
fn snapshot(daemon: &Daemon, pid: &str, at: Option<&str>) -> Value {
    let mut words = vec!["snapshot", "--pid", pid, "--format", "json"];
    if let Some(at) = at {
        words.extend(["--at", at]);
    }
    daemon.ctl(&words).document()
}

#[test]
fn earlier_moments_are_as_they_were() {
    let mut daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    let mut moments = Vec::new();
    for command in [
        "train",
        "alloc a 3000000",
        "alloc b 70000",
        "train 2",
        "oom",
        "free a",
        "empty_cache",
        "alloc c 9000000",
        "train",
        "drop",
    ] {
        torch.ask(command);
        moments.push((command, snapshot(&daemon, &pid, None)));
    }
    for (command, then) in &moments {
        let event = number(&then["header"]["as_of_event"]["sequence"]);
        for at in [
            format!("event:{event}"),
            number(&then["header"]["as_of"]).to_string(),
        ] {
            let again = snapshot(&daemon, &pid, Some(&at));
            assert_eq!(again["segments"], then["segments"], "{command} at {at}");
            assert_eq!(
                again["trace"].as_array().unwrap().len(),
                then["trace"].as_array().unwrap().len(),
                "{command} at {at}"
            );
        }
    }
    let distinct: std::collections::BTreeSet<String> = moments
        .iter()
        .map(|(_, then)| then["segments"].to_string())
        .collect();
    assert!(
        distinct.len() >= 6,
        "the moments differ: {}",
        distinct.len()
    );

    // Moments that are not there.
    let ask = |daemon: &Daemon, at: &str| {
        daemon.ctl(&["snapshot", "--pid", &pid, "--format", "json", "--at", at])
    };
    ask(&daemon, "event:99999999").refused(2, &["has not come yet"]);
    ask(&daemon, "2100-01-01T00:00:00Z").refused(2, &["lies ahead"]);
    ask(&daemon, "1990-01-01T00:00:00Z").refused(2, &["attached"]);
    for (words, said) in [
        ("step 3", "step:NUMBER"),
        ("step:7", "step 7 has not ended: the last one that has is 4"),
        ("yesterday", "event:NUMBER"),
    ] {
        let refused = ask(&daemon, words);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.errors.contains(said), "{refused:?}");
    }

    // The same from the recording.
    torch.finish();
    let (_, then) = &moments[3];
    let event = number(&then["header"]["as_of_event"]["sequence"]);
    daemon.stop();
    let journal = daemon.state().join("journal");
    let epoch = std::fs::read_dir(journal)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.is_dir())
        .unwrap();
    let recorded = memscope_tests::Asking::new([
        "--recording",
        epoch.to_str().unwrap(),
        "snapshot",
        "--pid",
        &pid,
        "--format",
        "json",
        "--at",
        &format!("event:{event}"),
    ])
    .ask()
    .document();
    assert_eq!(recorded["segments"], then["segments"]);
    assert!(!coverage(&recorded["header"]).contains(&"recording_damaged"));
}

#[test]
fn every_format_of_a_live_process() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 2");
    let folder = memscope_tests::scratch();
    let pid = torch.pid_text();
    let write = |format: &str| {
        let file = folder.path().join(format);
        let path = file.to_str().unwrap();
        let said = daemon.ctl(&["snapshot", "--pid", &pid, "--format", format, "-o", path]);
        assert!(said.text().contains("Wrote"), "{said:?}");
        std::fs::read(file).unwrap()
    };
    // A protobuf field 1 with a length: the trace's first packet.
    let perfetto = write("perfetto");
    assert_eq!(perfetto.first(), Some(&0x0a));
    assert!(
        perfetto.windows(9).any(|w| w == b"allocated"),
        "a counter's name"
    );
    let html = String::from_utf8(write("html")).unwrap();
    assert!(
        html.starts_with("<!doctype html>") || html.starts_with("<!DOCTYPE html>"),
        "{}",
        &html[..80]
    );
    assert!(
        !html.contains("http://") && !html.contains("src=\"https"),
        "it fetches nothing"
    );
    assert!(html.contains(&pid));
    torch.finish();
}

#[test]
fn what_came_and_went_between_two_moments() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("alloc kept 5000000");
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    let pid = torch.pid_text();
    let then = daemon.stats(torch.pid());
    torch.ask("train");
    torch.ask("free a");
    torch.ask("free kept");
    torch.ask("alloc b 70000");
    torch.ask("alloc c 70000");
    let from = number(&then["as_of"]).to_string();
    let diff = daemon.json(&["diff", "--pid", &pid, "--from", &from]);
    let group = |size: u64| {
        diff["groups"]
            .as_array()
            .unwrap()
            .iter()
            .find(|g| g["size_bytes"] == size)
            .unwrap_or_else(|| panic!("no group of {size} in {diff:#}"))
    };
    let counts = |size: u64| {
        let group = group(size);
        ["came", "went", "stayed"].map(|what| number(&group[what]["count"]))
    };
    // What was let go of went; what came afterwards stays.
    assert_eq!(counts(70000), [2, 0, 0]);
    assert_eq!(counts(3_000_000), [0, 1, 0]);
    assert_eq!(
        counts(5_000_000),
        [0, 1, 0],
        "also what was there before the attach"
    );
    let zero = &diff["devices"][0];
    assert_eq!(
        zero["allocated_before_bytes"],
        device(&then, 0)["allocated_bytes"]
    );
    let now = daemon.stats(torch.pid());
    assert_eq!(
        zero["allocated_after_bytes"],
        device(&now, 0)["allocated_bytes"]
    );
    let said = daemon.ctl(&["diff", "--pid", &pid, "--from", &from]);
    assert!(said.text().contains("68.36 KiB"), "{said:?}");
    torch.finish();
}

/// A process that runs out of memory is snapshot by itself: as it was, with the failed call last.
#[test]
fn running_out_of_memory_leaves_a_snapshot() {
    let daemon = Daemon::with(&["--oom-snapshots", "2"]);
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    torch.ask("oom");
    let folder = daemon.state().join("snapshots");
    let file = until(LONG, "a snapshot of the moment", || {
        std::fs::read_dir(&folder)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "pickle"))
    });
    // Nothing was allocated or freed since: the state is still PyTorch's.
    let told = torch.ask(&format!("compare {}", file.to_str().unwrap()));
    assert_eq!(told["exported"], told["own"]);
    let script = "import pickle, sys\n\
                  entries = pickle.load(open(sys.argv[1], 'rb'))['device_traces'][0]\n\
                  print([entry['action'] for entry in entries][-1])";
    let last = std::process::Command::new("python3")
        .args(["-c", script, file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&last.stdout).trim(),
        "oom",
        "{last:?}"
    );
    let status = daemon.json(&["status"]);
    assert!(
        status["messages"].to_string().contains("ran out of memory"),
        "{status:#}"
    );
    torch.finish();
}

/// PyTorch's own reader of snapshots takes a live process's, in each of its questions.
#[test]
fn pytorch_reads_the_export() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 2");
    torch.ask("alloc a 3000000");
    let folder = memscope_tests::scratch();
    let pickle = folder.path().join("s.pickle");
    let pickle = pickle.to_str().unwrap();
    daemon
        .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", pickle])
        .text();
    torch.finish();
    // It would download the script that draws flame graphs; this one reads everything, as that does.
    let cache = folder.path().join(".cache");
    std::fs::create_dir(&cache).unwrap();
    let script = cache.join("flamegraph.pl");
    std::fs::write(&script, "#!/bin/sh\nexec tail -n 1\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let viewer = memscope_tests::sim()
        .site_packages()
        .join("torch/cuda/_memory_viz.py");
    let ask = |arguments: &[&str]| {
        let output = memscope_tests::sim()
            .python(viewer.to_str().unwrap())
            .args(arguments)
            .env("HOME", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ask(&["stats", pickle]).contains("segments: "));
    assert!(ask(&["trace", pickle]).contains("Device 0"));
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for question in ["segments", "memory", "trace_plot", "segment_plot"] {
        ask(&[question, pickle, "-o", out]);
        assert!(std::fs::metadata(out).unwrap().len() > 0, "{question}");
    }
}
