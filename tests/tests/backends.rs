//! Ways around PyTorch's own pool: each is right, or named in coverage, and nothing counts twice.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Calls, Daemon, Library, SimLog, Torch, Value, assert_totals, coverage, device, library, number,
    scratch,
};

fn driver(stats: &Value) -> (u64, u64) {
    let devices = stats["devices"].as_array().unwrap();
    devices.iter().fold((0, 0), |sum, device| {
        (
            sum.0 + number(&device["driver"]["count"]),
            sum.1 + number(&device["driver"]["bytes"]),
        )
    })
}

const MOMENTS: [&str; 9] = [
    "alloc a 3000000",
    "train 2",
    "alloc b 700",
    "free a",
    "train",
    "oom",
    "empty_cache",
    "drop",
    "train",
];

/// A torch process that is attached before its first allocation, and its device's log.
fn start(
    daemon: &Daemon,
    folder: &std::path::Path,
    variables: &[(&str, &str)],
    level: &str,
) -> (Torch, SimLog) {
    let log = SimLog::inside(folder);
    let torch = Torch::start(&[variables, &[("SIMCUDA_LOG", log.path())]].concat());
    daemon.attach(torch.pid(), level);
    (torch, log)
}

#[test]
fn stream_ordered_backend() {
    let daemon = Daemon::start();
    let folder = scratch();
    let settings = [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    let (mut torch, log) = start(&daemon, folder.path(), &settings, "trace");
    let pid = torch.pid();
    for moment in MOMENTS {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        let held = log.held(pid);
        assert_eq!(
            driver(&stats),
            held.device(),
            "after {moment}: memscope's, the driver's; {stats:#}"
        );
        let zero = device(&stats, 0);
        assert_eq!(
            number(&zero["async_pool"]["bytes"]),
            held.stream_ordered.1,
            "after {moment}"
        );
        assert!(held.stream_ordered.0 > 0, "the backend is in use");
        assert_eq!(zero["source"], "driver", "{stats:#}");
        // The driver's pool counts whole units of 512 bytes; a request is not rounded for us.
        let theirs = number(&told["devices"][0]["allocated"]);
        let ours = number(&zero["allocated_bytes"]);
        assert!(
            ours <= theirs + held.plain.1 && ours + 512 * held.device().0 >= theirs,
            "{ours}, {theirs}"
        );
    }
    let stats = daemon.stats(pid);
    assert_eq!(stats["backend"]["kind"], "malloc_async", "{stats:#}");
    assert_eq!(device(&stats, 0)["orphan_free_count"], 0, "{stats:#}");
    assert_eq!(stats["lost_records"], 0);
    torch.finish();
}

#[test]
fn pluggable_allocator() {
    let daemon = Daemon::start();
    let folder = scratch();
    let (mut torch, log) = start(&daemon, folder.path(), &[], "trace");
    let pid = torch.pid();
    let own = library("pluggable.c", "pluggable.so", Library::Runtime, &[]);
    torch.ask(&format!("pluggable {}", own.display()));
    for moment in [
        "alloc a 3000000",
        "train 2",
        "alloc b 700",
        "free a",
        "train",
        "drop",
        "train",
    ] {
        torch.ask(moment);
        let stats = daemon.stats(pid);
        let held = log.held(pid);
        assert_eq!(
            driver(&stats),
            held.device(),
            "after {moment}: memscope's, the driver's; {stats:#}"
        );
        assert!(held.plain.0 > 0);
        // What came before PyTorch had counted its devices is on a device without a number.
        let devices = stats["devices"].as_array().unwrap();
        assert!(
            devices
                .iter()
                .all(|d| d["device"] == 0 || d["device"].is_null()),
            "{stats:#}"
        );
        let allocated: u64 = devices.iter().map(|d| number(&d["allocated_bytes"])).sum();
        assert_eq!(allocated, held.device().1, "after {moment}: {stats:#}");
        assert!(devices.iter().all(|d| d["source"] == "driver"), "{stats:#}");
    }
    let stats = daemon.stats(pid);
    assert_eq!(stats["backend"]["kind"], "other", "{stats:#}");
    assert!(
        stats["backend"]["name"].to_string().contains("Pluggable"),
        "{stats:#}"
    );
    let devices = stats["devices"].as_array().unwrap();
    assert!(
        devices.iter().all(|d| d["orphan_free_count"] == 0),
        "{stats:#}"
    );
    torch.finish();
}

#[test]
fn without_caching() {
    let daemon = Daemon::start();
    let folder = scratch();
    let settings = [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("CUDA_VISIBLE_DEVICES", "0"),
    ];
    let (mut torch, log) = start(&daemon, folder.path(), &settings, "trace");
    let pid = torch.pid();
    for moment in MOMENTS {
        torch.ask(moment);
        let stats = daemon.stats(pid);
        let held = log.held(pid);
        assert_eq!(
            driver(&stats),
            held.device(),
            "after {moment}: memscope's, the driver's; {stats:#}"
        );
        let zero = device(&stats, 0);
        assert_eq!(
            number(&zero["allocated_bytes"]),
            held.device().1,
            "after {moment}: {stats:#}"
        );
        assert_eq!(zero["source"], "driver", "{stats:#}");
    }
    let stats = daemon.stats(pid);
    assert_eq!(stats["backend"]["kind"], "uncached", "{stats:#}");
    assert_eq!(stats["lost_records"], 0);
    torch.finish();
}

#[test]
fn expandable_segments() {
    let daemon = Daemon::start();
    let folder = scratch();
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    let (mut torch, log) = start(&daemon, folder.path(), &settings, "trace");
    let pid = torch.pid();
    torch.ask("history");
    for moment in MOMENTS {
        let told = torch.ask(moment);
        let stats = daemon.stats(pid);
        assert_totals(&stats, &told);
        let held = log.held(pid);
        let zero = device(&stats, 0);
        assert_eq!(
            number(&zero["physical"]["bytes"]),
            held.physical.1,
            "after {moment}: {stats:#}"
        );
        assert_eq!(
            driver(&stats),
            held.device(),
            "after {moment}: memscope's, the driver's; {stats:#}"
        );
        assert!(held.physical.0 > 0, "expandable segments are in use");
        assert_eq!(
            number(&stats["address_reserved"]["bytes"]),
            held.reserved.1,
            "after {moment}"
        );
        // All of it is the pool's: the chunks are not counted a second time as somebody else's.
        assert_eq!(
            number(&zero["direct"]["bytes"]),
            held.device().1 - number(&zero["reserved_bytes"]),
            "{stats:#}"
        );
    }
    let told = torch.ask("trace");
    let theirs: Vec<&Value> = told["traces"][0].as_array().unwrap().iter().collect();
    let maps = theirs
        .iter()
        .filter(|entry| entry[0] == "segment_map")
        .count();
    let unmaps = theirs
        .iter()
        .filter(|entry| entry[0] == "segment_unmap")
        .count();
    assert!(maps > 0 && unmaps > 0, "{maps} maps, {unmaps} unmaps");
    let snapshot = daemon.json(&["snapshot", "--pid", &torch.pid_text(), "--format", "json"]);
    let ours: Vec<Value> = snapshot["trace"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] != "snapshot")
        .map(|entry| {
            memscope_tests::json!([
                entry["action"],
                entry["address"],
                entry["size_bytes"],
                entry["stream"]
            ])
        })
        .collect();
    assert_eq!(ours.len(), theirs.len());
    assert!(
        ours.iter().zip(theirs).all(|(ours, theirs)| ours == theirs),
        "the histories differ"
    );
    torch.finish();
}

#[test]
fn memory_of_another_process() {
    let daemon = Daemon::start();
    let mut owner = Calls::start(&[]);
    daemon.attach(owner.pid(), "segments");
    owner.call("cudaSetDevice 0");
    owner.call("cudaMalloc shared 1000000");
    let handle = owner.call("cudaIpcGetMemHandle shared")["handle"]
        .as_str()
        .unwrap()
        .to_owned();

    let mut torch = Torch::start(&[("CUDA_VISIBLE_DEVICES", "0")]);
    let mut native = Calls::start(&[]);
    daemon.attach(torch.pid(), "trace");
    daemon.attach(native.pid(), "segments");
    torch.ask("alloc own 5000");
    torch.ask(&format!("import_memory {handle}"));
    native.call("cudaSetDevice 0");
    native.call(&format!("cudaIpcOpenMemHandle there {handle}"));

    let told = torch.ask("totals");
    let stats = daemon.stats(torch.pid());
    assert_totals(&stats, &told);
    assert_eq!(device(&stats, 0)["imported"]["count"], 1, "{stats:#}");
    assert!(coverage(&stats).contains(&"ipc_import"), "{stats:#}");
    assert_eq!(
        driver(&stats).1,
        number(&told["devices"][0]["reserved"]),
        "in no sum: {stats:#}"
    );
    let stats = daemon.stats(native.pid());
    assert_eq!(driver(&stats), (0, 0), "{stats:#}");
    assert_eq!(device(&stats, 0)["imported"]["count"], 1, "{stats:#}");
    assert!(coverage(&stats).contains(&"ipc_import"), "{stats:#}");
    native.call("cudaIpcCloseMemHandle there");
    let stats = daemon.stats(native.pid());
    assert!(
        stats["devices"]
            .as_array()
            .unwrap()
            .iter()
            .all(|d| d["imported"]["count"] == 0),
        "{stats:#}"
    );
    assert_eq!(
        driver(&daemon.stats(owner.pid())),
        (1, 1_000_000),
        "counted where it was made"
    );
    native.finish();
    torch.finish();
    owner.finish();
}
