//! Planted leaks are found, with their size and count; a twin without the leak is not accused.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Calls, Daemon, LONG, Program, Torch, Value, number, sim, until};

const LEAKED: u64 = 1_500_000;

fn growing(answer: &Value) -> Vec<&Value> {
    answer["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|group| group["verdict"] == "growing")
        .collect()
}

#[track_caller]
fn leaks(daemon: &Daemon, pid: u32, code: i32) -> Value {
    let said = daemon.ctl(&["--json", "leaks", "--pid", &pid.to_string(), "--exit-code"]);
    assert_eq!(said.code, code, "{said}");
    said.document()
}

#[test]
fn a_training_run_and_its_twin() {
    let daemon = Daemon::start();
    let mut leaky = Torch::start(&[]);
    let mut twin = Torch::start(&[]);
    for torch in [&mut leaky, &mut twin] {
        torch.ask("train 5");
        daemon.attach(torch.pid(), "trace");
    }
    let steps = 130;
    leaky.tell(&format!("leak {steps} {LEAKED} 10"));
    twin.tell(&format!("leak {steps} {LEAKED} 10 3"));
    assert_eq!(leaky.hear()["held"], steps);
    twin.hear();

    let answer = leaks(&daemon, leaky.pid(), 10);
    let found = growing(&answer);
    assert_eq!(found.len(), 1, "{answer:#}");
    let group = found[0];
    assert_eq!(group["size_bytes"], LEAKED, "{group:#}");
    assert_eq!(group["live_count"], steps, "{group:#}");
    // What the blocks take of the pool, which rounds them up.
    let each = number(&group["live_bytes"]) / steps;
    assert_eq!(each, 1_507_328, "{group:#}");
    assert_eq!(
        (&group["device"], &group["source"]),
        (&Value::from(0), &Value::from("pool"))
    );
    // What it grew by is what came after the warm-up: a part of all, and most of it.
    let growth = number(&group["growth_count"]);
    assert!(growth > steps / 2 && growth <= steps, "{group:#}");
    assert_eq!(number(&group["growth_bytes"]), growth * each);
    assert_eq!(group["examples"].as_array().unwrap().len(), 5);
    assert!(group["growth_bytes_per_s"].as_f64() > Some(0.0));
    let old = daemon.json(&["leaks", "--pid", &leaky.pid_text(), "--min-age", "1h"]);
    assert_eq!(old["groups"], Value::Array(vec![]), "nothing is that old");

    let answer = leaks(&daemon, twin.pid(), 0);
    assert!(growing(&answer).is_empty(), "{answer:#}");
    // A table for people names it too.
    let table = daemon.ctl(&["leaks", "--pid", &leaky.pid_text()]);
    assert!(table.text().contains("growing"), "{table}");
    leaky.finish();
    twin.finish();
}

/// A program that runs out of memory gives back what its names lead to before it ends. What it leaked until then is told all the same.
#[test]
fn a_leak_until_the_device_is_full() {
    let daemon = Daemon::start();
    let mut command = sim().python("runs_out.py");
    command.env("SIMCUDA_DEVICE_SIZE", "1GiB");
    let mut program = Program::start("runs_out", command);
    program.hear_until("begun");
    daemon.attach(program.pid(), "trace");
    program.tell("go on");
    let kept = program.hear_until("kept ");
    let kept: u64 = kept["kept ".len()..].parse().unwrap();
    until(LONG, "its end", || {
        let process = daemon.process(program.pid())?;
        process["ended_boot_ns"].is_u64().then_some(())
    });
    assert!(
        program.errors().contains("OutOfMemoryError"),
        "{}",
        program.errors()
    );

    let answer = leaks(&daemon, program.pid(), 10);
    let [line] = &answer["lines"].as_array().unwrap()[..] else {
        panic!("{answer:#}");
    };
    assert_eq!(line["verdict"], "growing", "{answer:#}");
    assert_eq!(
        (&line["line"]["name"], &line["line"]["line"]),
        (&"train".into(), &16.into())
    );
    // Those of before the attach have no line.
    assert_eq!(line["live_count"], kept - 5, "{answer:#}");
    assert_eq!(line["growth_bytes_per_step"], 4_194_304.0, "{answer:#}");
    assert_eq!(answer["given_back"], Value::Array(vec![]), "{answer:#}");
    let end = number(&answer["process"]["ended_boot_ns"]);
    assert!(number(&answer["until_boot_ns"]) < end, "{answer:#}");
    let table = daemon.ctl(&["leaks", "--pid", &program.pid_text()]);
    for words in [
        "1 line of the program grew: ",
        " before the end: what a program frees as it ends does not count as given back.",
    ] {
        assert!(table.text().contains(words), "{table}");
    }

    // The list says it as well, when the probes are removed.
    let process = until(LONG, "the verdict", || {
        let process = daemon.process(program.pid())?;
        (process["verdict"] != Value::Null).then_some(process)
    });
    assert_eq!(process["verdict"], "growing", "{process:#}");
    assert_eq!(process["judged_ago_ns"], Value::Null, "{process:#}");
    let list = daemon.ctl(&["ps"]);
    assert!(list.text().contains("  GREW "), "{list}");
}

/// `ps` tells apart what grows, what does not, and of what that cannot be told yet.
#[test]
fn the_list_says_of_each_whether_it_grows() {
    let daemon = Daemon::start();
    let mut leaky = Torch::start(&[]);
    let mut twin = Torch::start(&[]);
    let mut young = Torch::start(&[]);
    for torch in [&mut leaky, &mut twin, &mut young] {
        torch.ask("train 5");
        daemon.attach(torch.pid(), "trace");
    }
    leaky.tell(&format!("leak 130 {LEAKED} 10"));
    twin.tell(&format!("leak 130 {LEAKED} 10 3"));
    // So few steps are no growth yet, however often it is asked.
    young.tell(&format!("leak 12 {LEAKED} 10"));
    for torch in [&mut leaky, &mut twin, &mut young] {
        torch.hear();
    }
    let listed = |pid| daemon.process(pid).expect("it is traced");
    for (torch, verdict, word) in [
        (&leaky, "growing", " GROWS "),
        (&twin, "steady", " steady "),
        (&young, "too_early", " too early "),
    ] {
        until(LONG, verdict, || {
            (listed(torch.pid())["verdict"] == verdict).then_some(())
        });
        let table = daemon.ctl(&["ps"]);
        let pid = format!(" {} ", torch.pid());
        let row = table.text().lines().find(|line| line.contains(&pid));
        assert!(row.expect("a row of it").contains(word), "{table}");
    }
    // The same as `leaks` says of each.
    let answer = leaks(&daemon, leaky.pid(), 10);
    let sure = &answer["lines"][0]["confidence"];
    assert!(sure.is_number(), "{answer:#}");
    // The last steps came after the daemon had looked, maybe: it looks again.
    until(LONG, "as sure as `leaks`", || {
        (&listed(leaky.pid())["confidence"] == sure).then_some(())
    });
    leaks(&daemon, twin.pid(), 0);
    assert!(leaks(&daemon, young.pid(), 11)["young"].is_object());
    let ended = [
        (leaky.pid(), "growing", " GREW "),
        (twin.pid(), "steady", " steady "),
        (young.pid(), "too_early", " too early "),
    ];
    // They end right after a step: what a program frees after a long rest was given back, and not freed by its end.
    leaky.ask(&format!("leak 1 {LEAKED} 10"));
    leaky.finish();
    twin.ask(&format!("leak 1 {LEAKED} 10 3"));
    twin.finish();
    young.ask(&format!("leak 1 {LEAKED} 10"));
    young.finish();
    for (pid, verdict, word) in ended {
        let process = until(LONG, "what it did until its end", || {
            let process = listed(pid);
            (process["state"] == "exited" && !process["verdict"].is_null()).then_some(process)
        });
        assert_eq!(process["verdict"], verdict, "{process:#}");
        assert!(process["judged_ago_ns"].is_null(), "{process:#}");
        let table = daemon.ctl(&["ps"]);
        let row = |line: &&str| line.contains(&format!(" {pid} "));
        let row = table.text().lines().find(row);
        assert!(row.expect("a row of it").contains(word), "{table}");
    }
}

#[test]
fn a_native_program_and_its_twin() {
    let daemon = Daemon::start();
    let mut leaky = Calls::start(&[]);
    let mut twin = Calls::start(&[]);
    for calls in [&mut leaky, &mut twin] {
        calls.call("pairs 10 1000");
        daemon.attach(calls.pid(), "segments");
        calls.call("cudaSetDevice 0");
    }
    leaky.tell(&format!("leak 200 {LEAKED} 20 0"));
    twin.tell(&format!("leak 200 {LEAKED} 20 3"));
    assert_eq!(leaky.hear()["result"], 0);
    assert_eq!(twin.hear()["result"], 0);
    let answer = leaks(&daemon, leaky.pid(), 10);
    let found = growing(&answer);
    assert_eq!(found.len(), 1, "{answer:#}");
    assert_eq!(
        (&found[0]["size_bytes"], &found[0]["live_count"]),
        (&Value::from(LEAKED), &Value::from(200))
    );
    assert_eq!(found[0]["source"], "driver");
    let answer = leaks(&daemon, twin.pid(), 0);
    assert!(growing(&answer).is_empty(), "{answer:#}");
    leaky.finish();
    twin.finish();
}
