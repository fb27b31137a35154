//! `cargo xtask conformance`: memscope's export against PyTorch's own recorder, key by key, for some workloads; and
//! that the comparison finds what it is to find and says what is wrong with its words.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::{Command, Output};

use memscope_tests::{need_root, scratch, sim, xtask};

/// Runs the task.
fn conformance(words: &[&str]) -> (Output, String, String) {
    xtask(&[&["conformance"], words].concat())
}

/// It passes with exactly so many comparisons, none of them empty.
#[track_caller]
fn passes(words: &[&str], comparisons: u32) {
    need_root();
    let (output, said, errors) = conformance(words);
    assert!(output.status.success(), "{said}\n{errors}");
    let count = format!("\n{comparisons} passed, 0 failed\n");
    assert!(said.ends_with(&count), "{said}");
    let rows = said.lines().filter(|line| line.contains("equal"));
    assert_eq!(rows.count(), comparisons as usize, "{said}");
}

#[test]
fn from_the_start_and_late() {
    passes(
        &[
            "--workload",
            "transformer",
            "expandable",
            "streams",
            "settings",
        ],
        8,
    );
}

#[test]
fn stripped_libraries() {
    passes(
        &["--stripped", "--mode", "late", "--workload", "streams"],
        1,
    );
}

/// A script of anybody's that leaves through sys.exit; and one that fails, in the same table.
#[test]
fn scripts_of_anybody() {
    need_root();
    let folder = scratch();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file(
        "good.py",
        "import sys\nimport torch\nx = torch.empty(3, device='cuda')\nprint('mine')\nsys.exit(0)\n",
    );
    let bad = file(
        "bad.py",
        "import torch\nx = torch.empty(3, device='cuda')\nprint('so far')\n1 / 0\n",
    );
    let words = ["--mode", "from-start", "--script", &good, "--script", &bad];
    let (output, said, errors) = conformance(&words);
    assert!(!output.status.success(), "{said}");
    assert!(said.ends_with("\n1 passed, 1 failed\n"), "{said}\n{errors}");
    assert!(said.contains("ZeroDivisionError"), "{said}");
    assert!(said.contains(&format!("File \"{bad}\", line 4")), "{said}");
    assert!(said.contains("so far"), "what it wrote: {said}");
    assert!(!said.contains("runpy"), "nothing of ours: {said}");
}

#[test]
fn wrong_words_are_named_with_the_way_out() {
    need_root();
    let folder = scratch();
    let empty = folder.path().join("empty");
    std::fs::create_dir_all(empty.join("bin")).unwrap();
    std::fs::create_dir_all(empty.join("lib/python3.11/site-packages")).unwrap();
    std::fs::write(empty.join("bin/python"), "").unwrap();
    let strange = folder.path().join("strange.py");
    std::fs::write(&strange, "# conformance: colour red\n").unwrap();
    for (words, wanted) in [
        (["--script", "/nonexistent/a.py"], "/nonexistent/a.py"),
        (
            ["--script", strange.to_str().unwrap()],
            "\"colour\" is none of env",
        ),
        (
            ["--torch-venv", "/nonexistent"],
            "python3 -m venv /nonexistent",
        ),
        (
            ["--torch-venv", empty.to_str().unwrap()],
            "bin/pip install torch",
        ),
        (["--torch", "1.2.3"], "tests/torch-versions.toml"),
        (["--workload", "nothing"], "there are accumulation,"),
    ] {
        let (output, said, errors) = conformance(&words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert_eq!(said, "", "{words:?}");
        assert!(errors.contains(wanted), "{words:?}: {errors}");
    }
}

/// Every single value, changed, is found.
#[test]
fn the_comparison_finds_differences() {
    let mut command = sim().python("agent.py");
    let python = command.get_program().to_owned();
    command = Command::new(python);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/conformance/compare.py");
    let output = command.arg(script).arg("--self-test").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(output.stdout, b"compare.py: ok\n");
}
