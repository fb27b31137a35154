//! The page holds the data whole and safely, and its script is a script.
#![allow(clippy::unwrap_used)]

mod common;

use common::course::course;
use common::{large, report};
use memscope_export::html;
use memscope_ledger::event::CoverageNote;
use memscope_ledger::report::SnapshotReport;
use std::io::Write;
use std::process::{Command, Stdio};

/// Reads the page as a browser does, checks that it asks for nothing, and gives its data and script.
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
    held = sum(segment['size'] for segment in device['segments']) + device['segment_bytes_left_out']
    assert held == reserved[-1]
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
    report.coverage.push(CoverageNote {
        code: "evil".to_owned(),
        text: evil.to_owned(),
    });
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
    assert_eq!(sum("segments_left_out"), 10);
    let shown = devices
        .iter()
        .map(|d| d["addresses"].as_array().unwrap().len());
    assert_eq!(shown.sum::<usize>(), 50_000);
    let (data, _) = read(&course(200_000, 0, 6));
    assert!(data["devices"][0]["levels_seen"].as_u64().unwrap() > 20_000);
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
