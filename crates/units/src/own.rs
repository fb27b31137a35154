//! Which Python files belong to the program itself.

/// Whether a Python file belongs to the program itself: it lies neither in an installed package nor in Python's own library, and is no
/// made-up name such as `<string>`. The page has the same rule in `ui/src/frames.ts`.
#[must_use]
pub fn is_own_file(file: &str) -> bool {
    const LIBRARIES: [&str; 4] = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python3",
        "/lib64/python3",
    ];
    !file.starts_with('<') && !LIBRARIES.iter().any(|part| file.contains(part))
}

#[cfg(test)]
mod tests {
    use super::is_own_file;

    #[test]
    fn libraries_and_made_up_names_are_not_the_programs() {
        assert!(is_own_file("/srv/train.py"));
        assert!(is_own_file("train.py"));
        for file in [
            "/v/lib/python3.11/site-packages/torch/nn/functional.py",
            "/usr/lib/python3/dist-packages/six.py",
            "/usr/lib/python3.11/threading.py",
            "/usr/lib64/python3.13/threading.py",
            "<frozen runpy>",
        ] {
            assert!(!is_own_file(file), "{file}");
        }
    }
}
