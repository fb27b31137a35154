//! Whose code a frame of a stack is: compiled, Python of a library, or Python of the program itself.

/// Endings of source files of compiled code, without capitals.
const COMPILED: [&str; 22] = [
    "asm", "c", "c++", "cc", "cpp", "cu", "cuh", "cxx", "f90", "go", "h", "hh", "hpp", "hxx",
    "inc", "inl", "ipp", "pyx", "rs", "s", "so", "tcc",
];

/// Parts of the paths of libraries: installed packages, and Python's own library.
const LIBRARIES: [&str; 4] = [
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "/lib64/python3",
];

/// What Python calls the files of code that a person typed: cells of IPython, lines at its own prompt and of `code.interact`, a program
/// from standard input, and one after `-c`.
const TYPED: [&str; 5] = [
    "<ipython-input-",
    "<python-input-",
    "<stdin>",
    "<console>",
    GENERATED,
];
/// Code after `-c`; and what a dataclass generates, which are methods with two underscores.
const GENERATED: &str = "<string>";

/// Whether a frame of which only function, file and line are known is of compiled code. PyTorch's recorder has frames of both kinds in one
/// list and does not say which are which. A script of Python may have any name, so what is not known to be compiled is Python.
#[must_use]
pub fn is_compiled(function: &str, file: &str, line: u64) -> bool {
    if file.ends_with(".py") || file.starts_with('<') {
        return false;
    }
    let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
    // Python knows the file and line of all its code, and none of its functions has a name with a bracket or with two colons.
    line == 0
        || file.is_empty()
        || function.contains('(')
        || function.contains("::")
        || COMPILED.iter().any(|one| ending.eq_ignore_ascii_case(one))
}

/// Whether a function of Python belongs to the program itself: its file lies neither in an installed package nor in Python's own library,
/// and is no made-up name such as `<frozen runpy>`, unless it is the name of what a person typed. The page has the same rule in
/// `ui/src/frames.ts`, and the Python package in `_cell.py`; `own.cases` has the cases for all three.
#[must_use]
pub fn is_own(function: &str, file: &str) -> bool {
    if file.starts_with('<') {
        let generated = file.starts_with(GENERATED) && function.starts_with("__");
        return !generated && TYPED.iter().any(|typed| file.starts_with(typed));
    }
    !LIBRARIES.iter().any(|part| file.contains(part))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_case_of_the_table_is_as_it_says() {
        let mut cases = 0;
        for case in include_str!("own.cases").lines() {
            if case.starts_with('#') {
                continue;
            }
            let parts: Vec<&str> = case.split('\t').collect();
            let [whose, function, file, line] = parts[..] else {
                panic!("{case}");
            };
            let found = match is_compiled(function, file, line.parse().unwrap()) {
                true => "compiled",
                false if is_own(function, file) => "own",
                false => "library",
            };
            assert_eq!(found, whose, "{case}");
            cases += 1;
        }
        assert!(cases > 30, "{cases}");
    }
}
