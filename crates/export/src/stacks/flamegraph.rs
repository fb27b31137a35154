//! Flame graphs, drawn by `inferno`.

use super::folded::{Paths, Shown};
use super::label::Owner;
use super::marked::{Frames, Through, unmarked};
use super::{Metric, Tallies, Unit, View, process_name};
use crate::ExportError;
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};
use memscope_ledger::report::{StackReport, StackRow};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;

/// Most stacks that are drawn one by one.
const MOST_PATHS: usize = 20_000;

/// Draws a flame graph as SVG, with the script that zooms and searches in it. If growth is shown, stacks that shrank
/// are left out, and the subtitle says how much that is. The 20,000 largest stacks are drawn; the others become one
/// frame, which says how many they are.
pub fn flamegraph(
    report: &StackReport,
    view: View,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let paths = Paths::of(report, view)?;
    let (of, unit) = (process_name(report), view.unit.word());
    let title = match view.metric {
        Metric::Growth => format!("Growth of {of}{}, in {unit}", since(report)),
        metric => format!("{} {unit} of {of}", capital(metric.word())),
    };
    let (frames, lines) = lines(&paths, |shown| shown.value);
    let shrunk: i128 = paths.shown.values().map(|shown| shown.value.min(0)).sum();
    let mut remarks = remarks(report, view);
    if shrunk < 0 {
        remarks.push(format!(
            "not drawn: {} that went",
            amount(-shrunk, view.unit)
        ));
    }
    remarks.push("orange: the program, yellow: libraries, blue: native".to_owned());
    total(&paths, |shown| shown.value.max(0))?;
    let picture = Picture {
        options: options(title, &remarks, view.unit),
        palette: palette(&paths, &frames),
        frames,
        lines,
    };
    let says = |through: Through| (amount(through.value, view.unit), String::new());
    picture.draw(says, out)
}

/// Draws what lives now, coloured by what changed since the earlier moment: red grew, blue shrank. A
/// frame's colour is the change of all that was allocated through it. Stacks of which nothing is left have no width,
/// and the subtitle says how much they had.
pub fn flamegraph_diff(
    report: &StackReport,
    unit: Unit,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    if report.from.is_none() {
        return Err(ExportError::NoEarlier);
    }
    let view = View {
        metric: Metric::Live,
        unit,
    };
    let paths = Paths::of(report, view)?;
    // A stack of which nothing is left has no width, but its callers lost what it had.
    let (frames, lines) = lines(&paths, |shown| shown.value.max(shown.before));
    let gone: i128 = paths
        .shown
        .values()
        .filter(|shown| shown.value == 0)
        .map(|shown| shown.before)
        .sum();
    let mut remarks = remarks(report, view);
    if gone > 0 {
        remarks.push(format!("gone altogether: {}", amount(gone, unit)));
    }
    remarks.push("red grew, blue shrank".to_owned());
    let title = format!(
        "Live {} of {}, and what changed{}",
        unit.word(),
        process_name(report),
        since(report)
    );
    total(&paths, |shown| shown.value)?;
    let picture = Picture {
        options: options(title, &remarks, unit),
        palette: changes(&frames),
        frames,
        lines,
    };
    let says = |through: Through| {
        let change = through.value - through.before;
        let sign = match change {
            0 => return (amount(through.value, unit), "; unchanged".to_owned()),
            1.. => "+",
            _ => "-",
        };
        let change = amount(change.abs(), unit);
        (amount(through.value, unit), format!("; {sign}{change}"))
    };
    picture.draw(says, out)
}

/// Makes the frames, and the lines for `inferno` in the order in which they are to be drawn. All stacks beyond the [`MOST_PATHS`] that
/// weigh most become one line: each would be too narrow to be seen, and so many would cost much memory.
fn lines(paths: &Paths, weight: impl Fn(&Shown) -> i128) -> (Frames, Vec<String>) {
    let drawn = paths.shown.iter().enumerate();
    let mut drawn: Vec<(usize, &Vec<u32>, &Shown)> = drawn
        .filter(|(_, (_, shown))| weight(shown) > 0)
        .map(|(index, (path, shown))| (index, path, shown))
        .collect();
    let mut rest = Through::default();
    let mut left_out = 0;
    if drawn.len() > MOST_PATHS {
        // What has no width takes the place of nothing that has.
        drawn.sort_by_key(|(_, _, shown)| Reverse((shown.value > 0, weight(shown))));
        for (_, _, shown) in drawn.drain(MOST_PATHS..) {
            rest.value += shown.value;
            rest.before += shown.before;
            left_out += u64::from(shown.value > 0);
        }
        drawn.sort_by_key(|(index, _, _)| *index);
    }
    let mut frames = Frames::default();
    let mut lines: Vec<String> = drawn
        .into_iter()
        .filter_map(|(_, path, shown)| {
            let through = Through {
                value: shown.value,
                before: shown.before,
            };
            let line = frames.add(paths.labels(path), through);
            (shown.value > 0).then_some(line)
        })
        .collect();
    if rest != Through::default() {
        let label = format!("[{left_out} smaller stacks]");
        let line = frames.add(std::iter::once(label.as_str()), rest);
        lines.extend((left_out > 0).then_some(line));
    }
    (frames, lines)
}

fn total(paths: &Paths, of: impl Fn(&Shown) -> i128) -> Result<i128, ExportError> {
    let total = paths.shown.values().map(of).sum();
    // inferno adds up in 64 bits and subtracts such sums, so they must fit into a signed number.
    if total > i128::from(i64::MAX) {
        return Err(ExportError::TooMuch);
    }
    Ok(total)
}

/// A picture that is to be drawn.
struct Picture<'a> {
    options: Options<'a>,
    /// A colour for each marked label (see `marked`).
    palette: PaletteMap,
    frames: Frames,
    lines: Vec<String>,
}

impl Picture<'_> {
    fn draw(
        mut self,
        says: impl Fn(Through) -> (String, String),
        out: &mut dyn Write,
    ) -> Result<(), ExportError> {
        if self.frames.all.value == 0 {
            return nothing(&self.options, out);
        }
        // As a flame chart, inferno takes the lines in the order in which they come, the last one first. Its other
        // modes require lines that are sorted as texts.
        self.options.flame_chart = true;
        let mut options = self.options;
        options.palette_map = Some(&mut self.palette);
        let mut marked = Vec::new();
        from_lines(
            &mut options,
            self.lines.iter().rev().map(String::as_str),
            &mut marked,
        )?;
        let marked = String::from_utf8_lossy(&marked);
        Ok(self.frames.unmarked(&marked, says, out)?)
    }
}

/// A picture that says that there is nothing to draw.
fn nothing(options: &Options<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let text = |y: u32, text: &str| {
        let text = escape(text);
        format!(
            "<text x=\"600\" y=\"{y}\" text-anchor=\"middle\" font-family=\"monospace\" font-size=\"14\">{text}</text>\n"
        )
    };
    writeln!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n<svg version=\"1.1\" width=\"1200\" height=\"100\" \
         viewBox=\"0 0 1200 100\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f8f8f8\"/>\n{}{}{}</svg>",
        text(30, &options.title),
        text(55, options.subtitle.as_deref().unwrap_or_default()),
        text(80, "Nothing to draw: no stack has any."),
    )?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn options<'a>(title: String, remarks: &[String], unit: Unit) -> Options<'a> {
    let mut options = Options::default();
    options.title = title;
    options.subtitle = Some(remarks.join("; "));
    options.count_name = unit.word().to_owned();
    options.name_type = "Frame:".to_owned();
    options.bgcolors = Some(BackgroundColor::Grey);
    // If a label is too long for its frame, its beginning is shown, because it says more than the end.
    options.text_truncate_direction = TextTruncateDirection::Right;
    options
}

/// What the subtitle says: the time, the total, and the shares of stacks that are cut off or have no frames.
fn remarks(report: &StackReport, view: View) -> Vec<String> {
    let sum = |keep: &dyn Fn(&StackRow) -> bool| -> i128 {
        let rows = report.rows.iter().filter(|row| keep(row));
        rows.map(|row| view.of(&Tallies::of(row)).max(0)).sum()
    };
    let whole = sum(&|_| true);
    let mut remarks = vec![format!(
        "{}, {}",
        memscope_units::moment(report.as_of.unix_ns),
        amount(whole, view.unit)
    )];
    for (what, some) in [
        ("cut off", sum(&|row| row.stack.truncated)),
        ("without frames", sum(&|row| row.stack.frames.is_empty())),
    ] {
        if some > 0 {
            remarks.push(format!(
                "{:.1} % {what}",
                some as f64 / whole as f64 * 100.0
            ));
        }
    }
    remarks
}

fn since(report: &StackReport) -> String {
    let from = report.from.map_or(0, |from| from.unix_ns);
    let seconds = report.as_of.unix_ns.saturating_sub(from) as f64 / 1e9;
    format!(" in {seconds:.1} s")
}

/// For example `1.50 GiB`, or `12 blocks`.
fn amount(value: i128, unit: Unit) -> String {
    if unit == Unit::Count {
        return format!("{value} blocks");
    }
    memscope_units::bytes(u64::try_from(value).unwrap_or(u64::MAX))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// A colour for each frame: the hue says whose code it is, the shade tells neighbours apart and is
/// the same in every picture.
fn palette(paths: &Paths, frames: &Frames) -> PaletteMap {
    let owners: HashMap<&str, Owner> = paths
        .labels
        .iter()
        .map(|(text, owner)| (text.as_str(), *owner))
        .collect();
    let mut palette = PaletteMap::default();
    for (marked, _) in frames.iter() {
        let text = unmarked(marked);
        let owner = owners.get(text).copied().unwrap_or(Owner::Remark);
        palette.insert(marked, color(text, owner));
    }
    palette.insert("", REMARK);
    palette
}

/// A colour for each frame by the change of what was allocated through it: red grew, blue shrank. The larger the
/// change, the stronger the colour.
fn changes(frames: &Frames) -> PaletteMap {
    let change = |through: Through| through.value - through.before;
    let most = frames
        .iter()
        .filter(|(_, through)| through.value > 0)
        .map(|(_, through)| change(through).abs())
        .max()
        .unwrap_or_default();
    let color = |through: Through| {
        let change = change(through);
        // A small change gives a pale colour, the largest one a strong colour.
        let share = change.abs().min(most) as f64 / most.max(1) as f64;
        let faint = (210.0 - 110.0 * share) as u8;
        match change {
            0 => UNCHANGED,
            1.. => Color {
                r: 255,
                g: faint,
                b: faint,
            },
            _ => Color {
                r: faint,
                g: faint,
                b: 255,
            },
        }
    };
    let mut palette = PaletteMap::default();
    for (marked, through) in frames.iter() {
        palette.insert(marked, color(through));
    }
    palette.insert("", color(frames.all));
    palette
}

const UNCHANGED: Color = Color {
    r: 250,
    g: 250,
    b: 250,
};

const REMARK: Color = Color {
    r: 200,
    g: 200,
    b: 200,
};

fn color(text: &str, owner: Owner) -> Color {
    // FNV-1a. Any hash would do that is the same in every run.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let shade = ((hash >> 32) % 40) as u8;
    match owner {
        Owner::Program => Color {
            r: 255 - shade / 2,
            g: 120 + shade,
            b: 50,
        },
        Owner::Library => Color {
            r: 250 - shade / 2,
            g: 215 - shade / 2,
            b: 100 + shade,
        },
        Owner::Native => Color {
            r: 120 + shade,
            g: 170 + shade / 2,
            b: 240 - shade / 2,
        },
        Owner::Remark => REMARK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        assert_eq!(amount(0, Unit::Bytes), "0 B");
        assert_eq!(amount(3 << 29, Unit::Bytes), "1.50 GiB");
        assert_eq!(amount(1 << 50, Unit::Bytes), "1.00 PiB");
        assert_eq!(amount(12, Unit::Count), "12 blocks");
    }

    #[test]
    fn titles_begin_with_a_capital() {
        assert_eq!(capital("live"), "Live");
    }
}
