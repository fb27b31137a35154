//! Frames of a flame graph, each with what goes through it.
//!
//! `inferno` draws: it knows a frame by its label alone, gives equal labels one colour, says plain numbers, and colours of a
//! difference only what ends in a frame. So each frame's label is given a mark with the frame's number on the way in; the colour is
//! looked up by that; and on the way out marks are taken off, and what the frame says of itself is said in units.
//!
//! Owns: the marks, and the sums of frames. Refuses: which colour means what.

use std::io::Write;

/// Before a frame's number in its label. No name in a program has these: they are characters without a meaning.
const MARK: char = '\u{E000}';
/// Behind it.
const END: char = '\u{E001}';

/// A label without its mark.
pub(super) fn unmarked(marked: &str) -> &str {
    marked.rsplit_once(MARK).map_or(marked, |(label, _)| label)
}

/// What goes through a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Through {
    pub(super) value: i128,
    /// At the earlier moment.
    pub(super) before: i128,
}

/// The frames of a picture.
#[derive(Default)]
pub(super) struct Frames {
    /// Label with its mark, and what goes through it.
    frames: Vec<(String, Through)>,
    /// What goes through all of them.
    pub(super) all: Through,
    /// The frames of the last stack, from the outermost inwards.
    open: Vec<(String, usize)>,
}

impl Frames {
    /// Adds a stack, its frames from the outermost inwards; stacks with a common beginning must come one behind the other. Gives the
    /// line for `inferno`.
    pub(super) fn add<'a>(
        &mut self,
        labels: impl Iterator<Item = &'a str>,
        through: Through,
    ) -> String {
        self.all.value += through.value;
        self.all.before += through.before;
        let mut line = String::new();
        let mut depth = 0;
        for label in labels {
            if self.open.get(depth).is_none_or(|(open, _)| open != label) {
                self.open.truncate(depth);
                let number = self.frames.len();
                self.open.push((label.to_owned(), number));
                let marked = format!("{label}{MARK}{number}{END}");
                self.frames.push((marked, Through::default()));
            }
            if let Some((_, number)) = self.open.get(depth)
                && let Some((marked, sum)) = self.frames.get_mut(*number)
            {
                sum.value += through.value;
                sum.before += through.before;
                line.push_str(if depth > 0 { ";" } else { "" });
                line.push_str(marked);
            }
            depth += 1;
        }
        self.open.truncate(depth);
        line.push_str(&format!(" {}", through.value));
        line
    }

    /// Labels with their marks, and what goes through each frame.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Through)> {
        self.frames
            .iter()
            .map(|(marked, sum)| (marked.as_str(), *sum))
    }

    /// Writes a picture without its marks. What a frame says in its parentheses but for its share of the whole is what `says` gives.
    pub(super) fn unmarked(
        &self,
        picture: &str,
        says: impl Fn(Through) -> (String, String),
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        const ROOT: &str = "<title>all (";
        let said = |through: Through, words: &str| {
            // `1,234 bytes, 5.6%)` is what stands there.
            let share = words.rsplit_once(", ").map_or(words, |(_, share)| share);
            let share = share.trim_end_matches(')');
            let (amount, change) = says(through);
            format!("({amount}, {share}{change})")
        };
        let mut with_root = String::new();
        let mut rest = picture;
        if let Some((before, words)) = picture.split_once(ROOT)
            && let Some((words, behind)) = words.split_once('<')
        {
            with_root = format!("{before}<title>all {}<{behind}", said(self.all, words));
        }
        if !with_root.is_empty() {
            rest = &with_root;
        }
        while let Some((before, marked)) = rest.split_once(MARK) {
            out.write_all(before.as_bytes())?;
            let (text, behind) = marked.split_once('<').unwrap_or((marked, ""));
            rest = marked.get(text.len()..).unwrap_or(behind);
            match text.split_once(END) {
                Some((number, words)) if words.starts_with(" (") => {
                    let number: usize = number.parse().unwrap_or_default();
                    let through = self.frames.get(number).map(|(_, through)| *through);
                    write!(out, " {}", said(through.unwrap_or_default(), words))?;
                }
                Some((_, words)) => out.write_all(words.as_bytes())?,
                // The label was too long for its frame, and ends in dots.
                None => out.write_all(
                    text.trim_start_matches(|c: char| c.is_ascii_digit())
                        .as_bytes(),
                )?,
            }
        }
        out.write_all(rest.as_bytes())
    }
}
