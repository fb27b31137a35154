//! Pools that tell of themselves through mstx's functions for memory, as ATB's and MindSpore's do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::limits::{Met, constant};
use memscope_tests::{
    Asking, Daemon, Device, LONG, Library, MIB, Program, Torch, Value, coverage, device,
    executable, find, number, scratch, sim_of, until,
};

fn start() -> Program {
    let command = Command::new(executable("mstx_memory.c", Library::Acl));
    let mut program = Program::start("the process with pools", command);
    let ready = program.hear();
    assert_eq!(ready["ready"], true, "{ready}");
    program
}

#[track_caller]
fn say(program: &mut Program, lines: &[&str]) {
    for line in lines {
        let answer = program.ask(line);
        assert_eq!(answer["result"], 0, "{line}: {answer}");
    }
}

fn pool(stats: &Value, domain: &str) -> Value {
    let pools = &stats["region_pools"];
    let found = find(pools, "domain", domain).cloned();
    found.unwrap_or_else(|| panic!("{domain}: {stats:#}"))
}

/// Count, bytes, and bytes of the heap, on a device.
fn on(pool: &Value, ordinal: u64) -> (u64, u64, Option<u64>) {
    let rows = pool["devices"].as_array().unwrap();
    let row = rows.iter().find(|row| row["device"] == ordinal);
    let row = row.unwrap_or_else(|| panic!("device {ordinal}: {pool:#}"));
    (
        number(&row["count"]),
        number(&row["bytes"]),
        row["heap_bytes"].as_u64(),
    )
}

fn drops(daemon: &Daemon, reason: &str) -> u64 {
    let status = daemon.json(&["status"]);
    let drop = find(&status["drops"], "cause", reason).cloned();
    number(&drop.unwrap_or_else(|| panic!("{status:#}"))["count"])
}

#[test]
fn pools_of_several_domains() {
    let daemon = Daemon::start();
    let mut program = start();
    let pid = program.pid();
    daemon.attach(pid, "segments");
    say(
        &mut program,
        &[
            "domain atb",
            "domain mindsporeMemPool",
            "domain mine",
            "heap atb workspace 1 0x10000000 67108864",
            "regions atb workspace a 1 0x10000000 4194304 b 1 0x10400000 8388608 c 1 0x10400000 8388608",
            "heap mine one 0 0x1000 4096",
            "heap mine two 0 0x8000 8192",
            "regions mine one d 0 0x1000 100",
            "regions mine - e 0 0x1800 200",
            "regions none - f 0 0x999000 300",
        ],
    );
    let stats = daemon.stats(pid);
    let atb = pool(&stats, "atb");
    assert_eq!(atb["title"], "ATB");
    // The library calls itself in the first call of all: that heap is one.
    assert_eq!(on(&atb, 1), (3, 20 * MIB, Some(64 * MIB)));
    assert_eq!(on(&pool(&stats, "mine"), 0), (2, 300, Some(12288)));
    let unnamed = stats["region_pools"].as_array().unwrap().last().unwrap();
    assert_eq!(unnamed["domain"], Value::Null, "{stats:#}");
    assert_eq!(on(unnamed, 0), (1, 300, None));
    assert!(coverage(&stats).contains(&"regions_domain_unknown"));

    // MindSpore tells the sum of what it has with each region, and leaves handles unset.
    say(
        &mut program,
        &[
            "many mindsporeMemPool 3 0x200000 1048576",
            "heap mindsporeMemPool total 0 0x200000 33554432",
            "many mindsporeMemPool 1 0x800000 512",
            "heap mindsporeMemPool total 0 0x800000 35651584",
            "gone mindsporeMemPool 0x300000",
            "gone_by atb b",
            "gone atb 0x10000000",
        ],
    );
    let stats = daemon.stats(pid);
    let told = on(&pool(&stats, "mindsporeMemPool"), 0);
    assert_eq!(told, (3, 2 * MIB + 512, Some(34 * MIB)));
    let atb = pool(&stats, "atb");
    assert_eq!(on(&atb, 1), (1, 8 * MIB, Some(64 * MIB)));
    assert_eq!(atb["devices"][0]["peak_bytes"], 20 * MIB);
    assert_eq!(atb["orphan_free_count"], 0);
    // No number of a device has them: they lie in memory that is the driver's.
    assert_eq!(stats["devices"].as_array().map_or(0, Vec::len), 0);
    let said = daemon.ctl(&["stats", "--pid", &pid.to_string()]);
    let text = said.text();
    // What they had before the attach is not known.
    let line =
        "npu:1: ATB at least 8.00 MiB in 1 region of a heap of 64.00 MiB, peak at least 20.00 MiB";
    assert!(text.contains(line), "{line}: {text}");

    // A heap takes its regions with it, by its handle or by its address.
    say(
        &mut program,
        &[
            "heap_gone atb workspace",
            "heap_gone_at mine 0x1000",
            "gone mine 0x1000",
        ],
    );
    let stats = daemon.stats(pid);
    assert_eq!(on(&pool(&stats, "atb"), 1), (0, 0, Some(0)));
    let mine = pool(&stats, "mine");
    assert_eq!(on(&mine, 0), (1, 200, Some(8192)));
    assert_eq!(mine["orphan_free_count"], 1);
    assert_eq!(stats["lost_records"], 0);
    program.finish();
}

#[test]
fn a_call_of_many_regions_says_how_many_are_missing() {
    many_regions(&Daemon::start());
    many_regions(&Daemon::with(&["--links", "perf"]));
    Met {
        what: "regions that one call of mstx tells of",
        most: constant("memscope-common/src/region.rs", "REGIONS_TOLD"),
        beyond: "further ones are counted, and are in no number",
        told: "`regions_untold` in `status` and in coverage",
        test: "a_call_of_many_regions_says_how_many_are_missing",
    }
    .is_told();
}

fn many_regions(daemon: &Daemon) {
    let mut program = start();
    let pid = program.pid();
    daemon.attach(pid, "segments");
    let before = drops(daemon, "regions_untold");
    say(
        &mut program,
        &[
            "domain atb",
            "many atb 16 0x1000 256",
            "many atb 40 0x100000 256",
        ],
    );
    let stats = daemon.stats(pid);
    let atb = pool(&stats, "atb");
    assert_eq!(on(&atb, 0), (32, 32 * 256, None), "{stats:#}");
    assert_eq!(atb["untold_count"], 24);
    assert!(coverage(&stats).contains(&"regions_untold"));
    say(&mut program, &["many_gone atb 40 0x100000 256"]);
    let atb = pool(&daemon.stats(pid), "atb");
    assert_eq!(on(&atb, 0), (16, 16 * 256, None));
    assert_eq!(
        (
            number(&atb["untold_count"]),
            number(&atb["orphan_free_count"])
        ),
        (48, 0)
    );
    assert_eq!(drops(daemon, "regions_untold") - before, 48);
    program.finish();
}

#[test]
fn attached_midway() {
    let daemon = Daemon::start();
    let mut program = start();
    let pid = program.pid();
    say(
        &mut program,
        &[
            "domain atb",
            "heap atb workspace 0 0x10000000 1048576",
            "regions atb workspace a 0 0x10000000 4096",
        ],
    );
    daemon.attach(pid, "segments");
    assert_eq!(daemon.stats(pid)["region_pools"], Value::Array(Vec::new()));
    say(
        &mut program,
        &[
            "regions atb workspace b 0 0x10001000 4096",
            "gone_by atb a",
            "domain mine",
            "regions mine - c 0 0x5000 77",
        ],
    );
    let stats = daemon.stats(pid);
    let pools = stats["region_pools"].as_array().unwrap();
    assert_eq!(pools.len(), 2, "{stats:#}");
    assert_eq!(on(&pool(&stats, "mine"), 0), (1, 77, None));
    // What the handle stands for, nobody tells again.
    assert_eq!(pools[1]["domain"], Value::Null);
    assert_eq!(on(&pools[1], 0), (1, 4096, None));
    assert_eq!(pools[1]["orphan_free_count"], 1);
    let codes = coverage(&stats);
    for code in ["regions_baseline_unknown", "regions_domain_unknown"] {
        assert!(codes.contains(&code), "{code}: {codes:?}");
    }
    // Who makes a domain of this name again gets the same.
    say(&mut program, &["domain atb"]);
    assert_eq!(on(&pool(&daemon.stats(pid), "atb"), 0), (1, 4096, None));
    program.finish();
}

fn csv(folder: &Path, part: &str) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().contains(part) && path.extension().unwrap() == "csv" {
                return path;
            }
        }
    }
    panic!("no {part} in {}", folder.display());
}

#[test]
fn rows_of_a_dump_and_back() {
    let daemon = Daemon::start();
    let folder = scratch();
    let mut program = start();
    let pid = program.pid();
    daemon.attach(pid, "segments");
    say(
        &mut program,
        &[
            "domain atb",
            "domain mindsporeMemPool",
            "domain mine",
            "heap atb workspace 0 0x10000000 67108864",
            "regions atb workspace a 0 0x10000000 4096 b 0 0x10001000 8192",
            "gone_by atb a",
            "many mindsporeMemPool 2 0x200000 512",
            "heap mindsporeMemPool total 0 0x200000 33554432",
            "gone mindsporeMemPool 0x200000",
            "regions mine - c 0 0x5000 77",
        ],
    );
    let output = folder.path().join("dumps");
    let (output, text) = (output.to_str().unwrap(), pid.to_string());
    let made = daemon.json(&[
        "export",
        "--format",
        "msmemscope-csv",
        "-o",
        output,
        "--pid",
        &text,
    ]);
    program.finish();
    let place = Path::new(made["folders"][0].as_str().unwrap());
    let file = csv(place, "device_0/");
    let rows = std::fs::read_to_string(&file).unwrap();
    for wanted in [
        "MALLOC,ATB,",
        "FREE,ATB,",
        "size:4096,used:4096,total:67108864",
        "size:8192,used:12288,total:67108864",
        "size:4096,used:8192,total:67108864",
        "MALLOC,MINDSPORE,",
        "size:512,used:512,total:33554432",
    ] {
        assert!(rows.contains(wanted), "{wanted}: {rows}");
    }
    assert!(
        !rows.contains("size:77"),
        "no row is of such a pool: {rows}"
    );
    // Read back: one of them is taken for the framework's own pool, the other one stands beside it.
    let recording = folder.path().join("imported");
    let recording = recording.to_str().unwrap();
    Asking::new(["import", file.to_str().unwrap(), "-o", recording])
        .ask()
        .text();
    let asked = Asking::new(["--recording", recording, "--json", "stats"]);
    let stats = asked.ask().json();
    assert_eq!(on(&pool(&stats, "atb"), 0), (1, 8192, Some(64 * MIB)));
    assert_eq!(device(&stats, 0)["allocated_bytes"], 512, "{stats:#}");
}

/// torch_npu believes that a tool is there where this is preloaded.
fn hook() -> PathBuf {
    sim_of(Device::Npu)
        .libraries()
        .join("libascend_kernel_hook.so")
}

/// torch_npu tells of each block through mstx as well when it believes that a tool is there.
#[test]
fn torch_npus_own_regions_are_not_counted_again() {
    let daemon = Daemon::start();
    let hook = hook();
    let variables = [("LD_PRELOAD", hook.to_str().unwrap())];
    for level in ["segments", "blocks", "trace"] {
        let mut torch = Torch::start_on(Device::Npu, &variables);
        let pid = torch.pid();
        // It loads mstx's library for its first block.
        torch.ask("train 1");
        daemon.attach(pid, level);
        let first = torch.ask("train 3");
        let before = daemon.stats(pid);
        let told = torch.ask(&format!("alloc here {}", 30 * MIB));
        let stats = daemon.stats(pid);
        let own = &told["devices"][0];
        let zero = device(&stats, 0);
        if level == "segments" {
            // Nothing else tells of its blocks. What it had before the attach is in neither sum.
            let ([count, bytes, _], [live, more, heap]) = (caching(&before), caching(&stats));
            let grown = number(&own["allocated"]) - number(&first["devices"][0]["allocated"]);
            assert_eq!((live - count, more - bytes), (1, grown), "{stats:#}");
            assert_eq!(heap, number(&own["reserved"]), "{stats:#}");
        } else {
            assert_eq!(zero["allocated_bytes"], own["allocated"], "{stats:#}");
            assert_eq!(zero["reserved_bytes"], own["reserved"], "{stats:#}");
            assert_eq!(stats["region_pools"], Value::Array(Vec::new()), "{stats:#}");
        }
        assert_eq!(stats["lost_records"], 0);
        torch.finish();
    }
}

/// What was told before the library had its probes is missing, and that is said.
#[test]
fn a_library_of_mstx_that_is_loaded_later() {
    let daemon = Daemon::start();
    let mut command = sim_of(Device::Npu).python("late_agent.py");
    command.env("LD_PRELOAD", hook());
    let mut torch = Torch::from_command(command);
    let pid = torch.pid();
    let text = torch.pid_text();
    daemon.json(&["attach", "--pid", &text, "--wait", "--level", "segments"]);
    torch.ask("go");
    torch.ask(&format!("alloc first {MIB}"));
    until(LONG, "mstx's functions are probed", || {
        let libraries = daemon.stats(pid)["placement"]["libraries"].to_string();
        libraries.contains("libms_tools_ext").then_some(())
    });
    torch.ask(&format!("alloc second {}", 2 * MIB));
    let stats = daemon.stats(pid);
    assert_eq!(stats["process"]["from_start"], true, "{stats:#}");
    let [live, bytes, _] = caching(&stats);
    assert!(live >= 1 && bytes >= 2 * MIB, "{stats:#}");
    let note = find(&stats["coverage"], "code", "regions_baseline_unknown");
    let note = note.unwrap_or_else(|| panic!("{stats:#}"));
    let said = note["text"].as_str().unwrap();
    assert!(
        said.contains("libms_tools_ext.so was loaded after the attach"),
        "{said}"
    );
    torch.finish();
}

fn caching(stats: &Value) -> [u64; 3] {
    let pools = &stats["region_pools"];
    let found = find(pools, "domain", "ptaCaching").or_else(|| find(pools, "domain", "msleaks"));
    let (live, bytes, heap) = on(found.unwrap_or_else(|| panic!("{stats:#}")), 0);
    [live, bytes, heap.unwrap()]
}
