//! Chooses the format of a file: the one that the user named, else the one that the ending of the file's name stands
//! for.

use crate::failure::Failure;
use crate::output;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memscope_proto::formats::{Format, endings, named};
use std::path::Path;

/// Parser for an argument that takes the name of one of these formats.
pub(crate) fn parser(formats: &'static [Format]) -> impl TypedValueParser<Value = &'static Format> {
    let words = |format: &'static Format| PossibleValue::new(format.name).help(format.help);
    PossibleValuesParser::new(formats.iter().map(words))
        .try_map(move |name| named(formats, &name).ok_or("is no format"))
}

/// Format of a file: the chosen one, else the one that the file's name stands for, else the first of `formats`.
pub(crate) fn of(
    formats: &'static [Format],
    chosen: Option<&'static Format>,
    file: Option<&Path>,
) -> Result<&'static Format, Failure> {
    let said = match (chosen, file) {
        (Some(format), _) => Some(format),
        (None, Some(path)) => of_name(formats, path)?,
        (None, None) => None,
    };
    said.or(formats.first()).ok_or_else(|| Failure::Incomplete {
        what: "there is no format".into(),
    })
}

/// Format that the name of a file stands for; `None` for a name without an ending. An unknown ending is refused, so
/// that nobody gets a file that is something else than its name says.
fn of_name(formats: &'static [Format], path: &Path) -> Result<Option<&'static Format>, Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some((_, format)) = endings(formats).find(|(ending, _)| name.ends_with(ending)) {
        return Ok(Some(format));
    }
    // A name such as `.x` or `x` has no ending.
    if path.extension().is_none() {
        return Ok(None);
    }
    let known: Vec<&str> = endings(formats).map(|(ending, _)| ending).collect();
    Err(Failure::Usage {
        what: format!("{name} does not say which format is meant"),
        hint: format!(
            "let it end in one of {}, or choose --format",
            known.join(", ")
        ),
    })
}

/// Refuses to write a binary format to a terminal. `instead` is what the error message suggests to choose.
pub(crate) fn not_for_a_terminal(
    format: &Format,
    file: Option<&Path>,
    instead: &str,
) -> Result<(), Failure> {
    if file.is_none() && format.binary && output::is_terminal() {
        return Err(Failure::Usage {
            what: "this format is binary and standard output is a terminal".into(),
            hint: format!("write it to a file with -o FILE, or choose {instead}"),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use memscope_proto::formats::{SNAPSHOTS, STACKS};

    #[test]
    fn names_of_files_say_their_format() {
        for (formats, name, format) in [
            (STACKS, "x.svg", "svg"),
            (STACKS, "x", "svg"),
            (STACKS, "/a.b/x", "svg"),
            (STACKS, "/a/b.folded", "folded"),
            (STACKS, "x.txt", "folded"),
            (STACKS, "heap.pb.gz", "pprof"),
            (STACKS, "x.speedscope.json", "speedscope"),
            (SNAPSHOTS, "s.pickle", "memory-viz"),
            (SNAPSHOTS, "s", "memory-viz"),
            (SNAPSHOTS, "then.html", "html"),
            (SNAPSHOTS, "then.json", "json"),
            (SNAPSHOTS, "s.pftrace", "perfetto"),
        ] {
            let said = of(formats, None, Some(Path::new(name))).unwrap();
            assert_eq!(said.name, format, "{name}");
        }
        for (formats, name) in [(STACKS, "x.html"), (STACKS, "x.gz"), (SNAPSHOTS, "x.svg")] {
            let said = of(formats, None, Some(Path::new(name)));
            assert!(matches!(said, Err(Failure::Usage { .. })), "{name}");
        }
        assert_eq!(of(SNAPSHOTS, None, None).unwrap().name, "memory-viz");
        let html = named(SNAPSHOTS, "html");
        let said = of(SNAPSHOTS, html, Some(Path::new("x.json"))).unwrap();
        assert_eq!(said.name, "html");
    }
}
