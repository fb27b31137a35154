//! Every call of runtime and driver that memscope knows, against the simulated driver's own log.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Calls, Daemon, Held, Library, MIB, SimLog, Value, coverage, device, find, json, number, scratch,
};

/// A vendor whose runtime is simulated: the library, and what it calls a function of CUDA's.
struct Vendor {
    library: Library,
    /// The least number of functions of it that get a probe.
    probes: u64,
    name: fn(&str) -> &str,
}

const CUDA: Vendor = Vendor {
    library: Library::Runtime,
    probes: 40,
    name: |name| name,
};

const HIP: Vendor = Vendor {
    library: Library::Hip,
    probes: 25,
    name: |name| match name {
        "cuMemAlloc_v2" => "hipExtMallocWithFlags",
        "cuMemCreate" => "hipMemCreate",
        "cudaMalloc" => "hipMalloc",
        "cudaMallocAsync" => "hipMallocAsync",
        "cudaHostAlloc" => "hipHostMalloc",
        "cudaFree" => "hipFree",
        _ => panic!("HIP's name of {name} is not needed so far"),
    },
};

impl Vendor {
    fn start(&self, variables: &[(&str, &str)]) -> Calls {
        Calls::with(self.library, variables)
    }

    /// The command that does the same, where the vendor has no function of its own for it.
    fn command(&self, command: &str) -> String {
        if self.library == Library::Runtime {
            return command.to_owned();
        }
        let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
        let name = match name {
            "cuMemFree" => "cudaFree",
            "cuMemAllocManaged" => "cudaMallocManaged",
            "cuMemAllocAsync" | "cudaMallocAsync_ptsz" => "cudaMallocAsync",
            "cuMemFreeAsync" | "cudaFreeAsync_ptsz" => "cudaFreeAsync",
            name => name,
        };
        format!("{name} {arguments}").trim_end().to_owned()
    }
}

fn pair(bytes: &Value) -> (u64, u64) {
    (number(&bytes["count"]), number(&bytes["bytes"]))
}

fn sum(stats: &Value, kind: &str) -> (u64, u64) {
    let devices = stats["devices"].as_array().unwrap();
    devices
        .iter()
        .map(|device| pair(&device[kind]))
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// What memscope says is held, as the log counts it.
fn held(stats: &Value) -> Held {
    let all = sum(stats, "driver");
    let (stream_ordered, managed, physical) = (
        sum(stats, "async_pool"),
        sum(stats, "managed"),
        sum(stats, "physical"),
    );
    let rest =
        |of: fn((u64, u64)) -> u64| of(all) - of(stream_ordered) - of(managed) - of(physical);
    Held {
        plain: (rest(|pair| pair.0), rest(|pair| pair.1)),
        stream_ordered,
        managed,
        physical,
        host: {
            let (all, registered) = (pair(&stats["host"]), pair(&stats["host_registered"]));
            (all.0 - registered.0, all.1 - registered.1)
        },
        registered: pair(&stats["host_registered"]),
        reserved: pair(&stats["address_reserved"]),
        imported: sum(stats, "imported").0,
    }
}

const SCRIPT: &[&[&str]] = &[
    &[
        "cudaMalloc a 1000000",
        "cudaMalloc b 1",
        "cudaMallocPitch c 100 50",
        "cudaMalloc3D d 100 20 3",
    ],
    &[
        "cudaMallocManaged e 70000",
        "cudaHostAlloc f 5000",
        "cudaMallocHost g 6000",
        "cudaHostRegister h 8192",
    ],
    &[
        "cudaStreamCreate",
        "cudaMallocAsync i 123456",
        "cudaMallocAsync j 1000 side",
        "cudaMallocAsync_ptsz k 2000",
    ],
    &[
        "cudaMemPoolCreate",
        "cudaMallocFromPoolAsync l 4096 side",
        "cudaMallocArray m 64 64",
    ],
    &[
        "cuMemAlloc n 777",
        "cuMemAllocPitch o 1000 3",
        "cuMemAllocManaged p 12345",
        "cuMemHostAlloc q 333",
    ],
    &[
        "cuMemAllocAsync r 5555",
        "cudaFree NULL",
        "cudaMalloc zero 0",
        "cudaMemGetInfo",
    ],
    // Physical memory lives until its handle and all its mappings are gone.
    &[
        "cuMemAddressReserve space 8388608",
        "cuMemCreate x 2097152",
        "cuMemMap space 0 x 2097152",
    ],
    &["cuMemMap space 2097152 x 2097152", "cuMemRelease x"],
    &["cuMemUnmap space 0 2097152"],
    &["cuMemUnmap space 2097152 2097152"],
    &[
        "cuMemCreate y 4194304",
        "cuMemCreate z 2097152",
        "cuMemMap space 0 y 4194304",
        "cuMemRelease y",
    ],
    &[
        "cuMemRelease z",
        "cuMemUnmap space 0 4194304",
        "cuMemAddressFree space",
    ],
    // Whatever allocated it, any free of its family ends it.
    &[
        "cudaFree a",
        "cuMemFree b",
        "cudaFree c",
        "cudaFree d",
        "cudaFreeAsync i",
        "cudaFree j",
    ],
    &[
        "cudaFree e",
        "cudaFreeHost f",
        "cuMemFreeHost g",
        "cudaHostUnregister h",
        "cudaFreeAsync_ptsz k side",
    ],
    &[
        "cudaFreeArray m",
        "cuMemFree n",
        "cuMemFree o",
        "cudaFree p",
        "cudaFreeHost q",
        "cuMemFreeAsync r",
        "cudaFreeAsync l",
    ],
];

#[test]
fn every_call_is_counted_as_the_driver_does() {
    let (stats, nested) = counted_as_the_driver_does(&CUDA);
    // Each call of the runtime made one of the driver, and counts once. (The log does not have the
    // cuMemGetInfo inside cudaMemGetInfo.)
    assert_eq!(stats["nested_calls"], nested + 1, "calls inside calls");
}

#[test]
fn every_call_of_hip_is_counted_as_the_driver_does() {
    let (stats, _) = counted_as_the_driver_does(&HIP);
    assert_eq!(device(&stats, 0)["device_kind"], "hip", "{stats:#}");
}

/// What memscope says in the end, and how many calls the device made inside its own calls.
fn counted_as_the_driver_does(vendor: &Vendor) -> (Value, usize) {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = SimLog::inside(folder.path());
    let mut calls = vendor.start(&[("SIMCUDA_LOG", log.path())]);
    let pid = calls.pid();
    calls.call("cudaMemGetInfo");
    let attached = daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    assert!(number(&attached["sites"]) > vendor.probes, "{attached:#}");
    for step in SCRIPT {
        for call in *step {
            calls.call(&vendor.command(call));
        }
        let stats = daemon.stats(pid);
        assert_eq!(
            held(&stats),
            log.held(pid),
            "after {step:?}: memscope's, the driver's; {stats:#}"
        );
        // A pool-less process: what it holds is what the driver gave it.
        assert_eq!(sum(&stats, "driver"), log.held(pid).device());
    }
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), Held::default(), "all is given back");
    assert_eq!(stats["lost_records"], 0);
    assert_eq!(stats["failures"], json!([]));
    let zero = device(&stats, 0);
    assert_eq!(zero["orphan_free_count"], 0, "{zero:#}");
    assert_eq!(zero["total_bytes"], 16u64 << 30, "from cudaMemGetInfo");
    assert_eq!(zero["source"], "driver");
    assert!(coverage(&stats).contains(&"array_alloc"), "{stats:#}");
    calls.finish();
    let nested = log.calls(pid);
    let nested = nested.iter().filter(|call| call["depth"] == 1).count();
    (stats, nested)
}

/// Bytes that a device holds; `None` for memory of which the device is not known.
fn on(stats: &Value, device: impl Into<Value>) -> u64 {
    let row = find(&stats["devices"], "device", device.into());
    row.map_or(0, |row| pair(&row["driver"]).1)
}

#[test]
fn memory_is_on_the_device_of_its_stream_or_pool_or_the_hosts() {
    of_streams_and_pools(&CUDA);
}

#[test]
fn memory_of_hip_is_on_the_device_of_its_stream_or_pool_or_the_hosts() {
    of_streams_and_pools(&HIP);
}

fn of_streams_and_pools(vendor: &Vendor) {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = SimLog::inside(folder.path());
    let mut calls = vendor.start(&[("SIMCUDA_DEVICES", "3"), ("SIMCUDA_LOG", log.path())]);
    let pid = calls.pid();
    calls.call("cudaMemGetInfo");
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 1");
    calls.call("cudaStreamCreate");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMallocAsync a 1000 side");
    calls.call("cudaMallocAsync b 20000");
    calls.call("cudaMemPoolCreate 2");
    calls.call("cudaMallocFromPoolAsync c 300000 side");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!([0, 1, 2].map(|it| on(&stats, it)), [20000, 1000, 300_000]);
    calls.call("cudaMemPoolCreate host");
    calls.call("cudaMallocFromPoolAsync d 4096 side");
    calls.call("cuMemAddressReserve space 8388608");
    calls.call("cuMemCreate e 2097152 host");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!([0, 1, 2].map(|it| on(&stats, it)), [20000, 1000, 300_000]);
    assert_eq!(pair(&stats["host"]), (2, 4096 + 2_097_152), "{stats:#}");
    calls.call("cuMemMap space 0 e 2097152");
    calls.call("cuMemRelease e");
    assert_eq!(held(&daemon.stats(pid)), log.held(pid), "it is mapped");
    for call in [
        "cuMemUnmap space 0 2097152",
        "cudaFreeAsync d",
        "cudaFreeAsync a side",
        "cudaFreeAsync b",
        "cudaFreeAsync c",
    ] {
        calls.call(call);
        let stats = daemon.stats(pid);
        assert_eq!(held(&stats), log.held(pid), "{call}: {stats:#}");
    }
    let stats = daemon.stats(pid);
    assert_eq!(pair(&stats["host"]), (0, 0), "{stats:#}");
    assert_eq!(sum(&stats, "driver"), (0, 0), "{stats:#}");
    let orphans = stats["devices"].as_array().unwrap().iter();
    assert_eq!(
        orphans
            .map(|row| number(&row["orphan_free_count"]))
            .sum::<u64>(),
        0
    );
    calls.finish();
}

/// What NVIDIA documents for `cuCtxDestroy`, `cuDevicePrimaryCtxReset` and `cudaDeviceReset`.
#[test]
fn what_belongs_to_a_context_goes_with_it() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = SimLog::inside(folder.path());
    let mut calls = CUDA.start(&[("SIMCUDA_DEVICES", "2"), ("SIMCUDA_LOG", log.path())]);
    let pid = calls.pid();
    calls.call("cudaMemGetInfo");
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    let fill = |calls: &mut Calls, device: u32| {
        for call in [
            "cudaMalloc a 1000",
            "cuMemAlloc b 2000",
            "cuMemAllocManaged c 4000",
            "cuMemHostAlloc d 5000",
            "cudaHostRegister e 8192",
            "cudaMallocArray f 64 64",
            "cuMemAllocAsync g 700",
            "cuMemCreate h 2097152",
        ] {
            let (function, arguments) = call.split_once(' ').unwrap();
            let mut line = format!("{function} {device}{arguments}");
            if function == "cuMemCreate" {
                line = format!("{line} {device}");
            }
            calls.call(&line);
        }
        let stats = daemon.stats(pid);
        assert_eq!(held(&stats), log.held(pid), "{stats:#}");
        assert_eq!(on(&stats, device), 7700 + 2_097_152, "{stats:#}");
    };
    fill(&mut calls, 0);
    calls.call("cuCtxCreate own 1");
    fill(&mut calls, 1);
    // In a context that the program made, the runtime's reset leaves all as it is.
    calls.call("cudaDeviceReset");
    let before = daemon.stats(pid);
    assert_eq!(held(&before), log.held(pid), "{before:#}");
    assert_eq!(on(&before, 1), 7700 + 2_097_152, "{before:#}");
    calls.call("cuCtxDestroy own");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!(on(&stats, 1), 700 + 2_097_152, "{stats:#}");
    assert_eq!(on(&stats, 0), on(&before, 0), "{stats:#}");
    // The context below it is current again.
    calls.call("cuMemAlloc again 64");
    let stats = daemon.stats(pid);
    assert_eq!(on(&stats, 0), on(&before, 0) + 64, "{stats:#}");
    calls.call("cudaDeviceReset");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!(on(&stats, 0), 700 + 2_097_152, "{stats:#}");
    assert_eq!(on(&stats, 1), 700 + 2_097_152, "{stats:#}");
    assert_eq!(pair(&stats["host"]), (0, 0), "{stats:#}");
    let coverage = coverage(&stats);
    assert!(!coverage.contains(&"device_unknown"), "{stats:#}");
    calls.finish();
}

/// A context whose device was not seen, and more contexts than are followed: what is allocated there is on no known device, and on none
/// that is wrong.
#[test]
fn a_device_that_was_not_seen_is_not_guessed() {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = SimLog::inside(folder.path());
    let mut calls = CUDA.start(&[("SIMCUDA_DEVICES", "2"), ("SIMCUDA_LOG", log.path())]);
    let pid = calls.pid();
    calls.call("cudaMemGetInfo");
    calls.call("cuCtxCreate early 1");
    calls.call("cuCtxPopCurrent");
    daemon.attach(pid, "segments");
    let calls_pid = calls.pid_text();
    calls.call("cudaSetDevice 0");
    calls.call("cuMemAlloc a 100");
    calls.call("cuCtxPushCurrent early");
    calls.call("cuMemAlloc b 2000");
    let stats = daemon.stats(pid);
    assert_eq!((on(&stats, 0), on(&stats, 1)), (100, 0), "{stats:#}");
    assert_eq!(on(&stats, Value::Null), 2000, "{stats:#}");
    assert!(coverage(&stats).contains(&"device_unknown"), "{stats:#}");
    let of_unknown_device = || {
        let owners = daemon.json(&["owners", "--pid", &calls_pid]);
        find(&owners["devices"], "device", Value::Null).is_some()
    };
    assert!(of_unknown_device());
    calls.call("cuCtxPopCurrent");
    calls.call("cuMemAlloc c 30000");
    // It is destroyed while it is not current, and takes its memory with it all the same.
    calls.call("cuCtxDestroy early");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!((on(&stats, 0), on(&stats, 1)), (30100, 0), "{stats:#}");
    // Nothing but counts is left there.
    assert!(!of_unknown_device());
    // Each context on top of the other; the fifth lies too deep.
    for (name, device) in [("one", 1), ("two", 0), ("three", 1), ("four", 1)] {
        calls.call(&format!("cuCtxCreate {name} {device}"));
    }
    calls.call("cuMemAlloc d 400000");
    calls.call("cuCtxPopCurrent");
    calls.call("cuMemAlloc e 5000000");
    for name in ["three", "two", "one"] {
        calls.call(&format!("cuCtxDestroy {name}"));
    }
    calls.call("cuMemAlloc f 7");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!((on(&stats, 0), on(&stats, 1)), (30107, 0), "{stats:#}");
    assert_eq!(on(&stats, Value::Null), 400_000, "{stats:#}");
    // The runtime's own choice of a context says which one is the device's.
    calls.call("cuDevicePrimaryCtxRetain primary 1");
    calls.call("cuCtxSetCurrent primary");
    calls.call("cuMemAlloc g 11");
    calls.call("cuDevicePrimaryCtxReset 1");
    calls.call("cuMemAlloc h 13");
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!((on(&stats, 0), on(&stats, 1)), (30107, 13), "{stats:#}");
    calls.finish();
}

/// A retained handle keeps memory whose mappings are gone (the log does not have it).
#[test]
fn a_retained_handle_holds_memory() {
    retained(&CUDA);
}

#[test]
fn a_retained_handle_of_hip_holds_memory() {
    retained(&HIP);
}

fn retained(vendor: &Vendor) {
    let daemon = Daemon::start();
    let mut calls = vendor.start(&[]);
    let pid = calls.pid();
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cuMemAddressReserve space 4194304");
    calls.call("cuMemCreate first 2097152");
    calls.call("cuMemMap space 0 first 2097152");
    calls.call("cuMemRelease first");
    calls.call("cuMemRetain second space 0");
    assert_eq!(sum(&daemon.stats(pid), "physical"), (1, 2097152));
    calls.call("cuMemUnmap space 0 2097152");
    assert_eq!(
        sum(&daemon.stats(pid), "physical"),
        (1, 2097152),
        "the second handle holds it"
    );
    calls.call("cuMemRelease second");
    assert_eq!(sum(&daemon.stats(pid), "physical"), (0, 0));
    calls.finish();
}

#[test]
fn failed_calls_are_apart() {
    failures_are_apart(&CUDA);
}

#[test]
fn failed_calls_of_hip_are_apart() {
    failures_are_apart(&HIP);
}

fn failures_are_apart(vendor: &Vendor) {
    let daemon = Daemon::start();
    let folder = scratch();
    let log = SimLog::inside(folder.path());
    let plan = "cudaMalloc:2=oom,cuMemAlloc_v2:3-4=700,cudaFree:2=999,cuMemCreate:1=oom,cudaMallocAsync:1=2,cudaHostAlloc:1=1";
    let mut calls = vendor.start(&[("SIMCUDA_LOG", log.path()), ("SIMCUDA_FAIL", plan)]);
    let pid = calls.pid();
    calls.call("cudaMemGetInfo");
    daemon.attach(pid, "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc a 1000");
    calls.call_fails("cudaMalloc b 2000", 2);
    calls.call("cudaMalloc b 3000");
    // The driver refuses below a runtime that would have given: one failure, of the outer call.
    calls.call_fails("cudaMalloc c 4000", 700);
    calls.call_fails("cuMemAlloc d 5000", 700);
    calls.call_fails("cuMemCreate e 2097152", 2);
    calls.call_fails("cudaMallocAsync f 6000", 2);
    calls.call_fails("cudaHostAlloc g 7000", 1);
    calls.call("cudaFree a");
    calls.call_fails("cudaFree b", 999);
    calls.call_fails("cudaFreeWrong", 1);
    // More than the device has.
    calls.call_fails("cudaMalloc h 1099511627776", 2);
    let stats = daemon.stats(pid);
    assert_eq!(held(&stats), log.held(pid), "{stats:#}");
    assert_eq!(
        sum(&stats, "driver"),
        (1, 3000),
        "only what was given and not taken back"
    );
    let count = |function: &str, status: i64| -> (u64, u64) {
        let failures = stats["failures"].as_array().unwrap();
        let function = (vendor.name)(function);
        let found = failures
            .iter()
            .find(|f| f["function"] == function && f["status"] == status);
        found.map_or((0, 0), |f| (number(&f["count"]), number(&f["bytes"])))
    };
    assert_eq!(count("cudaMalloc", 2), (2, 2000 + (1 << 40)), "{stats:#}");
    assert_eq!(count("cudaMalloc", 700), (1, 4000), "{stats:#}");
    assert_eq!(count("cuMemAlloc_v2", 700), (1, 5000), "{stats:#}");
    assert_eq!(count("cuMemCreate", 2), (1, 2097152), "{stats:#}");
    assert_eq!(count("cudaMallocAsync", 2), (1, 6000), "{stats:#}");
    assert_eq!(count("cudaHostAlloc", 1), (1, 7000), "{stats:#}");
    assert_eq!(count("cudaFree", 999).0, 1, "{stats:#}");
    assert_eq!(count("cudaFree", 1).0, 1, "{stats:#}");
    assert_eq!(stats["failures"].as_array().unwrap().len(), 8, "{stats:#}");
    assert_eq!(
        device(&stats, 0)["orphan_free_count"],
        0,
        "a failed free frees nothing"
    );
    calls.finish();
}

#[test]
fn devices_are_told_apart() {
    told_apart(&CUDA);
}

#[test]
fn devices_of_hip_are_told_apart() {
    told_apart(&HIP);
}

fn told_apart(vendor: &Vendor) {
    let daemon = Daemon::start();
    let mut calls = vendor.start(&[
        ("SIMCUDA_DEVICES", "3"),
        ("SIMCUDA_DEVICE_SIZE", "1GiB,2GiB,3GiB"),
    ]);
    let pid = calls.pid();
    calls.call("cudaSetDevice 2");
    daemon.attach(pid, "segments");
    // No evidence yet which device is current.
    calls.call("cudaMalloc early 100");
    let stats = daemon.stats(pid);
    assert_eq!(
        find(&stats["devices"], "device", Value::Null).map(|d| pair(&d["driver"])),
        Some((1, 100)),
        "{stats:#}"
    );
    assert!(coverage(&stats).contains(&"device_unknown"), "{stats:#}");
    for (ordinal, bytes) in [(1, 3 * MIB), (0, 5 * MIB), (2, 7 * MIB)] {
        calls.call(&format!("cudaSetDevice {ordinal}"));
        calls.call(&format!("cudaMalloc block{ordinal} {bytes}"));
        calls.call("cudaMemGetInfo");
    }
    calls.call("cuMemCreate there 2097152 1");
    let stats = daemon.stats(pid);
    assert_eq!(pair(&device(&stats, 0)["driver"]), (1, 5 * MIB));
    assert_eq!(
        pair(&device(&stats, 1)["driver"]),
        (2, 5 * MIB),
        "cudaMalloc and cuMemCreate: {stats:#}"
    );
    assert_eq!(pair(&device(&stats, 2)["driver"]), (1, 7 * MIB));
    for (ordinal, size) in [(0, 1u64 << 30), (1, 2 << 30), (2, 3 << 30)] {
        assert_eq!(device(&stats, ordinal)["total_bytes"], size);
    }
    // Freed from another device: it goes where it came.
    calls.call("cudaSetDevice 0");
    calls.call("cudaFree block2");
    calls.call("cudaDeviceReset");
    let stats = daemon.stats(pid);
    assert_eq!(pair(&device(&stats, 2)["driver"]), (0, 0));
    assert_eq!(
        pair(&device(&stats, 1)["driver"]),
        (2, 5 * MIB),
        "a reset is of one device"
    );
    assert_eq!(
        pair(&device(&stats, 0)["driver"]),
        (0, 0),
        "the reset took it: {stats:#}"
    );
    calls.finish();
}
