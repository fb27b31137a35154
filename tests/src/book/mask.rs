//! What of an answer may differ from one run to the next, and whether a page shows an answer truly.
//!
//! Why not trycmd or snapbox, which test the commands in a Markdown file: they allow for what varies by patterns that stand
//! in the expected text (`[..]`), where readers would see them, and when they overwrite a text the patterns are lost. The
//! book shows real numbers of one run; here numbers are masked on both sides. Their blocks also name no process id that
//! has to be replaced, and have no running program beside them.

use std::collections::HashMap;

/// What stands for left out text in a page.
pub const LEFT_OUT: &str = "…";

/// Units that may follow a number: an amount of bytes, and a duration.
const SIZES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DURATIONS: [&str; 6] = ["µs", "ms", "s", "m", "h", "d"];

/// How moments are written; a 0 stands for any digit. Longer ones first.
const MOMENTS: [&str; 5] = [
    "0000-00-00 00:00:00 UTC",
    "0000-00-00T00:00:00Z",
    "00000000T000000Z",
    "0000-00-00 00:00:00",
    "00-00 00:00:00",
];

/// The words of a line with everything replaced that varies: numbers, sizes with their units, durations, moments, addresses.
/// The number of a line of a program (`train.py:18`) stays, and so does a number with letters right behind it (`30MiB`),
/// which is part of a command.
pub fn masked(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let line = words.join(" ");
    let mut mask = String::new();
    let mut rest = line.as_str();
    while let Some(letter) = rest.chars().next() {
        let inside = |letter: char| letter.is_alphanumeric() || letter == '_';
        let (name, length) = match letter {
            '0'..='9' if !mask.ends_with(inside) && !names_a_line(&mask) => varying(rest),
            _ => (&rest[..letter.len_utf8()], letter.len_utf8()),
        };
        mask.push_str(name);
        rest = &rest[length..];
    }
    mask.split(' ')
        .map(str::to_owned)
        .filter(|word| !word.is_empty())
        .collect()
}

/// What stands for the number at the beginning of a text, and how long that is with all that belongs to it.
fn varying(text: &str) -> (&str, usize) {
    if let Some(form) = MOMENTS.iter().find(|form| is_of(text, form)) {
        return ("<moment>", form.len());
    }
    if let Some(digits) = text.strip_prefix("0x") {
        let length = digits.find(|letter: char| !letter.is_ascii_hexdigit());
        return ("<address>", 2 + length.unwrap_or(digits.len()));
    }
    let length = digits(text);
    match unit(&text[length..]) {
        Some((name, more)) if SIZES.contains(&name) => ("<bytes>", length + more),
        Some((_, more)) => {
            // `2 m 3 s` is one duration.
            let rest = &text[length + more..];
            let second = rest.strip_prefix(' ').map(|rest| (digits(rest), rest));
            let second = second.filter(|(length, _)| *length > 0);
            let second = second.and_then(|(length, rest)| Some((length, unit(&rest[length..])?)));
            match second {
                Some((digits, (name, unit))) if DURATIONS.contains(&name) => {
                    ("<time>", length + more + 1 + digits + unit)
                }
                _ => ("<time>", length + more),
            }
        }
        None if text[length..].starts_with(char::is_alphabetic) => {
            let end = text.find(|letter: char| !letter.is_alphanumeric());
            let end = end.unwrap_or(text.len());
            (&text[..end], end)
        }
        None => ("#", length),
    }
}

/// The length of the number at the beginning of a text: digits, with commas and a point between them.
fn digits(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while digit(at) || (at > 0 && matches!(bytes.get(at), Some(b',' | b'.')) && digit(at + 1)) {
        at += 1;
    }
    at
}

/// The unit behind a number, and its length with the space before it.
fn unit(text: &str) -> Option<(&'static str, usize)> {
    let text = text.strip_prefix(' ')?;
    let units = SIZES.into_iter().chain(DURATIONS);
    let mut fitting = units.filter(|unit| {
        let rest = text.strip_prefix(unit);
        rest.is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_alphanumeric()))
    });
    fitting.next().map(|unit| (unit, 1 + unit.len()))
}

/// Whether a text begins with what has this form.
fn is_of(text: &str, form: &str) -> bool {
    let (text, form) = (text.as_bytes(), form.as_bytes());
    text.len() >= form.len()
        && form.iter().zip(text).all(|(form, letter)| match form {
            b'0' => letter.is_ascii_digit(),
            _ => form == letter,
        })
}

/// Whether what was masked so far ends in the name of a program's file and a colon.
fn names_a_line(mask: &str) -> bool {
    let endings = [".py:", ".c:", ".cpp:"];
    endings.iter().any(|ending| mask.ends_with(ending))
}

/// Whether the lines of a page show an answer: each line masked, `…` for any text within a line, and alone for any lines. The
/// page's lines may be broken where the answer's are not, because the answer was asked for without a width.
pub fn shows(page: &[String], answer: &[String]) -> Result<(), String> {
    let masks = |lines: &[String]| lines.iter().map(|line| masked(line)).collect();
    let (page, answer): (Vec<Vec<String>>, Vec<Vec<String>>) = (masks(page), masks(answer));
    let mut search = Search {
        page: &page,
        answer: &answer,
        known: HashMap::new(),
        furthest: 0,
    };
    if search.from(0, 0) {
        return Ok(());
    }
    let lost = page.get(search.furthest);
    Err(lost.map_or("the answer has more lines".to_owned(), |line| {
        format!("not so in the answer: {}", line.join(" "))
    }))
}

struct Search<'a> {
    page: &'a [Vec<String>],
    answer: &'a [Vec<String>],
    known: HashMap<(usize, usize), bool>,
    furthest: usize,
}

impl Search<'_> {
    /// Whether the page's lines from `at` on show the answer's from `on` on.
    fn from(&mut self, at: usize, on: usize) -> bool {
        self.furthest = self.furthest.max(at);
        let Some(line) = self.page.get(at) else {
            return self.answer[on..].iter().all(Vec::is_empty);
        };
        if let Some(known) = self.known.get(&(at, on)) {
            return *known;
        }
        let found = if line == &[LEFT_OUT] {
            (on..=self.answer.len()).any(|on| self.from(at + 1, on))
        } else if on == self.answer.len() {
            false
        } else {
            self.line(at, on)
        };
        self.known.insert((at, on), found);
        found
    }

    /// Whether one line of the answer is shown by one or several lines of the page, and the rest by the rest.
    fn line(&mut self, at: usize, on: usize) -> bool {
        let mut words = Vec::new();
        for end in at..self.page.len() {
            if end > at && (self.page[end].is_empty() || self.page[end] == [LEFT_OUT]) {
                return false;
            }
            words.extend(self.page[end].iter().cloned());
            if same(&words, &self.answer[on]) && self.from(end + 1, on + 1) {
                return true;
            }
            if words.is_empty() {
                return false;
            }
        }
        false
    }
}

/// Whether a line is another one, where `…` stands for any text.
fn same(page: &[String], answer: &[String]) -> bool {
    let (page, answer) = (page.join(" "), answer.join(" "));
    let mut pieces = page.split(LEFT_OUT).map(str::trim);
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = answer.strip_prefix(first) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, between)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in between {
        match rest.find(piece) {
            Some(found) => rest = &rest[found + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn line(text: &str, mask: &str) {
        assert_eq!(masked(text).join(" "), mask);
    }

    #[test]
    fn what_varies_is_masked_and_nothing_else() {
        line(
            " allocated      443.78 MiB (465,336,832)",
            "allocated <bytes> (#)",
        );
        line(
            "156 steps, 53 ms each: Optimizer.step#AdamW.step at train.py:21.",
            "# steps, <time> each: Optimizer.step#AdamW.step at train.py:21.",
        );
        line("for 2 m 3 s, 86 %", "for <time>, # %");
        line("1  2026-11-20 09:53:22 UTC  7", "# <moment> #");
        line("f-20261120T095322Z-pid-1.pickle", "f-<moment>-pid-#.pickle");
        line("growth > 30MiB in 4s", "growth > 30MiB in 4s");
        line(
            "npu:0 at 0x7f00aa, 5 blocks",
            "npu:# at <address>, # blocks",
        );
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_page_shows_an_answer_or_does_not() {
        let answer = lines("first of 3\n\n A  B\n 1  2.00 MiB\nthe end of a long sentence");
        let shown = |page: &str| shows(&lines(page), &answer).is_ok();
        assert!(shown(
            "first of 9\n\n A      B\n 3  2.00 GiB\nthe end of a\n  long sentence"
        ));
        assert!(shown("first…\n…\n 3  2.00 GiB\nthe end of … sentence"));
        assert!(shown("…"));
        // A column more or less, another order, a line that is left out without a word.
        assert!(!shown("first of 9\n\n A\n 3  2.00 GiB\n…"));
        assert!(!shown("…\n B  A\n…"));
        assert!(!shown("first of 9\n A  B\n…"));
        assert!(!shown(
            "first of 9\n…\nthe end of a long sentence, and more"
        ));
        assert!(!shown("first of 9"));
    }
}
