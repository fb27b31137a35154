//! Many nodes asked at once: most are well, some are dead, slow, or lie.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use common::{Answer, two_processes};
use memscope_ledger::report::{ProcessState, Stack, StackRow, Tally};
use memscope_proto::v1;
use memscope_rpc::fake::{self, FakeDaemon, FakeProcess};
use nodes::{Lie, Nodes};
use std::sync::mpsc::TryRecvError;

/// A process that is the given rank and holds this much.
fn rank(rank: u32, bytes: u64) -> FakeProcess {
    let mut process = fake::process(10_000 + rank, 0);
    process.process.facts.environment = vec![
        ("RANK".into(), rank.to_string()),
        ("WORLD_SIZE".into(), "512".into()),
    ];
    process.devices = vec![fake::device(Some(0), v1::Source::Pool, Some(bytes))];
    process.groups = Vec::new();
    process
}

fn one(pid: u32) -> FakeDaemon {
    FakeDaemon::with([fake::process(pid, 0)])
}

/// Five hundred nodes: 425 are well, 50 dead, 20 slow, and 5 lie.
fn five_hundred() -> Nodes {
    let mut nodes = Nodes::new();
    for number in 0..425 {
        nodes.healthy(&format!("well{number}"), one(1000 + number));
    }
    for number in 0..25 {
        nodes.absent(&format!("absent{number}"));
    }
    for number in 0..20 {
        nodes.refusing(&format!("refusing{number}"));
    }
    for number in 0..5 {
        nodes.silent(&format!("silent{number}"));
    }
    for number in 0..19 {
        nodes.slow(&format!("slow{number}"), one(5000 + number));
    }
    nodes.silent("never");
    for (number, lie) in [
        Lie::Claims,
        Lie::Claims,
        Lie::Endless,
        Lie::Trickles,
        Lie::Empty,
    ]
    .into_iter()
    .enumerate()
    {
        nodes.liar(&format!("liar{number}"), lie);
    }
    nodes
}

/// What all of this may take at most, in KiB. A message of a million bytes may become two hundred times as much for a
/// moment; a program that believed one liar of 3 GiB would take more.
const MEMORY: u64 = 600 << 10;

#[track_caller]
fn assert_has(answer: &Answer, words: &str) {
    assert!(
        answer.out.contains(words),
        "no {words:?} in:\n{}{}",
        answer.out,
        answer.err
    );
}

#[test]
fn five_hundred_nodes_of_which_many_are_not_well() {
    let nodes = five_hundred();
    // All nodes are threads of this process, which a busy machine may keep waiting for seconds.
    let (answer, memory) = nodes.ask(1024, &["--timeout", "30s", "ps"]);
    assert_eq!(answer.code, 7, "{}{}", answer.out, answer.err);
    for (first, count) in [(1000, 425), (5000, 19)] {
        for pid in first..first + count {
            let row = |line: &&str| line.split_whitespace().nth(1) == Some(&pid.to_string());
            assert_eq!(
                answer.out.lines().filter(row).count(),
                1,
                "{pid} in {}",
                answer.out
            );
        }
    }
    assert_has(&answer, "NODE");
    assert_has(&answer, "\n56 nodes of 500 did not answer: ");
    assert_has(
        &answer,
        "no socket 25 (absent0, absent1, absent2, absent3, absent4, 20 more)",
    );
    assert_has(&answer, "refused 20 (");
    assert_has(
        &answer,
        "an answer that is too large 4 (liar0, liar1, liar2, liar4)",
    );
    assert_has(&answer, "no answer within 30 s 7 (");
    println!("the program took at most {memory} KiB");
    assert!(memory > 0 && memory < MEMORY, "{memory} KiB");
}

#[test]
fn few_open_files_are_enough() {
    let mut nodes = Nodes::new();
    for number in 0..150 {
        nodes.healthy(&format!("node{number}"), one(1000 + number));
    }
    let (answer, _) = nodes.ask(96, &["--timeout", "60s", "ps", "--json"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let document = answer.json();
    assert_eq!(document["unanswered"], 0);
    let replies = document["nodes"].as_array().unwrap();
    assert_eq!(replies.len(), 150);
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(reply["node"], format!("node{number}"));
        assert!(reply["address"].as_str().unwrap().starts_with("unix:/"));
        assert_eq!(reply["answer"]["processes"][0]["pid"], 1000 + number);
    }
}

#[test]
fn a_slow_node_is_asked_a_second_time() {
    let mut nodes = Nodes::new();
    for number in 0..20 {
        nodes.healthy(&format!("node{number}"), one(1000 + number));
    }
    nodes.slow_once("slow", one(7));
    let answer = nodes.ask_patiently(&["ps"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_has(&answer, " slow");
}

#[test]
fn nobody_answers() {
    let mut nodes = Nodes::new();
    nodes.absent("a");
    nodes.refusing("b");
    let answer = nodes.ask_patiently(&["status"]);
    assert_eq!(answer.code, 3, "{}{}", answer.out, answer.err);
    assert!(
        answer
            .err
            .contains("none of 2 nodes answered: no socket 1 (a), refused 1 (b)"),
        "{}",
        answer.err
    );
}

#[test]
fn every_command_has_one_table() {
    let mut nodes = Nodes::new();
    nodes.healthy("left", two_processes());
    nodes.healthy("right", one(7));
    nodes.healthy("idle", FakeDaemon::default());
    nodes.absent("gone");
    let ask = |args: &[&str]| {
        let answer = nodes.ask_patiently(args);
        assert_eq!(answer.code, 7, "{args:?}: {}{}", answer.out, answer.err);
        assert_has(
            &answer,
            "\n1 node of 4 did not answer: no socket 1 (gone)\n",
        );
        answer
    };
    let rows = |answer: &Answer, node: &str, pid: &str| {
        let is_row = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(node) && words.next() == Some(pid)
        };
        answer.out.lines().filter(is_row).count()
    };
    let stats = ask(&["stats"]);
    // Each process holds something on a device, and something whose device is not known.
    assert_eq!(rows(&stats, "left", "99"), 2, "{}", stats.out);
    assert_eq!(rows(&stats, "right", "7"), 2, "{}", stats.out);
    assert_has(&stats, "1.23 GiB");
    let one_of_them = ask(&["stats", "--pid", "7"]);
    assert_eq!(rows(&one_of_them, "left", "99"), 0);
    assert_eq!(rows(&one_of_them, "right", "7"), 2);
    let leaks = ask(&["leaks"]);
    assert_has(
        &leaks,
        "0 of 3 processes grow; 3 that are no longer traced grew.",
    );
    assert_eq!(rows(&leaks, "left", "4242"), 1, "{}", leaks.out);
    assert_has(&leaks, "train.py:42 (train)");
    let top = ask(&["stacks", "--limit", "3"]);
    assert_has(&top, "The live memory of 3 processes");
    assert_has(&top, "3 of 3  1.95 GiB  1.95 GiB  forward");
    assert_has(&top, "5.86 GiB");
    let status = ask(&["status"]);
    assert!(
        status
            .out
            .lines()
            .any(|line| line.starts_with(" idle   0.1.0")),
        "{}",
        status.out
    );
    let doctor = ask(&["doctor"]);
    assert!(
        doctor.out.lines().any(|line| line.starts_with(" ok  left")),
        "{}",
        doctor.out
    );
    // Growth is found, and is more than that a node did not answer.
    assert_eq!(nodes.ask_patiently(&["leaks", "--exit-code"]).code, 10);
    let json = ask_json(&nodes, &["stats", "--json"]);
    assert_eq!(json["unanswered"], 1);
    assert_eq!(json["nodes"][0]["answer"].as_array().unwrap().len(), 2);
    assert_eq!(json["nodes"][1]["answer"][0]["pid"], 7);
    assert_eq!(json["nodes"][2]["answer"], serde_json::json!([]));
    assert_eq!(json["nodes"][3]["error"]["code"], "no_daemon");
}

fn ask_json(nodes: &Nodes, args: &[&str]) -> serde_json::Value {
    let answer = nodes.ask_patiently(args);
    answer.json()
}

#[test]
fn processes_of_which_nothing_is_told_are_named() {
    let mut nodes = Nodes::new();
    let well = |pid| fake::noted(pid, 0, &[]);
    let inexact = fake::noted(8, 0, &["records_lost"]);
    nodes.healthy("left", FakeDaemon::with([well(7), inexact]));
    nodes.healthy("right", FakeDaemon::with([well(9)]));
    assert_eq!(nodes.ask_patiently(&["stats"]).code, 0);
    let answer = nodes.ask_patiently(&["--strict", "stats"]);
    assert_eq!(answer.code, 11, "{}{}", answer.out, answer.err);
    assert_has(&answer, "\n1 process was refused: the answer is not exact");
    assert_has(&answer, " 1 (left pid 8)\n");
    let answer = nodes.ask_patiently(&["--strict", "stats", "8"]);
    assert_eq!(answer.code, 11, "{}{}", answer.out, answer.err);
    assert!(answer.out.starts_with("1 process was refused"));
    let json = ask_json(&nodes, &["--strict", "stats", "--json"]);
    assert_eq!(
        (&json["refused"], &json["unanswered"]),
        (&1.into(), &0.into())
    );
    let of_left = json["nodes"][0]["answer"].as_array().unwrap();
    let refused = of_left.iter().find(|one| one["pid"] == 8).unwrap();
    assert_eq!(refused["error"]["code"], "not_exact");
    // A process that no node has.
    for words in [
        &["leaks", "77", "--exit-code"][..],
        &["stats", "77"],
        &["stacks", "77"],
    ] {
        let answer = nodes.ask_patiently(words);
        assert_eq!(answer.code, 4, "{words:?}: {}{}", answer.out, answer.err);
        assert_eq!(answer.out, "No node has the process 77.\n", "{words:?}");
    }
    for words in [&["stats", "--pid", "7,77,78"][..], &["stats", "7,77,78"]] {
        let answer = nodes.ask_patiently(words);
        assert_eq!(answer.code, 4, "{}{}", answer.out, answer.err);
        assert_has(&answer, "\nNo node has any of the processes 77, 78.\n");
    }
    let json = ask_json(&nodes, &["stats", "--pid", "7,77,78", "--json"]);
    assert_eq!(json["not_found"], serde_json::json!([77, 78]));
}

#[test]
fn more_processes_than_are_asked_of_a_node_are_counted() {
    let mut nodes = Nodes::new();
    let many = (0..260).map(|number| rank(number, 1 << 30));
    nodes.healthy("large", FakeDaemon::with(many.collect::<Vec<_>>()));
    let answer = nodes.ask_patiently(&["stats"]);
    assert_eq!(answer.code, 7, "{}", answer.err);
    assert_has(
        &answer,
        "\n4 processes were not asked about, since of each node at most 256 are: large 4\n",
    );
    let answer = nodes.ask_patiently(&["ranks"]);
    assert_eq!(answer.code, 7, "{}", answer.err);
    assert_has(
        &answer,
        "\n4 ranks were not asked about, since of each node at most 256 are: large 4\n",
    );
    let json = ask_json(&nodes, &["ranks", "--json"]);
    assert_eq!(json["not_asked"], 4);
}

#[test]
fn other_commands_say_which_can() {
    let mut nodes = Nodes::new();
    nodes.healthy("node", one(7));
    for command in [&["snapshot"][..], &["attach", "--pid", "1"], &["pool"]] {
        let answer = nodes.ask_patiently(command);
        assert_eq!(answer.code, 2);
        let can = "with --fleet these can: doctor, status, ps, stats, devices, ui, leaks, ranks, stacks, top, events";
        assert!(answer.err.contains(can), "{}", answer.err);
    }
}

#[test]
fn events_of_all_nodes_are_one_stream() {
    let mut nodes = Nodes::new();
    nodes.healthy("left", one(1));
    nodes.healthy("right", one(2));
    let daemons = nodes.daemons();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let publish = std::thread::spawn(move || {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // Nobody says when the streams are open, so events are published until the program has ended.
        let mut sequence = 0;
        while std::time::Instant::now() < deadline && stopped.try_recv() == Err(TryRecvError::Empty)
        {
            for (pid, daemon) in [1, 2].into_iter().zip(&daemons) {
                sequence += 1;
                let body = memscope_ledger::event::Body::Exited;
                daemon.hub.publish(&fake::event(pid, 0, sequence, body));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let (answer, _) = nodes.ask(1024, &["events", "--count", "200"]);
    drop(stop);
    publish.join().unwrap();
    assert_eq!(answer.code, 0, "{}", answer.err);
    let events: Vec<serde_json::Value> = answer
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 200);
    for (node, pid) in [("left", 1), ("right", 2)] {
        let of_node = |event: &&serde_json::Value| event["node"] == node && event["pid"] == pid;
        assert!(events.iter().any(|event| of_node(&event)), "{node}");
    }
}

/// Who follows a fleet for days must know of which nodes nothing is told any more.
#[test]
fn a_daemon_that_ends_in_order_is_told() {
    let mut nodes = Nodes::new();
    nodes.healthy("left", one(1));
    nodes.healthy("right", one(2));
    let daemons = nodes.daemons();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let end = std::thread::spawn(move || {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // Nobody says when the streams are open, so they are ended until the program has ended.
        while std::time::Instant::now() < deadline && stopped.try_recv() == Err(TryRecvError::Empty)
        {
            daemons.iter().for_each(|daemon| daemon.hub.close());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let (answer, _) = nodes.ask(1024, &["events"]);
    drop(stop);
    end.join().unwrap();
    assert_eq!(answer.code, 7, "{}", answer.err);
    for node in ["left", "right"] {
        let said = format!("{node}: the daemon ended, and this node is not followed any more");
        assert!(answer.err.contains(&said), "{}", answer.err);
    }
}

/// As many streams are open at a time as the process may have files, however many nodes are asked at a time elsewhere.
#[test]
fn events_of_600_nodes_are_limited_by_files_alone() {
    let mut nodes = Nodes::new();
    for node in 0..600 {
        nodes.refusing(&format!("n{node}"));
    }
    let (answer, _) = nodes.ask(4096, &["events", "--count", "1"]);
    assert!(!answer.err.contains("ulimit"), "{}", answer.err);
    assert!(answer.err.contains("n599"), "{}", answer.err);
    let (answer, _) = nodes.ask(512, &["events", "--count", "1"]);
    assert!(answer.err.contains("ulimit"), "{}", answer.err);
}

#[test]
fn the_odd_rank_of_512_and_its_line() {
    let mut nodes = Nodes::new();
    for node in 0..64_u32 {
        let ranks = (0..8).map(|local| {
            let number = node * 8 + local;
            // A jitter of half a per cent at most.
            let jitter = u64::from(number * 7919 % 512) * (200 << 20) / 512;
            let mut process = rank(number, 40 * GIB + jitter);
            if number == 317 {
                process = rank(number, 46 * GIB);
                process.stacks += 1;
            }
            process
        });
        nodes.healthy(
            &format!("node{node}"),
            FakeDaemon::with(ranks.collect::<Vec<_>>()),
        );
    }
    let answer = nodes.ask_patiently(&["ranks"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_has(
        &answer,
        "512 ranks of a job without a name\nrank 317 (node39, pid 10317) stands out: its peak is 5.9",
    );
    assert_has(
        &answer,
        "surely (0.999); 1.92 GiB of it at /home/ada/model.py:31 forward",
    );
    assert_has(&answer, "ranks 0-316, 318-511: peak 40.1");
    let json = ask_json(&nodes, &["ranks", "--json", "--exit-code"]);
    let job = &json["jobs"][0];
    assert_eq!(job["ranks"].as_array().unwrap().len(), 512);
    assert_eq!(job["missing"], serde_json::json!([]));
    assert_eq!(job["judgement"]["stands_out"], true);
    assert_eq!(job["judgement"]["odd"][0]["rank"], 317);
    assert_eq!(nodes.ask_patiently(&["ranks", "--exit-code"]).code, 10);
    let folder = tempfile::tempdir().unwrap();
    for (name, words) in [
        // The line of the odd rank alone: nothing of it in the other.
        ("odd.folded", "forward (/home/ada/model.py:31)"),
        ("odd.svg", "What rank 317 holds at its peak, beside rank"),
    ] {
        let path = folder.path().join(name);
        let args = ["ranks", "--flamegraph", path.to_str().unwrap()];
        let answer = nodes.ask_patiently(&args);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert!(
            answer.err.contains("rank 317 beside rank "),
            "{}",
            answer.err
        );
        let drawn = std::fs::read_to_string(path).unwrap();
        assert!(drawn.contains(words), "{drawn}");
        if name == "odd.folded" {
            let own = drawn.lines().find(|line| line.contains(words)).unwrap();
            assert!(own.ends_with(&format!(" 0 {}", 1970_u64 << 20)), "{own}");
        }
    }
}

const GIB: u64 = 1 << 30;

/// What made the peak is free again: of now the line holds nothing, and is in no answer about now.
#[test]
fn a_line_that_held_memory_at_the_peak_alone_explains_it() {
    let ranks = (0..8).map(|number| {
        if number != 3 {
            return rank(number, 40 * GIB);
        }
        let mut process = rank(number, 46 * GIB);
        let frames = vec![fake::python("loss", "/home/ada/loss.py", 7)];
        let stack = Stack {
            frames,
            ..Stack::default()
        };
        let peak = Tally {
            count: 6,
            bytes: 6 * GIB,
        };
        process.more_stacks = vec![StackRow {
            live: Tally::default(),
            ..fake::stack_row(Some(0), stack, peak)
        }];
        process
    });
    let server = common::Server::start(FakeDaemon::with(ranks));
    let answer = server.ctl(&["ranks"]);
    assert_has(&answer, "rank 3 (");
    assert_has(&answer, "; 6.00 GiB of it at /home/ada/loss.py:7 loss");
    assert_has(&answer, "these lines make up 100 % of the difference");
}

/// Two jobs of which the name is not known have the same numbers.
#[test]
fn of_two_ranks_with_one_number_the_odd_one_is_named() {
    let mut nodes = Nodes::new();
    for node in ["a", "b"] {
        let ranks = (0..12).map(|number| match (node, number) {
            ("b", 3) => {
                let mut odd = rank(number, 46 * GIB);
                odd.stacks += 1;
                odd
            }
            _ => rank(number, 40 * GIB),
        });
        nodes.healthy(node, FakeDaemon::with(ranks));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.folded");
    let answer = nodes.ask_patiently(&["ranks", "--flamegraph", path.to_str().unwrap()]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_has(
        &answer,
        "rank 3 (b, pid 10003) stands out: its peak is 6.00 GiB above",
    );
    let rows = answer.out.lines().filter(|line| line.contains(" 10003 "));
    assert_eq!(rows.count(), 1, "{}", answer.out);
    assert_has(&answer, "ranks 0-11: peak 40.00 GiB");
    // The line of the odd rank alone: nothing of it in the other.
    let drawn = std::fs::read_to_string(path).unwrap();
    let own = drawn.lines().find(|line| line.contains("model.py:31"));
    let expected = format!(" 0 {}", 1970_u64 << 20);
    assert!(own.is_some_and(|line| line.ends_with(&expected)), "{drawn}");
    let json = ask_json(&nodes, &["ranks", "--json"]);
    let job = &json["jobs"][0];
    let odd = &job["judgement"]["odd"][0];
    let place = usize::try_from(odd["place"].as_u64().unwrap()).unwrap();
    assert_eq!(job["ranks"][place]["node"], "b", "{json:#}");
    assert_eq!(job["ranks"][place]["rank"], 3);
    assert_ne!(odd["explained"]["beside"], 3);
    assert_ne!(odd["explained"]["beside_place"], place);
}

#[test]
fn of_more_than_16_ranks_those_without_a_peak_are_named() {
    let ranks = (0..17).map(|number| {
        let mut process = rank(number, 40 * GIB);
        if number == 5 {
            process.coverage = fake::noted(1, 0, &["records_lost"]).coverage;
        }
        process
    });
    let answer = common::Server::start(FakeDaemon::with(ranks)).ctl(&["ranks"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_has(&answer, "ranks 0-4, 6-16: peak 40.00 GiB");
    assert_has(&answer, "\nranks 5: peak unknown\n");
}

#[test]
fn the_floor_is_that_of_20_steps_on_every_device() {
    let mut process = rank(0, GIB);
    process.devices = [0, 1]
        .map(|device| fake::device(Some(device), v1::Source::Pool, Some(GIB)))
        .into();
    let of_step = |step: u64| {
        [0, 1].map(|device| v1::StepRow {
            device: Some(device),
            // The first of them has the lowest level.
            min_allocated_bytes: step << 20,
            ..fake::step(step)
        })
    };
    process.steps = (1..=20).flat_map(of_step).collect();
    let server = common::Server::start(FakeDaemon::with([process]));
    let document = server.ctl(&["ranks", "--json"]).json();
    let floor = &document["jobs"][0]["ranks"][0]["floor_bytes"];
    assert_eq!(floor, 2 << 20, "{document:#}");
}

#[test]
fn what_has_ended_is_of_an_earlier_run_where_a_rank_still_runs() {
    let mut nodes = Nodes::new();
    // The job was started anew, with the nodes the other way round.
    for (node, now, before) in [("a", 0, 4), ("b", 4, 0)] {
        let ended = (before..before + 4).map(|number| {
            let mut process = rank(number, GIB);
            process.process.ended_ns = Some(40_000_000_000);
            process
        });
        let running = (now..now + 4).map(|number| {
            let mut process = rank(number, 2 * GIB);
            process.process.facts.pid += 1000;
            process.process.handle.0 += 1000;
            // Root sees it without its user ids, so that no real process is looked at.
            process.process.state = ProcessState::Attached;
            process.process.ended_ns = None;
            process.process.attached_ns = 60_000_000_000;
            process
        });
        nodes.healthy(node, FakeDaemon::with(ended.chain(running)));
    }
    let json = ask_json(&nodes, &["ranks", "--json"]);
    let job = &json["jobs"][0];
    assert_eq!(job["twice"], serde_json::json!([]), "{json:#}");
    let ranks = job["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 8, "{json:#}");
    let is_running = |rank: &serde_json::Value| rank["pid"].as_u64() >= Some(11_000);
    assert!(ranks.iter().all(is_running), "{json:#}");
}

#[test]
fn few_ranks_are_shown_and_not_judged() {
    let server = common::Server::start(FakeDaemon::with([rank(0, 1 << 30), rank(2, 2 << 30)]));
    let answer = server.ctl(&["ranks"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    assert_has(
        &answer,
        "Whether a rank stands out cannot be told: peak, reserved, floor, step time: known of 2 ranks, and 8 are needed",
    );
    assert_has(&answer, "Missing: rank 1, 3-511.");
    let leaking = || {
        let mut leaking = rank(1, 1 << 30);
        leaking.groups = vec![fake::group()];
        FakeDaemon::with([rank(0, 1 << 30), leaking])
    };
    let document = common::Server::start(leaking()).ctl(&["ranks", "--json"]);
    let document = document.json();
    let paces =
        [0, 1].map(|rank| document["jobs"][0]["ranks"][rank]["growth_bytes_per_s"].as_f64());
    assert_eq!(paces, [None, Some(1_048_576.0)], "{document:#}");
    let answer = common::Server::start(leaking()).ctl(&["ranks"]);
    assert_has(&answer, "rank 1 (");
    assert_has(&answer, "stands out: it grows by +1.00 MiB");
    let server = common::Server::start(leaking());
    for words in [
        &["ranks", "--exit-code"][..],
        &["ranks", "--exit-code", "--json"],
    ] {
        let closed = common::unread(common::command(&server.socket(), words));
        assert_eq!(closed, 10, "{words:?}");
    }
    let nothing = common::Server::start(FakeDaemon::default()).ctl(&["ranks"]);
    assert_has(&nothing, "No traced process is a rank of a job");
}

/// A worker of a DataLoader has its parent's environment, and came later; a launcher has that of the
/// rank that it starts, and came before.
#[test]
fn what_a_rank_forked_does_not_hide_it() {
    let other = |of: &FakeProcess, pid: u32, parent: u32, bytes: Option<u64>| {
        let mut other = of.clone();
        other.process.facts.pid = pid;
        other.process.facts.parent_pid = parent;
        other.process.handle.0 = pid;
        other.process.allocated_bytes = bytes;
        other.devices = Vec::new();
        other
    };
    let mut own = rank(0, 1 << 30);
    own.process.facts.parent_pid = 9_000;
    let known = own.process.allocated_bytes;
    for beside in [
        vec![other(&own, 20_000, 10_000, None)],
        // What it forked may be shown to hold something, too, and have forked another one.
        vec![
            other(&own, 20_000, 10_000, known),
            other(&own, 20_001, 20_000, known),
        ],
        vec![other(&own, 9_000, 1, Some(0))],
        vec![
            other(&own, 9_000, 1, None),
            other(&own, 20_000, 10_000, None),
        ],
    ] {
        let all = beside.into_iter().chain([own.clone()]);
        let server = common::Server::start(FakeDaemon::with(all));
        let answer = server.ctl(&["ranks", "--json"]);
        assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
        let document = answer.json();
        let ranks = document["jobs"][0]["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 1, "{document:#}");
        assert_eq!(ranks[0]["pid"], 10_000, "{document:#}");
        assert_eq!(
            ranks[0]["peak_allocated_bytes"],
            (1_u64 << 30) + 1024,
            "{document:#}"
        );
    }
    // Of those that had the number one after the other, the last one counts.
    let again = other(&own, 20_000, 9_000, known);
    let server = common::Server::start(FakeDaemon::with([own, again]));
    let document = server.ctl(&["ranks", "--json"]).json();
    assert_eq!(document["jobs"][0]["ranks"][0]["pid"], 20_000);
    let left_out = |document: &serde_json::Value| document["jobs"][0]["left_out"].clone();
    assert_eq!(left_out(&document), serde_json::json!([]));
    // Of those that have it at a time, the others may be of another job, and are not kept silent about.
    let runs = |mut process: FakeProcess| {
        process.process.state = ProcessState::Attached;
        process.process.allocated_bytes = Some(1 << 30);
        process
    };
    let own = rank(0, 1 << 30);
    let again = other(&own, 20_000, 9_000, known);
    let server = common::Server::start(FakeDaemon::with([runs(own), runs(again)]));
    let document = server.ctl(&["ranks", "--json"]).json();
    assert_eq!(document["jobs"][0]["ranks"][0]["pid"], 20_000);
    let left_out = left_out(&document);
    let told = left_out.as_array().unwrap().iter();
    let told = told.map(|one| (one["rank"].as_u64(), one["pid"].as_u64()));
    assert_eq!(told.collect::<Vec<_>>(), [(Some(0), Some(10_000))]);
    assert_has(
        &server.ctl(&["ranks"]),
        "Left out, since a later process of the same node has the same number: rank 0 (",
    );
}

#[test]
fn a_rank_of_which_nothing_is_told_is_named() {
    let mut nodes = Nodes::new();
    let of = |number, codes: &[&str]| FakeProcess {
        coverage: fake::noted(1, 0, codes).coverage,
        ..rank(number, 1 << 30)
    };
    let inexact = of(1, &["records_lost"]);
    nodes.healthy("left", FakeDaemon::with([of(0, &[]), inexact]));
    assert_eq!(nodes.ask_patiently(&["ranks"]).code, 0);
    let answer = nodes.ask_patiently(&["--strict", "ranks"]);
    assert_eq!(answer.code, 11, "{}{}", answer.out, answer.err);
    // Of both some stacks are deeper than what was taken of them, and of one nothing at all is exact.
    assert_has(
        &answer,
        "\n2 processes were refused: the answer is not exact: ",
    );
    assert_has(&answer, "it is records_lost 1 (left pid 10001)");
    let json = ask_json(&nodes, &["--strict", "ranks", "--json"]);
    assert_eq!(json["refused"], 2, "{json:#}");
    let told = &json["nodes"][0]["answer"];
    for rank in [0, 1] {
        assert_eq!(told[rank]["error"]["code"], "not_exact", "{json:#}");
    }
    let ranks = &json["jobs"][0]["ranks"];
    let peaks = [0, 1].map(|rank| ranks[rank]["peak_allocated_bytes"].as_u64());
    assert_eq!(peaks, [Some((1 << 30) + 1024), None], "{json:#}");
}

#[test]
fn a_list_from_standard_input_and_a_bad_one() {
    let server = common::Server::start(one(7));
    let run = |args: &[&str], list: &str| {
        let output = memscope_tests::piped(&mut common::command(&server.socket(), args), list);
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let list = format!("# mine\n\nhere unix:{}\n", server.socket().display());
    let (code, out, _) = run(&["--fleet", "-", "ps"], &list);
    assert_eq!(code, Some(0));
    assert!(out.contains(" here ") && out.contains(" 7 "), "{out}");
    let (code, _, err) = run(&["--fleet", "-", "ps"], "here 10.0.0.7\n");
    assert_eq!(code, Some(2));
    assert!(err.contains("line 1 of -: \"10.0.0.7\""), "{err}");
    let (code, _, err) = run(&["--fleet", "-", "ps"], "# nobody\n");
    assert_eq!(code, Some(2));
    assert!(err.contains("- names no node"), "{err}");
    let (code, _, err) = run(&["--fleet", "/nonexistent/list", "ps"], "");
    assert_eq!(code, Some(1));
    assert!(
        err.contains("the list of nodes /nonexistent/list cannot be read"),
        "{err}"
    );
}

/// A recording is asked by a memscoped of its own; here one that hands its socket on to a daemon of this test.
#[test]
fn a_recording_is_a_node() {
    use std::os::unix::fs::PermissionsExt;
    let server = common::Server::start(one(7));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memscoped");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --replay ] && [ \"$3\" = --socket ] || exit 9\nln -s {} \"$4\"\nexec sleep 60\n",
        server.socket().display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("run.mscope"), "").unwrap();
    let list = folder.path().join("list");
    let lines = format!(
        "then recording:{0}/run.mscope\ngone recording:{0}/none\n",
        folder.path().display()
    );
    std::fs::write(&list, lines).unwrap();
    let mut command = common::command(&server.socket(), &["--fleet"]);
    command.arg(&list).arg("stats").env("MEMSCOPED", &program);
    let answer = common::run(command);
    assert_eq!(answer.code, 7, "{}{}", answer.out, answer.err);
    assert_has(&answer, " then ");
    assert_has(&answer, "1 node of 2 did not answer: the recording");
}
