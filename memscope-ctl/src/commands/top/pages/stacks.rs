//! The view of whose memory it is.

use super::line::Lines;
use super::{about, count, limits, size};
use crate::commands::top::page::{Cell, Opens, Page, Row, Tone, number, text};
use crate::render::device;
use crate::render::frames::{Frame, told, why_missing};
use crate::units::{bytes, grouped, maybe_bytes};
use memscope_proto::v1;

/// Largest number of stacks of a line that are shown.
const STACKS: usize = 50;

fn live(amounts: Option<&v1::StackAmounts>) -> v1::Amount {
    amounts.and_then(|amounts| amounts.live).unwrap_or_default()
}

/// What a line is known by in the next answer.
fn key(answer: &v1::StacksResponse, group: &v1::StackGroup) -> String {
    let frame = group
        .frame
        .and_then(|place| answer.frames.get(place as usize));
    let frame = frame.map(|frame| Frame::of(answer, frame));
    let named =
        frame.map(|frame| format!("{} {}", frame.name(), frame.location().unwrap_or_default()));
    let missing = group.missing.as_deref().unwrap_or_default();
    format!(
        "{} {} {missing}",
        device(group.device),
        named.unwrap_or_default()
    )
}

/// The lines, those that hold most first.
pub(in crate::commands::top) fn page(answer: &v1::StacksResponse, any: bool) -> Page {
    let mut page = Page {
        about: about(answer.process.as_ref(), answer.pid),
        as_of: Some(answer.as_of),
        columns: vec![
            number("LIVE", 0),
            number("SHARE", 1),
            number("BLOCKS", 2),
            text(
                if any {
                    "ANY LINE"
                } else {
                    "LINE OF THE PROGRAM"
                },
                0,
                28,
            ),
            number("AT THE PEAK", 4),
            number("SINCE ATTACH", 5),
            number("STACKS", 6),
            number("DEVICE", 3),
        ],
        nothing: "Nothing lives that was allocated since the attach.".to_owned(),
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    for one in &answer.devices {
        let amounts = one.amounts.as_ref();
        let stacks = grouped(one.stacks);
        let words = format!(
            "Device {}: live {} in {stacks} stacks.",
            device(one.device),
            bytes(live(amounts).bytes)
        );
        page.says.push(Cell::text(words));
    }
    let whole: u64 = answer
        .devices
        .iter()
        .map(|one| live(one.amounts.as_ref()).bytes)
        .sum();
    for group in &answer.groups {
        let own = group.own.as_ref();
        let held = live(own);
        // Lines that only call others hold nothing themselves.
        if held.count == 0 {
            continue;
        }
        let share = held.bytes as f64 / (whole as f64).max(1.0) * 100.0;
        let frame = group
            .frame
            .and_then(|place| answer.frames.get(place as usize));
        let frame = frame.map(|frame| Frame::of(answer, frame));
        let words = match &frame {
            Some(frame) => format!("{}  {}", frame.place(), frame.name()),
            None => why_missing(group.missing.as_deref()),
        };
        let part = |of: fn(&v1::StackAmounts) -> Option<v1::Amount>| {
            size(own.and_then(of).map(|amount| amount.bytes))
        };
        page.rows.push(Row {
            key: key(answer, group),
            cells: vec![
                size(Some(held.bytes)),
                Cell::number(format!("{share:.1} %"), Some(share)),
                count(held.count),
                Cell::text(words),
                part(|amounts| amounts.peak),
                part(|amounts| amounts.allocated),
                count(group.stacks),
                Cell::text(device(group.device)),
            ],
            location: frame.as_ref().and_then(Frame::location),
            pid: None,
            opens: frame.is_some().then_some(Opens::Stacks),
        });
    }
    if answer.omitted > 0 {
        let others = answer.others.and_then(|others| others.live);
        let words = format!(
            "{} more lines, {}, are left out.",
            grouped(answer.omitted),
            maybe_bytes(others.map(|amount| amount.bytes))
        );
        page.says.push(Cell::text(words).toned(Tone::Quiet));
    }
    page
}

/// The stacks that a line is in. `all`: frames of libraries as well.
pub(in crate::commands::top) fn of_line(
    lines: &v1::StacksResponse,
    of: &str,
    answer: &v1::StacksResponse,
    all: bool,
) -> Page {
    let name = about(answer.process.as_ref(), answer.pid);
    let group = lines.groups.iter().find(|group| key(lines, group) == of);
    let frame = group.and_then(|group| lines.frames.get(group.frame? as usize));
    let Some(frame) = frame.map(|frame| Frame::of(lines, frame)) else {
        return Page::only(name, "It is not there any more (Esc goes back).");
    };
    let mut shown = Lines::default();
    let mut stacks = 0;
    for row in &answer.rows {
        let frames = row.frames.iter();
        let frames = frames.filter_map(|place| answer.frames.get(*place as usize));
        let frames: Vec<Frame<'_>> = frames.map(|frame| Frame::of(answer, frame)).collect();
        let is_same =
            |one: &Frame<'_>| one.location() == frame.location() && one.name() == frame.name();
        if !frames.iter().any(is_same) {
            continue;
        }
        stacks += 1;
        if stacks > STACKS {
            continue;
        }
        let held = live(row.amounts.as_ref());
        let words = format!(
            "{} in {} blocks on device {}",
            bytes(held.bytes),
            grouped(held.count),
            device(row.device)
        );
        shown.title(&words);
        for line in told(&frames, all) {
            shown.add(&format!("  {}", line.text), line.location, Tone::Plain);
        }
        if row.truncated {
            shown.quiet("… [cut off here]");
        }
        shown.title("");
    }
    let left_out = stacks.saturating_sub(STACKS);
    if left_out > 0 {
        shown.quiet(&format!("and {left_out} more stacks"));
    }
    Page {
        about: format!("{name}: {}", frame.place()),
        as_of: Some(answer.as_of),
        columns: vec![text("", 0, 20)],
        nothing: "None of the largest stacks has this line.".to_owned(),
        rows: shown.rows,
        ..Page::default()
    }
}
