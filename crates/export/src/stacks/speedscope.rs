//! speedscope's own format: <https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>.

use super::label::{TRUNCATED, clean, name, why_missing};
use super::{Metric, Tallies, Unit, View, device_name, process_name};
use crate::ExportError;
use memscope_ledger::report::{Frame, FrameKind, StackReport, StackRow};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;

/// Address of the format's JSON schema.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: Shared,
    profiles: Vec<Profile<'a>>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Called>,
}

/// A frame as the viewer identifies it.
#[derive(Serialize)]
struct Called {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl Called {
    fn remark(name: String) -> Called {
        Called {
            name,
            file: None,
            line: None,
        }
    }

    fn of(frame: &Frame) -> Called {
        let native = match frame.kind {
            FrameKind::Native => " [native]",
            FrameKind::Python => "",
        };
        Called {
            name: format!("{}{native}", name(frame)),
            file: (!frame.file.is_empty()).then(|| clean(&frame.file)),
            line: (frame.line > 0).then_some(frame.line),
        }
    }
}

#[derive(Serialize)]
struct Profile<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Vec<&'a [u32]>,
    weights: Vec<u64>,
}

/// What a profile shows.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    Metric(Metric),
    /// The negative part of growth, which needs a profile of its own because widths have no sign.
    Shrunk,
}

impl Shows {
    fn word(self) -> &'static str {
        match self {
            Shows::Metric(metric) => metric.word(),
            Shows::Shrunk => "shrunk",
        }
    }

    fn of(self, row: &StackRow, unit: Unit) -> i128 {
        let tallies = Tallies::of(row);
        let value = |metric| View { metric, unit }.of(&tallies);
        match self {
            Shows::Metric(metric) => value(metric),
            Shows::Shrunk => -value(Metric::Growth),
        }
    }
}

/// Writes a file for <https://www.speedscope.app>, with a profile for each device and metric in `view.unit`. The
/// profile that is shown first is `view.metric` of the first device that has any. If the report has an earlier moment,
/// growth is a metric too, and what shrank is a profile of its own.
pub fn speedscope(
    report: &StackReport,
    view: View,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    view.check(report)?;
    let mut shows = vec![
        Shows::Metric(Metric::Live),
        Shows::Metric(Metric::Peak),
        Shows::Metric(Metric::Allocated),
    ];
    if report.from.is_some() {
        shows.extend([Shows::Metric(Metric::Growth), Shows::Shrunk]);
    }
    let mut frames = Frames::default();
    let samples: Vec<Vec<u32>> = report.rows.iter().map(|row| frames.of(row)).collect();
    let devices: BTreeSet<Option<i32>> = report.rows.iter().map(|row| row.device).collect();
    let (mut profiles, mut active) = (Vec::new(), None);
    for device in devices {
        for what in &shows {
            let mut profile = Profile {
                kind: "sampled",
                name: format!("{}: {}", device_name(device), what.word()),
                unit: match view.unit {
                    Unit::Bytes => "bytes",
                    Unit::Count => "none",
                },
                start: 0,
                end: 0,
                samples: Vec::new(),
                weights: Vec::new(),
            };
            for (row, sample) in report.rows.iter().zip(&samples) {
                let value = what.of(row, view.unit);
                if row.device == device && value > 0 {
                    let weight = u64::try_from(value).map_err(|_| ExportError::TooMuch)?;
                    let end = profile.end.checked_add(weight);
                    profile.end = end.ok_or(ExportError::TooMuch)?;
                    profile.samples.push(sample);
                    profile.weights.push(weight);
                }
            }
            if *what == Shows::Metric(view.metric) && profile.end > 0 && active.is_none() {
                active = Some(profiles.len());
            }
            profiles.push(profile);
        }
    }
    let file = File {
        schema: SCHEMA,
        exporter: concat!("memscope@", env!("CARGO_PKG_VERSION")).to_owned(),
        name: process_name(report),
        active: active.unwrap_or(0),
        shared: Shared {
            frames: frames.frames,
        },
        profiles,
    };
    serde_json::to_writer(&mut *out, &file).map_err(std::io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// All frames of the file, each once.
#[derive(Default)]
struct Frames<'a> {
    frames: Vec<Called>,
    places: HashMap<Part<'a>, u32>,
}

#[derive(PartialEq, Eq, Hash)]
enum Part<'a> {
    Frame(&'a Frame),
    Remark(String),
}

impl<'a> Frames<'a> {
    /// A row's stack as indices of frames, from the outermost inwards.
    fn of(&mut self, row: &'a StackRow) -> Vec<u32> {
        let stack = &row.stack;
        let mut sample = Vec::with_capacity(stack.frames.len() + 1);
        if stack.truncated {
            sample.push(self.place(Part::Remark(TRUNCATED.to_owned())));
        }
        if stack.frames.is_empty() {
            sample.push(self.place(Part::Remark(why_missing(stack))));
        }
        for frame in stack.frames.iter().rev() {
            sample.push(self.place(Part::Frame(frame)));
        }
        sample
    }

    fn place(&mut self, part: Part<'a>) -> u32 {
        if let Some(place) = self.places.get(&part) {
            return *place;
        }
        let place = self.places.len() as u32;
        self.frames.push(match &part {
            Part::Frame(frame) => Called::of(frame),
            Part::Remark(text) => Called::remark(text.clone()),
        });
        self.places.insert(part, place);
        place
    }
}
