//! Which Python objects keep memory alive, asked of a daemon: the answer names what the program says that it did.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;

use memscope_tests::{Daemon, Device, Program, Torch, root, sim_of};
use serde_json::Value;

fn start(daemon: &Daemon) -> (Program, Value) {
    let script = root().join("crates/heap/tests/torch/holders.py");
    let mut program = Program::start("holders", sim_of(Device::Cuda).script(&script));
    let told = program.hear();
    daemon.attach(program.pid(), "trace");
    (program, told)
}

fn of<'a>(answer: &'a Value, path: &str) -> &'a Value {
    let holders = answer["holders"].as_array().unwrap();
    let found = holders.iter().find(|holder| holder["path"] == path);
    found.unwrap_or_else(|| panic!("nothing at {path}: {answer:#}"))
}

#[test]
fn holders_are_named_as_in_the_program() {
    let daemon = Daemon::start();
    let (program, told) = start(&daemon);
    let pid = program.pid_text();
    let answer = daemon.json(&["holders", "--pid", &pid, "--limit", "0"]);

    let history = of(&answer, "__main__.T.history[*]");
    assert_eq!(history["container"], "__main__.T.history");
    assert_eq!(history["kind"], "list");
    assert_eq!(history["length"], 50);
    assert_eq!(history["blocks"]["count"], 50);
    assert_eq!(history["unsure"]["count"], 0);
    assert_eq!(history["origin"], "named");
    assert_eq!(history["via"], "tensor");
    let names: Vec<&str> = history["way"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["name"].as_str().unwrap())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(names, ["__main__", "T", "history"]);

    let exp_avg = of(&answer, "__main__.T.optimizer.state[*]['exp_avg']");
    assert_eq!(exp_avg["blocks"]["count"], 4);
    for name in ["0.weight", "0.bias", "2.weight", "2.bias"] {
        let weight = of(&answer, &format!("__main__.T.model.{name}"));
        assert_eq!(weight["blocks"]["count"], 1);
        let gradient = of(&answer, &format!("__main__.T.model.{name}.grad"));
        assert_eq!(gradient["via"], "gradient");
    }
    let graph = of(&answer, "__main__.product.grad_fn");
    assert_eq!(graph["via"], "graph");
    let local = of(&answer, "main.<locals>.local");
    let step = &local["way"][0];
    assert!(
        step["file"].as_str().unwrap().ends_with("holders.py"),
        "{step}"
    );
    assert!(step["line"].as_u64().unwrap() > 100, "{step}");
    let cycle = of(&answer, "<garbage Cycle>.tensor");
    assert_eq!(cycle["origin"], "garbage");
    assert_eq!(answer["garbage"], cycle["blocks"]);

    // Each block that the program named is held at the place that it named.
    for case in told["cases"].as_array().unwrap().iter().step_by(7) {
        let address = format!("{:#x}", case["block"].as_u64().unwrap() + 1);
        let one = daemon.json(&["holders", "--pid", &pid, "--address", &address]);
        assert_eq!(one["blocks"]["count"], 1, "{case}");
        let parts = one["holders"][0]["way"].as_array().unwrap().iter();
        let path: String = parts.map(|step| step["part"].as_str().unwrap()).collect();
        assert_eq!(path, case["way"].as_str().unwrap(), "{one:#}");
    }
    let said = daemon.ctl(&["holders", "--pid", &pid]);
    let text = said.text();
    assert!(text.contains("list of 50"), "{text}");
    assert!(
        text.contains("wait for Python's garbage collector"),
        "{text}"
    );
}

/// What is told to be garbage is what a collection frees, to the byte, and nothing else.
#[test]
fn garbage_is_what_a_collection_frees() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python("owners/cycles.py");
    let mut program = Program::start("cycles", command);
    let told = program.hear();
    daemon.attach(program.pid(), "trace");
    let pid = program.pid_text();
    let before = daemon.json(&["holders", "--pid", &pid]);
    program.tell("collect");
    let freed = program.hear();
    let freed: BTreeSet<u64> = freed["freed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|address| address.as_u64().unwrap())
        .collect();
    let bytes = freed
        .iter()
        .map(|address| told["sizes"][address.to_string()].as_u64().unwrap());
    assert!(freed.len() > 220, "{freed:?}");
    assert_eq!(before["garbage"]["count"], freed.len() as u64, "{before:#}");
    assert_eq!(before["garbage"]["bytes"], bytes.sum::<u64>(), "{before:#}");
    for kept in ["__main__.mine", "__main__.kept.tensor"] {
        assert_eq!(of(&before, kept)["origin"], "named");
    }
    let rows = before["holders"].as_array().unwrap().iter();
    let garbage: Vec<_> = rows.filter(|row| row["origin"] == "garbage").collect();
    let unsure = garbage.iter().map(|row| row["unsure"]["count"].as_u64());
    assert_eq!(unsure.sum::<Option<u64>>(), Some(0), "{garbage:#?}");
    let after = daemon.json(&["holders", "--pid", &pid]);
    assert_eq!(after["garbage"]["count"], 0, "{after:#}");
}

/// Reading again and again shows what changed, and only that.
#[test]
fn holders_that_change_are_shown_again() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python("owners/grows.py");
    let mut program = Program::start("grows", command);
    program.hear();
    daemon.attach(program.pid(), "trace");
    let pid = program.pid_text();

    let said = daemon.ctl(&["holders", "--pid", &pid, "--every", "10ms", "--count", "2"]);
    let (first, second) = said.text().split_once("after the reading before").unwrap();
    assert!(
        first.contains("__main__.trainer.weights['first']"),
        "{said}"
    );
    assert!(second.contains("nothing changed"), "{said}");

    // Far apart, so that the program changes between two readings and not in the middle of one.
    let mut table = daemon
        .ask(&["holders", "--pid", &pid, "--every", "5s"])
        .start();
    table.hear_until(" __main__.trainer.history[*]");
    table.hear_until("What these numbers do not show");
    program.ask("change");
    let row = table.hear_until(" __main__.trainer.history[*]");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(&words[2..4], ["7", "+3"], "{row}");
    assert!(row.contains("list of 7 (+3)"), "{row}");

    let every = ["holders", "--pid", &pid, "--every", "50ms"];
    let mut lines = daemon.ask(&[&["--json"], &every[..]].concat()).start();
    for _ in 0..2 {
        assert_eq!(
            of(&lines.hear(), "__main__.trainer.history[*]")["length"],
            7
        );
    }
    drop(lines);
    let answer = daemon.json(&every[..3]);
    for (path, length) in [("shrinking", 7), ("cache", 5)] {
        let holder = of(&answer, &format!("__main__.{path}[*]"));
        assert_eq!(holder["length"], length);
        assert_eq!(holder["blocks"]["count"], length);
    }
    // Of a process that ended there is nothing more to read.
    drop(program);
    assert_ne!(table.wait().code(), Some(0));
}

#[test]
fn what_has_no_holders_says_why() {
    let daemon = Daemon::start();
    let torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    daemon
        .ctl(&["holders", "--pid", &pid, "--address", "0x10"])
        .refused(2, &["has the address 0x10 in it"]);
}
