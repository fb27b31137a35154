//! Every command of memscope-ctl against a live daemon, for people and for programs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Asking, Daemon, Torch, Value, assert_totals, device, find, number};

/// The JSON documents of an output, one in a line.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[test]
fn every_command() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ]);
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    let told = torch.ask("train 2");

    let doctor = daemon.ctl(&["doctor"]);
    for word in ["kernel", "btf", &pid, "record_trace"] {
        assert!(doctor.text().contains(word), "no {word} in {doctor}");
    }
    let doctor = daemon.json(&["doctor"]);
    assert!(doctor.is_object(), "{doctor:#}");
    assert_eq!(
        Asking::new(["--socket", "/nonexistent/socket", "doctor"])
            .ask()
            .code,
        0,
        "needs no daemon"
    );

    let status = daemon.json(&["status"]);
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["traced_processes"], 1);
    assert_eq!(status["journal"]["state"], "writing");
    assert!(
        status["drops"]
            .as_array()
            .unwrap()
            .iter()
            .all(|drop| drop["count"] == 0),
        "{status:#}"
    );
    let libraries = status["libraries"].as_array().unwrap();
    let framework = libraries
        .iter()
        .find(|l| l["path"].to_string().contains("libc10_cuda.so"))
        .unwrap();
    assert!(
        framework["ways"].to_string().contains("record_trace"),
        "{framework:#}"
    );
    // One process is traced. Functions without a probe, as those that launch kernels, are in no sum.
    let by_library: u64 = libraries.iter().map(|l| number(&l["sites"])).sum();
    assert_eq!(by_library, number(&status["sites"]), "{status:#}");
    assert!(daemon.ctl(&["status"]).text().contains("writing"));

    let list = daemon.json(&["ps"]);
    let process = find(&list["processes"], "pid", torch.pid()).unwrap();
    assert_eq!(
        (&process["state"], &process["uid"]),
        (&Value::from("attached"), &Value::from(0))
    );
    assert!(
        process["cmdline"].to_string().contains("agent.py"),
        "{process:#}"
    );
    assert!(daemon.ctl(&["ps"]).text().contains(&pid));

    // The only process there is need not be named.
    let stats = daemon.json(&["stats"]);
    assert_totals(&stats, &told);
    let environment = stats["process"]["environment"].as_array().unwrap();
    for (name, value) in [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ] {
        assert!(
            environment
                .iter()
                .any(|v| v["name"] == name && v["value"] == value),
            "{environment:?}"
        );
    }
    let zero = device(&stats, 0);
    for key in [
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "peak_allocated_bytes",
        "baseline_bytes",
        "live_blocks",
        "total_bytes",
        "alloc_count",
        "free_count",
    ] {
        assert!(zero.get(key).is_some(), "no {key}: {zero:#}");
    }
    assert!(stats["as_of"].is_u64() && stats["lost_records"] == 0);
    assert!(number(&zero["peak_allocated_bytes"]) >= number(&zero["allocated_bytes"]));
    assert_eq!(
        number(&zero["sizes"]["count"]),
        number(&zero["alloc_count"])
    );
    assert_eq!(
        number(&zero["lifetimes"]["count"]),
        number(&zero["free_count"])
    );
    assert!(
        daemon
            .ctl(&["stats", "--pid", &pid])
            .text()
            .contains("allocated")
    );

    let watched = daemon.ctl(&[
        "--json",
        "watch",
        "--pid",
        &pid,
        "--count",
        "3",
        "--interval",
        "100ms",
    ]);
    let watched = lines(watched.text());
    assert_eq!(watched.len(), 3);
    assert!(number(&watched[0]["as_of"]) < number(&watched[2]["as_of"]));

    let course = daemon.json(&[
        "fluctuation",
        "--pid",
        &pid,
        "--window",
        "0s",
        "--intervals",
        "5",
    ]);
    let of = device(&course, 0);
    assert_eq!(of["intervals"].as_array().unwrap().len(), 5, "{course:#}");
    assert_eq!(
        of["overall"]["max_allocated_bytes"], zero["peak_allocated_bytes"],
        "{course:#}"
    );

    let groups = daemon.json(&["leaks", "--pid", &pid, "--all-groups", "--limit", "0"]);
    let found = find(&groups["groups"], "size_bytes", 3_000_000).expect("the tensor that is kept");
    assert_eq!(found["live_count"], 1);

    let snapshot = daemon.json(&["snapshot", "--pid", &pid, "--format", "json"]);
    assert_eq!(
        snapshot["segments"].as_array().unwrap().len() as u64,
        number(&zero["segments"]),
        "{:#}",
        snapshot["header"]
    );
    let pickle = daemon.folder().join("state/s.pickle");
    daemon
        .ctl(&["snapshot", "--pid", &pid, "-o", pickle.to_str().unwrap()])
        .text();
    assert!(std::fs::metadata(&pickle).unwrap().len() > 1000);
    std::fs::remove_file(pickle).unwrap();

    // Events come while they are waited for.
    let ask = daemon.ask(&["events", "--pid", &pid, "--count", "20"]);
    let reader = std::thread::spawn(move || ask.ask());
    while !reader.is_finished() {
        torch.ask("churn 20");
    }
    let said = reader.join().unwrap();
    let events = lines(said.text());
    assert_eq!(events.len(), 20);
    for event in &events {
        assert_eq!(event["pid"], torch.pid(), "{event}");
        assert!(
            event["kind"].is_string() && event["time_boot_ns"].is_u64(),
            "{event}"
        );
    }
    assert!(
        events
            .iter()
            .any(|event| event["kind"] == "trace" && event["body"]["action"] == "alloc"),
        "{events:?}"
    );

    daemon.json(&["detach", "--all"]);
    assert_eq!(daemon.process(torch.pid()).unwrap()["state"], "detached");
    torch.finish();
}

/// On a terminal of 100 columns no answer is wider: those that need a real process, whose paths and names are long.
#[test]
fn answers_about_a_real_process_fit_the_terminal() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid_text();
    let ask = |words: &[&str]| daemon.ask(words).with("COLUMNS", "100").ask();
    let attached = ask(&["attach", "--pid", &pid, "--accesses"]);
    let marked = ask(&["mark", "--pid", &pid, "begun"]);
    torch.ask("train 3");
    torch.ask("alloc kept_by_a_rather_long_name 3000000");
    let mut answers = vec![attached, marked];
    for words in [
        &["owners", "--pid", &pid][..],
        &["owners", "--pid", &pid, "--tree"],
        &["holders", "--pid", &pid],
        &["diff", "--pid", &pid, "--from", "mark:begun"],
        &["marks", "--pid", &pid, "--all"],
        &["stacks", "--pid", &pid],
        &["steps", "--pid", &pid],
        &["pool", "--pid", &pid],
        &["inefficient", "--pid", &pid],
        &["trigger", "list"],
        &["snapshots"],
        &["doctor"],
        &["detach", "--pid", &pid],
    ] {
        answers.push(ask(words));
    }
    for said in answers {
        for line in said.text().lines() {
            let columns = line.chars().count();
            assert!(columns <= 100, "{columns} columns: {line}\nin {said}");
        }
    }
    torch.finish();
}
