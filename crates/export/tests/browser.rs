//! A browser opens the page: the page makes no request, reports no error, and each of its views draws.
//! `tests/viewers/page.mjs` checks this; here are the pages, good ones and bad ones.
#![allow(clippy::unwrap_used)]

mod common;

use common::course::course;
use common::{large, report};
use memscope_export::html;
use memscope_ledger::event::CoverageNote;
use memscope_ledger::report::SnapshotReport;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn page(report: &SnapshotReport) -> String {
    let mut out = Vec::new();
    html(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// What the browser found on each page, and whether all pages passed.
fn look(pages: &[String]) -> (Vec<Value>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = (0..pages.len())
        .map(|number| dir.path().join(format!("{number}.html")))
        .collect();
    for (file, text) in files.iter().zip(pages) {
        std::fs::write(file, text).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/viewers/page.mjs");
    let output = Command::new("node")
        .arg(script)
        .args(&files)
        .output()
        .unwrap_or_else(|error| panic!("node: {error}; cargo xtask setup --browser installs it"));
    let found: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        found.len(),
        pages.len(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (found, output.status.success())
}

#[test]
fn pages_draw_and_ask_for_nothing() {
    let mut evil = report();
    let text = "</script><script>alert(1)</script><img src=https://x.invalid/a.png>\" ' & \u{2028}";
    evil.process.facts.comm = text.to_owned();
    evil.process.facts.cmdline = vec![text.to_owned()];
    evil.coverage.push(
        CoverageNote {
            code: "evil".to_owned(),
            text: text.to_owned(),
        }
        .into(),
    );
    let nothing = SnapshotReport {
        segments: Vec::new(),
        trace: Vec::new(),
        ..report()
    };
    let without_trace = SnapshotReport {
        trace: Vec::new(),
        ..course(3000, 0, 5)
    };
    let many = large(60, 0);
    let reports = [
        &course(6000, 2000, 4),
        &evil,
        &nothing,
        &without_trace,
        &many,
    ];
    let pages: Vec<String> = reports.iter().map(|report| page(report)).collect();
    let (found, content) = look(&pages);
    for found in &found {
        assert_eq!(found["wrong"], serde_json::json!([]), "{found:#}");
    }
    assert!(content);
    let devices = |at: usize| found[at]["devices"].as_object().unwrap().len();
    assert_eq!((devices(0), devices(1), devices(2)), (2, 2, 0));
}

/// Bad pages are refused, each for its own reason.
#[test]
fn what_is_wrong_is_seen() {
    let good = page(&course(3000, 0, 7));
    let change = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let policy = "<meta http-equiv=\"Content-Security-Policy\"";
    let pages = [
        // The page's policy forbids this request.
        change("<main>", "<main><img src=\"https://x.invalid/a.png\">"),
        // Without the policy, nothing forbids the request.
        change(policy, "<meta name=\"x\"").replacen(
            "<main>",
            "<main><img src=\"https://x.invalid/a.png\">",
            1,
        ),
        change("header();\n", "header();\nnowhere();\n"),
        change("header();\n", "header();\nconsole.error(\"oh\");\n"),
        change(
            "function drawSegments(canvas, device, picked) {",
            "function drawSegments(canvas, device, picked) { return { ids: [], places: [] };",
        ),
        change(
            "  for (const [size, stream, asked, count, sum, share, age] of rows) {",
            "  for (const [size, stream, asked, count, sum, share, age] of []) {",
        ),
        change(
            "    context.putImageData(marked, 0, 0);\n    axes(view, top, range, data, colours);",
            "",
        ),
    ];
    let reasons = [
        "Content Security Policy",
        "it asked for https://x.invalid/a.png",
        "nowhere is not defined",
        "console.error: oh",
        "nothing in segments",
        "the table is empty",
        "nothing in blocks",
    ];
    let (found, content) = look(&pages);
    assert!(!content);
    for (found, reason) in found.iter().zip(reasons) {
        let wrong = found["wrong"].to_string();
        assert!(wrong.contains(reason), "{reason}: {found:#}");
    }
}
