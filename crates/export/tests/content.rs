//! The dictionary is PyTorch's, key by key.
#![allow(clippy::unwrap_used)]

mod common;

use common::{BASE, entry, process, report};
use memscope_export::{ExportError, json, memory_viz};
use memscope_ledger::event::{AllocatorFacts, AllocatorSettings, TraceAction};
use memscope_ledger::report::SnapshotReport;
use serde_json::{Value, json};

fn exported(report: &SnapshotReport) -> Value {
    let mut out = Vec::new();
    json(report, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn segments_and_blocks() {
    let all = exported(&report());
    assert_eq!(all["segments"].as_array().unwrap().len(), 2);
    let mut first = all["segments"][0].clone();
    let blocks = first["blocks"].take();
    assert_eq!(
        first,
        json!({
            "device": 0, "address": BASE, "total_size": 20 << 20,
            "allocated_size": 3 << 20, "active_size": 4 << 20,
            "requested_size": (4 << 20) - 100, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "frames": [], "blocks": null,
        })
    );
    assert_eq!(
        blocks,
        json!([
            {"address": BASE, "size": 2 << 20, "requested_size": (2 << 20) - 100,
             "state": "active_allocated", "frames": []},
            {"address": BASE + (2 << 20), "size": 1 << 20, "requested_size": 1 << 20,
             "state": "active_allocated", "frames": []},
            {"address": BASE + (3 << 20), "size": 1 << 20, "requested_size": 1 << 20,
             "state": "active_pending_free", "frames": []},
            {"address": BASE + (4 << 20), "size": 16 << 20, "requested_size": 0,
             "state": "inactive", "frames": []},
        ])
    );
    let second = &all["segments"][1];
    assert_eq!(second["segment_type"], "small");
    assert_eq!(second["is_expandable"], true);
    assert_eq!(second["segment_pool_id"], json!([0, 1u64 << 33]));
    assert_eq!(
        all["memscope"]["unseen_segments"],
        json!([second["address"]])
    );
}

#[test]
fn traces_by_device() {
    let all = exported(&report());
    let traces = all["device_traces"].as_array().unwrap();
    let lengths: Vec<usize> = traces
        .iter()
        .map(|trace| trace.as_array().unwrap().len())
        .collect();
    assert_eq!(lengths, [10, 0, 2]);
    assert_eq!(
        traces[0][1],
        json!({
            "action": "alloc", "addr": BASE, "size": (2 << 20) - 100, "stream": 0,
            "time_us": 1_700_000_000_123_456u64, "compile_context": "N/A",
            "user_metadata": "", "frames": [],
        })
    );
    assert_eq!(traces[2][0]["pool_id"], json!([0, 1]));
    let oom = &traces[0][7];
    assert_eq!(
        (&oom["action"], &oom["device_free"]),
        (&json!("oom"), &json!(123_456))
    );
    assert!(oom.get("addr").is_none());
    let actions: Vec<&str> = traces[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        actions,
        [
            "segment_alloc",
            "alloc",
            "alloc",
            "alloc",
            "alloc",
            "free_requested",
            "free_completed",
            "oom",
            "free_requested",
            "snapshot"
        ]
    );
}

/// Every key of PyTorch's, with its defaults; more of them are tested beside the code.
#[test]
fn settings_are_those_of_the_environment() {
    let settings = |environment: &[(&str, &str)]| {
        let report = SnapshotReport {
            process: process(environment),
            ..report()
        };
        let all = exported(&report);
        let from = all["memscope"]["settings_from"].clone();
        (all["allocator_settings"].clone(), from)
    };
    let (mut told, from) = settings(&[]);
    let divisions = told["roundup_power2_divisions"].take();
    assert_eq!(divisions.as_object().unwrap().len(), 16);
    assert_eq!(
        (told, from),
        (
            json!({
                "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
                "garbage_collection_threshold": 0.0, "expandable_segments": false,
                "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": false,
                "pinned_use_cuda_host_register": false,
                "graph_capture_record_stream_reuse": false, "max_round_threshold": -1,
                "max_cached_size": -1, "roundup_power2_divisions": null,
            }),
            json!("defaults")
        )
    );
    let text = |environment: &[(&str, &str)]| {
        let (settings, from) = settings(environment);
        assert_eq!(from, "environment");
        settings["PYTORCH_CUDA_ALLOC_CONF"].clone()
    };
    let both = [
        ("PYTORCH_ALLOC_CONF", "b:1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "a:1"),
    ];
    assert_eq!(text(&both), "a:1");
    assert_eq!(text(&both[..1]), "b:1");
}

/// What was read from the process is newer than its environment.
#[test]
fn settings_and_devices_of_the_process() {
    let report = SnapshotReport {
        process: process(&[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")]),
        allocator: AllocatorFacts {
            devices: 5,
            settings: Some(AllocatorSettings {
                text: "expandable_segments:True".to_owned(),
                max_split_bytes: 30 << 20,
                collection_threshold: 0.5,
                divisions: (1..=16).collect(),
            }),
        },
        ..report()
    };
    let all = exported(&report);
    let settings = &all["allocator_settings"];
    assert_eq!(
        settings["PYTORCH_CUDA_ALLOC_CONF"],
        "expandable_segments:True"
    );
    assert_eq!(settings["expandable_segments"], true);
    assert_eq!(settings["max_split_size"], 30 << 20);
    assert_eq!(settings["garbage_collection_threshold"], 0.5);
    assert_eq!(settings["roundup_power2_divisions"]["32768"], 16);
    assert_eq!(all["memscope"]["settings_from"], "process");
    assert_eq!(all["device_traces"].as_array().unwrap().len(), 5);
}

#[test]
fn what_limits_it_is_said() {
    let of = report();
    let facts = &of.process.facts;
    let all = exported(&of);
    for key in ["external_annotations", "host_segments", "host_traces"] {
        assert_eq!(all[key], json!([]), "{key}");
    }
    assert_eq!(
        all["memscope"],
        json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": 4242, "start_ticks": facts.start_ticks, "generation": facts.generation,
            "image": 12345, "attached_unix_ns": 1_700_000_001_000_000_000u64 - of.as_of.boot_ns,
            "comm": "python \"quoted\" ünï",
            "as_of_unix_ns": 1_700_000_001_000_000_000u64, "lost_records": 3,
            "trace_dropped": 7, "settings_from": "environment",
            "unseen_segments": [BASE + (1 << 30)],
            "coverage": [{"code": "attached_late", "text": "Attached late.", "affects": ["blocks", "growth"], "lower_bound": true}],
        })
    );
}

#[test]
fn a_device_without_a_place_is_an_error() {
    for device in [-1, 128, i32::MAX] {
        let mut report = report();
        report
            .trace
            .push(entry(TraceAction::Alloc, device, BASE, 4));
        assert!(matches!(
            memory_viz(&report, &mut Vec::new()),
            Err(ExportError::Device { device: found, .. }) if found == device
        ));
    }
    // A segment names its device itself, so any number can be written.
    let mut report = report();
    report.segments[0].device = -1;
    assert_eq!(exported(&report)["segments"][0]["device"], -1);
}

#[test]
fn a_full_disk_is_an_error() {
    let mut full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    assert!(matches!(
        memory_viz(&report(), &mut full),
        Err(ExportError::Write { .. })
    ));
}
