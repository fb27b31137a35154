//! Folded text: one line for each stack, with its frames, the outermost first, and then its number.

use super::label::{Owner, TRUNCATED, clean_folded, label, owner, why_missing};
use super::{Metric, Tallies, Unit, View, device_name, several_devices};
use crate::ExportError;
use memscope_ledger::report::{Frame, StackReport, StackRow};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

/// The stacks of a report as the lines show them. Frames with equal labels count as one, because a reader cannot
/// distinguish them.
#[derive(Default)]
pub(super) struct Paths {
    /// Labels, ordered by text, and whose code they name.
    pub(super) labels: Vec<(String, Owner)>,
    /// What is shown of each path. A path is the indices of its labels, from the outermost inwards. The order is that
    /// of the paths and not that of the lines: in the order of texts, `a b` stands between `a` and `a;b`.
    pub(super) shown: BTreeMap<Vec<u32>, Shown>,
}

/// What is shown of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Value of the metric asked for.
    pub(super) value: i128,
    /// What was live at the earlier moment, in the same unit.
    pub(super) before: i128,
}

/// A frame or a remark of a row.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Part<'a> {
    Frame(&'a Frame),
    Device(Option<i32>),
    Truncated,
    Missing(String),
}

impl Part<'_> {
    fn label(&self) -> (String, Owner) {
        let (text, owner) = match self {
            Part::Frame(frame) => (label(frame), owner(frame)),
            Part::Device(device) => (format!("[{}]", device_name(*device)), Owner::Remark),
            Part::Truncated => (TRUNCATED.to_owned(), Owner::Remark),
            Part::Missing(why) => (why.clone(), Owner::Remark),
        };
        (clean_folded(&text), owner)
    }
}

/// The parts of a row from the outermost inwards.
fn parts(row: &StackRow, with_device: bool) -> impl Iterator<Item = Part<'_>> {
    let stack = &row.stack;
    let nothing = || Part::Missing(why_missing(stack));
    let device = with_device.then_some(Part::Device(row.device));
    let truncated = stack.truncated.then_some(Part::Truncated);
    let missing = stack.frames.is_empty().then(nothing);
    let frames = stack.frames.iter().rev().map(Part::Frame);
    device
        .into_iter()
        .chain(truncated)
        .chain(missing)
        .chain(frames)
}

impl Paths {
    /// All paths of a report.
    pub(super) fn of(report: &StackReport, view: View) -> Result<Paths, ExportError> {
        view.check(report)?;
        let with_device = several_devices(report);
        // Labels get their numbers first, in order of their texts. Each label is made only once, because stacks share
        // most of their frames.
        let mut owners: BTreeMap<String, Owner> = BTreeMap::new();
        let mut texts: HashMap<Part<'_>, String> = HashMap::new();
        for part in report.rows.iter().flat_map(|row| parts(row, with_device)) {
            if let Entry::Vacant(vacant) = texts.entry(part) {
                let (text, owner) = vacant.key().label();
                owners.insert(text.clone(), owner);
                vacant.insert(text);
            }
        }
        let ranks: HashMap<&str, u32> = owners.keys().map(String::as_str).zip(0..).collect();
        let places: HashMap<Part<'_>, u32> = texts
            .iter()
            .filter_map(|(part, text)| Some((part.clone(), *ranks.get(text.as_str())?)))
            .collect();
        let mut shown: BTreeMap<Vec<u32>, Shown> = BTreeMap::new();
        for row in &report.rows {
            let place = |part| places.get(&part).copied();
            let path = parts(row, with_device).filter_map(place).collect();
            let tallies = Tallies::of(row);
            let shown = shown.entry(path).or_default();
            shown.value += view.of(&tallies);
            shown.before += i128::from(view.unit.of(row.before.unwrap_or_default()));
        }
        Ok(Paths {
            labels: owners.into_iter().collect(),
            shown,
        })
    }

    /// A path's labels, from the outermost inwards.
    pub(super) fn labels(&self, path: &[u32]) -> impl Iterator<Item = &str> {
        let label = |place: &u32| self.labels.get(*place as usize);
        path.iter().filter_map(label).map(|(text, _)| text.as_str())
    }

    /// A path as folded text.
    pub(super) fn text(&self, path: &[u32]) -> String {
        self.labels(path).collect::<Vec<_>>().join(";")
    }
}

/// Writes a line for each stack: frames from the outermost inwards with `;` between them, a space,
/// and the number. If growth is shown, stacks that shrank are left out. `flamegraph.pl`, speedscope and others read it.
///
/// If the rows are of several devices, the outermost frame is `[device N]`.
pub fn folded(report: &StackReport, view: View, out: &mut dyn Write) -> Result<(), ExportError> {
    let paths = Paths::of(report, view)?;
    for (path, shown) in &paths.shown {
        if shown.value > 0 {
            writeln!(out, "{} {}", paths.text(path), shown.value)?;
        }
    }
    Ok(())
}

/// Writes a line for each stack with two numbers: live at the earlier moment, and live now. It is what
/// `difffolded.pl` writes and `flamegraph.pl` draws in red and blue.
pub fn folded_diff(
    report: &StackReport,
    unit: Unit,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    if report.from.is_none() {
        return Err(ExportError::NoEarlier);
    }
    let live = View {
        metric: Metric::Live,
        unit,
    };
    let paths = Paths::of(report, live)?;
    for (path, shown) in &paths.shown {
        if shown.value > 0 || shown.before > 0 {
            let text = paths.text(path);
            writeln!(out, "{text} {} {}", shown.before, shown.value)?;
        }
    }
    Ok(())
}
