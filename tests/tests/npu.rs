//! Real torch_npu on the simulated NPU: its caching allocator's blocks, segments and totals against what it says itself, its
//! workspaces, and a torch_npu that is not known. Its library is stripped, as the wheels have it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::symlink;
use std::path::Path;

use memscope_tests::{
    Asking, Daemon, Device, LONG, NpuLog, Torch, Value, assert_totals, compared, coverage, device,
    find, number, scratch, sim_of, until,
};

/// What a process does between two looks, and what each of them is compared after.
const MOMENTS: [&str; 20] = [
    "alloc a 3000000",
    "allocs small 40 70000",
    "train 1",
    "churn 200",
    "free a",
    "alloc large 52428800",
    "train 2",
    "free small",
    "empty_cache",
    "oom",
    "alloc odd 1000001",
    "threads 3 50",
    "allocs many 300 5000",
    "free large",
    "train 1",
    "alloc b 33554432",
    "free many",
    "churn 100",
    "free b",
    "empty_cache",
];

/// Bytes of the device that this holder has outside the pool.
fn held_by(stats: &Value, name: &str) -> u64 {
    find(&device(stats, 0)["components"], "name", name).map_or(0, |of| number(&of["bytes"]))
}

#[track_caller]
fn agrees(daemon: &Daemon, torch: &mut Torch, told: &Value, moment: &str) {
    assert_totals(&daemon.stats(torch.pid()), told);
    let both = compared(daemon, torch);
    // torch_npu's snapshots show its workspaces as segments, which neither its totals nor memscope count as the pool's.
    let ours = both["exported"].as_array().unwrap();
    let (own, beside): (Vec<&Value>, Vec<&Value>) = both["own"]
        .as_array()
        .unwrap()
        .iter()
        .partition(|segment| ours.iter().any(|one| one[1] == segment[1]));
    assert_eq!(ours.len(), own.len(), "after {moment}");
    for (one, other) in ours.iter().zip(own) {
        assert_eq!(one, other, "after {moment}");
    }
    let beside: u64 = beside.iter().map(|segment| number(&segment[2])).sum();
    let stats = daemon.stats(torch.pid());
    assert_eq!(held_by(&stats, "PTA_WORKSPACE"), beside, "after {moment}");
    assert!(
        !both["own"].as_array().unwrap().is_empty() || told["devices"][0]["reserved"] == 0,
        "{both}"
    );
}

/// Looks `MOMENTS.len()` times, and attaches before the one with this number.
fn at_moments(attach_at: usize, variables: &[(&str, &str)]) {
    let daemon = Daemon::start();
    let mut torch = Torch::start_on(Device::Npu, variables);
    torch.ask("init");
    let mut looked = 0;
    for (number, moment) in MOMENTS.iter().enumerate() {
        if number == attach_at {
            let attached = daemon.attach(torch.pid(), "trace");
            assert_eq!(attached["level"], "trace", "{attached}");
        }
        let told = torch.ask(moment);
        if number >= attach_at {
            agrees(&daemon, &mut torch, &told, moment);
            looked += 1;
        }
    }
    assert_eq!(looked, MOMENTS.len() - attach_at);
    let stats = daemon.stats(torch.pid());
    assert_eq!(stats["lost_records"], 0, "{stats}");
    torch.finish();
}

#[test]
fn twenty_moments() {
    at_moments(0, &[]);
}

#[test]
fn attached_in_the_middle() {
    at_moments(9, &[]);
}

#[test]
fn expandable_segments() {
    at_moments(4, &[("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")]);
}

/// How work is issued changes whose thread launches it, and no number.
#[test]
fn ways_to_issue_work() {
    let daemon = Daemon::start();
    for (variables, note) in [
        (&[("TASK_QUEUE_ENABLE", "2")][..], true),
        (&[("TASK_QUEUE_ENABLE", "0")][..], false),
        (&[("ASCEND_LAUNCH_BLOCKING", "1")][..], false),
    ] {
        let mut torch = Torch::start_on(Device::Npu, variables);
        torch.ask("init");
        daemon.attach(torch.pid(), "trace");
        for moment in ["train 3", "empty_cache"] {
            let told = torch.ask(moment);
            agrees(&daemon, &mut torch, &told, moment);
        }
        let stats = daemon.stats(torch.pid());
        assert_eq!(
            coverage(&stats).contains(&"npu_task_queue"),
            note,
            "{variables:?}: {stats:#}"
        );
        torch.finish();
    }
}

/// Without `record_trace`: totals and blocks, as on CUDA.
#[test]
fn at_level_blocks() {
    let daemon = Daemon::start();
    let mut torch = Torch::start_on(Device::Npu, &[]);
    torch.ask("alloc before 3000000");
    let attached = daemon.attach(torch.pid(), "blocks");
    assert_eq!(
        attached["cost"], "3 traps for an allocation and its free",
        "{attached}"
    );
    for moment in ["train 2", "allocs small 40 70000", "free before", "train 1"] {
        let told = torch.ask(moment);
        let stats = daemon.stats(torch.pid());
        assert_totals(&stats, &told);
        let live = torch.ask("memory_stats");
        assert_eq!(
            number(&device(&stats, 0)["live_blocks"]),
            number(&live["stats"]["allocation.all.current"]),
            "after {moment}"
        );
    }
    // torch_npu's report tells of no failed allocation, and so nothing says that there was none.
    let trigger = daemon.add_trigger("oom", torch.pid());
    assert_eq!(number(&daemon.trigger(trigger)["watching"]), 0);
    torch.ask("oom 3");
    let stats = daemon.stats(torch.pid());
    assert!(coverage(&stats).contains(&"oom_unseen"), "{stats:#}");
    torch.finish();
}

/// What torch_npu pickles says no times, and its sizes follow its own rule. As a recording it has what the process held at its end
/// and at its peak.
#[test]
fn pickles_are_recordings() {
    let folder = scratch();
    for (number_of, most) in ["3000000", "40"].into_iter().enumerate() {
        let mut torch = Torch::start_on(Device::Npu, &[]);
        torch.ask("alloc early 5000000");
        torch.ask(&format!("history python {most}"));
        torch.ask("allocs small 1000 512");
        torch.ask("free small");
        torch.ask("alloc a 300000");
        torch.ask("allocs many 20 512");
        torch.ask("alloc b 100000");
        let file = folder.path().join(format!("{number_of}.pickle"));
        torch.ask(&format!("dump {} 4", file.display()));
        let told = torch.ask("totals");
        let own = &torch.ask("memory_stats")["stats"];
        let words = ["--recording", file.to_str().unwrap(), "--json", "stats"];
        let stats = Asking::new(words).ask().json();
        assert_totals(&stats, &told);
        let here = device(&stats, 0);
        assert_eq!(
            number(&here["live_blocks"]),
            number(&own["allocation.all.current"])
        );
        let codes = coverage(&stats);
        assert!(codes.contains(&"import_times_unknown"), "{stats:#}");
        assert!(!codes.contains(&"import_contradictions"), "{stats:#}");
        assert!(!codes.contains(&"import_padding_unknown"), "{stats:#}");
        if number_of == 0 {
            for (ours, theirs) in [
                ("peak_allocated_bytes", "allocated_bytes.all.peak"),
                ("peak_reserved_bytes", "reserved_bytes.all.peak"),
            ] {
                assert_eq!(number(&here[ours]), number(&own[theirs]), "{stats:#}");
            }
        }
        torch.finish();
    }
}

/// Without any probe: what its structures say.
#[test]
fn at_level_read() {
    let daemon = Daemon::start();
    let mut torch = Torch::start_on(Device::Npu, &[]);
    torch.ask("alloc before 3000000");
    let attached = daemon.attach(torch.pid(), "read");
    assert_eq!(attached["sites"], 0, "{attached}");
    for moment in [
        "train 2",
        "allocs small 40 70000",
        "free before",
        "empty_cache",
    ] {
        let told = torch.ask(moment);
        agrees(&daemon, &mut torch, &told, moment);
    }
    torch.finish();
}

/// What the caching allocator does not count: memory that operators work in. With TASK_QUEUE_ENABLE=2 it is taken from the
/// runtime, one piece for each stream.
#[test]
fn workspaces_are_told_apart() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let variables = [("SIMCANN_LOG", log.path()), ("TASK_QUEUE_ENABLE", "2")];
    let mut torch = Torch::start_on(Device::Npu, &variables);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    let told = torch.ask("train 3");
    // The queue's own thread takes it when it comes to it.
    let (stats, workspace) = until(LONG, "a workspace", || {
        let stats = daemon.stats(torch.pid());
        let workspace = held_by(&stats, "PTA_WORKSPACE");
        (workspace > 0).then_some((stats, workspace))
    });
    assert_totals(&stats, &told);
    // All that the program took through AscendCL is the pool's, or a workspace: nothing is left for APP.
    let app = log.held(torch.pid()).bytes_of(33);
    assert_eq!(
        app,
        number(&told["devices"][0]["reserved"]) + workspace,
        "{stats:#}"
    );
    assert_eq!(held_by(&stats, "APP"), 0, "{stats:#}");
    // Given back, it is no longer told of.
    let told = torch.ask("empty_cache");
    let stats = daemon.stats(torch.pid());
    let left = log.held(torch.pid()).bytes_of(33);
    let reserved = number(&told["devices"][0]["reserved"]);
    assert_eq!(left, reserved + held_by(&stats, "PTA_WORKSPACE"));
    torch.finish();
}

/// Rows of a dump of this event and type.
fn rows<'a>(dump: &'a str, event: &str, kind: &str) -> Vec<&'a str> {
    let words = format!(",{event},{kind},");
    dump.lines().filter(|line| line.contains(&words)).collect()
}

/// msMemScope's file has torch_npu's blocks as PTA, what CANN's driver gave as HAL, each as often as it happened.
#[test]
fn exported_as_msmemscopes_file() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut torch = Torch::start_on(Device::Npu, &[("SIMCANN_LOG", log.path())]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("train 3");
    torch.ask("alloc odd 1000001");
    let told = torch.ask("memory_stats");
    let count = |what: &str| number(&told["stats"][format!("allocation.all.{what}")]);
    let output = folder.path().join("dumps");
    let (pid, output) = (torch.pid_text(), output.to_str().unwrap().to_owned());
    let words = [
        "export",
        "--format",
        "msmemscope-csv",
        "--pid",
        &pid,
        "-o",
        &output,
    ];
    daemon.ctl(&words).text();
    let device_0 = std::fs::read_dir(&output)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("device_0/dump");
    let file = std::fs::read_dir(device_0).unwrap().next().unwrap();
    let dump = std::fs::read_to_string(file.unwrap().path()).unwrap();
    assert_eq!(
        rows(&dump, "MALLOC", "PTA").len() as u64,
        count("allocated")
    );
    assert_eq!(rows(&dump, "FREE", "PTA").len() as u64, count("freed"));
    // What is rounded is rounded as torch_npu does: 32 bytes more, up to a multiple of 512.
    let odd = rows(&dump, "MALLOC", "PTA");
    assert!(
        odd.iter().any(|row| row.contains("size:1000448")),
        "{}",
        odd.last().unwrap()
    );
    let given = log
        .calls(torch.pid())
        .iter()
        .filter(|call| call["function"] == "halMemAlloc" && call["result"] == 0)
        .filter(|call| !memscope_tests::NpuFlag::of(call).host)
        .count();
    let hal = rows(&dump, "MALLOC", "HAL");
    assert_eq!(hal.len(), given);
    for owner in ["CANN@APP", "CANN@RUNTIME"] {
        assert!(hal.iter().any(|row| row.contains(owner)), "{owner}");
    }
    torch.finish();
}

/// A copy of torch_npu in `folder`, links but for its library, in which one letter of a name differs.
fn renamed(folder: &Path, from: &[u8], to: &[u8]) -> String {
    let command = sim_of(Device::Npu).python("agent.py");
    let path = command
        .get_envs()
        .find(|(name, _)| *name == "PYTHONPATH")
        .and_then(|(_, value)| value)
        .expect("torch_npu's folder")
        .to_str()
        .unwrap();
    let (own, rest) = path.split_once(':').unwrap_or((path, ""));
    let link_all = |from: &Path, to: &Path, but: &str| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != but {
                symlink(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    let own = Path::new(own);
    link_all(own, folder, "torch_npu");
    let package = folder.join("torch_npu");
    link_all(&own.join("torch_npu"), &package, "lib");
    let library = "libtorch_npu.so";
    link_all(&own.join("torch_npu/lib"), &package.join("lib"), library);
    let mut bytes = std::fs::read(own.join("torch_npu/lib").join(library)).unwrap();
    let at = bytes
        .windows(from.len())
        .position(|window| window == from)
        .expect("the name is in the library");
    bytes[at..at + from.len()].copy_from_slice(to);
    std::fs::write(package.join("lib").join(library), bytes).unwrap();
    format!("{}:{rest}", folder.display())
}

/// Then there are the runtime's and the driver's calls, and it is said why there is no more.
#[test]
fn a_torch_npu_that_is_not_known() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let path = renamed(
        &folder.path().join("packages"),
        b"N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE\0",
        b"N7c10_npu19NPUCachingAllocator19NpuCachingAllocatoRE\0",
    );
    let variables = [("PYTHONPATH", path.as_str()), ("SIMCANN_LOG", log.path())];
    let mut torch = Torch::start_on(Device::Npu, &variables);
    let attached = daemon.attach(torch.pid(), "trace");
    assert_eq!(attached["level"], "segments", "{attached}");
    torch.ask("train 3");
    torch.ask("alloc here 30000000");
    let stats = daemon.stats(torch.pid());
    let codes = coverage(&stats);
    assert!(codes.contains(&"level_reduced"), "{stats:#}");
    let note = |code: &str| {
        let notes = stats["coverage"].as_array().unwrap();
        let note = notes.iter().find(|note| note["code"] == code);
        note.expect(code)["text"].as_str().unwrap().to_owned()
    };
    let why = note("not_probed");
    assert!(
        why.contains("libtorch_npu.so")
            && why.contains("stripped")
            && why.contains("c10_npu::NPUCachingAllocator::NpuCachingAllocator"),
        "{why}"
    );
    // The runtime's calls are all there, and nothing pretends to be the pool's.
    let here = device(&stats, 0);
    let held = log.held(torch.pid());
    assert_eq!(
        number(&here["driver"]["bytes"]),
        held.device().1,
        "{here:#}"
    );
    torch.finish();
}

/// The same where the process was there first, and torch_npu came later.
#[test]
fn torch_npu_comes_after_the_attach() {
    let daemon = Daemon::start();
    let mut torch = Torch::from_command(sim_of(Device::Npu).python("late_agent.py"));
    daemon.json(&["attach", "--pid", &torch.pid_text(), "--wait"]);
    torch.ask("go");
    until(LONG, "torch_npu's ways in are probed", || {
        let stats = daemon.stats(torch.pid());
        stats
            .to_string()
            .contains("NPUCachingAllocator")
            .then_some(())
    });
    for moment in ["train 2", "alloc a 3000000", "train 1"] {
        let told = torch.ask(moment);
        agrees(&daemon, &mut torch, &told, moment);
    }
    let stats = daemon.stats(torch.pid());
    assert!(!coverage(&stats).contains(&"level_reduced"), "{stats:#}");
    torch.finish();
}
