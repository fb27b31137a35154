//! `top`.

use super::table::{Column, table};
use super::{Known, coverage, device, heading};
use crate::units::{self, bytes, grouped, moment, plain};
use memscope_proto::v1;
use std::time::Duration;

/// Longest name of a function that is shown whole.
const LONGEST_NAME: usize = 60;
/// Innermost frames that are shown even where they are a library's.
const INNERMOST: usize = 2;

/// `lines`: most lines of one stack, 0 for all its frames.
pub(crate) fn top(answer: &v1::StacksResponse, lines: usize) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(from) = answer.from_unix_ns {
        let passed = Duration::from_nanos(answer.as_of.saturating_sub(from));
        let (from, passed) = (moment(from), units::duration(passed));
        text.push_str(&format!("Compared with {from}, {passed} before\n"));
    }
    if answer.devices.is_empty() {
        text.push_str("Nothing was allocated on any device since the attach.\n");
    }
    for one in &answer.devices {
        text.push_str(&summary(answer, one));
    }
    let shown = Shown::of(answer);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in &answer.rows {
        let frames = row.frames.iter();
        let frames = frames.filter_map(|place| answer.frames.get(*place as usize));
        let frames: Vec<Frame<'_>> = frames.map(|frame| Frame::of(answer, frame)).collect();
        let amounts = row.amounts.unwrap_or_default();
        let mut cells = vec![device(row.device)];
        cells.extend(shown.cells(&amounts));
        cells.push(stack(&frames, row, lines));
        rows.push(cells);
    }
    // A line between stacks: each takes several.
    let several_lines = rows.iter().any(|cells| is_long(cells));
    let count = rows.len();
    for (index, cells) in rows.iter_mut().enumerate() {
        if let Some(last) = cells.last_mut()
            && several_lines
            && index + 1 < count
        {
            last.push('\n');
        }
    }
    for group in &answer.groups {
        rows.push(shown.group(answer, group));
    }
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(&shown.columns(answer), rows));
    } else if !answer.devices.is_empty() {
        text.push_str(&format!("No stack has any {}.\n", shown.what()));
    }
    if answer.omitted > 0 {
        let others = answer.others.unwrap_or_default();
        text.push_str(&format!(
            " and {} more with {} in {} blocks\n",
            grouped(answer.omitted),
            shown.bytes(&others),
            shown.count(&others),
        ));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn is_long(cells: &[String]) -> bool {
    cells.last().is_some_and(|cell| cell.contains('\n'))
}

/// `Device 0: live 1.00 GiB in 12, peak …, allocated … since the attach, 37 stacks`.
fn summary(answer: &v1::StacksResponse, one: &v1::StackDevice) -> String {
    let amounts = one.amounts.unwrap_or_default();
    let of = |amount: Option<v1::Amount>| bytes(amount.unwrap_or_default().bytes);
    let blocks = Known::of(&answer.coverage, &["blocks"]);
    let history = Known::of(&answer.coverage, &["blocks", "history"]);
    let mut text = format!(
        "Device {}: live {}, at the peak {}, allocated since the attach {}; {} stack{}\n",
        device(one.device),
        blocks.say(of(amounts.live)),
        history.say(of(amounts.peak)),
        history.say(of(amounts.allocated)),
        grouped(one.stacks),
        if one.stacks == 1 { "" } else { "s" },
    );
    let shown = Shown::of(answer);
    let mut remarks = Vec::new();
    for (what, amounts) in [
        ("in stacks that were cut off", one.truncated),
        ("without a stack", one.missing),
    ] {
        let amounts = amounts.unwrap_or_default();
        if shown.value(&amounts) != 0 {
            remarks.push(format!("{} {what}", shown.bytes(&amounts)));
        }
    }
    if !remarks.is_empty() {
        let of = shown.what();
        text.push_str(&format!("  of {of}: {}\n", remarks.join(", ")));
    }
    text
}

/// What is counted.
#[derive(Clone, Copy)]
struct Shown {
    metric: v1::StackMetric,
    unit: v1::StackUnit,
    compared: bool,
    /// Of all rows; of growth it is not known, as what shrank is in it.
    whole: Option<i128>,
}

impl Shown {
    fn of(answer: &v1::StacksResponse) -> Shown {
        let mut shown = Shown {
            metric: answer.metric(),
            unit: answer.unit(),
            compared: answer.from_unix_ns.is_some(),
            whole: None,
        };
        if !shown.is_growth() {
            let devices = answer.devices.iter();
            let whole = devices.map(|one| shown.value(&one.amounts.unwrap_or_default()));
            shown.whole = Some(whole.sum());
        }
        shown
    }

    fn is_growth(self) -> bool {
        self.metric == v1::StackMetric::Growth
    }

    fn what(self) -> &'static str {
        match self.metric {
            v1::StackMetric::Growth => "growth",
            v1::StackMetric::Peak => "peak memory",
            v1::StackMetric::Allocated => "allocated memory",
            v1::StackMetric::Live | v1::StackMetric::Unspecified => "live memory",
        }
    }

    /// Count and bytes of the metric.
    fn pair(self, amounts: &v1::StackAmounts) -> (i128, i128) {
        let pair = |amount: Option<v1::Amount>| {
            let amount = amount.unwrap_or_default();
            (i128::from(amount.count), i128::from(amount.bytes))
        };
        let (live, before) = (pair(amounts.live), pair(amounts.before));
        match self.metric {
            v1::StackMetric::Growth => (live.0 - before.0, live.1 - before.1),
            v1::StackMetric::Peak => pair(amounts.peak),
            v1::StackMetric::Allocated => pair(amounts.allocated),
            v1::StackMetric::Live | v1::StackMetric::Unspecified => live,
        }
    }

    /// In the unit that rows are ordered by.
    fn value(self, amounts: &v1::StackAmounts) -> i128 {
        let (count, bytes) = self.pair(amounts);
        match self.unit {
            v1::StackUnit::Count => count,
            v1::StackUnit::Bytes | v1::StackUnit::Unspecified => bytes,
        }
    }

    fn bytes(self, amounts: &v1::StackAmounts) -> String {
        let (_, value) = self.pair(amounts);
        if self.is_growth() {
            signed(value)
        } else {
            bytes(magnitude(value))
        }
    }

    fn count(self, amounts: &v1::StackAmounts) -> String {
        let (count, _) = self.pair(amounts);
        let sign = match (self.is_growth(), count) {
            (false, _) | (true, 0) => "",
            (true, 1..) => "+",
            (true, _) => "-",
        };
        format!("{sign}{}", grouped(magnitude(count)))
    }

    fn share(self, amounts: &v1::StackAmounts) -> Option<String> {
        let whole = self.whole?;
        let part = self.value(amounts) as f64;
        Some(format!("{:.1} %", part / (whole as f64).max(1.0) * 100.0))
    }

    /// Bytes now less bytes before, where that is not the metric; what lives, where it is.
    fn beside(self, amounts: &v1::StackAmounts) -> Option<String> {
        let live = amounts.live.unwrap_or_default().bytes;
        let before = amounts.before.unwrap_or_default().bytes;
        match (self.is_growth(), self.compared) {
            (true, _) => Some(bytes(live)),
            (false, true) => Some(signed(i128::from(live) - i128::from(before))),
            (false, false) => None,
        }
    }

    fn columns(self, answer: &v1::StacksResponse) -> Vec<Column> {
        let metric = match self.metric {
            v1::StackMetric::Growth => "GROWTH",
            v1::StackMetric::Peak => "PEAK",
            v1::StackMetric::Allocated => "ALLOCATED",
            v1::StackMetric::Live | v1::StackMetric::Unspecified => "LIVE",
        };
        let mut columns = vec![Column::Right("DEVICE")];
        let beside = |columns: &mut Vec<Column>| {
            if self.whole.is_some() {
                columns.push(Column::Right("SHARE"));
            }
            if self.is_growth() {
                columns.push(Column::Right("LIVE"));
            } else if self.compared {
                columns.push(Column::Right("CHANGE"));
            }
        };
        if answer.groups.is_empty() {
            columns.extend([Column::Right(metric), Column::Right("BLOCKS")]);
            beside(&mut columns);
        } else {
            for title in ["EXCLUSIVE", "INCLUSIVE"] {
                columns.push(Column::Right(title));
                beside(&mut columns);
            }
            columns.push(Column::Right("STACKS"));
        }
        columns.push(Column::Left(match answer.by() {
            v1::StackGrouping::Function => "FUNCTION",
            v1::StackGrouping::File => "FILE",
            v1::StackGrouping::Line | v1::StackGrouping::OwnLine => "LINE",
            v1::StackGrouping::Stack | v1::StackGrouping::Unspecified => "STACK",
        }));
        columns
    }

    fn cells(self, amounts: &v1::StackAmounts) -> Vec<String> {
        let mut cells = vec![self.bytes(amounts), self.count(amounts)];
        cells.extend(self.share(amounts));
        cells.extend(self.beside(amounts));
        cells
    }

    fn group(self, answer: &v1::StacksResponse, group: &v1::StackGroup) -> Vec<String> {
        let mut cells = vec![device(group.device)];
        let own = group.own.unwrap_or_default();
        let total = group.total.unwrap_or_default();
        for amounts in [&own, &total] {
            cells.push(match self.unit {
                v1::StackUnit::Count => self.count(amounts),
                v1::StackUnit::Bytes | v1::StackUnit::Unspecified => self.bytes(amounts),
            });
            cells.extend(self.share(amounts));
            cells.extend(self.beside(amounts));
        }
        cells.push(grouped(group.stacks));
        let frame = group
            .frame
            .and_then(|place| answer.frames.get(place as usize));
        cells.push(match frame {
            None => why_missing(group.missing.as_deref()),
            Some(frame) => {
                let frame = Frame::of(answer, frame);
                match answer.by() {
                    v1::StackGrouping::File => frame.place(),
                    _ => format!("{}  {}", frame.name(), frame.place()),
                }
            }
        });
        cells
    }
}

fn magnitude(value: i128) -> u64 {
    u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX)
}

/// `+1.00 MiB`, `-1.00 MiB`, `0 B`.
fn signed(value: i128) -> String {
    let sign = match value {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(magnitude(value)))
}

/// A frame with its words.
struct Frame<'a> {
    name: &'a str,
    file: &'a str,
    line: u32,
    is_native: bool,
}

impl<'a> Frame<'a> {
    fn of(answer: &'a v1::StacksResponse, frame: &v1::StackFrame) -> Frame<'a> {
        let string = |place: u32| {
            answer
                .strings
                .get(place as usize)
                .map_or("", String::as_str)
        };
        Frame {
            name: string(frame.name),
            file: string(frame.file),
            line: frame.line,
            is_native: frame.kind() == v1::FrameKind::Native,
        }
    }

    /// Of `name (file:line)`. What is no Python in a file is compiled code.
    fn parse(text: &'a str) -> Frame<'a> {
        // A place is a path or begins with `<`; names and paths may have parentheses of their own.
        let begins = |mark: &str| text.find(mark);
        let at = begins(" (/")
            .or_else(|| begins(" (<"))
            .or_else(|| text.rfind(" ("));
        let (name, place) = at.map_or((text, ""), |at| {
            let (name, place) = text.split_at(at);
            (name, place.trim_start_matches(" ("))
        });
        let place = place.strip_suffix(')').unwrap_or(place);
        let (file, line) = match place.rsplit_once(':') {
            Some((file, line)) => match line.parse() {
                Ok(line) => (file, line),
                Err(_) => (place, 0),
            },
            None => (place, 0),
        };
        Frame {
            name,
            file,
            line,
            is_native: !file.ends_with(".py") && !file.starts_with('<'),
        }
    }

    fn name(&self) -> String {
        let name = match self.name {
            "" => "[unknown]".to_owned(),
            name => plain(name),
        };
        if name.chars().count() <= LONGEST_NAME {
            return name;
        }
        let begin = name.chars().take(LONGEST_NAME - 1);
        begin.chain(['…']).collect()
    }

    /// `torch/nn/modules/linear.py:125`.
    fn place(&self) -> String {
        let mut place = match self.file {
            "" => "?".to_owned(),
            file => plain(short_file(file)),
        };
        if self.line > 0 {
            place.push_str(&format!(":{}", self.line));
        }
        if self.is_native {
            place.push_str(" [native]");
        }
        place
    }

    /// Not the program's own code.
    fn is_library(&self) -> bool {
        self.is_native
            || self.file.starts_with("<frozen ")
            || short_file(self.file).len() < self.file.len()
    }

    /// What a library is called: the first part of its path.
    fn library(&self) -> Option<&'a str> {
        let short = short_file(self.file);
        let is_short = short.len() < self.file.len();
        let (library, _) = short.split_once('/')?;
        is_short.then_some(library)
    }
}

/// A path without the place where its library is installed.
fn short_file(file: &str) -> &str {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, below)) = file.rsplit_once(folder) {
            return below;
        }
    }
    let below = || {
        let (_, rest) = file.split_once("/lib/python3.")?;
        let (version, below) = rest.split_once('/')?;
        let digits = version.trim_end_matches('t');
        let is_version = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        is_version.then_some(below)
    };
    below().unwrap_or(file)
}

fn why_missing(word: Option<&str>) -> String {
    match word {
        Some("no_python") => "[no Python frames]".to_owned(),
        Some("unreadable") => "[stack not readable]".to_owned(),
        Some("busy") => "[stack not walked: too many at once]".to_owned(),
        Some("lost") => "[stack lost]".to_owned(),
        Some("not_taken") => "[stack not taken]".to_owned(),
        Some("before_attach") => "[from before the attach]".to_owned(),
        Some("not_sampled") => "[not sampled: other stacks stand for it]".to_owned(),
        Some(word) => format!("[{}]", plain(word)),
        None => "[no frames]".to_owned(),
    }
}

/// A line of a stack.
#[derive(Debug, PartialEq)]
enum Line {
    Frame(usize),
    /// Frames from here to there that are not shown.
    LeftOut(usize, usize),
}

/// Which frames are shown: the innermost, then the program's own; runs of libraries become a line.
fn chosen(frames: &[Frame<'_>], most: usize) -> Vec<Line> {
    if most == 0 || frames.len() <= most {
        return (0..frames.len()).map(Line::Frame).collect();
    }
    let mut lines: Vec<Line> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        if index < INNERMOST || !frame.is_library() {
            lines.push(Line::Frame(index));
        } else if let Some(Line::LeftOut(_, end)) = lines.last_mut() {
            *end = index + 1;
        } else {
            lines.push(Line::LeftOut(index, index + 1));
        }
    }
    for line in &mut lines {
        // To say that one is left out takes as much room as the frame.
        if let Line::LeftOut(begin, end) = *line
            && end == begin + 1
        {
            *line = Line::Frame(begin);
        }
    }
    if lines.len() > most {
        let first = match lines.get(most - 1) {
            Some(Line::Frame(index) | Line::LeftOut(index, _)) => *index,
            None => frames.len(),
        };
        lines.truncate(most - 1);
        match lines.last_mut() {
            Some(Line::LeftOut(_, end)) => *end = frames.len(),
            _ => lines.push(Line::LeftOut(first, frames.len())),
        }
    }
    lines
}

/// A stack as a file has it, its frames as `name (file:line)`, in at most so many lines as `top` shows it.
pub(super) fn folded(frames: &[String], most: usize) -> Vec<String> {
    let frames: Vec<Frame<'_>> = frames.iter().map(|text| Frame::parse(text)).collect();
    lines_of(&frames, most)
}

/// A stack as the lines of a cell.
fn stack(frames: &[Frame<'_>], row: &v1::StackRow, most: usize) -> String {
    if frames.is_empty() {
        return why_missing(row.missing.as_deref());
    }
    let mut text = lines_of(frames, most);
    if row.truncated {
        text.push("… [cut off here]".to_owned());
    }
    text.join("\n")
}

fn lines_of(frames: &[Frame<'_>], most: usize) -> Vec<String> {
    let lines = chosen(frames, most);
    let named = |line: &Line| match line {
        Line::Frame(index) => frames.get(*index).map(|f| f.name().chars().count()),
        Line::LeftOut(..) => None,
    };
    let width = lines.iter().filter_map(named).max().unwrap_or(0).min(48);
    let text = lines.iter().map(|line| match line {
        Line::Frame(index) => frames.get(*index).map_or_else(String::new, |frame| {
            format!("{:width$}  {}", frame.name(), frame.place())
        }),
        Line::LeftOut(begin, end) => left_out(frames.get(*begin..*end).unwrap_or_default()),
    });
    text.collect()
}

/// `… 14 in torch`, `… 14 more`.
fn left_out(frames: &[Frame<'_>]) -> String {
    let library = frames.first().and_then(Frame::library);
    let same = frames.iter().all(|frame| frame.library() == library);
    match library {
        Some(library) if same => format!("… {} in {}", frames.len(), plain(library)),
        _ => format!("… {} more", frames.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames<'a>(files: &[&'a str]) -> Vec<Frame<'a>> {
        let frame = |file: &&'a str| Frame {
            name: "f",
            file,
            line: 1,
            is_native: file.ends_with(".so"),
        };
        files.iter().map(frame).collect()
    }

    #[test]
    fn the_programs_own_frames_are_shown_first() {
        let torch = "/v/site-packages/torch/nn.py";
        let long = frames(&[
            "/l.so", torch, torch, torch, "/m.py", torch, "/t.py", torch, torch, torch,
        ]);
        use Line::{Frame, LeftOut};
        assert_eq!(
            chosen(&long, 8),
            [
                Frame(0),
                Frame(1),
                LeftOut(2, 4),
                Frame(4),
                Frame(5),
                Frame(6),
                LeftOut(7, 10)
            ]
        );
        assert_eq!(chosen(&long, 4), [Frame(0), Frame(1), LeftOut(2, 10)]);
        assert_eq!(
            chosen(&long, 5),
            [Frame(0), Frame(1), LeftOut(2, 4), Frame(4), LeftOut(5, 10)]
        );
        assert_eq!(chosen(&long, 1), [LeftOut(0, 10)]);
        assert_eq!(chosen(&long, 0).len(), 10);
        assert_eq!(chosen(&long, 10).len(), 10);
        assert_eq!(left_out(&long[7..]), "… 3 in torch");
        assert_eq!(left_out(&long[4..]), "… 6 more");
    }

    #[test]
    fn frames_of_files_are_folded_as_others() {
        let frames = [
            "linear (/v/site-packages/torch/f.py:9)",
            "forward (/v/site-packages/torch/nn.py:2)",
            "call (/v/site-packages/torch/nn.py:3)",
            "call (/v/site-packages/torch/nn.py:4)",
            "c10::alloc(int, (anonymous)) (/torch/c10.cpp:5)",
            "<listcomp> (<stdin>:1)",
            "main (/home/a (b)/t.py:7)",
        ];
        let lines = folded(&frames.map(str::to_owned), 6);
        assert_eq!(
            lines,
            [
                "linear      torch/f.py:9",
                "forward     torch/nn.py:2",
                "… 3 more",
                "<listcomp>  <stdin>:1",
                "main        /home/a (b)/t.py:7",
            ]
        );
    }

    #[test]
    fn signs() {
        assert_eq!(signed(0), "0 B");
        assert_eq!(signed(-(1 << 20)), "-1.00 MiB");
        assert_eq!(signed(2048), "+2.00 KiB");
        assert_eq!(magnitude(i128::MIN), u64::MAX);
    }
}
