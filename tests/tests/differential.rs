//! `cargo xtask differential`: random programs, of which memscope and PyTorch say the same, live, later and from the
//! recording; and that a wrong number is found, and the program made smaller and kept.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::Command;

use memscope_tests::{Value, need_root, number, root, scratch, xtask};

/// The cells of the table's last row, by the words of its head.
#[track_caller]
fn sums(said: &str) -> Value {
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches('|').split('|');
        inner.map(|cell| cell.trim().to_owned()).collect()
    };
    let head = said.lines().find(|line| line.starts_with("| torch |"));
    let last = said.lines().find(|line| line.starts_with("| all |"));
    let (Some(head), Some(last)) = (head, last) else {
        panic!("no table: {said}");
    };
    let pairs = cells(head).into_iter().zip(cells(last));
    let numbers =
        pairs.filter_map(|(name, cell)| Some((name, Value::from(cell.parse::<u64>().ok()?))));
    Value::Object(numbers.collect())
}

/// The short form of what `--seeds 1..2000` does: one process for each of two environments.
#[test]
fn some_seeds_are_equal() {
    need_root();
    let (output, said, errors) = xtask(&[
        "differential",
        "--seeds",
        "2..4",
        "--seeds",
        "52..55",
        "--tries",
        "0",
    ]);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.ends_with("\n7 passed, 0 failed\n"), "{said}");
    assert!(said.contains("keys that differ: none"), "{said}");
    let sums = sums(&said);
    for (name, least) in [
        ("live", 8),
        ("past", 8),
        ("recorded", 8),
        ("segments", 50),
        ("blocks", 200),
        ("trace entries", 500),
        ("of them stacks", 100),
        ("statistics", 30),
    ] {
        assert!(number(&sums[name]) >= least, "{name}: {sums:#}");
    }
    assert_eq!(
        (&sums["refused"], &sums["said unknown"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn a_wrong_number_is_found_and_the_program_kept() {
    need_root();
    let folder = scratch();
    let keep = folder.path().to_str().unwrap();
    let words = [
        "differential",
        "--seeds",
        "1..9",
        "--only-seed",
        "3",
        "--keep",
        keep,
    ];
    let (output, said, errors) = xtask(&[&words[..], &["--plant", "--tries", "12"]].concat());
    assert_eq!(output.status.code(), Some(1), "{said}\n{errors}");
    assert!(said.ends_with("\n0 passed, 1 failed\n"), "{said}");
    let kept: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(kept.len(), 1);
    let file = kept[0].as_ref().unwrap().path();
    let file = file.to_str().unwrap();
    assert!(
        said.contains(&format!("again: cargo xtask differential --program {file}")),
        "{said}"
    );
    let program: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(program["seed"], 3);
    assert!(
        number(&program["differing"]["block size"]) > 0,
        "{program:#}"
    );
    let elements = program["elements"].as_array().unwrap().len();
    assert!(elements < 10, "made smaller: {program:#}");
    // Without the wrong number it passes.
    let (output, said, errors) = xtask(&["differential", "--program", file, "--keep", keep]);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.ends_with("\n1 passed, 0 failed\n"), "{said}");
}

#[test]
fn its_parts_find_what_they_are_to_find() {
    for name in ["generate.py", "judge.py"] {
        let script: &Path = &root().join("xtask/differential").join(name);
        let output = Command::new("python3")
            .arg("-B")
            .arg(script)
            .arg("--self-test")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(output.stdout, format!("{name}: ok\n").as_bytes());
    }
}

#[test]
fn wrong_words_are_refused() {
    for (words, wanted) in [
        (&["--seeds", "9..1"][..], "beyond the last"),
        (&["--seeds", "1..3", "--only-seed", "7"], "no such seed"),
        (&["--program", "/nonexistent.json"], "/nonexistent.json"),
        (&[], "--seeds"),
    ] {
        let (output, said, errors) = xtask(&[&["differential"], words].concat());
        assert!(!output.status.success(), "{words:?}");
        assert_eq!(said, "", "{words:?}");
        assert!(errors.contains(wanted), "{words:?}: {errors}");
    }
}
