//! The messages that the book quotes, looked for in the programs' sources.

use std::collections::HashSet;
use std::path::Path;

use crate::places::root;

/// The texts in the programs' sources: every string, and the paragraphs of documentation that become help.
pub struct Sources {
    /// Each with its variable parts replaced by `VARIES`.
    texts: Vec<String>,
    /// Their fixed pieces, without the punctuation around them.
    fixed: HashSet<String>,
}

/// What stands for a part that is inserted when a message is made.
const VARIES: char = '\u{0}';

/// A fixed part of a message that is shorter than this says nothing by itself.
const SHORTEST: usize = 4;

impl Sources {
    /// Reads those of the programs and of `cargo xtask`. Tests are none: a message that only a test has is not printed.
    pub fn read() -> Sources {
        let mut texts = Vec::new();
        for folder in [root(), root().join("crates")] {
            for entry in std::fs::read_dir(folder).expect("the workspace") {
                let path = entry.expect("an entry of the workspace").path();
                if path.join("Cargo.toml").is_file() {
                    collect(&path.join("src"), &mut texts);
                }
            }
        }
        assert!(texts.len() > 1000, "{} texts in the sources", texts.len());
        let pieces = texts.iter().flat_map(|text| text.split(VARIES));
        let fixed = pieces.map(|piece| bare(piece).to_owned());
        Sources {
            fixed: fixed.filter(|piece| !piece.is_empty()).collect(),
            texts,
        }
    }

    /// The fixed parts of a message that no text has. Parts that vary are words in capitals, numbers, and `…`.
    pub fn missing(&self, message: &str) -> Vec<String> {
        let parts = fixed_parts(message);
        let parts = parts.into_iter().filter(|part| part.len() >= SHORTEST);
        parts.filter(|part| !self.has(part)).collect()
    }

    /// Whether a text contains it, or several texts that are put together, each inserted where another one varies or stands
    /// before or behind it.
    fn has(&self, part: &str) -> bool {
        self.texts.iter().any(|text| text.contains(part))
            || spaces(part).any(|at| {
                let (first, rest) = (bare(&part[..at]), bare(&part[at..]));
                first.len() >= SHORTEST
                    && self.fixed.iter().any(|text| text.ends_with(first))
                    && self.goes_on(rest, JOINTS)
            })
    }

    fn goes_on(&self, part: &str, joints: u32) -> bool {
        part.len() >= SHORTEST && self.fixed.iter().any(|text| text.starts_with(part))
            || joints > 0
                && spaces(part).any(|at| {
                    let (whole, rest) = (bare(&part[..at]), bare(&part[at..]));
                    self.fixed.contains(whole) && self.goes_on(rest, joints - 1)
                })
    }
}

/// How many texts may stand between the first and the last that a message is put together of.
const JOINTS: u32 = 1;

/// The places of the spaces in a text.
fn spaces(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices(' ').map(|(at, _)| at)
}

/// A text without the punctuation around it.
fn bare(text: &str) -> &str {
    text.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// The parts of a quoted message between those that vary.
fn fixed_parts(message: &str) -> Vec<String> {
    let varies = VARIES.to_string();
    let mut fixed = String::new();
    for word in message.split_inclusive(|letter: char| !letter.is_alphanumeric() && letter != '_') {
        let end = word.trim_end_matches(|letter: char| !letter.is_alphanumeric() && letter != '_');
        if PLACEHOLDERS.contains(&end) {
            fixed.push(VARIES);
            fixed.push_str(&word[end.len()..]);
        } else {
            fixed.push_str(word);
        }
    }
    let fixed = without_numbers(&fixed.replace('…', &varies));
    let parts = fixed.split(VARIES).map(|part| bare(part).to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

/// The words that stand for what is inserted, as docs/troubleshooting.md says.
const PLACEHOLDERS: [&str; 13] = [
    "CODE",
    "CONDITION",
    "LEVEL",
    "N",
    "NAME",
    "PATH",
    "PID",
    "PROGRAM",
    "SOCKET",
    "STATE_DIR",
    "TYPE",
    "VERSION",
    "WORDS",
];

fn collect(folder: &Path, texts: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                collect(&path, texts);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let source = std::fs::read_to_string(&path).expect("a source can be read");
            strings(before_tests(&source), texts);
        }
    }
}

/// A file's source without its unit tests, which stand at its end.
fn before_tests(source: &str) -> &str {
    source
        .find("#[cfg(test)]\nmod ")
        .map_or(source, |at| &source[..at])
}

/// The strings of a source. Comments are left out, except documentation, a line of which may become a line of help.
fn strings(source: &str, texts: &mut Vec<String>) {
    let mut rest = source;
    while let Some(letter) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            let end = comment.find('\n').unwrap_or(comment.len());
            if let Some(words) = comment.strip_prefix('/') {
                texts.push(words[..end - 1].trim().to_owned());
            }
            rest = &comment[end..];
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let end = raw.find("\"#").unwrap_or(raw.len());
            texts.push(raw[..end].to_owned());
            rest = &raw[end..];
        } else if letter == '\'' {
            rest = &rest[character_length(rest)..];
        } else if let Some(text) = rest.strip_prefix('"') {
            let end = string_end(text);
            texts.push(unescaped(&text[..end]));
            rest = text.get(end + 1..).unwrap_or_default();
        } else {
            rest = &rest[letter.len_utf8()..];
        }
    }
}

/// The length of the character that a text begins with, such as `'"'`; of a lifetime, that of its `'`.
fn character_length(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    let escaped = letters.next().is_some_and(|(_, letter)| letter == '\\');
    if escaped {
        letters.next();
        let end = letters.find(|(_, letter)| *letter == '\'');
        return end.map_or(1, |(at, _)| at + 1);
    }
    match letters.next() {
        Some((at, '\'')) => at + 1,
        _ => 1,
    }
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|letter: char| {
        let ends = letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    end.unwrap_or(text.len())
}

/// A string as it is printed: with line breaks that the source only has for its width taken out, and `VARIES` for what is
/// inserted.
fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('\n') => {
                    while letters.peek().is_some_and(|next| next.is_whitespace()) {
                        letters.next();
                    }
                }
                Some('n') => plain.push(' '),
                Some(other) => plain.push(other),
                None => {}
            },
            '{' if letters.peek() == Some(&'{') => {
                letters.next();
                plain.push('{');
            }
            '}' if letters.peek() == Some(&'}') => {
                letters.next();
                plain.push('}');
            }
            '{' => {
                for inside in letters.by_ref() {
                    if inside == '}' {
                        break;
                    }
                }
                plain.push(VARIES);
            }
            // Quoted messages have other numbers than the sources.
            _ => plain.push(letter),
        }
    }
    without_numbers(&plain)
}

/// A text with `VARIES` for each number: the book quotes messages with other ones.
fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        let inside = plain.ends_with(char::is_alphanumeric);
        if !letter.is_ascii_digit() || inside {
            plain.push(letter);
        } else if !plain.ends_with(VARIES) {
            plain.push(VARIES);
        }
    }
    plain
}
