//! One device has one name, whatever numbers processes have for it, and two devices have two. The simulated NVML says where they run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::nvml::{DEVICE_BYTES, Machine};
use memscope_tests::{Asking, Calls, Daemon, Value, device, metrics_of, number};

const GIB: u64 = 1 << 30;
const PART: &str = "MIG-2a9b7c31-0f4e-5d62-8b1a-93c7e5d40f18";

/// A process on a machine of this many devices that has so much of the device that it calls by this number.
fn holding(daemon: &Daemon, variables: &[(&str, &str)], ordinal: u32, bytes: u64) -> Calls {
    let size = DEVICE_BYTES.to_string();
    let machine = [("SIMCUDA_DEVICES", "2"), ("SIMCUDA_DEVICE_SIZE", &size)];
    let mut calls = Calls::start(&[&machine, variables].concat());
    daemon.attach(calls.pid(), "segments");
    calls.call(&format!("cudaSetDevice {ordinal}"));
    calls.call(&format!("cudaMalloc one {bytes}"));
    calls
}

/// Each device's name, what is held of it, and by whom, the largest part first.
fn rows(answer: &Value) -> Vec<(String, u64, Vec<u64>)> {
    let devices = answer["devices"].as_array().unwrap().iter();
    let pid = |holder: &Value| number(&holder["process"]["pid"]);
    devices
        .map(|device| {
            let holders = device["holders"].as_array().unwrap().iter();
            let name = device["name"].as_str().unwrap().to_owned();
            (
                name,
                number(&device["held_bytes"]),
                holders.map(pid).collect(),
            )
        })
        .collect()
}

#[test]
fn one_name_for_one_device_whatever_its_number() {
    let host = Machine::new(&[GIB, 2 * GIB]);
    let mut daemon = host.daemon(&["--metrics", "127.0.0.1:0"]);
    // Nobody says in which order they count.
    let mut first = holding(&daemon, &[("CUDA_VISIBLE_DEVICES", "0")], 0, 5_000_000);
    let mut second = holding(&daemon, &[("CUDA_VISIBLE_DEVICES", "1")], 0, 3_000_000);
    let mut all = holding(&daemon, &[], 1, 1_000_000);
    let named = [("CUDA_VISIBLE_DEVICES", &*Machine::uuid(0))];
    let mut named = holding(&daemon, &named, 0, 700_000);
    let pid = |calls: &Calls| u64::from(calls.pid());
    let pids = [&first, &second, &all, &named].map(pid);

    let lines: Vec<String> = pids
        .iter()
        // The first one's 0 is the second device of the bus.
        .zip([1, 0, 1, 0])
        .map(|(pid, device)| format!("process {device} {pid} 9000000\n"))
        .collect();
    host.says(&[GIB, 2 * GIB], &lines.concat());
    let expected = [
        (Machine::uuid(0), 3_700_000, vec![pids[1], pids[3]]),
        (Machine::uuid(1), 6_000_000, vec![pids[0], pids[2]]),
    ];
    let answer = daemon.json(&["devices"]);
    assert_eq!(rows(&answer), expected, "{answer:#}");
    let hardware = &answer["devices"][1]["hardware"];
    assert_eq!(hardware["uuid"], Machine::uuid(1));
    assert_eq!(hardware["pci_address"], "0000:02:00.0");
    assert_eq!(hardware["mig_uuid"], Value::Null);
    for (calls, ordinal, name) in [
        (&first, 0, 1),
        (&second, 0, 0),
        (&all, 1, 1),
        (&named, 0, 0),
    ] {
        let stats = daemon.stats(calls.pid());
        let uuid = &device(&stats, ordinal)["hardware"]["uuid"];
        assert_eq!(*uuid, Machine::uuid(name), "{stats:#}");
    }
    let told = daemon.ctl(&["devices"]);
    let heading = format!(
        "Device cuda {} (0000:02:00.0): 16.00 GiB in all",
        Machine::uuid(1)
    );
    assert!(told.text().contains(&heading), "{told}");
    let told = daemon.ctl(&["stats", "--pid", &all.pid_text()]);
    assert!(told.text().contains(&Machine::uuid(1)), "{told}");
    let metrics = metrics_of(&daemon);
    for (name, held, _) in &expected {
        let line = format!(
            "memscope_device_held_bytes{{hw_type=\"gpu\",hw_vendor=\"cuda\",hw_id=\"{name}\"}} {held}"
        );
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }

    // A program that sets its variable itself runs elsewhere than it was let.
    let liar = [
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ];
    let mut liar = holding(&daemon, &liar, 0, 100_000);
    let name = || {
        let stats = daemon.stats(liar.pid());
        device(&stats, 0)["hardware"]["uuid"].clone()
    };
    assert_eq!(name(), Machine::uuid(0), "nobody says otherwise");
    let line = format!("process 1 {} 9000000\n", liar.pid());
    host.says(&[GIB, 2 * GIB], &(lines.concat() + &line));
    assert_eq!(name(), Machine::uuid(1));
    let stats = daemon.stats(liar.pid());
    assert_ne!(
        device(&stats, 0)["free_bytes"],
        15 * GIB,
        "that is the other one's"
    );

    // A recording says the same.
    let recording = daemon.recording().display().to_string();
    daemon.stop();
    for (calls, ordinal, name) in [
        (&first, 0, 1),
        (&second, 0, 0),
        (&all, 1, 1),
        (&named, 0, 0),
        (&liar, 0, 1),
    ] {
        let words = [
            "--recording",
            &recording,
            "--json",
            "stats",
            "--pid",
            &calls.pid_text(),
        ];
        let stats = Asking::new(words).ask().json();
        let uuid = &device(&stats, ordinal)["hardware"]["uuid"];
        assert_eq!(*uuid, Machine::uuid(name), "{stats:#}");
    }
    for calls in [&mut first, &mut second, &mut all, &mut named, &mut liar] {
        calls.finish();
    }
}

#[test]
fn a_part_of_a_device_is_a_device() {
    let host = Machine::new(&[GIB, 2 * GIB]);
    let size = 10 * GIB;
    host.says(&[GIB, 2 * GIB], &format!("mig 0 {PART} {size} {GIB} 0\n"));
    let daemon = host.daemon(&["--metrics", "127.0.0.1:0"]);
    let file = host.file().display().to_string();
    let within = ("SIMCUDA_NVML_USED", &*file);
    let mut named = holding(
        &daemon,
        &[("CUDA_VISIBLE_DEVICES", PART), within],
        0,
        5_000_000,
    );
    let mut whole = holding(
        &daemon,
        &[("CUDA_VISIBLE_DEVICES", &Machine::uuid(1))],
        0,
        1_000_000,
    );
    let answer = daemon.json(&["devices"]);
    let pids = [&named, &whole].map(|calls| u64::from(calls.pid()));
    assert_eq!(
        rows(&answer),
        [
            (Machine::uuid(1), 1_000_000, vec![pids[1]]),
            (PART.to_owned(), 5_000_000, vec![pids[0]]),
        ],
        "{answer:#}"
    );
    let part = &answer["devices"][1];
    assert_eq!(part["hardware"]["mig_uuid"], PART);
    assert_eq!(part["hardware"]["uuid"], Machine::uuid(0));
    assert_eq!(part["free_bytes"], size - GIB, "the part's own");
    let told = daemon.ctl(&["devices"]);
    let heading = format!(
        "Device cuda {PART} of {} (0000:01:00.0): ",
        Machine::uuid(0)
    );
    assert!(told.text().contains(&heading), "{told}");
    let labels = format!(
        "hw_id=\"{PART}\",hw_parent=\"{}\"}} 5000000",
        Machine::uuid(0)
    );
    let metrics = metrics_of(&daemon);
    assert!(metrics.contains(&labels), "{labels}: {metrics}");

    // Where nothing names the part, NVML says who runs on it.
    let mut unnamed = holding(&daemon, &[], 0, 300_000);
    let name = || {
        let stats = daemon.stats(unnamed.pid());
        device(&stats, 0)["hardware"]["mig_uuid"].clone()
    };
    assert_eq!(name(), Value::Null);
    let line = format!("mig 0 {PART} {size} {GIB} {}\n", unnamed.pid());
    host.says(&[GIB, 2 * GIB], &line);
    assert_eq!(name(), PART);
    for calls in [&mut named, &mut whole, &mut unnamed] {
        calls.finish();
    }
}
