//! Formats the frames of a stack, and chooses which of them are shown.

use crate::units::plain;
use memscope_proto::v1;

/// Characters of a function's name that are shown; a longer name is cut.
const LONGEST_NAME: usize = 60;
/// Number of innermost frames that are shown even if they belong to a library.
const INNERMOST: usize = 2;

/// A frame with its strings resolved.
pub(crate) struct Frame<'a> {
    name: &'a str,
    file: &'a str,
    line: u32,
    is_native: bool,
}

/// Whether a frame that is given as `name (file:line)` is of compiled code.
pub(crate) fn is_compiled(text: &str) -> bool {
    Frame::parse(text).is_native
}

impl<'a> Frame<'a> {
    pub(crate) fn of(answer: &'a v1::StacksResponse, frame: &v1::StackFrame) -> Frame<'a> {
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

    /// A line of a program, as answers about leaks have it.
    pub(crate) fn of_line(line: &'a v1::CodeLine) -> Frame<'a> {
        Frame {
            name: &line.name,
            file: &line.file,
            line: line.line,
            is_native: memscope_units::is_compiled(&line.name, &line.file, line.line.into()),
        }
    }

    /// Parses `name (file:line)`.
    fn parse(text: &'a str) -> Frame<'a> {
        // The file begins with `/` or `<`; names and paths may contain parentheses of their own.
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
            is_native: memscope_units::is_compiled(name, file, line.into()),
        }
    }

    pub(crate) fn name(&self) -> String {
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

    /// File and line, such as `torch/nn/modules/linear.py:125`.
    pub(crate) fn place(&self) -> String {
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

    /// The whole path of its file and its line, `/home/ada/train.py:18`, where both are known.
    pub(crate) fn location(&self) -> Option<String> {
        let is_known = !self.file.is_empty() && self.line > 0;
        is_known.then(|| format!("{}:{}", plain(self.file), self.line))
    }

    /// Whether the frame is not the program's own code.
    fn is_library(&self) -> bool {
        self.is_native || !memscope_units::is_own(self.name, self.file)
    }

    /// Name of the library: the first part of its path below the folder of installed packages.
    fn library(&self) -> Option<&'a str> {
        let short = short_file(self.file);
        let is_short = short.len() < self.file.len();
        let (library, _) = short.split_once('/')?;
        is_short.then_some(library)
    }
}

/// A path without the folder in which its library is installed.
fn short_file(file: &str) -> &str {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, below)) = file.rsplit_once(folder) {
            return below;
        }
    }
    let below = || {
        let in_folder = |folder| file.split_once(folder);
        let (_, rest) = in_folder("/lib/python3.").or_else(|| in_folder("/lib64/python3."))?;
        let (version, below) = rest.split_once('/')?;
        let digits = version.trim_end_matches('t');
        let is_version = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        is_version.then_some(below)
    };
    below().unwrap_or(file)
}

pub(crate) fn why_missing(word: Option<&str>) -> String {
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

/// A line of a stack as it is shown.
#[derive(Debug, PartialEq)]
enum Line {
    Frame(usize),
    /// Frames that are not shown, from the first index up to the second, which is not included.
    LeftOut(usize, usize),
}

/// The innermost frames, then the program's own; a run of library frames becomes one line.
fn without_runs(frames: &[Frame<'_>]) -> Vec<Line> {
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
        // A note that one frame is left out takes as much room as the frame itself.
        if let Line::LeftOut(begin, end) = *line
            && end == begin + 1
        {
            *line = Line::Frame(begin);
        }
    }
    lines
}

/// Chooses at most `most` lines (0: all frames): the innermost frames, then the program's own; a run of library
/// frames becomes one line. If that is still too much, the middle is left out.
fn chosen(frames: &[Frame<'_>], most: usize) -> Vec<Line> {
    if most == 0 || frames.len() <= most {
        return (0..frames.len()).map(Line::Frame).collect();
    }
    let mut lines = without_runs(frames);
    if lines.len() <= most {
        return lines;
    }
    // The frames that allocate are at the beginning, and the program's outer functions at the end. The middle says
    // least, so it is left out.
    let behind = (most - 1) / 2;
    let mut rest = lines.split_off(most - 1 - behind);
    let tail = rest.split_off(rest.len() - behind);
    let begins = |line: &Line| match line {
        Line::Frame(index) | Line::LeftOut(index, _) => *index,
    };
    let mut gap = (
        rest.first().map_or(0, begins),
        tail.first().map_or(frames.len(), begins),
    );
    if let Some(Line::LeftOut(begin, _)) = lines.last() {
        gap.0 = *begin;
        lines.pop();
    }
    let mut tail = tail.into_iter().peekable();
    if let Some(Line::LeftOut(_, end)) = tail.peek() {
        gap.1 = *end;
        tail.next();
    }
    lines.push(Line::LeftOut(gap.0, gap.1));
    lines.extend(tail);
    lines
}

/// A stack from a file, its frames as `name (file:line)`, formatted as `stacks` does, in at most `most` lines.
pub(crate) fn folded(frames: &[impl AsRef<str>], most: usize) -> Vec<String> {
    let frames: Vec<Frame<'_>> = frames
        .iter()
        .map(|text| Frame::parse(text.as_ref()))
        .collect();
    lines_of(&frames, most)
}

/// A stack as the text of a table's cell, with at most `most` lines of frames.
pub(crate) fn stack(frames: &[Frame<'_>], row: &v1::StackRow, most: usize) -> String {
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

/// A line of a stack, and the place in the sources that it names.
pub(crate) struct Told {
    pub(crate) text: String,
    /// The whole path of the file with the line; nothing for frames that are left out.
    pub(crate) location: Option<String>,
}

/// A stack line by line: all its frames, or the program's own with the runs of library frames between them counted.
pub(crate) fn told(frames: &[Frame<'_>], all: bool) -> Vec<Told> {
    let lines = match all {
        true => (0..frames.len()).map(Line::Frame).collect(),
        false => without_runs(frames),
    };
    let width = frames.iter().map(|frame| frame.name().chars().count());
    let width = width.max().unwrap_or(0).min(48);
    let told = lines.iter().map(|line| match line {
        Line::Frame(index) => Told {
            text: frames.get(*index).map_or_else(String::new, |frame| {
                format!("{:width$}  {}", frame.name(), frame.place())
            }),
            location: frames.get(*index).and_then(Frame::location),
        },
        Line::LeftOut(begin, end) => Told {
            text: left_out(frames.get(*begin..*end).unwrap_or_default()),
            location: None,
        },
    });
    told.collect()
}

/// The line for frames that are left out: `… 14 in torch`, `… 14 more`.
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
            [Frame(0), Frame(1), LeftOut(2, 6), Frame(6), LeftOut(7, 10)]
        );
        let own = frames(&["/m.py"; 9]);
        assert_eq!(
            chosen(&own, 6),
            [
                Frame(0),
                Frame(1),
                Frame(2),
                LeftOut(3, 7),
                Frame(7),
                Frame(8)
            ]
        );
        for (most, of) in (1..12).flat_map(|most| [(most, &long), (most, &own)]) {
            // Every frame is shown or left out, once, in order.
            let mut next = 0;
            let lines = chosen(of, most);
            assert!(lines.len() <= most, "{most}: {lines:?}");
            for line in lines {
                next = match line {
                    Frame(index) => {
                        assert_eq!(index, next);
                        index + 1
                    }
                    LeftOut(begin, end) => {
                        assert_eq!(begin, next);
                        assert!(end > begin);
                        end
                    }
                };
            }
            assert_eq!(next, of.len());
        }
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
            "<module> (/home/ada/bin/trainer:3)",
        ];
        let lines = folded(&frames.map(str::to_owned), 7);
        assert_eq!(
            lines,
            [
                "linear      torch/f.py:9",
                "forward     torch/nn.py:2",
                "… 3 more",
                "<listcomp>  <stdin>:1",
                "main        /home/a (b)/t.py:7",
                "<module>    /home/ada/bin/trainer:3",
            ]
        );
    }
}
