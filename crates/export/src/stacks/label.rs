//! The labels that frames have in the formats of other tools.

use super::marked::{END, MARK};
use memscope_ledger::report::{Frame, FrameKind, Stack};

/// Stands for a name that is not known.
const UNKNOWN: &str = "[unknown]";
/// Label of the outermost frame of a stack that was cut off.
pub(super) const TRUNCATED: &str = "[truncated]";

/// Folders in which libraries are installed. What comes before them in a path is only the place of installation.
const LIBRARIES: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// Whose code a frame runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The program's own code.
    Program,
    /// Python code of an installed package or of Python itself.
    Library,
    /// Compiled code.
    Native,
    /// No code: a remark in square brackets.
    Remark,
}

/// Whose code a frame runs.
pub(super) fn owner(frame: &Frame) -> Owner {
    if frame.kind == FrameKind::Native {
        return Owner::Native;
    }
    match memscope_units::is_own(&frame.name, &frame.file) {
        true => Owner::Program,
        false => Owner::Library,
    }
}

/// A path without the place where its library is installed.
#[must_use]
pub fn short_file(file: &str) -> &str {
    for folder in LIBRARIES {
        if let Some((_, below)) = file.rsplit_once(folder) {
            return below;
        }
    }
    standard_library(file).unwrap_or(file)
}

/// The part of a path behind `/lib/python3.11/` or `/lib64/python3.11/` (of any version).
fn standard_library(file: &str) -> Option<&str> {
    let in_folder = |folder| file.split_once(folder);
    let (_, rest) = in_folder("/lib/python3.").or_else(|| in_folder("/lib64/python3."))?;
    let (version, below) = rest.split_once('/')?;
    let digits = version.trim_end_matches('t');
    let is_version = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_version.then_some(below)
}

/// A frame as one text, such as `forward (model.py:42)` or `malloc (/lib/libc.so.6) [native]`.
///
/// It ends in a bracket, so that no reader takes digits at the end of a name for a count.
#[must_use]
pub fn label(frame: &Frame) -> String {
    let file = match &*frame.file {
        "" => "?",
        file => short_file(file),
    };
    let mut text = format!("{} ({}", name(frame), clean(file));
    if frame.line > 0 {
        text.push_str(&format!(":{}", frame.line));
    }
    text.push(')');
    if frame.kind == FrameKind::Native {
        text.push_str(" [native]");
    }
    text
}

/// The function's name, or `[unknown]`.
#[must_use]
pub(super) fn name(frame: &Frame) -> String {
    match &*frame.name {
        "" => UNKNOWN.to_owned(),
        name => clean(name),
    }
}

/// Why a stack has no frames, in square brackets.
#[must_use]
pub fn why_missing(stack: &Stack) -> String {
    let why = match stack.missing {
        Some("no_python") => "no Python frames",
        Some("unreadable") => "stack not readable",
        Some("busy") => "stack not walked: too many at once",
        Some("lost") => "stack lost",
        Some("not_taken") => "stack not taken",
        Some("before_attach") => "from before the attach",
        Some("not_sampled") => "not sampled: other stacks stand for it",
        Some(word) => word,
        None => "no frames",
    };
    format!("[{}]", clean(why))
}

/// Text from a process, in which characters that would break a line, a terminal or a document are escaped, and those that mark
/// frames of a flame graph.
#[must_use]
pub fn clean(text: &str) -> String {
    escape(text, |_| false)
}

/// Like [`clean`], for folded text: there `;` separates frames, `#` at the beginning of a line starts a remark, and
/// readers trim lines.
pub(super) fn clean_folded(text: &str) -> String {
    let mut first = true;
    escape(text, |c| {
        let opens = std::mem::take(&mut first) && matches!(c, '#' | ' ');
        opens || c == ';' || (c.is_whitespace() && c != ' ')
    })
}

fn escape(text: &str, mut also: impl FnMut(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let also = also(c);
        let no_character = matches!(c, '\u{fffe}' | '\u{ffff}' | MARK | END);
        if also || c.is_control() || turns(c) || no_character {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Whether some readers take the character for the end of a line, or it changes the direction of writing.
fn turns(c: char) -> bool {
    matches!(
        c,
        '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, name: &str, file: &str, line: u32) -> Frame {
        Frame {
            kind,
            name: name.into(),
            file: file.into(),
            line,
        }
    }

    #[test]
    fn places_of_installation_are_left_out() {
        for (file, short) in [
            ("/home/ada/train.py", "/home/ada/train.py"),
            (
                "/v/lib/python3.11/site-packages/torch/nn/modules/module.py",
                "torch/nn/modules/module.py",
            ),
            ("/usr/lib/python3/dist-packages/six.py", "six.py"),
            ("/usr/lib/python3.11/threading.py", "threading.py"),
            ("/usr/lib64/python3.13/threading.py", "threading.py"),
            ("/opt/lib/python3.14t/threading.py", "threading.py"),
            ("/opt/lib/python3.x/mine.py", "/opt/lib/python3.x/mine.py"),
            ("<string>", "<string>"),
            ("", ""),
        ] {
            assert_eq!(short_file(file), short, "{file}");
        }
    }

    #[test]
    fn labels_end_in_a_bracket() {
        use FrameKind::{Native, Python};
        for (frame, text) in [
            (frame(Python, "f", "/m.py", 7), "f (/m.py:7)"),
            (frame(Python, "", "", 0), "[unknown] (?)"),
            (frame(Python, "f 12", "a 3", 0), "f 12 (a 3)"),
            (
                frame(Python, "a;b\nc", "x\u{202e}y", 1),
                "a;b\\u{a}c (x\\u{202e}y:1)",
            ),
            (
                frame(Python, "f", "a\u{e000}7\u{e001}b", 1),
                "f (a\\u{e000}7\\u{e001}b:1)",
            ),
            (
                frame(Native, "c10::f()", "/l/libc10.so", 0),
                "c10::f() (/l/libc10.so) [native]",
            ),
            (frame(Native, "g", "a.cpp", 3), "g (a.cpp:3) [native]"),
        ] {
            assert_eq!(label(&frame), text);
        }
        assert_eq!(clean_folded("# a #"), "\\u{23} a #");
        assert_eq!(clean_folded(" a"), "\\u{20}a");
        assert_eq!(clean_folded("a;b\u{a0}c d"), "a\\u{3b}b\\u{a0}c d");
    }

    #[test]
    fn whose_code_it_is() {
        use FrameKind::{Native, Python};
        let of = |kind, file| owner(&frame(kind, "f", file, 1));
        assert_eq!(of(Python, "/home/ada/train.py"), Owner::Program);
        assert_eq!(of(Python, "<string>"), Owner::Program);
        assert_eq!(of(Python, "<frozen runpy>"), Owner::Library);
        assert_eq!(of(Python, "<eval_with_key>.3"), Owner::Library);
        assert_eq!(
            of(Python, "/v/site-packages/torch/_tensor.py"),
            Owner::Library
        );
        assert_eq!(of(Native, "/home/ada/mine.so"), Owner::Native);
    }

    #[test]
    fn a_stack_without_frames_says_why() {
        let missing = |missing| {
            why_missing(&Stack {
                missing,
                ..Stack::default()
            })
        };
        assert_eq!(missing(Some("no_python")), "[no Python frames]");
        // Each reason of the wire has words of its own; none is shown as it is.
        let words = memscope_ledger::report::missing_words();
        assert!(
            words
                .iter()
                .all(|word| missing(Some(word)) != format!("[{word}]"))
        );
        assert_eq!(missing(Some("a_new_word")), "[a_new_word]");
        assert_eq!(missing(None), "[no frames]");
    }
}
