//! Names of reports and numbers of ranks, from the names of files.

use std::collections::BTreeSet;
use std::path::Path;

/// Words by which torchtitan's analyzer finds the part of a path that names the run.
const WORDS: [&str; 3] = ["lbs", "batch", "iteration"];
/// Most bytes of a name. A folder's name has at most 255, and the time and a number stand beside it.
const MOST_NAME: usize = 200;

/// A name that can be a folder's: what is no letter, digit, `.`, `-` or `_` becomes `_`.
pub(super) fn safe(name: &str) -> String {
    let fine = |char: char| match char.is_alphanumeric() || matches!(char, '.' | '-' | '_') {
        true => char,
        false => '_',
    };
    let name: String = name.chars().map(fine).collect();
    let name = name.trim_start_matches('.');
    match name
        .get(..name.floor_char_boundary(MOST_NAME))
        .unwrap_or_default()
    {
        "" => "report".to_owned(),
        name => name.to_owned(),
    }
}

/// The name of a report on these files: the first part of a path that contains one of the words, else the name of the first file.
pub(super) fn of_files<P: AsRef<Path>>(files: &[P]) -> String {
    let parts = files.iter().flat_map(|path| path.as_ref().iter());
    let parts = parts.map(|part| part.to_string_lossy());
    let is_named = |part: &std::borrow::Cow<'_, str>| WORDS.iter().any(|word| part.contains(word));
    let named = parts.clone().find(is_named);
    let first = || files.first().and_then(|path| path.as_ref().file_stem());
    let name = named.map(std::borrow::Cow::into_owned);
    let name = name.or_else(|| first().map(|stem| stem.to_string_lossy().into_owned()));
    let name = name.unwrap_or_default();
    let known = [".pickle", ".pkl"].iter();
    let bare = known.fold(&*name, |name, end| name.strip_suffix(end).unwrap_or(name));
    safe(bare)
}

/// The numbers of the ranks: those in the names (`rank3`), if all files have one and no two the same, else their places.
pub(super) fn ranks<P: AsRef<Path>>(files: &[P]) -> Vec<u64> {
    let said: Option<Vec<u64>> = files.iter().map(|path| said(path.as_ref())).collect();
    let said = said.filter(|said| said.iter().collect::<BTreeSet<_>>().len() == said.len());
    said.unwrap_or_else(|| (0..files.len() as u64).collect())
}

/// The number that stands behind `rank` in a file's name.
fn said(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let (_, behind) = name.rsplit_once("rank")?;
    let behind = behind.trim_start_matches(['_', '-', '=']);
    let end = behind.find(|char: char| !char.is_ascii_digit());
    behind.get(..end.unwrap_or(behind.len()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_named_by_the_run() {
        assert_eq!(of_files(&["out/lbs4_seq8/rank0.pickle"]), "lbs4_seq8");
        assert_eq!(of_files(&["s/iteration_10.pickle"]), "iteration_10");
        assert_eq!(of_files(&["/tmp/mine.pickle"]), "mine");
        assert_eq!(of_files::<&str>(&[]), "report");
    }

    #[test]
    fn a_name_stays_within_its_folder() {
        for name in ["../../etc", "..", "/", "a/../b", "\u{202e}x\n", ""] {
            let name = safe(name);
            assert!(
                !name.contains('/') && !name.starts_with('.') && !name.is_empty(),
                "{name:?}"
            );
        }
    }

    /// Names of files are limited in bytes, and a character may have several of them.
    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(safe(&"漢".repeat(100)), "漢".repeat(MOST_NAME / 3));
        assert_eq!(safe(&"a".repeat(1000)).len(), MOST_NAME);
    }

    #[test]
    fn ranks_are_those_of_the_names_or_places() {
        assert_eq!(ranks(&["a/rank3.pickle", "rank_0_memory.pickle"]), [3, 0]);
        assert_eq!(ranks(&["rank1.pickle", "other/rank1.pickle"]), [0, 1]);
        assert_eq!(ranks(&["a.pickle", "rank7.pickle"]), [0, 1]);
    }
}
