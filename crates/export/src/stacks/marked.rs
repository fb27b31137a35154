//! Frames of a flame graph, each with the sums of the stacks that go through it.
//!
//! `inferno` draws the picture, but it knows a frame by its label alone: it gives equal labels one colour, prints plain
//! numbers, and colours a frame of a differential picture only by what ends in it. So each label is given a mark with
//! the frame's number before `inferno` gets it, and the colour is looked up by the marked label. Afterwards the marks
//! are removed from the picture, and the numbers of each frame are written with units.
//!
//! Owns: the marks, and the sums of frames. Refuses: which colour means what.

use std::io::Write;

/// Stands before a frame's number in its label. It and [`END`] are characters without a meaning (private use); where a name
/// or a path has them all the same, `label` escapes them.
pub(super) const MARK: char = '\u{E000}';
/// Stands behind the number.
pub(super) const END: char = '\u{E001}';

/// A label without its mark.
pub(super) fn unmarked(marked: &str) -> &str {
    marked.rsplit_once(MARK).map_or(marked, |(label, _)| label)
}

/// Sums of the stacks that go through a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Through {
    pub(super) value: i128,
    /// The sum at the earlier moment.
    pub(super) before: i128,
}

/// The frames of a picture.
#[derive(Default)]
pub(super) struct Frames {
    /// Each frame's marked label, and the sums of the stacks through it.
    frames: Vec<(String, Through)>,
    /// Sums of all stacks.
    pub(super) all: Through,
    /// Labels and numbers of the last stack's frames, from the outermost inwards.
    open: Vec<(String, usize)>,
}

impl Frames {
    /// Adds a stack, with its frames from the outermost inwards. Stacks that begin with the same frames must be added
    /// one after the other. Returns the line for `inferno`.
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

    /// Each frame's marked label, and the sums of the stacks through it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Through)> {
        self.frames
            .iter()
            .map(|(marked, sum)| (marked.as_str(), *sum))
    }

    /// Writes a picture without its marks. In the parentheses of a frame's title, the share of the whole is kept; the
    /// amount before it and the change behind it are what `says` returns.
    pub(super) fn unmarked(
        &self,
        picture: &str,
        says: impl Fn(Through) -> (String, String),
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        const ROOT: &str = "<title>all (";
        let said = |through: Through, words: &str| {
            // `words` ends like this: `1,234 bytes, 5.6%)`.
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
                // The label was too long for its frame: inferno cut it off inside the mark and added dots.
                None => out.write_all(
                    text.trim_start_matches(|c: char| c.is_ascii_digit())
                        .as_bytes(),
                )?,
            }
        }
        out.write_all(rest.as_bytes())
    }
}
