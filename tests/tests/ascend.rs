//! Every call of Ascend's runtime and driver that memscope knows, against the simulated driver's own log.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use memscope_tests::{
    Asking, Daemon, MIB, NpuHeld, NpuLog, Program, Value, coverage, device, find, json, npu,
    npu_by_tail_calls, number, scratch,
};

fn pair(bytes: &Value) -> (u64, u64) {
    (number(&bytes["count"]), number(&bytes["bytes"]))
}

/// What memscope says is held, as the log counts it.
fn held(stats: &Value) -> NpuHeld {
    let mut held = NpuHeld::default();
    let mut components = |device: Option<u64>, list: &Value| {
        for component in list.as_array().unwrap() {
            let owner = (device, number(&component["module"]));
            held.components.insert(owner, pair(component));
        }
    };
    let mut devices = BTreeMap::new();
    for device in stats["devices"].as_array().unwrap() {
        assert_eq!(device["device_kind"], "npu");
        let ordinal = device["device"].as_u64();
        components(ordinal, &device["components"]);
        if let Some(ordinal) = ordinal.filter(|_| pair(&device["driver"]) != (0, 0)) {
            devices.insert(ordinal, pair(&device["driver"]));
        }
        let physical = pair(&device["physical"]);
        held.physical = (held.physical.0 + physical.0, held.physical.1 + physical.1);
        held.imported += pair(&device["imported"]).0;
    }
    components(None, &stats["host_components"]);
    held.devices = devices;
    held.registered = pair(&stats["host_registered"]);
    let host = pair(&stats["host"]);
    held.host = (host.0 - held.registered.0, host.1 - held.registered.1);
    held.reserved = pair(&stats["address_reserved"]);
    held
}

#[track_caller]
fn call(program: &mut Program, line: &str) -> Value {
    let answer = program.ask(line);
    assert_eq!(answer["result"], 0, "{line}: {answer}");
    answer
}

#[track_caller]
fn call_fails(program: &mut Program, line: &str, status: i64) {
    let answer = program.ask(line);
    assert_eq!(answer["result"], status, "{line}: {answer}");
}

/// The driver's flags: space, device, huge pages, component.
fn flag(space: u64, device: u64, huge: bool, module: u64) -> u64 {
    module << 56 | u64::from(huge) << 17 | space << 10 | device
}

#[test]
fn every_call_is_counted_as_the_driver_does() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut program = npu(&[("SIMCANN_LOG", log.path())]);
    let pid = program.pid();
    let attached = daemon.attach(pid, "segments");
    assert!(number(&attached["sites"]) >= 40, "{attached:#}");
    let (svm, host, giant) = (
        flag(0, 0, false, 45),
        flag(2, 0, false, 36),
        flag(1, 0, false, 7) | 1 << 31,
    );
    let script: Vec<Vec<String>> = [
        // The runtime takes memory for itself where it is only told which device is meant.
        "aclrtSetDevice 0; aclrtCreateStream stream",
        "aclrtMalloc a 1000; aclrtMallocAlign32 b 2097152 1; aclrtMallocCached c 5000; aclrtMalloc d 3000000 2",
        "aclrtMallocWithCfg e 20971520 3; aclrtMallocForTaskScheduler f 4096 45",
        "aclrtMallocHost g 5000; aclrtMallocHostWithCfg h 6000 3",
        "aclrtHostRegister i 8192; aclrtHostRegisterV2 j 4096 0x10000000; aclrtHostRegisterV2 k 12288 2",
        &format!("halMemAlloc l 123456 {}; halMemAlloc m 4194304 {}", flag(1, 0, false, 3), flag(1, 0, true, 63)),
        &format!("halMemAlloc n 777 {host}; halMemAlloc o 888 {svm}; halMemAlloc oo 1073741824 {giant}"),
        // Physical memory lives until its handle and all its mappings are gone.
        "aclrtReserveMemAddress space 16777216; aclrtMallocPhysical x 2097152; aclrtMapMem space 0 x 2097152",
        "aclrtMapMem space 2097152 x 2097152; aclrtFreePhysical x",
        "aclrtUnmapMem space 0",
        "aclrtUnmapMem space 2097152",
        "halMemCreate y 4194304 1 0 3 1; halMemMap space 0 y 4194304; halMemRelease y; halMemUnmap space 0",
        "aclrtMallocPhysical w 2097152 -1; halMemCreate z 2097152 0 0 7 0",
        "halMemAddressReserve other 4194304; aclrtMallocPhysical v 2097152 0",
        "aclrtMemImportFromShareableHandle theirs v; aclrtIpcMemImportByKey shared b 2097152",
        "aclrtFreePhysical theirs; aclrtIpcMemClose shared; aclrtFreePhysical v",
        "aclrtFreePhysical w; halMemRelease z; aclrtReleaseMemAddress space; halMemAddressFree other",
        // Whatever allocated it, any free of its family ends it.
        "aclrtFree a; halMemFree b; aclrtFreeWithDevSync c; aclrtFree l; halMemFree oo",
        "aclrtFreeHost g; aclrtFreeHostWithDevSync h; halMemFree n",
        "aclrtHostUnregister i; aclrtHostUnregister j; aclrtHostUnregister k",
        "aclrtCreateContext context 0; aclrtSetCurrentContext context; aclrtMalloc q 512",
        "aclrtDestroyContext context; aclrtSetDevice 0; aclrtFree q",
        "aclrtFree d; aclrtFree e; aclrtFree f; aclrtFree m; aclrtFree o",
        "aclrtDestroyStream stream; aclrtResetDevice 0",
    ]
    .iter()
    .map(|step| step.split("; ").map(str::to_owned).collect())
    .collect();
    for step in &script {
        for line in step {
            call(&mut program, line);
        }
        let stats = daemon.stats(pid);
        assert_eq!(
            held(&stats),
            log.held(pid),
            "after {step:?}: memscope's, the driver's; {stats:#}"
        );
    }
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), NpuHeld::default(), "all is given back");
    assert_eq!(stats["lost_records"], 0);
    assert_eq!(stats["failures"], json!([]));
    assert_eq!(device(&stats, 0)["orphan_free_count"], 0, "{stats:#}");
    program.finish();
}

#[test]
fn each_allocation_has_an_owner_and_is_counted_once() {
    let daemon = Daemon::start();
    let mut program = npu(&[]);
    let pid = program.pid();
    daemon.attach(pid, "segments");
    call(&mut program, "aclrtSetDevice 0");
    call(&mut program, "aclrtMalloc own 3145728 1");
    call(&mut program, "aclrtMallocWithCfg buffer 20971520 3");
    call(&mut program, "aclrtMallocHostWithCfg pinned 4096 3");
    call(&mut program, "aclrtGetMemInfo");
    let stats = daemon.stats(pid);
    let zero = device(&stats, 0);
    let named = |list: &Value, name: &str| find(list, "name", name).cloned().unwrap_or_default();
    let hccl = named(&zero["components"], "HCCL");
    assert_eq!(pair(&hccl), (1, 20 * MIB), "{stats:#}");
    assert_eq!(hccl["huge_page_bytes"], 20 * MIB);
    // The runtime asks for a little more than it was asked for.
    let app = named(&zero["components"], "APP");
    assert_eq!(pair(&app), (1, 3 * MIB + 32), "{stats:#}");
    assert!(
        pair(&named(&zero["components"], "RUNTIME")).0 > 0,
        "{stats:#}"
    );
    assert_eq!(pair(&named(&stats["host_components"], "HCCL")), (1, 4096));
    let sum: u64 = zero["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| number(&component["bytes"]))
        .sum();
    assert_eq!(sum, number(&zero["direct"]["bytes"]), "all is owned");
    // The device itself says how much is gone.
    let free = number(&zero["free_bytes"]);
    assert_eq!(number(&zero["total_bytes"]) - free, sum, "{stats:#}");
    assert_eq!(zero["alloc_count"], number(&zero["live_blocks"]));
    let said = daemon.ctl(&["stats", "--pid", &pid.to_string()]);
    let text = said.text();
    for wanted in ["npu:0", "CANN@HCCL", "20.00 MiB", "host"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    program.finish();
}

#[test]
fn after_a_late_attach_the_driver_says_which_device() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut program = npu(&[
        ("SIMCANN_LOG", log.path()),
        ("SIMCANN_DEVICES", "4"),
        // The driver's 1, 2 and 3 are the program's 0, 1 and 2.
        ("ASCEND_RT_VISIBLE_DEVICES", "1,2,3"),
    ]);
    let pid = program.pid();
    call(&mut program, "aclrtSetDevice 0");
    call(&mut program, "aclrtMalloc before 4096 1");
    daemon.attach(pid, "segments");
    let none = daemon.stats(pid);
    assert_eq!(none["devices"], json!([]), "{none:#}");
    // No call has said which device is current; the driver is told with each.
    call(&mut program, "aclrtMallocAlign32 here 65536");
    call(&mut program, "aclrtMallocPhysical there 2097152 2");
    call(&mut program, "aclrtSetDevice 1");
    call(&mut program, "aclrtMallocAlign32 other 131072");
    let stats = daemon.stats(pid);
    assert_eq!(pair(&device(&stats, 0)["driver"]), (1, 65536), "{stats:#}");
    // What the runtime took for itself came with it.
    let own = 512 << 10;
    assert_eq!(
        pair(&device(&stats, 1)["driver"]),
        (2, 131072 + own),
        "{stats:#}"
    );
    assert_eq!(
        pair(&device(&stats, 2)["driver"]),
        (1, 2 * MIB),
        "{stats:#}"
    );
    assert!(!coverage(&stats).contains(&"device_unknown"), "{stats:#}");
    assert!(
        coverage(&stats).contains(&"driver_baseline_unknown"),
        "{stats:#}"
    );
    let said = daemon.ctl(&["stats", "--pid", &pid.to_string()]);
    let text = said.text();
    assert!(text.contains("ASCEND_RT_VISIBLE_DEVICES=1,2,3"), "{text}");
    // A sum that lacks what was there before has a peak that lacks it as well.
    for peak in ["peak allocated", "peak reserved"] {
        let line = text.lines().find(|line| line.contains(peak)).unwrap();
        assert_eq!(line.matches("at least").count(), 3, "{text}");
    }
    // A free of what was there before frees nothing that is known.
    call(&mut program, "aclrtFree before");
    call(&mut program, "aclrtFree here");
    let stats = daemon.stats(pid);
    assert_eq!(pair(&device(&stats, 0)["driver"]), (0, 0), "{stats:#}");
    let orphans: u64 = stats["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| number(&device["orphan_free_count"]))
        .sum();
    assert_eq!(orphans, 1, "{stats:#}");
    program.finish();
}

#[test]
fn failed_calls_are_apart() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let plan = "aclrtMalloc:2=oom,halMemAlloc:5=oom,aclrtFree:2=507899,halMemCreate:1=oom,aclrtMallocHost:1=207001";
    let mut program = npu(&[("SIMCANN_LOG", log.path()), ("SIMCANN_FAIL", plan)]);
    let pid = program.pid();
    daemon.attach(pid, "segments");
    call(&mut program, "aclrtSetDevice 0");
    call(&mut program, "aclrtMallocAlign32 a 1024");
    call(&mut program, "aclrtMalloc b 992");
    call_fails(&mut program, "aclrtMalloc c 2000", 207001);
    call(&mut program, "aclrtMalloc c 2016");
    // The driver refuses below a runtime that would have given: one failure, of the outer call.
    call_fails(&mut program, "aclrtMallocAlign32 d 4000", 207001);
    call_fails(&mut program, "aclrtMallocPhysical e 2097152", 207001);
    call_fails(&mut program, "aclrtMallocHost f 7000", 207001);
    call(&mut program, "aclrtFree a");
    call_fails(&mut program, "aclrtFree b", 507899);
    let answer = program.ask("aclrtFreeWrong");
    assert_ne!(answer["result"], 0, "{answer}");
    // More than the device has.
    let space = flag(1, 0, false, 3);
    call_fails(
        &mut program,
        &format!("halMemAlloc h 1099511627776 {space}"),
        6,
    );
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    let count = |function: &str, status: i64| -> (u64, u64) {
        let failures = stats["failures"].as_array().unwrap();
        let found = failures
            .iter()
            .find(|f| f["function"] == function && f["status"] == status);
        found.map_or((0, 0), |f| (number(&f["count"]), number(&f["bytes"])))
    };
    assert_eq!(count("aclrtMalloc", 207001), (1, 2000), "{stats:#}");
    assert_eq!(count("aclrtMallocAlign32", 207001), (1, 4000), "{stats:#}");
    assert_eq!(
        count("aclrtMallocPhysical", 207001),
        (1, 2 * MIB),
        "{stats:#}"
    );
    assert_eq!(count("aclrtMallocHost", 207001), (1, 7000), "{stats:#}");
    assert_eq!(count("halMemAlloc", 6), (1, 1 << 40), "{stats:#}");
    assert_eq!(count("aclrtFree", 507899).0, 1, "{stats:#}");
    assert_eq!(stats["failures"].as_array().unwrap().len(), 7, "{stats:#}");
    program.finish();
}

#[test]
fn many_threads() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut program = npu(&[("SIMCANN_LOG", log.path())]);
    let pid = program.pid();
    daemon.attach(pid, "segments");
    let answer = call(&mut program, "threads 8 500");
    assert_eq!(answer["failed"], 0, "{answer}");
    let stats = daemon.stats(pid);
    let (mine, drivers) = (held(&stats), log.held(pid));
    assert_eq!(mine, drivers, "{stats:#}");
    let live = number(&answer["came"]) - number(&answer["went"]);
    // And the runtime's own.
    assert_eq!(mine.devices[&0].0, live + 1, "{answer} {stats:#}");
    assert_eq!(stats["lost_records"], 0);
    program.finish();
}

#[test]
fn launches_count_once() {
    let daemon = Daemon::start();
    let mut program = npu(&[]);
    let pid = program.pid();
    let text = pid.to_string();
    daemon.json(&[
        "attach",
        "--pid",
        &text,
        "--level",
        "segments",
        "--launches",
    ]);
    call(&mut program, "aclrtSetDevice 0");
    for line in [
        "rtKernelLaunch",
        "rtKernelLaunchWithFlagV2",
        "rtKernelLaunchWithHandleV2",
        "rtLaunchKernelByFuncHandleV2",
        // One of those inside.
        "aclrtLaunchKernel",
    ] {
        call(&mut program, line);
    }
    // They are told of with the next allocation.
    call(&mut program, "aclrtMallocAlign32 a 64");
    let answer = daemon.json(&["steps", "--pid", &text]);
    assert_eq!(answer["launches"], 5, "{answer:#}");
    program.finish();
}

#[test]
fn attached_midway() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut program = npu(&[("SIMCANN_LOG", log.path())]);
    let pid = program.pid();
    for line in [
        "aclrtSetDevice 0",
        "aclrtMalloc before 4096",
        "aclrtMallocHost host 4096",
        "aclrtReserveMemAddress space 8388608",
        "aclrtMallocPhysical old 2097152",
        "aclrtMapMem space 0 old 2097152",
    ] {
        call(&mut program, line);
    }
    let before = log.calls(pid).len();
    daemon.attach(pid, "segments");
    for line in [
        "aclrtMalloc after 8192",
        "aclrtFree before",
        "aclrtFreeHost host",
        "aclrtUnmapMem space 0",
        "aclrtFreePhysical old",
        "aclrtMallocPhysical new 2097152",
        "aclrtMapMem space 2097152 new 2097152",
        "aclrtFreePhysical new",
        "aclrtMallocHost more 512",
        "aclrtCreateStream stream",
    ] {
        call(&mut program, line);
        let stats = daemon.stats(pid);
        assert_eq!(
            held(&stats),
            log.held_since(pid, before),
            "{line}: {stats:#}"
        );
    }
    program.finish();
}

#[test]
fn functions_that_jump_to_the_next_are_one_call() {
    let daemon = Daemon::start();
    let mut program = npu_by_tail_calls();
    let pid = program.pid();
    daemon.attach(pid, "segments");
    let answer = program.ask("1000");
    assert_eq!(answer["result"], 0, "{answer}");
    let stats = daemon.stats(pid);
    let one = device(&stats, 1);
    assert_eq!(pair(&one["driver"]), (500, 500_000), "{stats:#}");
    assert_eq!(one["components"][0]["name"], "HCCL", "{stats:#}");
    assert_eq!(
        (&one["alloc_count"], &one["free_count"]),
        (&json!(1000), &json!(500))
    );
    let status = daemon.json(&["status"]);
    let drops = status["drops"].as_array().unwrap();
    assert!(drops.iter().all(|drop| drop["count"] == 0), "{status:#}");
    // Below each of the 1,250 outer calls that pass on: two, or one.
    assert_eq!(stats["nested_calls"], 2 * 1000 + 2 * 250 + 250, "{stats:#}");
    program.finish();
}

/// msMemScope's rows of the driver, and the recording that they are read into again.
#[test]
fn a_dump_has_the_drivers_rows() {
    let daemon = Daemon::start();
    let folder = scratch();
    let mut program = npu(&[]);
    let pid = program.pid();
    let text = pid.to_string();
    daemon.attach(pid, "segments");
    for line in [
        "aclrtSetDevice 0",
        "aclrtMallocWithCfg buffer 20971520 3",
        "aclrtMallocPhysical physical 2097152",
        "aclrtMallocHost pinned 4096",
        "aclrtMalloc short 32",
        "aclrtFree short",
    ] {
        call(&mut program, line);
    }
    let output = folder.path().join("dumps");
    let output = output.to_str().unwrap();
    let format = ["--format", "msmemscope-csv", "-o", output, "--pid", &text];
    let made = daemon.json(&[&["export"], &format[..]].concat());
    let place = made["folders"][0].as_str().unwrap();
    let mut files = Vec::new();
    let mut folders = vec![std::path::PathBuf::from(place)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    let of = |part: &str| -> std::path::PathBuf {
        let found = files.iter().find(|file| {
            let path = file.to_string_lossy();
            path.contains(part) && path.ends_with(".csv")
        });
        found.unwrap_or_else(|| panic!("{part}: {files:?}")).clone()
    };
    let device = std::fs::read_to_string(of("device_0/")).unwrap();
    let host = std::fs::read_to_string(of("device_cpu/")).unwrap();
    for wanted in [
        "owner:CANN@HCCL,page_type:huge,alloc_type:alloc",
        "owner:CANN@APP,page_type:huge,alloc_type:create",
        "size:64,",
        "owner:CANN@RUNTIME",
    ] {
        assert!(device.contains(wanted), "{wanted}: {device}");
    }
    assert!(
        host.contains("HOST_PINNED") && host.contains("size:4096,pinned:true"),
        "{host}"
    );
    program.finish();
    // Read back: the same owners.
    let recording = folder.path().join("imported");
    let (csv, recording) = (of("device_0/"), recording.to_str().unwrap());
    let csv = csv.to_str().unwrap();
    Asking::new(["import", csv, "-o", recording]).ask().text();
    let asked = Asking::new(["--recording", recording, "--json", "stats"]);
    let stats = asked.ask().json();
    let components = &stats["devices"][0]["components"];
    let hccl = find(components, "name", "HCCL").unwrap();
    assert_eq!(pair(hccl), (1, 20 * MIB), "{stats:#}");
    assert_eq!(stats["devices"][0]["device_kind"], "npu");
}
