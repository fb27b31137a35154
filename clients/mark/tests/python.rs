//! Runs the Python package's own tests, which need the library that this crate builds.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

#[test]
fn the_python_package() {
    let package = common::here().parent().unwrap().join("python");
    let output = Command::new("python3")
        .args(["-W", "error", "-m", "unittest", "discover", "-v"])
        .args(["-t", ".", "-s", "tests"])
        .current_dir(&package)
        .env("MEMSCOPE_MARK_LIBRARY", common::library())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("PYTHONPATH")
        .output()
        .unwrap_or_else(|error| panic!("python3, which these tests need: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Checks that a test of each file ran: unittest does not fail if it finds no tests in a file.
    let mut files = 0;
    for file in package.join("tests").read_dir().unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if let Some(module) = name.strip_suffix(".py")
            && module.starts_with("test_")
        {
            files += 1;
            assert!(
                said.contains(&format!("(tests.{module}.")),
                "no test of {module} ran\n{said}"
            );
        }
    }
    assert!(files > 0 && said.trim_end().ends_with("\nOK"), "{said}");
}
