//! A reader of its own decodes the profile, and finds in it what the report says.
#![allow(clippy::unwrap_used)]

mod common;

use common::stacks::*;
use flate2::read::GzDecoder;
use memscope_export::stacks::label::{clean, why_missing};
use memscope_export::stacks::{Metric, Unit, View, pprof};
use memscope_ledger::report::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

/// Fields of a message by their numbers in the format: numbers, and bytes.
#[derive(Default)]
struct Fields<'a> {
    numbers: HashMap<u64, Vec<u64>>,
    bytes: HashMap<u64, Vec<&'a [u8]>>,
}

impl<'a> Fields<'a> {
    fn read(mut data: &'a [u8]) -> Fields<'a> {
        let mut fields = Fields::default();
        while !data.is_empty() {
            let tag = varint(&mut data);
            match tag & 7 {
                0 => fields
                    .numbers
                    .entry(tag >> 3)
                    .or_default()
                    .push(varint(&mut data)),
                2 => {
                    let length = usize::try_from(varint(&mut data)).unwrap();
                    let (content, rest) = data.split_at(length);
                    fields.bytes.entry(tag >> 3).or_default().push(content);
                    data = rest;
                }
                other => panic!("wire type {other}"),
            }
        }
        fields
    }

    fn number(&self, field: u64) -> u64 {
        match self.numbers.get(&field).map(Vec::as_slice) {
            None => 0,
            Some([one]) => *one,
            Some(several) => panic!("{several:?}"),
        }
    }

    /// A list of numbers, packed or not.
    fn all(&self, field: u64) -> Vec<u64> {
        let mut all = self.numbers.get(&field).cloned().unwrap_or_default();
        for mut packed in self.bytes.get(&field).into_iter().flatten().copied() {
            while !packed.is_empty() {
                all.push(varint(&mut packed));
            }
        }
        all
    }

    fn messages(&self, field: u64) -> Vec<Fields<'a>> {
        let bytes = self.bytes.get(&field).into_iter().flatten();
        bytes.map(|bytes| Fields::read(bytes)).collect()
    }
}

fn varint(data: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = data.split_first().unwrap();
        *data = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if *byte < 0x80 {
            return value;
        }
    }
}

#[derive(Debug, PartialEq)]
struct Sample {
    /// Name, file, line; innermost first.
    frames: Vec<(String, String, u64)>,
    values: BTreeMap<String, i64>,
    labels: BTreeMap<String, String>,
}

struct Profile {
    samples: Vec<Sample>,
    types: Vec<(String, String)>,
    default: String,
    comments: Vec<String>,
    mappings: Vec<String>,
    time_ns: u64,
}

fn read(zipped: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(zipped).read_to_end(&mut bytes).unwrap();
    let profile = Fields::read(&bytes);
    let strings: Vec<String> = profile.bytes[&6]
        .iter()
        .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
        .collect();
    assert_eq!(strings[0], "");
    let string = |index: u64| strings[usize::try_from(index).unwrap()].clone();
    let by_id = |field: u64| -> HashMap<u64, Fields<'_>> {
        let messages = profile.messages(field);
        let count = messages.len();
        let map: HashMap<_, _> = messages.into_iter().map(|m| (m.number(1), m)).collect();
        assert_eq!(map.len(), count);
        assert!(!map.contains_key(&0));
        map
    };
    let (mappings, locations, functions) = (by_id(3), by_id(4), by_id(5));
    let types: Vec<_> = profile
        .messages(1)
        .iter()
        .map(|kind| (string(kind.number(1)), string(kind.number(2))))
        .collect();
    let messages = profile.messages(2);
    let samples = messages.iter().map(|sample| {
        let frames = sample.all(1).into_iter().map(|id| {
            let location = &locations[&id];
            assert!(mappings.contains_key(&location.number(2)));
            let lines = location.messages(4);
            assert_eq!(lines.len(), 1);
            let function = &functions[&lines[0].number(1)];
            assert_eq!(function.number(3), 0, "pprof would cut `<module>` off");
            let (name, file) = (string(function.number(2)), string(function.number(4)));
            (name, file, lines[0].number(2))
        });
        let values = sample.all(2);
        assert_eq!(values.len(), types.len());
        let named = types.iter().zip(&values);
        let labels = sample.messages(3);
        Sample {
            frames: frames.collect(),
            values: named
                .map(|((name, _), value)| (name.clone(), value.cast_signed()))
                .collect(),
            labels: labels
                .iter()
                .map(|l| (string(l.number(1)), string(l.number(2))))
                .collect(),
        }
    });
    let mut in_order: Vec<_> = mappings.iter().collect();
    in_order.sort_by_key(|(id, _)| **id);
    Profile {
        samples: samples.collect(),
        default: string(profile.number(14)),
        comments: profile.all(13).into_iter().map(string).collect(),
        mappings: in_order
            .iter()
            .map(|(_, mapping)| string(mapping.number(5)))
            .collect(),
        time_ns: profile.number(9),
        types,
    }
}

fn written(report: &StackReport, view: View) -> Profile {
    let mut bytes = Vec::new();
    pprof(report, view, &mut bytes).unwrap();
    let mut again = Vec::new();
    pprof(report, view, &mut again).unwrap();
    assert_eq!(bytes, again);
    read(&bytes)
}

fn expected(row: &StackRow, compared: bool) -> Sample {
    let stack = &row.stack;
    let mut frames: Vec<_> = stack
        .frames
        .iter()
        .map(|frame| {
            let name = match &*frame.name {
                "" => "[unknown]".to_owned(),
                name => clean(name),
            };
            (name, clean(&frame.file), u64::from(frame.line))
        })
        .collect();
    let mut labels = BTreeMap::new();
    let device = row.device.map_or("unknown".to_owned(), |d| d.to_string());
    labels.insert("device".to_owned(), format!("device {device}"));
    if frames.is_empty() {
        frames.push((why_missing(stack), String::new(), 0));
        labels.insert(
            "stack".to_owned(),
            stack.missing.unwrap_or("missing").to_owned(),
        );
    } else if stack.truncated {
        frames.push(("[truncated]".to_owned(), String::new(), 0));
        labels.insert("stack".to_owned(), "truncated".to_owned());
    }
    let mut values = BTreeMap::new();
    let mut put = |name: &str, count: i64, bytes: i64| {
        values.insert(format!("{name}_objects"), count);
        values.insert(format!("{name}_space"), bytes);
    };
    let of = |tally: Tally| (tally.count.cast_signed(), tally.bytes.cast_signed());
    for (name, tally) in [
        ("live", row.live),
        ("peak", row.peak),
        ("alloc", row.allocated),
    ] {
        put(name, of(tally).0, of(tally).1);
    }
    if compared {
        let (before, live) = (of(row.before.unwrap()), of(row.live));
        put("growth", live.0 - before.0, live.1 - before.1);
    }
    Sample {
        frames,
        values,
        labels,
    }
}

proptest! {
    #[test]
    fn the_profile_says_what_the_report_says(
        (report, compared) in any::<bool>().prop_flat_map(|compared| (reports(compared), Just(compared)))
    ) {
        let profile = written(&report, View::default());
        let rows = report.rows.iter().map(|row| expected(row, compared));
        let rows: Vec<_> = rows.filter(|row| row.values.values().any(|v| *v != 0)).collect();
        prop_assert_eq!(profile.samples, rows);
    }
}

#[test]
fn columns_as_go_has_them_and_the_one_asked_for_first() {
    let report = report(vec![row(Some(3), vec![python("f", "a.py", 1)], 2, 10)]);
    let view = View {
        metric: Metric::Peak,
        unit: Unit::Count,
    };
    let profile = written(&report, view);
    let names: Vec<_> = profile
        .types
        .iter()
        .map(|(name, unit)| format!("{name}/{unit}"))
        .collect();
    assert_eq!(
        names,
        [
            "live_objects/count",
            "live_space/bytes",
            "peak_space/bytes",
            "alloc_objects/count",
            "alloc_space/bytes",
            // The column that is shown first is also the last one, for readers that show the last one.
            "peak_objects/count",
        ]
    );
    assert_eq!(profile.default, "peak_objects");
    assert_eq!(profile.comments, ["attached_late: Attached\\u{a}late."]);
    assert_eq!(profile.mappings, ["python \"quoted\" ünï"]);
    assert_eq!(profile.time_ns, NOW_UNIX_NS);
}

#[test]
fn many_stacks_are_written_as_they_are_walked() {
    let deep = |n: u32| {
        let frames =
            (0..100).map(|depth| native(&format!("f{depth}"), &format!("/lib/{}.so", n % 7), 0));
        row(Some(0), frames.collect(), 1, u64::from(n) + 1)
    };
    let report = report((0..1000).map(deep).collect());
    let profile = written(&report, View::default());
    assert_eq!(profile.samples.len(), 1000);
    assert_eq!(profile.mappings.len(), 8);
    let sum: i64 = profile
        .samples
        .iter()
        .map(|sample| sample.values["live_space"])
        .sum();
    assert_eq!(sum, 1000 * 1001 / 2);
}
