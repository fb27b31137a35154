//! The page of `memscope-ctl ui` in a browser: each view shows what memscope-ctl says of the same moment, in both themes and on a phone, for
//! those who do not see it as well, and names of programs stay text.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Stdio};

use memscope_tests::{Daemon, LONG, Torch, Value, json, number, root, scratch, until};

/// A name of a mark that would be a picture, and then a program, if it were taken for HTML.
const HOSTILE: &str = "<img src=x onerror=\"document.title='gone'\">&lt;b&gt;'\u{202e}";

#[test]
fn each_view_shows_what_memscope_ctl_says() {
    let axe = root().join("target/ui/node_modules/axe-core/axe.min.js");
    assert!(
        axe.exists(),
        "{} is missing: cargo xtask setup --browser",
        axe.display()
    );
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("leak 130 2097152 1");
    torch.ask("oom 2");
    let pid = torch.pid_text();
    let marked = daemon.ask(&["mark", "--pid", &pid, HOSTILE]).ask();
    assert_eq!(marked.code, 0, "{marked:?}");
    // From here on the process rests, so the numbers stay.
    until(LONG, "a line is found", || {
        let list = daemon.json(&["ps"]);
        (number(&list["processes"][0]["growing_lines"]) > 0).then_some(())
    });
    let ui = daemon.ask(&["ui", "--no-open"]).start();
    let address = address(ui);
    let ask = |words: &[&str]| daemon.json(&[words, &["--pid", &pid]].concat());
    let expected = json!({
        "url": address.1,
        "pid": torch.pid(),
        "mark": HOSTILE,
        "stats": ask(&["stats"]),
        "steps": ask(&["steps"]),
        "pool": ask(&["pool"]),
        "top": ask(&["top", "--by", "line", "--limit", "0"]),
        "leaks": ask(&["leaks", "--no-holders"]),
        "course": ask(&["fluctuation", "--window", "0s"]),
    });
    let folder = scratch();
    let file = folder.path().join("expected.json");
    std::fs::write(&file, expected.to_string()).unwrap();
    let seen = Command::new("node")
        .arg(root().join("tests/viewers/ui.mjs"))
        .arg(&file)
        .arg(&axe)
        .args(std::env::var_os("MEMSCOPE_PICTURES"))
        .stdin(Stdio::null())
        .output()
        .expect("Node.js: cargo xtask setup --browser");
    let said = String::from_utf8_lossy(&seen.stdout);
    let line = said.lines().last().unwrap_or_default();
    let result: Value = serde_json::from_str(line)
        .unwrap_or_else(|_| panic!("{said}{}", String::from_utf8_lossy(&seen.stderr)));
    println!(
        "{}",
        json!({"browser": result["browser"], "first paint, ms": result["first_paint_ms"],
        "frames a second with 400,000 blocks": result["frames_per_s"]})
    );
    let wrong = result["wrong"].as_array().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    torch.finish();
}

/// The program that serves the page, and the address that it prints.
fn address(mut ui: memscope_tests::Program) -> (memscope_tests::Program, String) {
    let address = ui.hear_until("http://");
    (ui, address)
}
