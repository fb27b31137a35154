//! The file keeps the rules of speedscope's schema and adds up.
#![allow(clippy::unwrap_used)]

mod common;

use common::stacks::*;
use memscope_export::stacks::{Metric, Unit, View, speedscope};
use memscope_ledger::report::*;
use proptest::prelude::*;
use serde_json::Value;

fn written(report: &StackReport, view: View) -> Value {
    let mut bytes = Vec::new();
    speedscope(report, view, &mut bytes).unwrap();
    let file: Value = serde_json::from_slice(&bytes).unwrap();
    check(&file);
    file
}

/// What the schema and the importer demand.
fn check(file: &Value) {
    assert_eq!(
        file["$schema"],
        "https://www.speedscope.app/file-format-schema.json"
    );
    let frames = file["shared"]["frames"].as_array().unwrap();
    for frame in frames {
        let frame = frame.as_object().unwrap();
        assert!(frame["name"].is_string());
        assert!(frame.get("file").is_none_or(Value::is_string));
        assert!(frame.get("line").is_none_or(Value::is_u64));
        let known = ["name", "file", "line"];
        assert!(frame.keys().all(|key| known.contains(&key.as_str())));
    }
    let profiles = file["profiles"].as_array().unwrap();
    let active = usize::try_from(file["activeProfileIndex"].as_u64().unwrap()).unwrap();
    assert!(active < profiles.len() || profiles.is_empty());
    for profile in profiles {
        assert_eq!(profile["type"], "sampled");
        assert!(profile["name"].is_string());
        assert!(["bytes", "none"].contains(&profile["unit"].as_str().unwrap()));
        let samples = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(samples.len(), weights.len());
        let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        let (start, end) = (&profile["startValue"], &profile["endValue"]);
        assert_eq!(end.as_u64().unwrap() - start.as_u64().unwrap(), sum);
        for index in samples.iter().flat_map(|sample| sample.as_array().unwrap()) {
            assert!(usize::try_from(index.as_u64().unwrap()).unwrap() < frames.len());
        }
    }
}

fn profile<'a>(file: &'a Value, name: &str) -> Option<&'a Value> {
    let mut profiles = file["profiles"].as_array().unwrap().iter();
    profiles.find(|profile| profile["name"] == name)
}

proptest! {
    #[test]
    fn every_profile_adds_up(report in reports(true), count: bool) {
        let unit = if count { Unit::Count } else { Unit::Bytes };
        let file = written(&report, View { metric: Metric::Live, unit });
        let of = |tally: Tally| if count { tally.count } else { tally.bytes };
        for device in [Some(0), Some(1), None] {
            let name = device.map_or("device unknown".to_owned(), |d: i32| format!("device {d}"));
            let rows: Vec<_> = report.rows.iter().filter(|row| row.device == device).collect();
            let sum = |value: &dyn Fn(&StackRow) -> u64| rows.iter().map(|row| value(row)).sum::<u64>();
            let before = |row: &StackRow| of(row.before.unwrap());
            for (metric, expected) in [
                ("live", sum(&|row| of(row.live))),
                ("peak", sum(&|row| of(row.peak))),
                ("allocated", sum(&|row| of(row.allocated))),
                ("growth", sum(&|row| of(row.live).saturating_sub(before(row)))),
                ("shrunk", sum(&|row| before(row).saturating_sub(of(row.live)))),
            ] {
                match profile(&file, &format!("{name}: {metric}")) {
                    Some(profile) => prop_assert_eq!(profile["endValue"].as_u64(), Some(expected)),
                    None => prop_assert!(rows.is_empty()),
                }
            }
        }
    }
}

#[test]
fn outermost_first_with_file_and_line() {
    let frames = vec![
        native("at::empty", "/t/libtorch.so", 0),
        python("step", "/home/ada/train.py", 12),
    ];
    let other = row(Some(1), vec![python("other", "", 0)], 1, 7);
    let report = report(vec![row(Some(0), frames, 3, 100), other]);
    let view = View {
        metric: Metric::Allocated,
        unit: Unit::Bytes,
    };
    let file = written(&report, view);
    let first = profile(&file, "device 0: live").unwrap();
    let names: Vec<_> = first["samples"][0]
        .as_array()
        .unwrap()
        .iter()
        .map(|index| &file["shared"]["frames"][usize::try_from(index.as_u64().unwrap()).unwrap()])
        .collect();
    assert_eq!(
        *names[0],
        serde_json::json!({"name": "step", "file": "/home/ada/train.py", "line": 12})
    );
    assert_eq!(
        *names[1],
        serde_json::json!({"name": "at::empty [native]", "file": "/t/libtorch.so"})
    );
    assert_eq!(file["activeProfileIndex"], 2);
    assert_eq!(file["profiles"][2]["name"], "device 0: allocated");
    assert!(profile(&file, "device 0: growth").is_none());
    assert_eq!(profile(&file, "device 1: live").unwrap()["endValue"], 7);
}
