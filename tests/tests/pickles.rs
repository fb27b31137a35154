//! PyTorch's own pickles, asked as recordings: what they say is what PyTorch's reading of them says.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::Command;

use memscope_tests::{Asking, Said, Torch, Value, number, scratch, workload};

fn ask(file: &Path, words: &[&str]) -> Said {
    let mut all = vec!["--recording", file.to_str().unwrap()];
    all.extend(words);
    Asking::new(all).ask()
}

/// Has the recording of a pickle written as a pickle, and compares the two.
fn compared(file: &Path) -> Value {
    let again = file.with_extension("again.pickle");
    let words = [
        "snapshot",
        "--format",
        "memory-viz",
        "-o",
        again.to_str().unwrap(),
    ];
    ask(file, &words).text();
    let script = workload("same_pickles.py");
    let said = Command::new("python3")
        .arg(script)
        .arg(file)
        .arg(&again)
        .output()
        .unwrap();
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    serde_json::from_slice(&said.stdout).unwrap()
}

fn codes(answer: &Value) -> Vec<String> {
    let notes = answer["coverage"].as_array().unwrap().iter();
    notes
        .map(|note| note["code"].as_str().unwrap().to_owned())
        .collect()
}

/// Every question, and what the pickle and the process say of its end.
fn check(file: &Path, told: &Value) -> Value {
    let compared = compared(file);
    assert_eq!(
        compared["differences"],
        Value::Array(Vec::new()),
        "{compared:#}"
    );
    let stats = ask(file, &["--json", "stats"]).json();
    assert!(
        !codes(&stats).contains(&"import_contradictions".to_owned()),
        "{stats:#}"
    );
    for theirs in compared["devices"].as_array().unwrap() {
        let ordinal = &theirs["device"];
        let rows = stats["devices"].as_array().unwrap();
        let row = rows.iter().find(|row| row["device"] == *ordinal).unwrap();
        for (ours, key) in [
            ("allocated_bytes", "allocated"),
            ("reserved_bytes", "reserved"),
        ] {
            assert_eq!(row[ours], theirs[key], "{stats:#}");
            assert_eq!(told["devices"][number(ordinal) as usize][key], theirs[key]);
        }
    }
    for words in [
        vec!["ps"],
        vec!["stacks"],
        vec!["leaks"],
        vec!["steps"],
        vec!["marks"],
        vec!["pool"],
        vec!["fluctuation", "--window", "0s"],
        vec!["snapshot"],
        vec!["stats"],
    ] {
        ask(file, &words).text();
    }
    let course = ask(
        file,
        &[
            "--json",
            "fluctuation",
            "--from",
            "-1h",
            "--intervals",
            "500",
        ],
    )
    .json();
    let zero = &course["devices"][0]["intervals"];
    let last = zero.as_array().unwrap().last().unwrap();
    assert_eq!(
        last["last_allocated_bytes"], stats["devices"][0]["allocated_bytes"],
        "{last}"
    );
    compared
}

#[test]
fn a_pickle_is_a_recording() {
    let folder = scratch();
    for (kind, most) in [
        ("all", "3000000"),
        ("native", "3000000"),
        ("bare", "3000000"),
        ("all", "500"),
    ] {
        let mut torch = Torch::start(&[]);
        torch.ask("alloc early 5000000");
        torch.ask(&format!("history {kind} {most}"));
        torch.ask("train 2");
        torch.ask("alloc a 31457280");
        torch.ask("allocs many 20 5000");
        torch.ask("free a");
        torch.ask("empty_cache");
        torch.ask("alloc b 9000000");
        let file = folder.path().join(format!("{kind}-{most}.pickle"));
        torch.ask(&format!("dump {} 4", file.display()));
        let told = torch.ask("totals");
        torch.finish();
        let compared = check(&file, &told);
        let stats = ask(&file, &["--json", "stats"]).json();
        match stats["devices"][0]["peak_allocated_bytes"].as_u64() {
            // PyTorch's viewer adds up what was requested, and a block is at least as large.
            Some(peak) => assert!(peak >= number(&compared["peak"]), "{peak} {compared}"),
            // Where sizes of blocks that were there before the trace are not known, neither is the peak.
            None => assert!(
                codes(&stats).contains(&"import_sizes_rounded".to_owned()),
                "{stats:#}"
            ),
        }
        // Earlier moments, and what changed since then.
        if stats["devices"][0]["peak_allocated_bytes"].is_u64() {
            ask(&file, &["snapshot", "--at", "peak"]).text();
        }
        ask(&file, &["diff", "--from", "-1ms", "--to", "-0s"]).text();
        let made = folder.path().join(format!("{kind}-{most}"));
        let words = [
            "import",
            file.to_str().unwrap(),
            "-o",
            made.to_str().unwrap(),
        ];
        Asking::new(words).ask().text();
        let again = ask(&made, &["--json", "stats"]).json();
        assert_eq!(
            again["devices"],
            ask(&file, &["--json", "stats"]).json()["devices"]
        );
    }
}

#[test]
fn a_pickle_without_a_history_has_its_blocks() {
    let folder = scratch();
    let mut torch = Torch::start(&[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")]);
    torch.ask("train 1");
    torch.ask("alloc a 31457280");
    let file = folder.path().join("no history.pickle");
    torch.ask(&format!(
        "dump {} 2",
        folder.path().join("nohistory.pickle").display()
    ));
    let told = torch.ask("totals");
    torch.finish();
    std::fs::rename(folder.path().join("nohistory.pickle"), &file).unwrap();
    check(&file, &told);
    let stats = ask(&file, &["--json", "stats"]).json();
    assert!(
        codes(&stats).contains(&"import_time_of_file".to_owned()),
        "{stats:#}"
    );
    assert_eq!(stats["process"]["comm"], "no history.pickle", "{stats:#}");
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let folder = scratch();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    // os.system("true"), a pickle that is cut off, and one that holds something else.
    for (name, bytes, word) in [
        (
            "code.pickle",
            &b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."[..],
            "never run",
        ),
        ("cut.pickle", b"\x80\x04}\x94(\x8c\x08segm", "ends early"),
        ("other.pickle", b"\x80\x04K\x07.", "segments"),
    ] {
        let path = write(name, bytes);
        ask(&path, &["stats"]).refused(1, &[word]);
    }
}
