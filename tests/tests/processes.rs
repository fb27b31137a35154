//! Many threads, many processes: forked, replaced, killed, and found by rules.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    BpfKind, Calls, Daemon, Group, LONG, Library, Program, SHORT, Torch, Value, assert_totals,
    bpf_exists, claims_to_know, copy_program, coverage, eventually, executable, find, held, number,
    scratch, sim, tool, until,
};
use serde_json::json;

fn total(stats: &Value, key: &str) -> u64 {
    stats["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| number(&device[key]))
        .sum()
}

fn state(daemon: &Daemon, pid: u32) -> Option<String> {
    Some(
        daemon.process(pid)?["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    )
}

#[track_caller]
fn wait_for_state(daemon: &Daemon, pid: u32, wanted: &str) {
    eventually(&format!("process {pid} is {wanted}"), || {
        state(daemon, pid).as_deref() == Some(wanted)
    });
}

/// A process that a rule or its parent brought in is listed a moment before its probes are live.
#[track_caller]
fn wait_until_probed(daemon: &Daemon, pid: u32) {
    wait_for_state(daemon, pid, "attached");
    eventually(&format!("process {pid} is probed"), || {
        number(&daemon.stats(pid)["placement"]["sites"]) > 40
    });
}

#[test]
fn threads_free_what_others_allocated() {
    let daemon = Daemon::start();
    let mut both = [Calls::start(&[]), Calls::start(&[])];
    for calls in &mut both {
        daemon.attach(calls.pid(), "segments");
        calls.call("cudaSetDevice 0");
    }
    for round in 0..3 {
        for calls in &mut both {
            calls.tell("threads 8 300");
        }
        for calls in &mut both {
            let counted = calls.hear();
            let stats = daemon.stats(calls.pid());
            assert_eq!(counted["failed"], 0);
            assert_eq!(stats["lost_records"], 0, "round {round}");
            assert_eq!(
                total(&stats, "alloc_count"),
                number(&counted["came"]),
                "round {round}: {stats:#}"
            );
            assert_eq!(
                total(&stats, "free_count"),
                number(&counted["went"]),
                "round {round}: {stats:#}"
            );
            assert_eq!(
                held(&stats),
                (number(&counted["live"]), number(&counted["live_bytes"])),
                "round {round}"
            );
            assert_eq!(total(&stats, "orphan_free_count"), 0);
            assert_eq!(stats["failures"], Value::Array(vec![]));
        }
    }
    for calls in &mut both {
        calls.finish();
    }
}

#[test]
fn threads_of_torch() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    for _ in 0..3 {
        let told = torch.ask("threads 8 200");
        let stats = daemon.stats(torch.pid());
        assert_totals(&stats, &told);
        assert_eq!(total(&stats, "live_blocks"), number(&told["left"]));
        assert_eq!(stats["lost_records"], 0);
        assert_eq!(total(&stats, "resync_count"), 0, "{stats:#}");
    }
    torch.finish();
}

#[test]
fn killed() {
    let daemon = Daemon::start();
    let idle = BpfKind::held_by(daemon.pid());
    let mut killed = Calls::start(&[]);
    let mut lives = Calls::start(&[]);
    for calls in [&mut killed, &mut lives] {
        daemon.attach(calls.pid(), "segments");
        calls.call("cudaMalloc a 5000");
    }
    let with_both = BpfKind::held_by(daemon.pid());
    killed.tell("threads 8 100000000");
    killed.kill();
    let pid = killed.pid();
    wait_for_state(&daemon, pid, "exited");
    assert_eq!(daemon.json(&["status"])["traced_processes"], 1);
    // It can still be asked about, and the other one goes on.
    assert_eq!(daemon.stats(pid)["process"]["state"], "exited");
    lives.call("cudaMalloc b 7000");
    assert_eq!(held(&daemon.stats(lives.pid())), (2, 12000));
    daemon.detach(lives.pid());
    assert!(BpfKind::held_by(daemon.pid()).is_subset(&with_both));
    // The probes of the one that ended are removed beside all this.
    eventually("the daemon holds what it held before any attach", || {
        BpfKind::held_by(daemon.pid()) == idle
    });
    for object in with_both.difference(&idle) {
        eventually("the kernel forgets it", || !bpf_exists(*object));
    }
    lives.call("cudaMalloc c 1");
    lives.finish();
}

#[test]
fn forked_without_children() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    let child = number(&calls.ask("fork 3 1000000")["child"]) as u32;
    let made = calls.ask("child");
    assert_eq!(made["result"], 0);
    calls.call("cudaMalloc own 1000");
    let stats = daemon.stats(calls.pid());
    assert_eq!(
        held(&stats),
        (1, 1000),
        "the child's are not the parent's: {stats:#}"
    );
    assert!(coverage(&stats).contains(&"forked"), "{stats:#}");
    assert_eq!(state(&daemon, child), None, "not asked for");
    calls.call("end_child");
    calls.call("cudaMalloc more 1000");
    assert_eq!(held(&daemon.stats(calls.pid())), (2, 2000));
    calls.finish();
}

#[test]
fn forked_with_children() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    daemon.json(&[
        "attach",
        "--pid",
        &calls.pid_text(),
        "--children",
        "--level",
        "segments",
    ]);
    let child = number(&calls.ask("fork 3 1000000")["child"]) as u32;
    wait_until_probed(&daemon, child);
    let made = calls.ask("child");
    assert_eq!(
        (&made["result"], number(&made["pid"]) as u32),
        (&Value::from(0), child)
    );
    calls.call("cudaMalloc own 1000");
    let stats = daemon.stats(child);
    assert_eq!(held(&stats), (3, 3_000_000), "{stats:#}");
    assert!(
        coverage(&stats).contains(&"child_attached_late"),
        "{stats:#}"
    );
    let parent = daemon.stats(calls.pid());
    assert_eq!(held(&parent), (1, 1000));
    assert!(!coverage(&parent).contains(&"forked"), "{parent:#}");
    calls.call("end_child");
    wait_for_state(&daemon, child, "exited");
    assert_eq!(state(&daemon, calls.pid()).as_deref(), Some("attached"));
    calls.finish();
}

#[test]
fn torch_forks() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    let told = torch.ask("train 2");
    assert_totals(&daemon.stats(torch.pid()), &told);
    let child = number(&torch.ask("fork")["child"]) as i32;
    let told = torch.ask("train 2");
    // SAFETY: no memory; the child waits for this and is its parent's to reap.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_totals(&daemon.stats(torch.pid()), &told);
    let told = torch.ask("drop");
    let stats = daemon.stats(torch.pid());
    assert_totals(&stats, &told);
    assert_eq!(stats["lost_records"], 0);
    torch.finish();
}

/// The structures in a forked process are a copy: what they name is the parent's memory, which counts once.
#[test]
fn a_forked_process_does_not_hold_its_parents_memory() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let (pid, text) = (torch.pid(), torch.pid_text());
    let told = torch.ask("train 2");
    daemon.json(&["attach", "--pid", &text, "--children"]);
    assert_totals(&daemon.stats(pid), &told);
    let child = number(&torch.ask("fork")["child"]) as u32;
    let note = |stats: &Value| {
        let notes = stats["coverage"].as_array().unwrap().iter();
        let texts = notes.filter_map(|note| note["text"].as_str());
        let texts: Vec<&str> = texts
            .filter(|text| text.contains("count as a copy"))
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    let said = until(SHORT, "the child is told to be a copy", || {
        daemon.process(child)?;
        note(&daemon.stats(child))
    });
    assert!(said.contains(&text), "{said}");
    let assert_holds_nothing = |stats: &Value| {
        let mut held = stats["devices"].as_array().unwrap().iter();
        let is_nothing = held.all(|device| device["reserved_bytes"].as_u64().unwrap_or(0) == 0);
        assert!(is_nothing, "{stats:#}");
    };
    assert_holds_nothing(&daemon.stats(child));
    // One that is attached by itself, later, is no other.
    daemon.json(&["detach", "--pid", &child.to_string()]);
    daemon.json(&["attach", "--pid", &child.to_string()]);
    until(SHORT, "it is told again", || note(&daemon.stats(child)));
    assert_totals(&daemon.stats(pid), &told);
    // That its parent is followed no more says nothing of the copy. At this level each question reads.
    daemon.json(&["detach", "--pid", &child.to_string()]);
    daemon.attach(child, "read");
    until(SHORT, "it is told once more", || note(&daemon.stats(child)));
    daemon.detach(pid);
    for _ in 0..3 {
        let stats = daemon.stats(child);
        assert!(note(&stats).is_some(), "{stats:#}");
        assert_holds_nothing(&stats);
    }
    // SAFETY: no memory; the child waits for this and is its parent's to reap.
    unsafe { libc::kill(child as i32, libc::SIGKILL) };
    torch.finish();
}

/// That its parent held nothing when it was read last says nothing of what it has taken since then.
#[test]
fn a_process_forked_since_its_parent_was_read_does_not_hold_its_memory() {
    for has_given_back in [false, true] {
        let daemon = Daemon::start();
        let mut torch = Torch::start(&[]);
        daemon.attach(torch.pid(), "read");
        if has_given_back {
            // Its device is known, and that it holds nothing there.
            let held = torch.ask("alloc a 3000000");
            assert_totals(&daemon.stats(torch.pid()), &held);
            torch.ask("free a");
            let given_back = torch.ask("empty_cache");
            assert_totals(&daemon.stats(torch.pid()), &given_back);
        }
        // A reading of so many blocks takes a while.
        let told = torch.ask("crowd 30000");
        let child = number(&torch.ask("fork")["child"]) as u32;
        daemon.attach(child, "read");
        // It reads both, the child while the reading of the parent is under way.
        daemon.json(&["devices"]);
        // While a reading takes longer than a question waits, as on a busy machine, the answer says that it is of an earlier one.
        let stats = until(LONG, "the parent was read", || {
            let stats = daemon.stats(torch.pid());
            (!coverage(&stats).contains(&"totals_old")).then_some(stats)
        });
        assert_totals(&stats, &told);
        let stats = daemon.stats(child);
        let mut held = stats["devices"].as_array().unwrap().iter();
        let is_nothing = held.all(|device| device["reserved_bytes"].as_u64().unwrap_or(0) == 0);
        assert!(is_nothing, "{stats:#}");
        assert!(coverage(&stats).contains(&"pool_not_readable"), "{stats:#}");
        // SAFETY: no memory; the child waits for this and is its parent's to reap.
        unsafe { libc::kill(child as i32, libc::SIGKILL) };
        torch.finish();
    }
}

/// The parent has loaded PyTorch and uses no device, as one does that starts the processes of a server.
#[test]
fn a_forked_process_holds_what_it_has_taken_itself() {
    for level in ["trace", "read"] {
        let daemon = Daemon::start();
        let mut torch = Torch::start(&[]);
        let child = number(&torch.ask("worker")["child"]) as u32;
        let told = torch.ask("worker_takes 3000000")["worker"].clone();
        daemon.attach(torch.pid(), level);
        daemon.attach(child, level);
        let stats = until(SHORT, "what the child holds is known", || {
            let stats = daemon.stats(child);
            let is_read = !stats["devices"].as_array().unwrap().is_empty();
            (is_read && claims_to_know(&stats)).then_some(stats)
        });
        assert_totals(&stats, &told);
        // What its parent takes later changes nothing of that.
        let of_parent = torch.ask("train 2");
        assert_totals(&daemon.stats(torch.pid()), &of_parent);
        let told = torch.ask("worker_takes 5000000")["worker"].clone();
        assert_totals(&daemon.stats(child), &told);
        torch.finish();
    }
}

/// Both use the device, since the parent forked before it did: the structures are each one's own.
#[test]
fn a_forked_process_is_no_copy_where_it_uses_the_device() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    let child = number(&torch.ask("worker")["child"]) as u32;
    torch.ask("worker_takes 3000000");
    let of_parent = torch.ask("train 2");
    daemon.attach(torch.pid(), "trace");
    daemon.attach(child, "trace");
    let told = torch.ask("worker_takes 5000000")["worker"].clone();
    let stats = until(LONG, "the child is seen to use the device", || {
        let stats = daemon.stats(child);
        claims_to_know(&stats).then_some(stats)
    });
    assert_totals(&stats, &told);
    assert_totals(&daemon.stats(torch.pid()), &of_parent);
    torch.finish();
}

/// What the new image forks before its own attach is done is followed as well.
#[test]
fn executes_another_image_that_forks_at_once() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    let text = calls.pid_text();
    daemon.json(&[
        "attach",
        "--pid",
        &text,
        "--children",
        "--level",
        "segments",
    ]);
    let folder = scratch();
    let script = folder.path().join("forks.sh");
    let program = executable("calls.c", Library::Runtime);
    // A shell gives what is in the background no input of its own accord.
    let lines = format!(
        "#!/bin/sh\nexec 3<&0\n{} <&3 3<&- &\nwait\n",
        program.display()
    );
    std::fs::write(&script, lines).unwrap();
    let may_run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, may_run).unwrap();
    calls.tell(&format!("exec {}", script.display()));
    assert_eq!(calls.hear()["ready"], true);
    let child = until(SHORT, "the child is followed", || {
        let all = daemon.json(&["ps"]);
        let mut all = all["processes"].as_array().unwrap().iter();
        let is_child = |one: &&Value| one["pid"] != pid && one["state"] == "attached";
        let child = number(&all.find(is_child)?["pid"]) as u32;
        let live = daemon.stats(child)["placement"]["sites"].as_u64() > Some(0);
        live.then_some(child)
    });
    calls.call("cudaMalloc b 1000");
    let stats = daemon.stats(child);
    assert_eq!(held(&stats), (1, 1000), "{stats:#}");
    calls.finish();
}

#[test]
fn executes_another_image() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaMalloc a 123456");
    assert_eq!(held(&daemon.stats(pid)), (1, 123_456));
    calls.tell(&format!(
        "exec {}",
        executable("calls.c", Library::Runtime).display()
    ));
    assert_eq!(calls.hear()["ready"], true);
    let newest = until(SHORT, "the new image is followed", || {
        let process = daemon.process(pid)?;
        let live = daemon.stats(pid)["placement"]["sites"].as_u64() > Some(0);
        (process["generation"] == 1 && process["state"] == "attached" && live).then_some(process)
    });
    let all = daemon.json(&["ps"]);
    let states: Vec<&Value> = all["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| &process["state"])
        .collect();
    assert_eq!(states, ["replaced", "attached"], "{all:#}");
    assert_ne!(newest["handle"], all["processes"][0]["handle"]);
    calls.call("cudaMalloc b 1000");
    let stats = daemon.stats(pid);
    assert_eq!(
        held(&stats),
        (1, 1000),
        "what the old image held is gone: {stats:#}"
    );

    // A new attach counts execs from 0 again, and is of the image that was traced before.
    let first = &all["processes"][0]["image"];
    assert!(newest["image"].is_u64() && first.is_u64(), "{all:#}");
    assert_ne!(&newest["image"], first);
    let of_before = number(&stats["as_of"]).to_string();
    daemon.detach(pid);
    daemon.attach(pid, "segments");
    let again = daemon.process(pid).unwrap();
    assert_eq!(
        (&again["generation"], &again["image"]),
        (&json!(0), &newest["image"])
    );
    let words = ["diff", "--pid", &pid.to_string(), "--from", &of_before];
    let diff = daemon.ctl(&words);
    assert!(diff.text().contains("attached_anew"), "{diff}");

    // It executes itself while nobody looks.
    daemon.detach(pid);
    calls.tell(&format!(
        "exec {}",
        executable("calls.c", Library::Runtime).display()
    ));
    assert_eq!(calls.hear()["ready"], true);
    daemon.attach(pid, "segments");
    let other = daemon.process(pid).unwrap();
    assert_eq!(other["generation"], 0);
    assert_ne!(other["image"], again["image"]);
    let diff = daemon.ctl(&words);
    assert!(!diff.text().contains("attached_anew"), "{diff}");
    calls.finish();
}

/// What executes one image after the other faster than it can be attached is attached when it has become what it stays.
#[test]
fn executes_others_while_it_is_attached() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    let pid = calls.pid_text();
    daemon.json(&["attach", "--pid", &pid, "--children", "--level", "segments"]);
    let last = executable("calls.c", Library::Runtime);
    let last = last.display().to_string();
    let line = format!("spawn {}{last}", "/usr/bin/env ".repeat(30));
    for _ in 0..5 {
        let child = number(&calls.ask(&line)["child"]) as u32;
        until(LONG, "the last image is attached", || {
            let process = daemon.process(child)?;
            let is_last = process["cmdline"] == json!([last]) && process["state"] == "attached";
            let sites = is_last.then(|| number(&daemon.stats(child)["placement"]["sites"]));
            (sites? > 40).then_some(())
        });
    }
    calls.finish();
}

/// A search for libraries that were loaded after the attach may fail as a whole. That is said, and is made good later.
#[test]
fn libraries_that_cannot_be_searched_for_are_named() {
    let folder = scratch();
    let daemon = Daemon::start();
    let mut late = Program::start(
        "the late process",
        sim().native(executable("late.c", Library::None)),
    );
    late.hear();
    let pid = late.pid();
    daemon.json(&["attach", "--pid", &late.pid_text(), "--wait"]);
    // The list of its mappings has more bytes than are read of such a list.
    let long = folder.path().join("x".repeat(250)).join("y".repeat(250));
    std::fs::create_dir(long.parent().unwrap()).unwrap();
    std::fs::write(&long, [0; 4096]).unwrap();
    let mapped = late.ask(&format!("crowd {} 50000", long.display()));
    assert_eq!(mapped["result"], 0, "{mapped}");
    late.ask(&format!("load {}", sim().runtime().display()));
    let text = until(LONG, "it is said", || {
        let stats = daemon.stats(pid);
        let notes = stats["coverage"].as_array()?.iter();
        let mut notes = notes.filter(|note| note["code"] == "not_probed");
        Some(notes.next()?["text"].as_str()?.to_owned())
    });
    assert!(text.contains("tried again"), "{text}");
    assert!(text.contains("maps"), "{text}");
    late.ask("clear");
    until(LONG, "the loaded runtime is probed", || {
        let stats = daemon.stats(pid);
        let is_said = coverage(&stats).contains(&"not_probed");
        (!is_said && number(&stats["placement"]["sites"]) > 40).then_some(())
    });
    late.finish();
}

#[test]
fn the_runtime_comes_later() {
    let daemon = Daemon::start();
    let mut late = Program::start(
        "the late process",
        sim().native(executable("late.c", Library::None)),
    );
    late.hear();
    daemon
        .ctl(&["attach", "--pid", &late.pid_text()])
        .refused(1, &["no GPU", "--children"]);
    daemon.json(&["attach", "--pid", &late.pid_text(), "--wait"]);
    let pid = late.pid();
    assert_eq!(daemon.stats(pid)["placement"]["sites"], 0);
    late.ask(&format!("load {}", sim().runtime().display()));
    eventually("the loaded runtime is probed", || {
        number(&daemon.stats(pid)["placement"]["sites"]) > 40
    });
    assert_eq!(late.ask("malloc 4321")["result"], 0);
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), (1, 4321), "{stats:#}");
    assert_eq!(stats["process"]["from_start"], true, "{stats:#}");
    late.ask("free");
    assert_eq!(held(&daemon.stats(pid)), (0, 0));
    late.finish();
}

/// A copy of the native workload with a name of its own.
fn named(folder: &std::path::Path, name: &str) -> std::path::PathBuf {
    let file = folder.join(name);
    copy_program(&executable("calls.c", Library::Runtime), &file);
    file
}

#[test]
fn by_name() {
    let daemon = Daemon::start();
    let folder = scratch();
    let name = format!("e2e-{}", std::process::id());
    let file = named(folder.path(), &name);
    let mut before = Calls::from_command(sim().native(&file));
    let mut other = Calls::start(&[]);
    let answer = daemon.json(&["attach", "--comm", &name, "--level", "segments"]);
    assert!(
        find(&answer["processes"], "pid", before.pid()).is_some(),
        "{answer:#}"
    );
    assert_eq!(answer["processes"].as_array().unwrap().len(), 1);
    let rule = number(&answer["rule"]);
    let mut after = Calls::from_command(sim().native(&file));
    wait_until_probed(&daemon, after.pid());
    assert_eq!(state(&daemon, other.pid()), None);
    for calls in [&mut before, &mut after] {
        let pid = calls.pid();
        calls.call("cudaMalloc a 4096");
        assert_eq!(held(&daemon.stats(pid)), (1, 4096));
    }
    let status = daemon.json(&["status"]);
    assert_eq!(
        status["rules"][0]["scope"],
        format!("comm={name}"),
        "{status:#}"
    );
    assert_eq!(status["rules"][0]["attached"], 2, "{status:#}");
    // The rule goes, and with it what it attached; later ones are let be.
    let answer = daemon.json(&["detach", "--rule", &rule.to_string()]);
    assert_eq!(answer["pids"].as_array().unwrap().len(), 2, "{answer:#}");
    wait_for_state(&daemon, before.pid(), "detached");
    daemon
        .ctl(&["detach", "--rule", &rule.to_string()])
        .refused(4, &["no rule"]);
    let mut later = Calls::from_command(sim().native(&file));
    later.call("cudaMalloc a 4096");
    assert_eq!(state(&daemon, later.pid()), None);
    for calls in [&mut before, &mut after, &mut other, &mut later] {
        calls.finish();
    }
}

#[test]
fn by_control_group() {
    let daemon = Daemon::start();
    let group = Group::start();
    let program = executable("calls.c", Library::Runtime);
    let mut before = Calls::from_command(group.command(sim().native(&program)));
    let mut other = Calls::start(&[]);
    let outer = Group::outer_of(before.pid());
    let answer = daemon.json(&["attach", "--cgroup", &outer, "--level", "segments"]);
    assert!(
        find(&answer["processes"], "pid", before.pid()).is_some(),
        "{answer:#}"
    );
    let mut after = Calls::from_command(group.command(sim().native(&program)));
    wait_until_probed(&daemon, after.pid());
    assert_eq!(state(&daemon, other.pid()), None);
    for calls in [&mut before, &mut after] {
        let pid = calls.pid();
        calls.call("cudaMalloc a 4096");
        assert_eq!(held(&daemon.stats(pid)), (1, 4096));
    }
    daemon
        .ctl(&["attach", "--cgroup", "relative"])
        .refused(2, &["cgroup"]);
    daemon
        .ctl(&["attach", "--cgroup", "/../etc"])
        .refused(2, &["cgroup"]);
    for calls in [&mut before, &mut after, &mut other] {
        calls.finish();
    }
}

/// What a program says that is run with these words before it.
fn run_with(prefix: &[String], program: &str, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(&prefix[0]);
    let command = command.args(&prefix[1..]).arg(tool(program));
    command.args(arguments).output().unwrap()
}

/// What `doctor` finds about control groups with these words before it.
fn doctor_of_groups(prefix: &[String]) -> Value {
    let said = run_with(prefix, "memscope-ctl", &["--json", "doctor"]);
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let mut checks = checks.iter();
    checks
        .find(|check| check["name"] == "cgroup")
        .unwrap()
        .clone()
}

/// The kernel tells a container that has a control group namespace of its own the paths from there on.
#[test]
fn by_control_group_from_a_container() {
    let (pod, other) = (Group::start(), Group::start());
    let prefix = pod.container(false);
    let words: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let daemon = Daemon::wrapped(&words, &[]);
    let program = executable("calls.c", Library::Runtime);
    let mut calls = Calls::from_command(other.command(sim().native(&program)));
    let pid = calls.pid();
    let outer = Group::outer_of(pid);
    let answer = daemon.json(&["attach", "--cgroup", &outer, "--level", "segments"]);
    assert!(
        find(&answer["processes"], "pid", pid).is_some(),
        "{answer:#}"
    );
    calls.call("cudaMalloc a 4096");
    assert_eq!(held(&daemon.stats(pid)), (1, 4096));
    assert_ne!(doctor_of_groups(&prefix)["status"], "warn");
    calls.finish();
}

/// Without the machine's control groups it cannot tell which is meant, and says so.
#[test]
fn by_control_group_from_a_container_without_the_machines() {
    let pod = Group::start();
    let prefix = pod.container(true);
    let words: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let daemon = Daemon::wrapped(&words, &[]);
    daemon
        .ctl(&["attach", "--cgroup", "/user.slice"])
        .refused(2, &["does not show it the machine's control groups"]);
    assert_eq!(daemon.json(&["status"])["rules"], json!([]));
    assert_eq!(doctor_of_groups(&prefix)["status"], "warn");
    let folder = scratch();
    let file = folder.path().join("memscoped.toml");
    std::fs::write(&file, "[[attach]]\ncgroup = \"/user.slice\"\n").unwrap();
    let words = ["--check-config", "--config", file.to_str().unwrap()];
    let said = run_with(&prefix, "memscoped", &words);
    let error = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{error}");
    assert!(error.contains("entry 1 of [[attach]]: cgroup: "), "{error}");
    assert!(
        run_with(&[String::from("env")], "memscoped", &words)
            .status
            .success()
    );
}

#[test]
fn all_that_use_a_device() {
    let daemon = Daemon::start();
    let mut before = Calls::start(&[]);
    let mut idle = Program::start(
        "a process without a device",
        sim().native(executable("late.c", Library::None)),
    );
    let answer = daemon.json(&["attach", "--all", "--level", "segments"]);
    assert!(
        find(&answer["processes"], "pid", before.pid()).is_some(),
        "{answer:#}"
    );
    let mut after = Calls::start(&[]);
    wait_until_probed(&daemon, after.pid());
    assert_eq!(state(&daemon, idle.pid()), None);
    for calls in [&mut before, &mut after] {
        calls.call("cudaMalloc a 4096");
        assert_eq!(held(&daemon.stats(calls.pid())), (1, 4096));
    }
    // One that begins to use a device while it runs.
    idle.hear();
    idle.ask(&format!("load {}", sim().runtime().display()));
    wait_until_probed(&daemon, idle.pid());
    daemon.json(&["detach", "--all"]);
    assert_eq!(daemon.json(&["status"])["traced_processes"], 0);
    idle.finish();
    before.finish();
    after.finish();
}

#[test]
fn an_ended_process_is_kept_for_a_while() {
    let daemon = Daemon::with(&["--retention", "1"]);
    let mut calls = Calls::start(&[]);
    let mut lives = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    daemon.attach(lives.pid(), "segments");
    calls.call("cudaMalloc a 1");
    calls.finish();
    wait_for_state(&daemon, calls.pid(), "exited");
    eventually("the ended process is forgotten", || {
        daemon.process(calls.pid()).is_none()
    });
    daemon
        .ctl(&["stats", "--pid", &calls.pid_text()])
        .refused(4, &["not traced"]);
    assert_eq!(state(&daemon, lives.pid()).as_deref(), Some("attached"));
    lives.finish();
}
