//! Standard output and standard error, without panics when nobody reads them.

use crate::failure::Failure;
use crate::render::window::Window;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Width of the output in columns: `COLUMNS` if it is set, else the terminal's width. `None`: nothing is shortened.
pub(crate) fn width() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok();
    let said = said.and_then(|columns| columns.parse::<u16>().ok());
    let terminal = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    said.or_else(terminal)
        .filter(|columns| *columns > 0)
        .map(usize::from)
}

/// Size of the window that is written to. With `is_filled` the output replaces the window's content, so that it also
/// has a limit of lines.
pub(crate) fn window(is_filled: bool) -> Window {
    let terminal = terminal_size::terminal_size_of(io::stdout());
    Window {
        columns: width(),
        lines: terminal
            .filter(|_| is_filled)
            .map(|(_, lines)| usize::from(lines.0)),
    }
}

/// Draws a text over the window's content, without an empty window in between.
pub(crate) fn redraw(text: &str) -> Result<(), Failure> {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    let lines = text.replace('\n', CLEAR_LINE);
    write(&format!("{HOME}{lines}{CLEAR_BELOW}"))
}

/// Prints a line as it is, however long.
pub(crate) fn line(line: &str) -> Result<(), Failure> {
    write(&format!("{line}\n"))
}

/// Prints a text; on a terminal, sentences that are longer than a line are wrapped.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    match width() {
        Some(width) => write(&folded(text, width)),
        None => write(text),
    }
}

/// Wraps the lines that are sentences. Lines of tables, known by columns two blanks apart, stay as they are.
fn folded(text: &str, width: usize) -> String {
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_start();
        let is_row = content.trim_end().contains("  ");
        if is_row || textwrap::core::display_width(line.trim_end()) <= width {
            folded.push_str(line);
            continue;
        }
        let indent = " ".repeat(line.len() - content.len());
        let further = format!("{indent}    ");
        let options = textwrap::Options::new(width)
            .initial_indent(&indent)
            .subsequent_indent(&further)
            .break_words(false);
        folded.push_str(&textwrap::fill(content.trim_end(), options));
        folded.push('\n');
    }
    folded
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(cannot_print)
}

/// Prints one JSON document over several lines.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut document = serde_json::to_string_pretty(value).map_err(no_json)?;
    document.push('\n');
    write(&document)
}

/// Prints one JSON document on one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut document = serde_json::to_string(value).map_err(no_json)?;
    document.push('\n');
    write(&document)
}

/// Takes what nobody reads any more as printed, where the exit code still says what was found.
pub(crate) fn although_closed<T>(printed: Result<T, Failure>) -> Result<(), Failure> {
    match printed {
        Err(failure) if !failure.is_closed_output() => Err(failure),
        _ => Ok(()),
    }
}

pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn cannot_print(source: io::Error) -> Failure {
    Failure::Output {
        what: "the answer cannot be printed".into(),
        source,
    }
}

pub(crate) fn no_json(source: serde_json::Error) -> Failure {
    Failure::Output {
        what: "the answer cannot be written as JSON".into(),
        source: source.into(),
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
pub(crate) struct ErrorBody<'a> {
    code: &'a str,
    message: String,
    hint: Option<String>,
}

impl<'a> From<&'a Failure> for ErrorBody<'a> {
    fn from(failure: &'a Failure) -> Self {
        ErrorBody {
            code: failure.code(),
            message: failure.what(),
            hint: failure.hint(),
        }
    }
}

/// Reports an error: to people on standard error, and with `--json` to programs on standard output as well.
pub(crate) fn report(failure: &Failure, as_json: bool) {
    complain(failure);
    if as_json {
        let error = ErrorBody::from(failure);
        // A failure to write cannot be reported anywhere.
        let _ = json_line(&ErrorDocument { error });
    }
}

/// Reports an error and its suggestion to people, on standard error.
pub(crate) fn complain(failure: &Failure) {
    say("", failure);
}

/// The same for one node of a fleet.
pub(crate) fn complain_of(node: &str, failure: &Failure) {
    say(&format!("{node}: "), failure);
}

/// Tells people something on standard error, beside an answer that programs may read.
pub(crate) fn note(what: &str) {
    tell(&format!("memscope-ctl: {}\n", crate::units::plain(what)));
}

/// Writes a message on standard error. A terminal has it wrapped; whatever else reads it may look for a part of a line.
fn tell(message: &str) {
    let terminal = terminal_size::terminal_size_of(io::stderr());
    let width = terminal.map(|(width, _)| usize::from(width.0));
    let message = match width.filter(|width| *width > 0) {
        Some(width) => folded(message, width),
        None => message.to_owned(),
    };
    // A failure to write cannot be reported anywhere.
    let _ = io::stderr().write_all(message.as_bytes());
}

fn say(whose: &str, failure: &Failure) {
    let what = crate::units::plain(&format!("{whose}{}", failure.what()));
    let mut message = format!("memscope-ctl: {what}\n");
    if let Some(hint) = failure.hint() {
        message.push_str(&format!("  try: {}\n", crate::units::plain(&hint)));
    }
    tell(&message);
}

/// The error as a JSON document for programs.
pub(crate) fn error_document(failure: &Failure) -> Result<serde_json::Value, Failure> {
    let error = ErrorBody::from(failure);
    serde_json::to_value(ErrorDocument { error }).map_err(no_json)
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn sentences_are_folded_and_rows_are_not() {
        let text =
            "  code: one two three four five six seven\n NAME  SOMETHING THAT IS LONG\nshort\n";
        assert_eq!(
            folded(text, 20),
            "  code: one two\n      three four\n      five six seven\n NAME  SOMETHING THAT IS LONG\nshort\n"
        );
        assert_eq!(folded(text, 100), text);
        // A path is one word, and is not broken.
        assert_eq!(
            folded("see /a/very/long/path\n", 10),
            "see\n    /a/very/long/path\n"
        );
    }
}
