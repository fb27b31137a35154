//! The picture is XML and shows each frame as wide as the sum of the stacks through it.
#![allow(clippy::unwrap_used)]

mod common;

use common::stacks::*;
use memscope_export::stacks::{Metric, Unit, View, flamegraph, flamegraph_diff, folded};
use memscope_ledger::report::*;
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeMap;

const SVG: &str = "http://www.w3.org/2000/svg";

/// A drawn frame: depth from the bottom, left end and width in bytes, label, colour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Drawn {
    from: u64,
    depth: u64,
    width: u64,
    label: String,
    color: String,
}

fn parse(svg: &[u8], look: impl FnOnce(&Document<'_>)) {
    let text = std::str::from_utf8(svg).unwrap();
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)
        .unwrap_or_else(|error| panic!("{error}:\n{text}"));
    look(&document);
}

fn drawn(svg: &[u8]) -> Vec<Drawn> {
    let mut found = Vec::new();
    parse(svg, |document| {
        let frames = document
            .descendants()
            .find(|n| n.attribute("id") == Some("frames"));
        let groups = frames
            .unwrap()
            .children()
            .filter(|n| n.has_tag_name((SVG, "g")));
        for group in groups {
            let child = |name| {
                group
                    .children()
                    .find(|n: &Node<'_, '_>| n.has_tag_name((SVG, name)))
            };
            let rect = child("rect").unwrap();
            let fg = |name| {
                let attribute = rect.attribute(("http://github.com/jonhoo/inferno", name));
                attribute.unwrap().parse::<u64>().unwrap()
            };
            let title = child("title").unwrap().text().unwrap();
            let (label, numbers) = title.rsplit_once(" (").unwrap();
            let mut words = numbers.split([' ', ',']);
            let said: f64 = words.next().unwrap().parse().unwrap();
            let unit = ["B", "KiB", "MiB", "GiB", "TiB"];
            let power = unit
                .iter()
                .position(|unit| Some(*unit) == words.clone().next());
            let said = said * 1024_f64.powi(power.unwrap() as i32);
            // Amounts are written with two decimals.
            let most = said * 0.006 + 0.01;
            assert!((said - fg("w") as f64).abs() <= most, "{title}");
            let text = child("text").unwrap().text().unwrap_or_default();
            assert!(!text.contains(['\u{e000}', '\u{e001}']), "{text}");
            found.push(Drawn {
                from: fg("x"),
                depth: rect.attribute("y").unwrap().parse().unwrap(),
                width: fg("w"),
                label: label.to_owned(),
                color: rect.attribute("fill").unwrap().to_owned(),
            });
        }
    });
    let bottom = found.iter().map(|frame| frame.depth).max().unwrap();
    for frame in &mut found {
        frame.depth = (bottom - frame.depth) / 16;
    }
    found.sort();
    found
}

fn text_of(svg: &[u8], id: &str) -> String {
    let mut text = String::new();
    parse(svg, |document| {
        let node = document
            .descendants()
            .find(|n| n.attribute("id") == Some(id));
        text = node.unwrap().text().unwrap().to_owned();
    });
    text
}

fn written(report: &StackReport, view: View) -> Vec<u8> {
    let mut svg = Vec::new();
    flamegraph(report, view, &mut svg).unwrap();
    svg
}

proptest! {
    #[test]
    fn every_frame_is_as_wide_as_the_stacks_through_it(report in reports(true), metric in 0..4_usize) {
        let metrics = [Metric::Live, Metric::Peak, Metric::Allocated, Metric::Growth];
        let view = View { metric: metrics[metric], unit: Unit::Bytes };
        let mut text = Vec::new();
        folded(&report, view, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        // Each beginning of a path, with the sum of the stacks that go through it.
        let mut prefixes: BTreeMap<Vec<&str>, u64> = BTreeMap::new();
        for line in text.lines() {
            let (stack, number) = line.rsplit_once(' ').unwrap();
            let frames: Vec<&str> = stack.split(';').collect();
            for depth in 0..=frames.len() {
                *prefixes.entry(frames[..depth].to_vec()).or_default() += number.parse::<u64>().unwrap();
            }
        }
        let svg = written(&report, view);
        let Some(whole) = prefixes.get(&Vec::new()).copied() else {
            prop_assert!(String::from_utf8(svg).unwrap().contains("Nothing to draw"));
            return Ok(());
        };
        let found = drawn(&svg);
        let mut expected: Vec<(u64, u64, String)> = prefixes
            .iter()
            .filter(|(_, width)| **width as f64 >= whole as f64 * 1.001e-4)
            .map(|(path, width)| {
                let label = path.last().map_or("all", |label| label);
                (path.len() as u64, *width, label.to_owned())
            })
            .collect();
        // At the threshold itself, rounding decides.
        let clear = |frame: &&Drawn| frame.width as f64 >= whole as f64 * 1.001e-4;
        let mut seen: Vec<_> = found
            .iter()
            .filter(clear)
            .map(|frame| (frame.depth, frame.width, frame.label.clone()))
            .collect();
        expected.sort();
        seen.sort();
        prop_assert_eq!(seen, expected);
    }
}

#[test]
fn labels_between_others_in_the_order_of_texts_do_not_tear_a_frame_apart() {
    // As texts, `a (x) [native]` stands between `a (x)` and `a (x);y (x)`.
    let outer = || python("a", "x", 0);
    let report = report(vec![
        row(Some(0), vec![outer()], 1, 10),
        row(Some(0), vec![python("z", "x", 0), outer()], 1, 20),
        row(Some(0), vec![native("a", "x", 0)], 1, 30),
        row(Some(0), vec![python("y", "x", 0), outer()], 1, 40),
    ]);
    let found = drawn(&written(&report, View::default()));
    let bottom: Vec<_> = found.iter().filter(|frame| frame.depth == 1).collect();
    assert_eq!(bottom.len(), 2, "{bottom:?}");
    assert!(
        bottom
            .iter()
            .any(|frame| frame.label == "a (x)" && frame.width == 70)
    );
}

#[test]
fn colours_say_whose_code_it_is() {
    let mut missing = row(Some(0), vec![], 1, 10);
    std::sync::Arc::make_mut(&mut missing.stack).missing = Some("lost");
    let report = report(vec![
        row(
            Some(0),
            vec![
                native("malloc", "/lib/libc.so.6", 0),
                python("call", "/v/site-packages/torch/nn.py", 3),
                python("main", "/home/ada/train.py", 9),
            ],
            1,
            90,
        ),
        missing,
    ]);
    let svg = written(&report, View::default());
    let color = |label: &str| {
        let found = drawn(&svg);
        let frame = found.iter().find(|frame| frame.label == label).unwrap();
        let numbers = frame.color.trim_start_matches("rgb(").trim_end_matches(')');
        let numbers: Vec<u8> = numbers.split(',').map(|n| n.parse().unwrap()).collect();
        (numbers[0], numbers[1], numbers[2])
    };
    let native = color("malloc (/lib/libc.so.6) [native]");
    let library = color("call (torch/nn.py:3)");
    let program = color("main (/home/ada/train.py:9)");
    assert!(native.2 > native.0, "{native:?}");
    assert!(library.1 > 190 && library.0 > library.2, "{library:?}");
    assert!(program.1 < 170 && program.0 > 230, "{program:?}");
    assert_eq!(color("[stack lost]"), (200, 200, 200));
    let subtitle = text_of(&svg, "subtitle");
    assert!(
        subtitle.starts_with("2025-06-15 15:06:40 UTC, 100 B; 10.0 % without frames"),
        "{subtitle}"
    );
    assert_eq!(
        text_of(&svg, "title"),
        "Live bytes of python \"quoted\" ünï (pid 4242)"
    );
}

#[test]
fn differences_are_red_and_blue_and_what_is_gone_is_told() {
    let changed = |name: &str, before: u64, now: u64| StackRow {
        before: Some(tally(1, before)),
        ..row(Some(0), vec![python(name, "a.py", 1)], 1, now)
    };
    let mut report = report(vec![
        changed("grew", 100, 200),
        changed("shrank", 200, 100),
        changed("same", 50, 50),
        changed("gone", 1 << 20, 0),
    ]);
    report.from = Some(as_of(NOW_UNIX_NS - 90_000_000_000));
    let mut svg = Vec::new();
    flamegraph_diff(&report, Unit::Bytes, &mut svg).unwrap();
    let found = drawn(&svg);
    let colors: BTreeMap<_, _> = found
        .iter()
        .map(|frame| (frame.label.as_str(), frame.color.as_str()))
        .collect();
    assert_eq!(colors["grew (a.py:1)"], "rgb(255,100,100)");
    assert_eq!(colors["shrank (a.py:1)"], "rgb(100,100,255)");
    assert_eq!(colors["same (a.py:1)"], "rgb(250,250,250)");
    assert!(!colors.contains_key("gone (a.py:1)"));
    let subtitle = text_of(&svg, "subtitle");
    assert!(subtitle.contains("gone altogether: 1.00 MiB"), "{subtitle}");
    let title = text_of(&svg, "title");
    assert!(title.ends_with(", and what changed in 90.0 s"), "{title}");

    let growth = View {
        metric: Metric::Growth,
        unit: Unit::Bytes,
    };
    let svg = written(&report, growth);
    let labels: Vec<_> = drawn(&svg).into_iter().map(|frame| frame.label).collect();
    assert_eq!(labels, ["all", "grew (a.py:1)"]);
    let subtitle = text_of(&svg, "subtitle");
    assert!(
        subtitle.contains("not drawn: 1.00 MiB that went"),
        "{subtitle}"
    );
}

#[test]
fn an_outer_frame_has_the_colour_of_all_that_goes_through_it() {
    let changed = |name: &str, outer: &str, before: u64, now: u64| StackRow {
        before: Some(tally(1, before)),
        ..row(
            Some(0),
            vec![python(name, "a.py", 1), python(outer, "b.py", 2)],
            1,
            now,
        )
    };
    let mut report = report(vec![
        changed("x", "up", 1 << 20, 3 << 20),
        changed("y", "up", 2 << 20, 1 << 20),
        changed("x", "down", 3 << 20, 1 << 20),
        changed("y", "level", 1 << 20, 1 << 20),
        // Of this one nothing is left, which its caller has lost.
        changed("z", "level", 5 << 20, 0),
    ]);
    report.from = Some(as_of(NOW_UNIX_NS - 1_000_000_000));
    let mut svg = Vec::new();
    flamegraph_diff(&report, Unit::Bytes, &mut svg).unwrap();
    let found = drawn(&svg);
    let color = |label: &str, width_mib: u64| {
        let mut same = found
            .iter()
            .filter(|frame| frame.label == label && frame.width == width_mib << 20);
        same.next().unwrap().color.clone()
    };
    assert_eq!(color("up (b.py:2)", 4), "rgb(255,188,188)");
    assert_eq!(color("down (b.py:2)", 1), "rgb(166,166,255)");
    assert_eq!(color("level (b.py:2)", 1), "rgb(100,100,255)");
    // The first of this label is below `level`, where it is unchanged.
    assert_eq!(color("y (a.py:1)", 1), "rgb(250,250,250)");
    // The same function under two callers.
    assert_eq!(color("x (a.py:1)", 3), "rgb(255,166,166)");
    assert_eq!(color("x (a.py:1)", 1), "rgb(166,166,255)");
    assert!(found.iter().all(|frame| frame.label != "z (a.py:1)"));
    let text = String::from_utf8(svg).unwrap();
    for title in [
        "up (b.py:2) (4.00 MiB, 66.67%; +1.00 MiB)",
        "down (b.py:2) (1.00 MiB, 16.67%; -2.00 MiB)",
        "level (b.py:2) (1.00 MiB, 16.67%; -5.00 MiB)",
        "all (6.00 MiB, 100%; -6.00 MiB)",
    ] {
        assert!(
            text.contains(&format!("<title>{title}</title>")),
            "{title}: {text}"
        );
    }
}

#[test]
fn beyond_the_largest_stacks_there_is_one_frame() {
    let rows = (1..=20_100).map(|n: u32| {
        let bytes = if n > 100 { 1 << 20 } else { 1 << 19 };
        row(Some(0), vec![python("f", "a.py", n)], 1, bytes)
    });
    let svg = written(&report(rows.collect()), View::default());
    let found = drawn(&svg);
    let rest = found
        .iter()
        .find(|frame| frame.label == "[100 smaller stacks]");
    assert_eq!(rest.unwrap().width, 100 << 19);
    assert_eq!(
        found.iter().map(|frame| frame.width).max(),
        Some((20_000 << 20) + (100 << 19))
    );
    Met {
        what: "stacks that a flame graph draws one by one",
        most: constant("crates/export/src/stacks/flamegraph.rs", "MOST_PATHS"),
        beyond: "the smallest are one frame",
        told: "its title, with their number",
        test: "beyond_the_largest_stacks_there_is_one_frame",
    }
    .is_told();
}
