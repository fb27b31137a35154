//! All that is known of one line that grows: its numbers, the whole stack, and what holds its blocks.

use super::{Got, about, limits};
use crate::commands::holders::table::step_of_way;
use crate::commands::leaks::table::{between, pace, short, who};
use crate::commands::top::page::{Cell, Page, Row, Tone, text};
use crate::commands::top::pages::leaks::key;
use crate::render::frames::{Frame, told};
use crate::units::{bytes, grouped, plain};
use memscope_proto::v1;

/// Addresses of a line's blocks that are asked about: others of the same size and stack are found by them.
const EXAMPLES: usize = 16;
/// Largest number of different stacks of a line that are shown.
const STACKS: usize = 8;

/// The line by its key, where the answer still has it.
pub(in crate::commands::top) fn find<'a>(
    answer: &'a v1::LeaksResponse,
    of: &str,
) -> Option<&'a v1::LeakLine> {
    answer.lines.iter().find(|line| key(line) == of)
}

fn groups<'a>(answer: &'a v1::LeaksResponse, line: &v1::LeakLine) -> Vec<&'a v1::LeakGroup> {
    let is_of = |group: &&v1::LeakGroup| {
        let is_same = match line.stack {
            _ if line.line.is_some() => true,
            Some(_) => group.stack == line.stack,
            None => group.stack.is_none() && group.size_bytes == line.largest_bytes,
        };
        group.line == line.line
            && group.device == line.device
            && group.source == line.source
            && is_same
    };
    answer.groups.iter().filter(is_of).collect()
}

/// Some of its blocks, by their addresses.
pub(in crate::commands::top) fn examples(
    answer: &v1::LeaksResponse,
    line: &v1::LeakLine,
) -> Vec<u64> {
    let groups = groups(answer, line);
    let all = groups
        .iter()
        .flat_map(|group| group.examples.iter().copied());
    all.take(EXAMPLES).collect()
}

/// The page. `all`: frames of libraries as well.
pub(in crate::commands::top) fn page(
    answer: &v1::LeaksResponse,
    line: &v1::LeakLine,
    holders: Got<'_, v1::HoldersResponse>,
    all: bool,
) -> Page {
    let mut page = Page {
        about: format!(
            "{}: {}",
            about(answer.process.as_ref(), answer.pid),
            short(line)
        ),
        as_of: Some(answer.as_of),
        columns: vec![text("", 0, 20)],
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    let sure = line.confidence;
    let sure = sure.map_or_else(String::new, |sure| format!(", {:.0} % sure", sure * 100.0));
    let tone = match line.verdict() {
        v1::Verdict::Growing => Tone::Loud,
        _ => Tone::Plain,
    };
    page.says.push(
        Cell::text(format!(
            "{}{sure}: {}, grew by {}, holds {} in {} blocks.",
            line.verdict(),
            pace(line),
            bytes(line.growth_bytes),
            bytes(line.live_bytes),
            grouped(line.live_count)
        ))
        .toned(tone),
    );
    if let (Some(low), Some(high)) = (
        line.growth_bytes_per_step_low,
        line.growth_bytes_per_step_high,
    ) {
        let since = line.first_step;
        let since = since.map_or_else(String::new, |step| {
            format!(", since step {}", grouped(step))
        });
        page.says
            .push(Cell::text(format!("{}{since}.", between(low, high))));
    }
    if !line.reason.is_empty() {
        page.says.push(Cell::text(&line.reason).toned(Tone::Quiet));
    }
    let mut lines = Lines::default();
    lines.title("Held by");
    match holders {
        Err(why) => lines.quiet(&why),
        Ok(holders) => held_by(&mut lines, holders),
    }
    let groups = groups(answer, line);
    let mut shown: Vec<&[v1::CodeLine]> = Vec::new();
    for group in groups.iter().filter(|group| !group.frames.is_empty()) {
        if !shown.contains(&group.frames.as_slice()) {
            shown.push(&group.frames);
        }
    }
    for frames in shown.iter().take(STACKS) {
        lines.title("");
        lines.title(match shown.len() {
            1 => "Allocated by, innermost first",
            _ => "One of its stacks, innermost first",
        });
        let frames: Vec<Frame<'_>> = frames.iter().map(Frame::of_line).collect();
        for line in told(&frames, all) {
            lines.add(&format!("  {}", line.text), line.location, Tone::Plain);
        }
    }
    if shown.is_empty() {
        lines.title("");
        lines.title("Allocated by");
        match &line.line {
            Some(at) => {
                let frame = Frame::of_line(at);
                let words = format!("  {}  {}", frame.name(), frame.place());
                lines.add(&words, frame.location(), Tone::Plain);
            }
            None => lines.quiet("its stack is not known, or there are several"),
        }
    }
    if !line.callers.is_empty() {
        lines.title("");
        lines.title("In all its stacks called by");
        for at in &line.callers {
            let frame = Frame::of_line(at);
            let words = format!("  {}  {}", frame.name(), frame.place());
            lines.add(&words, frame.location(), Tone::Plain);
        }
    }
    page.rows = lines.rows;
    page
}

fn held_by(lines: &mut Lines, answer: &v1::HoldersResponse) {
    for holder in &answer.holders {
        let blocks = holder.blocks.unwrap_or_default();
        let words = format!(
            "  {}: {} in {} blocks",
            who(holder),
            bytes(blocks.bytes),
            grouped(blocks.count)
        );
        lines.add(&words, None, Tone::Loud);
        for step in &holder.way {
            let location = match (step.file.is_empty(), step.line) {
                (false, line) if line > 0 => Some(format!("{}:{line}", plain(&step.file))),
                _ => None,
            };
            lines.add(&format!("    {}", step_of_way(step)), location, Tone::Quiet);
        }
    }
    let unheld = answer.unheld.unwrap_or_default();
    if unheld.count > 0 {
        lines.quiet(&format!(
            "nothing that was found (C++ code, or they were in use): {} in {} blocks",
            bytes(unheld.bytes),
            grouped(unheld.count)
        ));
    }
    if answer.holders.is_empty() && unheld.count == 0 {
        lines.quiet("none of its blocks was there during the whole reading: it is asked again");
    }
}

/// Lines of a text as rows, each with a cursor's place.
#[derive(Default)]
pub(in crate::commands::top) struct Lines {
    pub(in crate::commands::top) rows: Vec<Row>,
}

impl Lines {
    /// A line, with the place in the sources that it names.
    pub(in crate::commands::top) fn add(
        &mut self,
        words: &str,
        location: Option<String>,
        tone: Tone,
    ) {
        self.rows.push(Row {
            key: self.rows.len().to_string(),
            cells: vec![Cell::text(words).toned(tone)],
            location,
            pid: None,
            opens: None,
        });
    }

    /// A line that says what follows.
    pub(in crate::commands::top) fn title(&mut self, words: &str) {
        self.add(words, None, Tone::Plain);
    }

    /// A line that stands back.
    pub(in crate::commands::top) fn quiet(&mut self, words: &str) {
        self.add(&format!("  {words}"), None, Tone::Quiet);
    }
}
