//! A daemon that is killed, or hands over, and the one that comes after it: probes go on collecting in between, and nothing is
//! lost or told twice.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use memscope_common::ProcessEntry;
use memscope_tests::{
    BpfFs, Calls, Daemon, LONG, Library, Program, SmallDisk, Torch, Value, assert_histories,
    assert_totals, coverage, device, eventually, executable, find, held, number, sim, tool, until,
};

fn with_pins(bpffs: &BpfFs) -> Daemon {
    let pins = bpffs.pins();
    Daemon::with(&["--pin-dir", pins.to_str().unwrap()])
}

/// PyTorch and the daemon agree in totals, in each segment and each block.
#[track_caller]
fn assert_equal(daemon: &Daemon, torch: &mut Torch) {
    let told = torch.ask("totals");
    let stats = daemon.stats(torch.pid());
    assert_eq!(number(&stats["lost_records"]), 0, "{stats:#}");
    assert_totals(&stats, &told);
    let compared = memscope_tests::compared(daemon, torch);
    assert_eq!(compared["exported"], compared["own"], "{compared:#}");
}

#[track_caller]
fn messages(daemon: &Daemon) -> Vec<String> {
    let status = daemon.json(&["status"]);
    let all = status["messages"].as_array().unwrap().iter();
    all.map(|one| one["text"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn assert_said(daemon: &Daemon, words: &str) {
    let said = messages(daemon);
    assert!(said.iter().any(|one| one.contains(words)), "{said:#?}");
}

fn allocations(stats: &Value) -> u64 {
    number(&device(stats, 0)["alloc_count"])
}

#[test]
fn killed_in_the_middle() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    torch.ask("init");
    daemon.attach(pid, "trace");
    torch.ask("history");
    torch.ask("train 3");
    for _ in 0..3 {
        let before = allocations(&daemon.stats(pid));
        daemon.kill();
        // Nobody reads, and the programs go on writing.
        torch.ask("train 2");
        torch.ask("alloc kept 3000000");
        let mut next = daemon.successor();
        torch.ask("free kept");
        assert_said(&next, "1 traced on");
        assert_equal(&next, &mut torch);
        assert_histories(&next, &mut torch);
        assert!(allocations(&next.stats(pid)) > before);
        torch.ask("train 1");
        assert_histories(&next, &mut torch);
        std::mem::swap(&mut daemon, &mut next);
    }
    daemon.stop();
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

#[test]
fn killed_with_perf_events() {
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let mut daemon = Daemon::with(&["--links", "perf", "--pin-dir", pins.to_str().unwrap()]);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    torch.ask("history");
    torch.ask("train 2");
    daemon.kill();
    torch.ask("train 2");
    let mut next = daemon.successor();
    assert_said(&next, "1 traced on");
    assert_equal(&next, &mut torch);
    assert_histories(&next, &mut torch);
    next.stop();
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

#[test]
fn handed_over() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "blocks");
    torch.ask("train");
    torch.ask("train 2");
    daemon.signal(libc::SIGUSR1);
    assert_eq!(daemon.wait().code(), Some(75), "{}", daemon.log());
    assert!(!bpffs.pinned().is_empty());
    torch.ask("train 2");
    let mut next = daemon.successor();
    assert_said(&next, "1 traced on");
    assert_equal(&next, &mut torch);
    next.detach(pid);
    let links = |bpffs: &BpfFs| {
        let pinned = bpffs.pinned().into_iter();
        pinned
            .filter(|name| name.starts_with("link_") && !name.contains("process"))
            .count()
    };
    assert_eq!(links(&bpffs), 0, "{:?}", bpffs.pinned());
    next.stop();
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

#[test]
fn its_probes_are_gone() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    torch.ask("train");
    daemon.attach(pid, "trace");
    torch.ask("train 2");
    daemon.kill();
    for name in bpffs.pinned() {
        std::fs::remove_file(bpffs.pins().join(name)).unwrap();
    }
    torch.ask("train 2");
    let between = now();
    torch.ask("alloc kept 3000000");
    let next = daemon.successor();
    assert_said(&next, "1 attached anew");
    eventually("what was there before is read", || {
        !coverage(&next.stats(pid)).contains(&"baseline_not_read")
    });
    let told = torch.ask("totals");
    assert_totals(&next.stats(pid), &told);
    torch.ask("train 1");
    torch.ask("free kept");
    let told = torch.ask("totals");
    assert_totals(&next.stats(pid), &told);
    assert_not_traced_at(&next, pid, &between);
}

/// What it did between the daemon's death and its own is not known, so its last state is none that it ended with.
#[test]
fn it_ends_while_its_probes_are_gone() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    torch.ask("alloc kept 3000000");
    daemon.kill();
    for name in bpffs.pinned() {
        std::fs::remove_file(bpffs.pins().join(name)).unwrap();
    }
    torch.ask("alloc more 5000000");
    let between = now();
    drop(torch);
    let next = daemon.successor();
    assert_said(&next, "1 ended meanwhile");
    let process = next.process(pid).expect("it was traced");
    assert_eq!(process["state"], "detached", "{process:#}");
    assert_not_traced_at(&next, pid, &between);
}

/// The present moment, in nanoseconds since 1970.
fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos().to_string()
}

#[track_caller]
fn assert_not_traced_at(daemon: &Daemon, pid: u32, moment: &str) {
    let asked = daemon.ctl(&["pool", "--pid", &pid.to_string(), "--at", moment]);
    asked.refused(2, &["lies after process", "it was not traced then"]);
}

/// What a daemon does first when it detaches: it tells the programs to send nothing more of any process.
fn silence(bpffs: &BpfFs) {
    const OBJ_GET: libc::c_long = 7;
    let path = format!("map_{}", memscope_common::name::SLOTS);
    let path = bpffs.pins().join(path);
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let asked = [path.as_ptr() as u64, 0];
    let len = memscope_common::SLOTS as usize * size_of::<ProcessEntry>();
    let len = len.next_multiple_of(4096);
    // SAFETY: the attributes hold a path that lives until the call returns. The mapping has the map's length and is removed at the end;
    // the flags are changed as the daemon changes them.
    unsafe {
        let file = libc::syscall(libc::SYS_bpf, OBJ_GET, asked.as_ptr(), size_of_val(&asked));
        assert!(file >= 0, "{}", std::io::Error::last_os_error());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let null = std::ptr::null_mut();
        let at = libc::mmap(null, len, protection, libc::MAP_SHARED, file as i32, 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let slots = at.cast::<ProcessEntry>();
        for index in 0..memscope_common::SLOTS as usize {
            (&raw mut (*slots.add(index)).flags).write_volatile(0);
        }
        libc::munmap(at, len);
        libc::close(file as i32);
    }
}

/// Killed in the middle of a stop or a detach, when the probes are still there and send nothing.
#[test]
fn killed_while_it_stopped() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    torch.ask("train");
    daemon.attach(pid, "trace");
    torch.ask("alloc held 5000000");
    // Its file is written by now, and it does not write again before it dies.
    daemon.signal(libc::SIGSTOP);
    silence(&bpffs);
    torch.ask("free held");
    torch.ask("train 2");
    daemon.kill();
    let next = daemon.successor();
    assert_said(&next, "1 attached anew");
    eventually("what was there before is read", || {
        !coverage(&next.stats(pid)).contains(&"baseline_not_read")
    });
    let told = torch.ask("totals");
    assert_totals(&next.stats(pid), &told);
    torch.ask("train 1");
    let told = torch.ask("totals");
    assert_totals(&next.stats(pid), &told);
}

/// What it is then is attached as such, and what it was has been replaced.
#[test]
fn a_process_executes_another_program_while_nobody_looks() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut calls = Calls::start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaMalloc a 123456");
    daemon.kill();
    let program = executable("calls.c", Library::Runtime);
    calls.tell(&format!("exec {}", program.display()));
    assert_eq!(calls.hear()["ready"], true);
    let next = daemon.successor();
    assert_said(&next, "1 traced on");
    eventually("the program is attached", || {
        let process = next.process(pid);
        process.is_some_and(|one| one["generation"] == 1 && one["state"] == "attached")
    });
    let all = next.json(&["ps"]);
    let all = all["processes"].as_array().unwrap().iter();
    let states: Vec<&Value> = all.map(|one| &one["state"]).collect();
    assert_eq!(states, ["replaced", "attached"]);
    eventually("its functions are probed", || {
        next.stats(pid)["placement"]["sites"].as_u64() > Some(0)
    });
    calls.call("cudaMalloc b 1000");
    assert_eq!(held(&next.stats(pid)), (1, 1000));
    calls.finish();
}

/// Children that waited to be followed when the daemon was killed are followed by the next one. How many are attached by then depends on
/// the machine, so more and more are tried.
#[test]
fn killed_while_children_wait() {
    let mut tried = [50, 100, 200].into_iter();
    assert!(tried.any(killed_before_all_were_attached));
}

/// Says whether some of so many children were not attached yet when the daemon was killed. All are attached in the end.
fn killed_before_all_were_attached(children: usize) -> bool {
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    // A few children wait as otherwise only hundreds do.
    let mut daemon = Daemon::wrapped(
        &["env", "MEMSCOPE_TEST_BURST_MS=1"],
        &["--pin-dir", pins.to_str().unwrap()],
    );
    let command = sim().native(executable("hostile.c", Library::Runtime));
    let mut program = Program::start("the process with many children", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid, "--children", "--level", "segments"]);
    let attached = |daemon: &Daemon| {
        let list = daemon.json(&["ps"]);
        let processes = list["processes"].as_array().unwrap();
        let is_attached = |one: &&Value| one["state"] == "attached";
        processes.iter().filter(is_attached).count()
    };
    assert_eq!(program.ask(&format!("forks {children}"))["result"], 0);
    until(LONG, "the first child is attached", || {
        (attached(&daemon) > 1).then_some(())
    });
    // The daemon has heard of all forks by then.
    daemon.json(&["status"]);
    let some_wait = attached(&daemon) <= children;
    daemon.kill();
    let next = daemon.successor();
    until(LONG, "all are attached", || {
        (attached(&next) == children + 1).then_some(())
    });
    program.finish();
    some_wait
}

#[test]
fn a_process_ends_while_nobody_looks() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    torch.ask("alloc kept 3000000");
    daemon.kill();
    torch.ask("alloc more 5000000");
    drop(torch);
    let mut next = daemon.successor();
    let process = next.process(pid).expect("it was traced");
    assert_eq!(process["state"], "exited", "{process:#}");
    // What it did before its end is known.
    let stats = next.stats(pid);
    assert_eq!(allocations(&stats), 2, "{stats:#}");
    // Nobody had judged it, so this one does.
    let verdict = until(LONG, "the verdict on what has ended", || {
        let process = next.process(pid)?;
        process["verdict"].as_str().map(str::to_owned)
    });
    // Two blocks came: how long before the end they did decides whether more would have had the time to.
    let leaks = next.json(&["leaks", "--pid", &pid.to_string()]);
    let told = match leaks["young"].is_object() {
        true => "too_early",
        false => "steady",
    };
    assert_eq!(verdict, told, "{leaks:#}");
    next.stop();
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

#[test]
fn cleaned_up() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    let (state, pins) = (daemon.state(), bpffs.pins());
    let clean_up = || {
        Command::new(tool("memscoped"))
            .arg("--cleanup")
            .arg("--state-dir")
            .arg(&state)
            .arg("--pin-dir")
            .arg(&pins)
            .output()
            .unwrap()
    };
    daemon.attach(pid, "trace");
    let refused = clean_up();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("is running"), "{said}");
    daemon.kill();
    let done = clean_up();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("pinned maps and probes removed"), "{said}");
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
    let said = String::from_utf8_lossy(&clean_up().stdout).into_owned();
    assert_eq!(said, "nothing was left behind\n");
    torch.ask("alloc kept 3000000");
    let next = daemon.successor();
    assert_eq!(next.process(pid), None);
}

#[test]
fn rules_are_in_force_again_after_a_clean_stop() {
    let mut daemon = Daemon::start();
    daemon.json(&["attach", "--comm", "no-such-program"]);
    let rule = |daemon: &Daemon| daemon.json(&["status"])["rules"].clone();
    let before = rule(&daemon);
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before:#}");
    daemon.stop();
    let mut next = daemon.successor();
    assert_eq!(rule(&next), before);
    next.json(&["detach", "--all"]);
    next.stop();
    assert_eq!(rule(&next.successor()), memscope_tests::json!([]));
}

/// A leak that was reported stands for the next daemon too: it is not reported again, and whoever asks or begins to listen is told of it.
#[test]
fn what_was_found_stands_for_the_next_one() {
    let bpffs = BpfFs::mount();
    let mut daemon = with_pins(&bpffs);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    torch.ask("train 5");
    daemon.attach(pid, "trace");
    torch.ask("leak 260 1500000 5");
    let growing = |daemon: &Daemon| {
        let process = daemon.process(pid).expect("it is traced");
        number(&process["growing_lines"])
    };
    until(LONG, "the leak is found", || {
        (growing(&daemon) > 0).then_some(())
    });
    let told = |daemon: &Daemon| {
        let asked = [
            "--timeout",
            "20",
            "--json",
            "events",
            "--pid",
            &pid.to_string(),
            "--kind",
            "finding",
            "--count",
            "1",
        ];
        let told = daemon.ctl(&asked);
        assert_eq!(told.code, 0, "{told}");
        told.document()
    };
    let before = told(&daemon);
    let next = daemon.again();
    assert_said(&next, "1 traced on");
    assert_eq!(growing(&next), 1);
    let after = told(&next);
    for known in ["id", "time_unix_ns", "pid", "process"] {
        assert_eq!(after[known], before[known], "{known}: {after:#}");
    }
    assert_eq!(after["body"]["number"], before["body"]["number"]);
    assert_eq!(after["body"]["withdrawn"], false, "{after:#}");
}

/// A daemon whose state directory is a disk of 4 MiB, and whose probes are pinned.
fn on_a_small_disk() -> (BpfFs, SmallDisk, Daemon) {
    let bpffs = BpfFs::mount();
    let mut first = Daemon::start();
    first.stop();
    let disk = SmallDisk::over(&first.state(), 4 << 20);
    let pins = bpffs.pins();
    let with = ["--pin-dir", pins.to_str().unwrap(), "--journal-mib", "16"];
    let daemon = first.successor_with(&with);
    (bpffs, disk, daemon)
}

/// What was attached while the journal stood still is in no record. It is attached anew, and what was told meanwhile keeps its numbers.
#[test]
fn killed_while_the_journal_stands_still() {
    let (bpffs, disk, mut daemon) = on_a_small_disk();
    let journal = |daemon: &Daemon| daemon.json(&["status"])["journal"].clone();
    let mut known = Calls::start(&[]);
    daemon.attach(known.pid(), "segments");
    known.call("cudaSetDevice 0");
    known.call("cudaMalloc a 123");
    let mut filler = std::fs::File::create(disk.folder().join("filler")).unwrap();
    until(LONG, "the journal stops", || {
        while filler.write_all(&[1; 4096]).is_ok() {}
        known.call("pairs 5000 4096");
        (journal(&daemon)["state"] != "writing").then_some(())
    });
    // There is room for the list of what is traced, and none for a segment.
    let bytes = filler.metadata().unwrap().len();
    filler.set_len(bytes - (512 << 10)).unwrap();
    let mut new = Calls::start(&[]);
    daemon.attach(new.pid(), "segments");
    new.call("cudaSetDevice 0");
    new.call("cudaMalloc a 1000");
    let bytes = |daemon: &Daemon, pid| daemon.stats(pid)["devices"][0]["driver"]["bytes"].clone();
    assert_eq!(bytes(&daemon, new.pid()), 1000);
    let attachments = disk.folder().join("attachments.json");
    let pid = format!("\"pid\":{},", new.pid());
    until(LONG, "it is written down", || {
        let kept = std::fs::read_to_string(&attachments).unwrap();
        kept.contains(&pid).then_some(())
    });
    let stopped = journal(&daemon);
    assert_eq!(stopped["state"], "full", "{stopped:#}");
    let told = number(&stopped["last_sequence"]);
    let mut next = daemon.again();
    assert_said(&next, "1 traced on");
    assert_said(&next, "1 attached anew, since the journal had stopped");
    assert_said(&next, "the journal of the memscoped before had stopped");
    assert!(number(&journal(&next)["last_sequence"]) > told);
    for calls in [&mut known, &mut new] {
        let process = next.process(calls.pid()).expect("it is traced");
        assert_eq!(process["state"], "attached", "{process:#}");
        calls.call("cudaMalloc b 500");
        let now = number(&bytes(&next, calls.pid()));
        assert!(now >= 500, "{now}");
        calls.call("cudaFree b");
    }
    // Where there is room again, what is traced now is in the journal.
    filler.set_len(0).unwrap();
    until(LONG, "the journal goes on", || {
        (journal(&next)["state"] == "writing").then_some(())
    });
    let snapshot = ["snapshot", "--pid", &new.pid_text(), "--format", "json"];
    until(LONG, "it has its checkpoint", || {
        let said = next.ctl(&[&snapshot[..], &["--at", "-0s"]].concat());
        (said.code == 0).then_some(())
    });
    let mut last = next.again();
    assert_said(&last, "2 traced on");
    last.stop();
    drop(disk);
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

/// The disk was full when a process was attached, so the next daemon does not know that it was. It ends with the last that is known of it,
/// however often a daemon is started, and that is said.
#[test]
fn what_was_not_written_down_is_traced_no_more_and_that_is_said() {
    let (bpffs, disk, mut daemon) = on_a_small_disk();
    let mut known = Calls::start(&[]);
    daemon.attach(known.pid(), "segments");
    known.call("cudaSetDevice 0");
    let mut filler = std::fs::File::create(disk.folder().join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    // The segment of the journal has room of its own.
    let mut new = Calls::start(&[]);
    daemon.attach(new.pid(), "segments");
    new.call("cudaSetDevice 0");
    new.call("cudaMalloc a 1000");
    let journal = daemon.json(&["status"])["journal"].clone();
    assert_eq!(journal["state"], "writing", "{journal:#}");
    let mut ends = Vec::new();
    for _ in 0..3 {
        daemon = daemon.again();
        assert_said(
            &daemon,
            "1 traced on, 1 not traced on, since it was not written down",
        );
        new.call("cudaMalloc b 500");
        new.call("cudaFree b");
        let process = daemon.process(new.pid()).expect("the journal knows it");
        assert_eq!(process["state"], "detached", "{process:#}");
        ends.push((
            number(&process["ended_boot_ns"]),
            process["reserved_bytes"].clone(),
        ));
    }
    // The record of its end finds no room either.
    assert!(ends.iter().all(|end| end == &ends[0]), "{ends:?}");
    daemon.stop();
    drop(disk);
    assert_eq!(bpffs.pinned(), Vec::<String>::new());
}

/// The state directory has what is known of all users' processes.
#[test]
fn what_it_keeps_is_for_nobody_else() {
    use std::os::unix::fs::PermissionsExt;
    let daemon = Daemon::start();
    daemon.json(&["trigger", "add", "allocated > 8MiB"]);
    let mode = |path: &Path| {
        let facts = std::fs::metadata(path).unwrap();
        facts.permissions().mode() & 0o777
    };
    let state = daemon.state();
    assert_eq!(mode(&state), 0o700);
    for entry in std::fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
    assert!(state.join("watching.json").exists());
}

#[test]
fn triggers_are_there_again_and_fire_once() {
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let pins = pins.to_str().unwrap();
    let mut daemon = Daemon::with(&["--pin-dir", pins, "--snapshot-pause", "0"]);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    let added = daemon.json(&["trigger", "add", "allocated > 8MiB"]);
    let level = number(&added["trigger"]["trigger"]);
    let of_one = daemon.add_trigger("reserved > 100GiB", torch.pid());
    torch.ask("alloc big 20000000");
    let fired = |daemon: &Daemon| number(&daemon.trigger(level)["fired"]);
    let written = |daemon: &Daemon| number(&daemon.trigger(level)["written"]);
    eventually("it fires", || fired(&daemon) == 1);
    eventually("its snapshot is there", || written(&daemon) == 1);
    // The list is written down after it was told.
    daemon.json(&["trigger", "list"]);
    let mut next = daemon.again();
    assert_eq!(written(&next), 1);
    // The level is above as before, which is no news.
    torch.ask("alloc more 1000000");
    next.stats(torch.pid());
    assert_eq!(fired(&next), 1);
    for trigger in [level, of_one] {
        let trigger = next.trigger(trigger);
        assert_eq!(number(&trigger["watching"]), 1, "{trigger:#}");
    }
    // It falls and comes again.
    torch.ask("free big");
    next.stats(torch.pid());
    torch.ask("alloc big 20000000");
    eventually("it fires again", || fired(&next) == 2);
    // After a clean stop the one that is for all is there; the one for a process that is traced no more is not.
    next.stop();
    let after = next.successor();
    assert_eq!((fired(&after), written(&after)), (2, 2));
    let all = after.json(&["trigger", "list"]);
    assert!(
        find(&all["triggers"], "trigger", of_one).is_none(),
        "{all:#}"
    );
}

/// A state that the one before has written has its limits. Those that the next one was told count from then on.
#[test]
fn changed_limits_count_for_the_next_one() {
    let bpffs = BpfFs::mount();
    let pins = bpffs.pins();
    let pins = pins.to_str().unwrap();
    let with = |entries| ["--pin-dir", pins, "--trace-entries", entries];
    let mut daemon = Daemon::with(&with("1000"));
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    let words = ["snapshot", "--pid", &torch.pid_text(), "--format", "json"];
    for (entries, kept) in [("1000", 1000), ("1000", 1000), ("50", 50)] {
        daemon.kill();
        daemon = daemon.successor_with(&with(entries));
        torch.ask("churn 1000");
        daemon.stats(torch.pid());
        let snapshot: Value = daemon.ctl(&words).document();
        assert_eq!(snapshot["trace"].as_array().unwrap().len(), kept);
    }
    torch.finish();
}
