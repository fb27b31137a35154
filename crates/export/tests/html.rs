//! The page holds the data whole and safely, and its script is a script.
#![allow(clippy::unwrap_used)]

mod common;

use common::course::course;
use common::{BASE, entry, large, report};
use memscope_export::html;
use memscope_ledger::event::CoverageNote;
use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotTrace};
use memscope_tests::limits::{Met, constant};
use std::io::Write;
use std::process::{Command, Stdio};

/// Reads the page as a browser does, checks that it makes no request, and returns its data and its script.
const CHECK: &str = r#"
import json, sys
from html.parser import HTMLParser

class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.scripts, self.ids = [], [], set()
    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert 'src' not in attributes and tag not in ('iframe', 'object', 'img'), (tag, attributes)
        assert attributes.get('href', 'data:,') == 'data:,', attributes
        assert attributes.get('id') not in self.ids or 'id' not in attributes
        self.ids.add(attributes.get('id'))
        if tag == 'script':
            self.scripts.append([attributes, ''])
        if tag not in ('meta', 'link', 'br'):
            self.stack.append(tag)
    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag
    def handle_data(self, text):
        if self.stack and self.stack[-1] == 'script':
            self.scripts[-1][1] += text

page = Page()
text = open(sys.argv[1], encoding='utf-8').read()
page.feed(text)
page.close()
assert not page.stack and 'http' not in text.replace('http-equiv', ''), page.stack
(kind, data), (_, script) = page.scripts
assert kind == {'type': 'application/json', 'id': 'data'}
data = json.loads(data)
for device in data['devices']:
    times, allocated, reserved = device['levels']
    assert len(times) == len(allocated) == len(reserved) <= 20000 and times == sorted(times)
    assert times[-1] == data['as_of']
    born, gone, sizes, flags = device['blocks']
    assert len({len(born), len(gone), len(sizes), len(flags), len(device['addresses']), len(device['streams'])}) == 1
    assert born == sorted(born) and all(b <= g for b, g in zip(born, gone))
    assert len(born) <= 50000 and len(born) <= device['blocks_seen']
    live = sum(size for size, flag in zip(sizes, flags) if flag & 1)
    if len(born) == device['blocks_seen']:
        assert live == allocated[-1]
        if len(times) == device['levels_seen']:
            # What is drawn as blocks is what is drawn as a level.
            for time, level in list(zip(times, allocated))[::50]:
                alive = sum(s for b, g, s, f in zip(born, gone, sizes, flags) if b <= time and (g > time or f & 1))
                assert alive == level, time
    drawn = 0
    for segment in device['segments']:
        offsets, sizes, states, requested, since = segment['blocks']
        drawn += len(offsets)
        assert sum(sizes) == segment['size'] or not offsets
    assert drawn <= 50000
    totals = device['totals']
    assert totals['reserved'] == reserved[-1]
    assert sum(segment['size'] for segment in device['segments']) <= totals['reserved']
    assert len(device['segments']) <= totals['segments'] and drawn <= totals['blocks'] + totals['segments']
    assert len(device['groups'][0]) == len(device['group_streams']) <= 1000
    assert device['groups'][3] == sorted(device['groups'][3], reverse=True)
print(json.dumps([data, script]))
"#;

/// The data and the script.
fn read(report: &SnapshotReport) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    html(report, &mut std::fs::File::create(&page).unwrap()).unwrap();
    let output = Command::new("python3")
        .args(["-c", CHECK])
        .arg(&page)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nothing_in_the_data_ends_the_element() {
    let mut report = report();
    let evil = "</script><script>alert(1)</script><!-- \" ' & \u{2028} ]]>";
    report.process.facts.comm = evil.to_owned();
    report.process.facts.cmdline = vec![evil.to_owned(), "a b".to_owned()];
    report.coverage.push(
        CoverageNote {
            code: "evil".to_owned(),
            text: evil.to_owned(),
        }
        .into(),
    );
    let (data, _) = read(&report);
    assert_eq!(data["comm"], evil);
    assert_eq!(data["cmdline"], format!("{evil} a b"));
    assert_eq!(data["notes"][1], evil);
}

#[test]
fn the_data_is_the_reports() {
    let report = course(6000, 2000, 4);
    let (data, _) = read(&report);
    assert_eq!(data["trace_entries"], 6000);
    assert_eq!(data["devices"].as_array().unwrap().len(), 2);
    let blocks = report.segments.iter().filter(|s| s.device == 0);
    let blocks: usize = blocks.map(|s| s.blocks.len()).sum();
    let segments = data["devices"][0]["segments"].as_array().unwrap();
    let lengths = segments
        .iter()
        .map(|s| s["blocks"][0].as_array().unwrap().len());
    assert_eq!(lengths.sum::<usize>(), blocks);
}

#[test]
fn every_state_and_nothing() {
    let (data, _) = read(&report());
    assert_eq!(data["devices"][1]["segments"][0]["seen"], false);
    assert_eq!(data["devices"][0]["segments"][0]["blocks"][2][2], 2);
    let (data, _) = read(&SnapshotReport {
        segments: Vec::new(),
        trace: Vec::new(),
        ..report()
    });
    assert_eq!(data["devices"], serde_json::json!([]));
}

#[test]
fn what_is_too_much_is_left_out_and_said() {
    let (data, _) = read(&large(60, 0));
    let devices = data["devices"].as_array().unwrap();
    let sum = |key: &str| {
        devices
            .iter()
            .map(|d| d[key].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum("blocks_seen"), 60_000);
    let drawn = devices
        .iter()
        .map(|d| d["segments"].as_array().unwrap().len());
    assert_eq!(drawn.sum::<usize>(), 50);
    let shown = devices
        .iter()
        .map(|d| d["addresses"].as_array().unwrap().len());
    assert_eq!(shown.sum::<usize>(), 50_000);
    let (data, _) = read(&course(200_000, 0, 6));
    assert!(data["devices"][0]["levels_seen"].as_u64().unwrap() > 20_000);
    Met {
        what: "blocks that a page draws",
        most: constant("crates/export/src/html.rs", "MOST_BLOCKS"),
        beyond: "further ones are in the sums and are not drawn",
        told: "the page, with the number of all",
        test: "what_is_too_much_is_left_out_and_said",
    }
    .is_told();
}

/// The texts of a device's tiles, by their names, and the sentence about what is drawn.
fn tiles(data: &serde_json::Value, script: &str, device: usize) -> serde_json::Value {
    // All but the last part, which needs a browser.
    let pure = script.split("// The page: one device").next().unwrap();
    let ask = format!(
        "{pure}\nconst data = JSON.parse(require('fs').readFileSync(0, 'utf8'));\n\
         const {{ rows, drawn }} = tiles(data.devices[{device}], data);\n\
         console.log(JSON.stringify({{ drawn, ...Object.fromEntries(rows) }}));"
    );
    let mut node = Command::new("node")
        .args(["-e", &ask])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}; cargo xtask setup installs it"));
    let mut stdin = node.stdin.take().unwrap();
    stdin.write_all(data.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The tiles of a snapshot with more blocks than are drawn are of all blocks. One segment of 60,001 pieces is not drawn
/// at all; what it holds is in every number.
#[test]
fn totals_are_of_all_and_not_of_what_is_drawn() {
    let mut report = report();
    let one = &mut report.segments[0];
    let free = one.blocks.pop().unwrap();
    let held: u64 = one.blocks.iter().map(|block| block.size).sum();
    one.blocks.extend((0..60_000).map(|n| SnapshotBlock {
        addr: free.addr + n * 256,
        size: 256,
        requested: Some(200),
        state: BlockState::Active,
        ..free
    }));
    one.blocks.push(SnapshotBlock {
        addr: free.addr + 60_000 * 256,
        size: free.size - 60_000 * 256,
        ..free
    });
    let (data, script) = read(&report);
    assert_eq!(data["devices"][0]["segments"], serde_json::json!([]));
    let says = tiles(&data, &script, 0);
    // 2 MiB, 1 MiB and 60,000 times 256 bytes; 1 MiB waits for a stream.
    assert_eq!(held, 4 << 20);
    assert_eq!(says["Handed out (rounded)"], "17.6 MiB");
    assert_eq!(says["Reserved in segments"], "20.0 MiB");
    assert_eq!(says["Freed, still in use"], "1.00 MiB");
    assert_eq!(says["Free room in segments"], "1.35 MiB");
    assert_eq!(says["Largest free block"], "1.35 MiB");
    assert_eq!(says["Fragmentation"], "0.0 %");
    assert_eq!(
        says["drawn"],
        "Drawn are 0 of 1 segment: 0 B of 20.0 MiB, 0 of 60,004 pieces. The numbers above are of all."
    );
    let (data, script) = read(&common::report());
    let says = tiles(&data, &script, 0);
    assert_eq!(says["drawn"], "The one segment is drawn.");
}

/// With lost records the peak is not known: a lost free makes the level too high, a lost allocation too low.
#[test]
fn a_peak_is_told_where_no_record_is_missing() {
    let mut report = common::report();
    let peak = |report: &SnapshotReport| {
        let (data, script) = read(report);
        tiles(&data, &script, 0)["Peak in the trace (requested)"].clone()
    };
    report.process.lost_records = 0;
    let known = peak(&report);
    assert!(known.as_str().unwrap().ends_with('B'), "{known}");
    report.process.lost_records = 1;
    assert_eq!(peak(&report), "not known: records were lost");
}

#[test]
fn the_script_is_a_script() {
    let (_, script) = read(&report());
    let node = Command::new("node")
        .args(["--check", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut node) = node else {
        panic!(
            "node, which checks the script's syntax, is not there: cargo xtask setup installs it"
        );
    };
    node.stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The reserved line keeps its peaks, too, where points are left out.
#[test]
fn a_peak_of_reserved_bytes_stays() {
    use memscope_ledger::event::TraceAction::{SegmentAlloc, SegmentFree};
    let mut report = report();
    report.segments.clear();
    report.trace = (0..20_000u64)
        .flat_map(|at| {
            let size = if at == 7_779 { 1 << 40 } else { 1 << 20 };
            [SegmentAlloc, SegmentFree].map(|action| {
                let time_ns = 10 + 2 * at + u64::from(action == SegmentFree);
                SnapshotTrace {
                    time_ns,
                    ..entry(action, 0, BASE, size)
                }
            })
        })
        .collect();
    report.as_of.boot_ns = 100_000;
    let (data, _) = read(&report);
    let device = &data["devices"][0];
    assert!(device["levels_seen"].as_u64().unwrap() >= 40_000);
    let reserved = device["levels"][2].as_array().unwrap();
    assert_eq!(
        reserved.iter().filter_map(|level| level.as_u64()).max(),
        Some(1 << 40)
    );
}

/// At the level `blocks` the trace has rounded sizes and no segments: reserved bytes are those of the end, and there only.
#[test]
fn nothing_is_reserved_before_the_end_where_segments_are_not_seen() {
    use memscope_ledger::event::TraceAction::{Alloc, FreeCompleted, FreeRequested};
    let mut report = report();
    report.segments.truncate(1);
    report.segments[0].blocks.clear();
    let at = [(Alloc, 10), (FreeRequested, 20), (FreeCompleted, 20)];
    report.trace = at
        .map(|(action, time_ns)| SnapshotTrace {
            time_ns,
            reported: true,
            ..entry(action, 0, BASE, 5 << 30)
        })
        .to_vec();
    report.coverage.push(memscope_proto::v1::CoverageNote {
        code: "level_blocks".to_owned(),
        ..Default::default()
    });
    report.as_of.boot_ns = 30;
    let (data, _) = read(&report);
    let device = &data["devices"][0];
    assert_eq!(device["reserved_at_end"], true);
    let level = |row: usize| device["levels"][row].clone();
    assert_eq!(level(1), serde_json::json!([5u64 << 30, 0, 0]));
    assert_eq!(level(2), serde_json::json!([0, 0, 20 << 20]));
    // The flag for a rounded size.
    assert_eq!(device["blocks"][3][0], 8);
    // A level that fell after the attach has no note.
    let notes = std::mem::take(&mut report.coverage);
    let (data, _) = read(&report);
    assert_eq!(data["devices"][0]["reserved_at_end"], true);
    report.coverage = notes;
    for entry in &mut report.trace {
        entry.reported = false;
    }
    // An import has the note and no such entries.
    let (data, _) = read(&report);
    let device = &data["devices"][0];
    assert_eq!(device["reserved_at_end"], true);
    assert_eq!(device["blocks"][3][0], 8);
    // At another level a call of which only the report came takes the line from nothing.
    report.coverage.clear();
    report.trace[0].reported = true;
    let (data, _) = read(&report);
    assert_eq!(data["devices"][0]["reserved_at_end"], false);
    assert_eq!(data["devices"][0]["blocks"][3][0], 8);
    report.trace[0].reported = false;
    let (data, _) = read(&report);
    let device = &data["devices"][0];
    assert_eq!(device["reserved_at_end"], false);
    assert_eq!(device["levels"][2][0], 20 << 20);
    assert_eq!(device["blocks"][3][0], 0);
}
