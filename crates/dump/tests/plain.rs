//! The rules against a second, plain implementation of them in Python (`plain/rules.py`), on random dumps.
//!
//! Without a `python3` this test fails and is not skipped.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_dump::compare::{Level, Side, compare};
use memscope_dump::inefficient::{Kind, Question, inefficient};
use memscope_dump::leaks::offline_leaks;
use memscope_dump::{Attr, Device, Format, Reader, Row, Writer};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DUMPS: u64 = 400;
const MARKS: [&str; 3] = ["step", "epoch end", "a, b"];

/// Numbers that look random and are the same each time (xorshift64*).
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % sides
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.throw(choices.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.throw(100) < percent
    }
}

/// Parameters of a random dump.
struct Shape {
    rows: u64,
    devices: Vec<Device>,
    pids: Vec<u32>,
    pools: Vec<&'static str>,
    /// Percentage of rows that have the number of their block.
    numbered: u64,
    /// Number of different addresses.
    places: u64,
    marks: u64,
    operators: u64,
    accesses: u64,
    frees: u64,
    /// Percentage of IDs that occur twice.
    twice: u64,
}

impl Shape {
    fn throw(dice: &mut Dice) -> Shape {
        let every = [
            Device::Number(0),
            Device::Number(1),
            Device::Cpu,
            Device::None,
        ];
        let devices = 1 + dice.throw(4) as usize;
        let pids = 1 + dice.throw(3) as usize;
        let pools: [&[&str]; 5] = [
            &["HAL"],
            &["PTA"],
            &["PTA", "ATB"],
            &["HAL", "PTA", "ATB", "MINDSPORE"],
            &["HAL", "PTA"],
        ];
        Shape {
            rows: dice.of(&[0, 5, 40, 120, 300]),
            devices: every[..devices].to_vec(),
            pids: vec![7, 8, 9][..pids].to_vec(),
            pools: dice.of(&pools).to_vec(),
            numbered: dice.of(&[0, 100, 100, 50]),
            places: dice.of(&[2, 6, 40]),
            marks: dice.of(&[0, 4, 15]),
            operators: dice.of(&[0, 15, 40]),
            accesses: dice.of(&[5, 30, 60]),
            frees: dice.of(&[10, 50]),
            twice: dice.of(&[0, 0, 5]),
        }
    }
}

fn dump(seed: u64) -> Vec<Row> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let shape = Shape::throw(&mut dice);
    let mut rows = Vec::new();
    let (mut id, mut time) = (0, 1000);
    for _ in 0..shape.rows {
        if !dice.chance(shape.twice) {
            id += 1;
        }
        // Some rows have the same time.
        time += dice.throw(4) * 10;
        let mut row = Row {
            id,
            timestamp: time,
            pid: Some(dice.of(&shape.pids)),
            tid: Some(5),
            device: dice.of(&shape.devices),
            ..Row::default()
        };
        kind(&mut row, &shape, &mut dice);
        rows.push(row);
    }
    // Files are in the order of frees, so rows may come in any order.
    for place in (1..rows.len()).rev() {
        let other = dice.throw(place as u64 + 1) as usize;
        rows.swap(place, other);
    }
    rows
}

fn kind(row: &mut Row, shape: &Shape, dice: &mut Dice) {
    if dice.chance(1) {
        row.event = "SYSTEM".into();
        row.event_type = "START_TRACE".into();
        return;
    }
    let what = dice.throw(100);
    if what < shape.marks {
        row.event = "MSTX".into();
        row.event_type = dice.of(&["Mark", "Mark", "Range_start"]).into();
        row.name = Some(
            dice.of(&[MARKS[0], MARKS[0], MARKS[0], MARKS[1], MARKS[2]])
                .into(),
        );
        return;
    }
    if what < shape.marks + shape.operators {
        let (event, kinds): (&str, &[&str]) = if dice.chance(80) {
            (
                "OP_LAUNCH",
                &["ATEN_START", "ATEN_END", "ATB_START", "ATB_END"],
            )
        } else {
            ("KERNEL_LAUNCH", &["KERNEL_LAUNCH", "KERNEL_START"])
        };
        row.event = event.into();
        row.event_type = dice.of(kinds).into();
        row.name = Some(dice.of(&["add", "mul", "aten::mm", "x,y"]).into());
        return;
    }
    let pool = dice.of(&shape.pools);
    let place = dice.throw(shape.places);
    let mut ptr = 0x1000 + place * 0x100;
    let mut size = dice.of(&[0x40, 0x100, 0x400, 1 << 20]);
    row.event_type = pool.into();
    if dice.chance(shape.accesses) {
        row.event = "ACCESS".into();
        row.event_type = dice.of(&["READ", "WRITE", "UNKNOWN"]).into();
        ptr += dice.of(&[0, 0, 0x10, 0x90]);
        size = dice.of(&[0, 0x10, 0x80]);
    } else {
        row.event = if dice.chance(shape.frees) {
            "FREE"
        } else {
            "MALLOC"
        }
        .into();
    }
    row.ptr = Some(ptr);
    let mut attr = Attr::new();
    if dice.chance(shape.numbered) {
        attr.push("allocation_id", place.to_string());
    }
    attr.push("addr", format!("{ptr:#018x}"));
    attr.push("size", size.to_string());
    if row.event == "MALLOC" && dice.chance(20) {
        attr.push("shadow", "true");
    }
    if row.event == "ACCESS" {
        attr.push("type", pool);
        attr.push("shape", "[1,2]");
    }
    row.attr = attr;
}

/// The questions that both implementations are asked about a dump, and Rust's answers.
fn ask(seed: u64, path: &Path, before: &Path) -> Vec<(Value, Value)> {
    let mut dice = Dice(seed | 1 << 40);
    let rows = || Reader::open(path).unwrap();
    let mut asked = Vec::new();

    let (mark, start) = (
        dice.of(&[MARKS[0], MARKS[0], MARKS[1]]),
        dice.throw(4) as usize,
    );
    let report = offline_leaks(path, rows(), mark, start).unwrap();
    let devices: Vec<Value> = report
        .devices
        .iter()
        .map(|one| json!({"device": one.device.to_string(), "marks": one.marks, "messages": one.messages(), "log": one.log()}))
        .collect();
    let question =
        json!({"rule": "offline_leaks", "file": path, "mark": mark, "start_index": start});
    asked.push((question, json!(devices)));

    let kinds: &[Kind] = dice.of(&[&Kind::ALL[..], &Kind::ALL[..1], &Kind::ALL[1..]]);
    let question = Question {
        min_size: dice.of(&[0, 0, 0x100]),
        kinds: kinds.to_vec(),
        idle_threshold: dice.of(&[0, 2, 10]),
        since_start: dice.chance(50),
    };
    let words = |kinds: &[Kind]| kinds.iter().map(|k| k.word()).collect::<Vec<_>>();
    let report = inefficient(path, rows(), &question).unwrap();
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|f| json!([f.row, f.id, f.pool.word(), words(&f.kinds), f.unused_ns]))
        .collect();
    let mut peaks: Vec<(String, String, &str, u64, u64)> = report
        .peaks
        .iter()
        .map(|peak| {
            let pid = peak.pid.map_or("N/A".to_owned(), |pid| pid.to_string());
            let device = peak.device.to_string();
            (
                pid,
                device,
                peak.pool.word(),
                peak.bytes,
                peak.without_bytes,
            )
        })
        .collect();
    peaks.sort();
    let question = json!({"rule": "inefficient", "file": path, "mem_size": question.min_size,
        "kinds": words(kinds), "idle_threshold": question.idle_threshold, "since_start": question.since_start});
    asked.push((question, json!([findings, peaks, report.accesses])));

    let (level, word) = dice.of(&[(Level::Op, "op"), (Level::Kernel, "kernel")]);
    let side = |path: &Path| Side::read(path, Reader::open(path).unwrap(), level).unwrap();
    // If there is nothing to compare, there is an error and no answer.
    if let Ok(answer) = compare(&side(before), &side(path), &mut || true) {
        let lines: Vec<Value> = answer
            .iter()
            .map(|d| {
                json!([
                    d.device.to_string(),
                    d.name,
                    d.base,
                    d.compare,
                    d.bytes() as i64
                ])
            })
            .collect();
        let question = json!({"rule": "compare", "base": before, "second": path, "level": word});
        asked.push((question, json!(lines)));
    }
    asked
}

fn python(questions: &Value) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plain/rules.py");
    let mut child = Command::new("python3")
        .arg("-I")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed: install it");
    let mut input = child.stdin.take().unwrap();
    input.write_all(questions.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "python3 failed: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn both_answer_alike() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..DUMPS)
        .map(|seed| {
            let path = folder.path().join(format!("{seed}.csv"));
            let mut writer = Writer::create(&path, Format::Csv).unwrap();
            for row in dump(seed) {
                writer.write(&row).unwrap();
            }
            writer.finish().unwrap();
            path
        })
        .collect();
    let mut asked = Vec::new();
    for (seed, path) in (0..).zip(&files) {
        let before = &files[(seed as usize + 3) % files.len()];
        asked.extend(ask(seed, path, before));
    }
    let questions: Value = asked.iter().map(|(question, _)| question.clone()).collect();
    let answers = python(&questions);
    assert_eq!(answers.len(), asked.len());
    for ((question, ours), theirs) in asked.iter().zip(&answers) {
        assert_eq!(ours, theirs, "{question}");
    }
    // The random dumps must be of use: each rule and each kind of inefficiency must have been found often.
    let told = |rule: &str, word: &str| {
        let all = asked
            .iter()
            .filter(|(question, _)| question["rule"] == rule);
        all.filter(|(_, ours)| ours.to_string().contains(word))
            .count()
    };
    for (rule, word) in [
        ("offline_leaks", "Direct Hal memory leak"),
        ("offline_leaks", "No hal memory leaks"),
        ("offline_leaks", "fewer than 3"),
        ("offline_leaks", "out of bounds"),
        ("inefficient", "early_allocation"),
        ("inefficient", "late_deallocation"),
        ("inefficient", "temporary_idleness"),
        ("compare", "null"),
        ("compare", "aten::mm"),
    ] {
        assert!(
            told(rule, word) >= 10,
            "{rule} {word}: {}",
            told(rule, word)
        );
    }
}
