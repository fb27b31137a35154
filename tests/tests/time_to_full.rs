//! What NVML says is free on a device, for which the simulated one stands in: how long the device lasts at a leak's pace, and how much of
//! it is held by nobody that is traced.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::nvml::{DEVICE_BYTES, Machine};
use memscope_tests::{
    Calls, Daemon, LONG, Said, Torch, Value, coverage, device, find, number, scratch, until,
};

const GIB: u64 = 1 << 30;
const SIZE: u64 = DEVICE_BYTES;

/// A process whose memory grows, which goes on to live.
fn leaky(daemon: &Daemon) -> Calls {
    let mut calls = Calls::start(&[("SIMCUDA_DEVICE_SIZE", &SIZE.to_string())]);
    daemon.attach(calls.pid(), "segments");
    calls.call("cudaSetDevice 0");
    calls.tell("leak 200 1500000 20 0");
    assert_eq!(calls.hear()["result"], 0);
    calls
}

fn leaks(daemon: &Daemon, pid: u32) -> Value {
    daemon.json(&["leaks", "--pid", &pid.to_string()])
}

/// It is what is free over the growth that the same answer tells of.
#[track_caller]
fn assert_lasts(answer: &Value, free: u64) {
    let groups = answer["groups"].as_array().unwrap().iter();
    let growing = groups.filter(|group| group["verdict"] == "growing");
    let rate: f64 = growing
        .map(|group| group["growth_bytes_per_s"].as_f64().unwrap())
        .sum();
    assert!(rate > 0.0, "{answer:#}");
    let told = answer["seconds_to_full"].as_f64();
    let told = told.unwrap_or_else(|| panic!("it is not told: {answer:#}"));
    let expected = free as f64 / rate;
    assert!(
        (told / expected - 1.0).abs() < 1e-9,
        "{told}, not {expected}"
    );
}

#[test]
fn of_the_living_and_not_of_the_dead() {
    let machine = Machine::new(&[10 * GIB]);
    let daemon = machine.daemon(&[]);
    let mut calls = leaky(&daemon);
    let pid = calls.pid();
    assert_lasts(&leaks(&daemon, pid), 6 * GIB);
    let zero = device(&daemon.stats(pid), 0).clone();
    assert_eq!(
        (&zero["total_bytes"], &zero["free_bytes"]),
        (&Value::from(SIZE), &Value::from(6 * GIB))
    );
    // Another process takes most of the rest.
    machine.uses(&[15 * GIB]);
    assert_lasts(&leaks(&daemon, pid), GIB);
    let text = daemon.ctl(&["leaks", "--pid", &calls.pid_text()]);
    assert!(text.text().contains("the device is full in"), "{text}");

    calls.finish();
    until(LONG, "the end is noticed", || {
        (daemon.process(pid)?["state"] == "exited").then_some(())
    });
    let answer = leaks(&daemon, pid);
    assert_eq!(answer["groups"][0]["verdict"], "growing", "{answer:#}");
    assert_eq!(answer["seconds_to_full"], Value::Null, "{answer:#}");
}

#[test]
fn without_nvml() {
    let folder = scratch();
    // Also where this machine has one.
    std::fs::write(folder.path().join("libnvidia-ml.so.1"), "none").unwrap();
    let daemon = Machine::new(&[0]).daemon_with(folder.path(), &[]);
    let mut calls = leaky(&daemon);
    let pid = calls.pid();
    let answer = leaks(&daemon, pid);
    assert_eq!(answer["groups"][0]["verdict"], "growing", "{answer:#}");
    assert_eq!(answer["seconds_to_full"], Value::Null, "nobody knows");
    // The process asks.
    let told = calls.call("cudaMemGetInfo");
    assert_lasts(&leaks(&daemon, pid), number(&told["free"]));
    calls.finish();
}

#[test]
fn the_device_that_the_process_means() {
    let host = Machine::new(&[GIB, 2 * GIB]);
    let daemon = host.daemon(&[]);
    let size = SIZE.to_string();
    let known = |variables: &[(&str, &str)]| {
        let machine = [("SIMCUDA_DEVICES", "2"), ("SIMCUDA_DEVICE_SIZE", &size)];
        let mut calls = Calls::start(&[&machine, variables].concat());
        let pid = calls.pid();
        daemon.attach(pid, "segments");
        calls.call("cudaSetDevice 0");
        calls.call("cudaMalloc one 1000");
        let stats = daemon.stats(pid);
        assert!(!coverage(&stats).contains(&"device_unknown"), "{stats:#}");
        let zero = device(&stats, 0).clone();
        calls.finish();
        assert_eq!(zero["total_bytes"], SIZE);
        zero["free_bytes"].as_u64()
    };
    let second = ("CUDA_VISIBLE_DEVICES", "1");
    let by_bus = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    assert_eq!(known(&[by_bus]), Some(15 * GIB));
    assert_eq!(known(&[second, by_bus]), Some(14 * GIB));
    assert_eq!(known(&[second]), None, "by whose count?");
    assert_eq!(known(&[]), None);
}

/// What a process has from the driver, by its own count: PyTorch's reserved bytes and nothing else.
fn holders(device: &Value) -> Vec<(u64, u64)> {
    let all = device["holders"].as_array().unwrap().iter();
    all.map(|holder| {
        (
            number(&holder["process"]["pid"]),
            number(&holder["held_bytes"]),
        )
    })
    .collect()
}

#[test]
fn what_nobody_explains() {
    const OTHERS: u64 = 801 << 20;
    let host = Machine::new(&[0]);
    let daemon = host.daemon(&[]);
    let size = SIZE.to_string();
    let machine = [("SIMCUDA_DEVICE_SIZE", size.as_str())];
    let devices = || daemon.json(&["devices"])["devices"].clone();
    assert_eq!(devices(), Value::Array(Vec::new()));
    let mut torch = Torch::start(&machine);
    daemon.attach(torch.pid(), "trace");
    let reserved = number(&torch.ask("alloc x 30000000")["devices"][0]["reserved"]);
    // Another names the same device by its number, and sees no other.
    let mut calls = Calls::start(&[&machine[..], &[("CUDA_VISIBLE_DEVICES", "0")]].concat());
    daemon.attach(calls.pid(), "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc one 5000000");
    host.uses(&[reserved + 5_000_000 + OTHERS]);
    let answer = devices();
    let [zero] = &answer.as_array().unwrap()[..] else {
        panic!("{answer:#}");
    };
    let (one, other) = (u64::from(torch.pid()), u64::from(calls.pid()));
    assert_eq!(
        (&zero["kind"], &zero["name"]),
        (&"cuda".into(), &Machine::uuid(0).into())
    );
    assert_eq!(zero["total_bytes"], SIZE);
    assert_eq!(zero["free_bytes"], SIZE - reserved - 5_000_000 - OTHERS);
    assert_eq!(holders(zero), [(one, reserved), (other, 5_000_000)]);
    assert_eq!(zero["held_bytes"], reserved + 5_000_000);
    assert_eq!(zero["unexplained_bytes"], OTHERS);
    assert_eq!(
        zero["context_bytes"],
        Value::Null,
        "nobody tells processes apart"
    );
    // Nor is it unexplained what the driver says that it keeps for them, and from all.
    let (context, kept) = (400 << 20, 200 << 20);
    let mut lines = format!("reserved {kept}\n");
    for (pid, bytes) in [(one, reserved + context), (other, 5_000_000), (77, 1 << 20)] {
        lines += &format!("process 0 {pid} {bytes}\n");
    }
    host.says(&[reserved + 5_000_000 + OTHERS], &lines);
    let zero = &devices()[0];
    assert_eq!(zero["context_bytes"], context);
    assert_eq!(zero["driver_reserved_bytes"], kept);
    assert_eq!(zero["unexplained_bytes"], OTHERS - context - kept);
    let owned = daemon.json(&["owners", "--pid", &torch.pid_text()]);
    let owned = &owned["devices"][0];
    assert_eq!(owned["context_bytes"], context);
    assert_eq!(
        owned["unexplained_bytes"],
        5_000_000 + OTHERS - context - kept
    );
    let told = daemon.ctl(&["owners", "--pid", &torch.pid_text()]);
    let said = told.text();
    assert!(
        said.lines()
            .any(|line| line.contains("(driver's context)") && line.contains("400.00 MiB")),
        "{said}"
    );
    // It is what it was when the driver said it, whatever the process holds by then.
    torch.ask("alloc large 200000000");
    let more = daemon.json(&["owners", "--pid", &torch.pid_text(), "--at", "peak"]);
    assert_eq!(more["devices"][0]["context_bytes"], context, "{more:#}");
    torch.ask("free large");
    torch.ask("empty_cache");
    let told = daemon.ctl(&["devices"]);
    let said = "the driver 400.00 MiB for them and 200.00 MiB for itself, nobody explains at most 201.00 MiB";
    // The heading is longer than a line.
    let unwrapped = |said: Said| said.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped(told).contains(said));
    host.uses(&[reserved + 5_000_000 + OTHERS]);
    let answer = devices();
    let zero = &answer[0];
    // Both were attached when they ran: what they had taken outside the pool before is not known.
    assert_eq!(zero["at_least"], true, "{zero:#}");
    for holder in zero["holders"].as_array().unwrap() {
        assert_eq!(holder["at_least"], true, "{zero:#}");
    }
    daemon
        .ctl(&["--strict", "devices"])
        .refused(11, &["driver_baseline_unknown", "direct_baseline_unknown"]);
    let told = daemon.ctl(&["devices"]);
    let text = unwrapped(told);
    let said = format!(
        "Device cuda {} (0000:01:00.0): 16.00 GiB in all",
        Machine::uuid(0)
    );
    for said in [&said[..], "at most 801.00 MiB"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // There is no other device that it could mean.
    let contained = [&machine[..], &[("NVIDIA_VISIBLE_DEVICES", "3")]].concat();
    let mut contained = Calls::start(&contained);
    daemon.attach(contained.pid(), "segments");
    contained.call("cudaSetDevice 0");
    contained.call("cudaMalloc one 7000000");
    let answer = devices();
    let rows = answer.as_array().unwrap();
    assert_eq!(rows.len(), 1, "{answer:#}");
    let third = u64::from(contained.pid());
    assert!(
        holders(&rows[0]).contains(&(third, 7_000_000)),
        "{answer:#}"
    );
    // Who is no longer traced holds nothing that is known.
    daemon.ctl(&["detach", "--pid", &torch.pid_text()]).text();
    let answer = devices();
    let zero = find(&answer, "name", Machine::uuid(0)).unwrap();
    assert_eq!(holders(zero), [(third, 7_000_000), (other, 5_000_000)]);
    assert_eq!(zero["unexplained_bytes"], reserved + OTHERS - 7_000_000);
    torch.finish();
    calls.finish();
    contained.finish();
}
