//! Snapshots that are taken by themselves, of real PyTorch: when.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use memscope_tests::limits::Met;
use memscope_tests::{
    Daemon, MIB, NO_PAUSE, Torch, Value, about, assert_pytorchs, coverage, device, eventually,
    json, number,
};

fn reserved(daemon: &Daemon, torch: &Torch) -> u64 {
    number(&device(&daemon.stats(torch.pid()), 0)["reserved_bytes"])
}

#[test]
fn a_level_fires_once_for_each_crossing_and_gives_pytorchs_own_snapshot() {
    crossings(&[]);
}

#[test]
fn so_it_does_with_expandable_segments() {
    crossings(&[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
}

fn crossings(settings: &[(&str, &str)]) {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut torch = Torch::start(settings);
    torch.ask("train");
    daemon.attach_late(&torch);
    torch.ask("train 2");
    let base = reserved(&daemon, &torch);
    let at = |more: u64| format!("reserved > {}", base + more * MIB);
    let levels = [
        daemon.add_trigger(&at(50), torch.pid()),
        daemon.add_trigger(&at(130), torch.pid()),
    ];
    assert_eq!(daemon.kept(), [json!(null); 0]);
    let fired = |daemon: &Daemon| levels.map(|n| number(&daemon.trigger(n)["fired"]));

    for crossing in 1..=3 {
        // A segment of 100 MiB, with one block in it.
        torch.ask("alloc a 104857600");
        assert_eq!(fired(&daemon), [crossing, crossing - 1]);
        let all = daemon.kept();
        let newest = all.last().unwrap();
        assert_pytorchs(&mut torch, newest);
        assert_eq!(newest["without_baseline"], false, "{newest:#}");
        let reason = newest["reason"].as_str().unwrap();
        assert!(reason.contains("reserved rose above"), "{reason}");

        // Above it is above; and the block moves within it.
        torch.ask("free a");
        torch.ask("alloc a 104857600");
        torch.ask("train 2");
        assert_eq!(fired(&daemon), [crossing, crossing - 1]);
        torch.ask("alloc b 52428800");
        assert_eq!(fired(&daemon), [crossing, crossing]);
        let all = daemon.kept();
        assert_pytorchs(&mut torch, all.last().unwrap());
        assert_eq!(all.len() as u64, 2 * crossing);

        torch.ask("free a");
        torch.ask("free b");
        torch.ask("empty_cache");
    }
    let all = daemon.kept();
    let beside = about(&all[0]);
    assert_eq!(beside["pid"], torch.pid());
    // Reserved is a whole number of MiB.
    let level = (base + 50 * MIB) / MIB;
    assert_eq!(beside["when"], format!("reserved > {level}MiB"));
    torch.finish();
}

#[test]
fn what_lies_free_and_does_not_serve() {
    let words = [
        &NO_PAUSE[..],
        &[
            "--snapshot-when",
            "fragmentation > 50% with reserved > 40MiB",
            "--no-oom-snapshots",
        ],
    ]
    .concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "trace");
    let fired = |daemon: &Daemon| number(&daemon.trigger(1)["fired"]);
    torch.ask("allocs many 10 12582912");
    torch.ask("alloc kept 12582912");
    torch.ask("free many");
    assert_eq!(fired(&daemon), 0, "free room alone is no fragment");
    torch.ask("alloc fits 12000000");
    assert_eq!(fired(&daemon), 0, "it serves");
    // 108 MiB lie free, in pieces of 12.
    torch.ask("alloc large 25165824");
    assert_eq!(fired(&daemon), 1);
    let all = daemon.kept();
    assert_pytorchs(&mut torch, &all[0]);
    let beside = about(&all[0]);
    assert_eq!(beside["largest_free_bytes"], 12 * MIB, "{beside:#}");
    assert_eq!(beside["free_bytes"], 9 * 12 * MIB);
    assert!(
        all[0]["reason"]
            .as_str()
            .unwrap()
            .contains("108.00 MiB of 132.00 MiB"),
        "{}",
        all[0]
    );
    torch.ask("alloc more 25165824");
    assert_eq!(fired(&daemon), 1, "it is so still");
    assert_eq!(daemon.trigger(1)["from_start"], true);
    torch.finish();
}

#[test]
fn a_leak_grows_and_breathing_does_not() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut torch = Torch::start(&[]);
    torch.ask("train 3");
    daemon.attach_late(&torch);
    let grown = daemon.add_trigger("growth > 60MiB in 8s", torch.pid());
    let fired = |daemon: &Daemon| number(&daemon.trigger(grown)["fired"]);
    // Each step allocates and frees some MiB, and three tensors of 8 MiB go round.
    torch.ask("leak 70 8000000 100 3");
    assert_eq!(fired(&daemon), 0);
    torch.ask("leak 40 8000000 100");
    // The floor follows within a quarter of the time.
    eventually("the leak is told", || fired(&daemon) >= 2);
    for one in daemon.kept() {
        let reason = one["reason"].as_str().unwrap();
        assert!(
            reason.contains("the floor of allocated on device 0 rose by"),
            "{reason}"
        );
        let beside = about(&one);
        let allocated = number(&beside["allocated_bytes"]);
        assert!(allocated > 60 * MIB, "{beside:#}");
    }
    torch.finish();
}

/// The state of the moment at which PyTorch reports: what no block used is released and in the trace, the
/// blocks are as they were when the request came.
#[test]
fn at_a_step_and_every_so_many_steps() {
    let daemon = Daemon::with(&NO_PAUSE);
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    daemon.attach_late(&torch);
    let one = daemon.add_trigger("step = 7", torch.pid());
    let many = daemon.add_trigger("every 5 steps", torch.pid());
    // One at a time, so that no step is over before the one before it was told.
    for _ in 0..12 {
        torch.ask("train");
        daemon.stats(torch.pid());
    }
    let fired = |number: u64| daemon.trigger(number)["fired"].clone();
    assert_eq!((fired(one), fired(many)), (json!(1), json!(2)));
    let reasons: Vec<Value> = daemon
        .kept()
        .iter()
        .map(|one| one["reason"].clone())
        .collect();
    assert_eq!(
        reasons,
        [5, 7, 10].map(|step| json!(format!("step {step} has ended")))
    );
    // Each is of the moment at which its step ended, as the journal has it.
    let file = daemon.folder().join("at.json");
    let file = file.to_str().unwrap();
    for (kept, step) in daemon.kept().iter().zip([5, 7, 10]) {
        let at = format!("step:{step}");
        let pid = torch.pid_text();
        let format = "memory-viz-json";
        let snapshot = [
            "snapshot", "--pid", &pid, "--at", &at, "--format", format, "-o", file,
        ];
        daemon.ctl(&snapshot).text();
        let at: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let segments = at["segments"].as_array().unwrap().iter();
        let allocated: u64 = segments.map(|one| number(&one["allocated_size"])).sum();
        assert_eq!(number(&about(kept)["allocated_bytes"]), allocated);
        std::fs::remove_file(file).unwrap();
    }
    torch.finish();
}

#[test]
fn running_out_of_memory_after_releasing_what_was_cached() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    daemon.attach_late(&torch);
    torch.ask("alloc cached 104857600");
    torch.ask("alloc used 3000000");
    torch.ask("free cached");
    let pid = torch.pid_text();
    let before = daemon.json(&["snapshot", "--pid", &pid, "--format", "json"]);
    torch.ask("oom 5");
    let all = daemon.kept();
    assert_eq!(all.len(), 1, "the other four came too soon: {all:#?}");
    let oom = &all[0];
    assert_eq!(
        (&oom["when"], &oom["pid"]),
        (&json!("oom"), &json!(torch.pid()))
    );
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(oom["comm"], comm.trim_end(), "{oom:#}");
    assert!(
        oom["reason"]
            .as_str()
            .unwrap()
            .contains("a request of 1.00 PiB failed"),
        "{oom:#}"
    );
    assert_pytorchs(&mut torch, oom);

    let script = "import json, pickle, sys\n\
                  snapshot = pickle.load(open(sys.argv[1], 'rb'))\n\
                  blocks = [[b['address'], b['size']] for s in snapshot['segments'] for b in s['blocks'] if b['state'] != 'inactive']\n\
                  actions = [entry['action'] for entry in snapshot['device_traces'][0]]\n\
                  names = [frame['name'] for frame in snapshot['device_traces'][0][-1]['frames']]\n\
                  print(json.dumps({'blocks': sorted(blocks), 'actions': actions, 'names': names}))";
    let output = Command::new("python3")
        .args(["-c", script, oom["path"].as_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout)
        .parse::<Value>()
        .unwrap();
    let mut blocks: Vec<[u64; 2]> = before["segments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|segment| segment["blocks"].as_array().unwrap())
        .filter(|block| block["state"] != "inactive")
        .map(|block| [number(&block["address"]), number(&block["size_bytes"])])
        .collect();
    blocks.sort_unstable();
    assert_eq!(told["blocks"], json!(blocks), "as when the request came");
    let actions = told["actions"].as_array().unwrap();
    let [.., released, report] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!([released, report], ["segment_free", "oom"]);
    // The function was never seen before.
    let names = told["names"].as_array().unwrap();
    assert!(names.contains(&json!("oom")), "{names:?}");
    assert!(!names.contains(&json!("")), "{names:?}");

    let oom = daemon.trigger(1);
    assert_eq!((&oom["fired"], &oom["written"]), (&json!(5), &json!(1)));
    assert_eq!(oom["skipped"], json!([{"cause": "paused", "count": 4}]));
    let said = daemon.json(&["status"])["messages"].to_string();
    assert!(said.contains("ran out of memory on device 0"), "{said}");
    assert!(said.contains("nor will be of that within 10 s"), "{said}");
    torch.finish();
    Met {
        what: "snapshots of one trigger and process in a time",
        most: "one in `--snapshot-pause`".to_owned(),
        beyond: "further ones are counted and not taken",
        told: "`paused` in `trigger list`, a message in `status`",
        test: "running_out_of_memory_after_releasing_what_was_cached",
    }
    .is_told();
}

#[test]
fn a_trigger_for_one_process_ends_with_it() {
    let daemon = Daemon::with(&["--no-oom-snapshots"]);
    let none = daemon.ctl(&["trigger", "list"]);
    assert!(none.text().contains("There is no trigger"), "{none}");
    let mut torch = Torch::start(&[]);
    daemon
        .ctl(&["trigger", "add", "oom", "--pid", &torch.pid_text()])
        .refused(4, &["not traced"]);
    daemon.attach(torch.pid(), "trace");
    let number_of_it = daemon.add_trigger("allocated > 100MiB", torch.pid());
    let watching = |daemon: &Daemon| number(&daemon.trigger(number_of_it)["watching"]);
    assert_eq!(watching(&daemon), 1);
    daemon.detach(torch.pid());
    assert_eq!(watching(&daemon), 0);
    torch.ask("alloc unseen 200000000");
    torch.ask("free unseen");
    daemon.attach(torch.pid(), "blocks");
    assert_eq!(watching(&daemon), 1, "it has waited");
    torch.ask("alloc a 200000000");
    assert_eq!(number(&daemon.trigger(number_of_it)["fired"]), 1);
    torch.finish();
    eventually("it ends with the process", || {
        daemon.json(&["trigger", "list"])["triggers"] == json!([])
    });
    assert_eq!(daemon.kept().len(), 1);
}

/// A process that stands above already: its blocks are read first, then it is snapshot with them.
#[test]
fn a_late_attach_waits_for_the_baseline() {
    let daemon = Daemon::with(&["--snapshot-when", "reserved > 90MiB"]);
    let mut torch = Torch::start(&[]);
    torch.ask("train");
    torch.ask("alloc old 104857600");
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    torch.ask("free a");
    eventually("it fires", || !daemon.kept().is_empty());
    let all = daemon.kept();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["without_baseline"], false, "{all:#?}");
    assert_pytorchs(&mut torch, &all[0]);
    let stats = daemon.stats(torch.pid());
    assert!(coverage(&stats).contains(&"baseline_read"), "{stats:#}");
    torch.finish();
}

/// Rounded sizes and the allocator's own totals suffice for all that there is to watch.
#[test]
fn at_level_blocks() {
    let words = [
        &NO_PAUSE[..],
        &[
            "--snapshot-when",
            "reserved > 60MiB",
            "--snapshot-when",
            "fragmentation > 50% with reserved > 40MiB",
        ],
    ]
    .concat();
    let daemon = Daemon::with(&words);
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), "blocks");
    torch.ask("allocs many 4 12582912");
    torch.ask("oom");
    torch.ask("free many");
    // 48 MiB lie free, in pieces of 12.
    torch.ask("alloc large 25165824");
    let told: Vec<Value> = daemon.kept().iter().map(|k| k["when"].clone()).collect();
    assert_eq!(
        told,
        [
            "oom",
            "reserved > 60MiB",
            "fragmentation > 50% with reserved > 40MiB"
        ]
    );
    torch.finish();
}

/// Two processes and two devices: each level counts by itself.
#[test]
fn each_device_and_each_process_by_itself() {
    let words = [&NO_PAUSE[..], &["--snapshot-when", "allocated > 50MiB"]].concat();
    let daemon = Daemon::with(&words);
    let mut first = Torch::start(&[("SIMCUDA_DEVICES", "2")]);
    let mut second = Torch::start(&[]);
    for torch in [&mut first, &mut second] {
        daemon.attach(torch.pid(), "trace");
    }
    let only = daemon.add_trigger("allocated > 50MiB on device 1", first.pid());
    // 40 MiB here and there are 120 together, and none is above.
    first.ask("alloc a 41943040");
    first.ask("alloc b 41943040 1");
    second.ask("alloc a 41943040");
    daemon.stats(first.pid());
    daemon.stats(second.pid());
    assert_eq!(daemon.kept(), [json!(null); 0]);
    first.ask("alloc c 20971520 1");
    let all = daemon.kept();
    let told: Vec<_> = all.iter().map(|k| (&k["pid"], &k["device"])).collect();
    let one = json!(first.pid());
    assert_eq!(told, [(&one, &json!(1)), (&one, &json!(1))], "{all:#?}");
    assert_pytorchs(&mut first, &all[1]);
    second.ask("alloc b 20971520");
    let all = daemon.kept();
    assert_eq!(all.len(), 3);
    assert_eq!(
        (&all[2]["pid"], &all[2]["device"]),
        (&json!(second.pid()), &json!(0))
    );
    assert_pytorchs(&mut second, &all[2]);
    assert_eq!(number(&daemon.trigger(only)["fired"]), 1);
    first.finish();
    second.finish();
}
