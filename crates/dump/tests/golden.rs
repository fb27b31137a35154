//! The worked examples: every answer as msMemScope's own analyzers gave it.
#![allow(clippy::unwrap_used)]

use memscope_dump::inefficient::{Finding, Kind, Question, inefficient, mark_rows};
use memscope_dump::leaks::{LeaksError, Report, Verdict, offline_leaks};
use memscope_dump::{Format, Reader, Row, Writer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(&format!("{name}.expected.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn leaks(name: &str, mark: &str, start_index: usize) -> Report {
    let path = golden(&format!("{name}.csv"));
    offline_leaks(&path, Reader::open(&path).unwrap(), mark, start_index).unwrap()
}

#[test]
fn leaks_between_three_marks() {
    for number in 1..=3 {
        let name = format!("offline_leaks_{number}");
        let outcomes = expected(&name);
        let outcomes = outcomes.as_object().unwrap();
        assert_eq!(outcomes.len(), 4);
        for (start, outcome) in outcomes {
            let report = leaks(&name, "memscope golden", start.parse().unwrap());
            let messages: Vec<String> = report.devices.iter().flat_map(|d| d.messages()).collect();
            let log: Vec<String> = report.devices.iter().filter_map(|d| d.log()).collect();
            assert_eq!(
                serde_json::json!(messages),
                outcome["messages"],
                "{name} {start}"
            );
            assert_eq!(serde_json::json!(log), outcome["log"], "{name} {start}");
        }
    }
}

#[test]
fn a_mark_that_is_not_there_names_those_that_are() {
    let report = leaks("offline_leaks_1", "memscope golde", 0);
    let error = report.require("memscope golde").unwrap_err();
    assert_eq!(
        error.to_string(),
        "no mark is called \"memscope golde\"; the marks there are: \"another mark\", \"memscope golden\""
    );
    assert!(
        report
            .devices
            .iter()
            .all(|d| d.verdict == Verdict::TooFewMarks)
    );
    let report = leaks("offline_leaks_1", "memscope golden", 9);
    assert!(matches!(
        report.require("memscope golden"),
        Err(LeaksError::StartBeyondEnd {
            start_index: 9,
            most: 5,
            ..
        })
    ));
    let report = leaks("offline_leaks_1", "memscope golden", 0);
    assert_eq!(
        report.require("memscope golden"),
        Ok(()),
        "two devices have enough"
    );
}

fn question(parameters: &Value) -> Question {
    let mut question = Question::default();
    for (name, value) in parameters.as_object().unwrap() {
        match name.as_str() {
            "idle_threshold" => question.idle_threshold = value.as_u64().unwrap(),
            "mem_size" => question.min_size = value.as_u64().unwrap(),
            "inefficient_type" => {
                let words: Vec<&str> = value
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|w| w.as_str().unwrap())
                    .collect();
                question.kinds.retain(|kind| words.contains(&kind.word()));
            }
            other => panic!("{other}"),
        }
    }
    question
}

fn find(path: &Path, question: &Question) -> Vec<Finding> {
    inefficient(path, Reader::open(path).unwrap(), question)
        .unwrap()
        .findings
}

fn by_id(findings: &[Finding]) -> Value {
    let words = |kinds: &[Kind]| kinds.iter().map(|k| k.word()).collect::<Vec<_>>();
    let map: BTreeMap<String, _> = findings
        .iter()
        .map(|f| (f.id.to_string(), words(&f.kinds)))
        .collect();
    serde_json::to_value(map).unwrap()
}

#[test]
fn inefficient_blocks() {
    for number in 1..=3 {
        let name = format!("inefficient_{number}");
        let outcomes = expected(&name);
        let outcomes = outcomes.as_object().unwrap();
        assert_eq!(outcomes.len(), 3);
        for (set, outcome) in outcomes {
            let findings = find(
                &golden(&format!("{name}.csv")),
                &question(&outcome["parameters"]),
            );
            assert_eq!(
                by_id(&findings),
                outcome["by_malloc_row_id"],
                "{name} {set}"
            );
        }
    }
}

#[test]
fn what_was_found_is_written_into_the_rows() {
    let path = golden("inefficient_1.csv");
    let question = Question {
        idle_threshold: 60,
        ..Question::default()
    };
    let findings = find(&path, &question);
    let folder = tempfile::tempdir().unwrap();
    for format in [Format::Csv, Format::Db] {
        let out = folder.path().join("out").with_extension(format.extension());
        // Twice: the second run finds the same, and leaves the same file.
        let mut from = path.clone();
        for run in 0..2 {
            let mut writer = Writer::create(&out, format).unwrap();
            for row in mark_rows(Reader::open(&from).unwrap(), &findings) {
                writer.write(&row.unwrap()).unwrap();
            }
            writer.finish().unwrap();
            from.clone_from(&out);
            assert_eq!(find(&out, &question), findings, "run {run}");
            let rows: Vec<Row> = Reader::open(&out).unwrap().map(Result::unwrap).collect();
            let marked: BTreeMap<String, Vec<&str>> = rows
                .iter()
                .filter_map(|row| {
                    Some((
                        row.id.to_string(),
                        row.attr.get("inefficient_type")?.split(',').collect(),
                    ))
                })
                .collect();
            assert_eq!(
                serde_json::to_value(marked).unwrap(),
                by_id(&findings),
                "run {run}"
            );
            let twice = rows.iter().any(|row| {
                row.attr
                    .iter()
                    .filter(|(name, _)| *name == "inefficient_type")
                    .count()
                    > 1
            });
            assert!(!twice);
        }
    }
}
