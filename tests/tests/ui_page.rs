//! The page of `memscope-ctl ui` in a browser: each view shows what memscope-ctl says of the same moment, in both themes and on a phone, for
//! those who do not see it as well, and names of programs stay text.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Stdio};

use memscope_tests::{Asking, Daemon, LONG, Torch, Value, json, number, root, scratch, until};

/// A name of a mark that would be a picture, and then a program, if it were taken for HTML.
const HOSTILE: &str = "<img src=x onerror=\"document.title='gone'\">&lt;b&gt;'\u{202e}";

#[test]
fn each_view_shows_what_memscope_ctl_says() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("leak 130 2097152 1");
    torch.ask("oom 2");
    mark(&daemon, &torch);
    grows(&daemon);
    let ui = address(daemon.ask(&["ui", "--no-open"]).start());
    let mut expected = expected(&daemon, &torch);
    let failed = expected["pool"]["failed_allocations"].as_array().unwrap();
    assert_eq!(failed.len(), 2, "{failed:#?}");
    expected["url"] = ui.1.as_str().into();
    expected["ps"] = json!([daemon.json(&["ps"])]);
    expected["ranks"] = daemon.json(&["ranks"]);
    look(&expected);
    torch.finish();
}

#[test]
fn ranks_of_a_fleet_are_those_of_memscope_ctl() {
    let folder = scratch();
    let (here, far) = (Daemon::start(), Daemon::start());
    let nodes = folder.path().join("nodes");
    let list = format!(
        "here unix:{}\nfar unix:{}\ngone unix:{}\n",
        here.socket().display(),
        far.socket().display(),
        folder.path().join("nobody").display()
    );
    std::fs::write(&nodes, list).unwrap();
    let nodes = nodes.display().to_string();
    let (mut first, mut second) = (Torch::rank("0", "3"), Torch::rank("1", "3"));
    here.attach(first.pid(), "trace");
    far.attach(second.pid(), "trace");
    first.ask("leak 130 2097152 1 3");
    second.ask("leak 130 2097152 1");
    second.ask("oom 1");
    mark(&far, &second);
    grows(&far);
    let of_all = |words: &[&str]| -> Value {
        let words = [&["--fleet", &nodes, "--json"][..], words].concat();
        Asking::new(words).ask().document()
    };
    let ranks = until(LONG, "the rank that grows stands out", || {
        let answer = of_all(&["ranks"]);
        let odd = answer["jobs"][0]["judgement"]["odd"].as_array()?;
        (!odd.is_empty()).then_some(answer.clone())
    });
    let ui = address(Asking::new(["--fleet", &nodes, "ui", "--no-open"]).start());
    let mut expected = expected(&far, &second);
    expected["url"] = ui.1.as_str().into();
    expected["node"] = "far".into();
    expected["silent"] = json!(["gone"]);
    expected["ps"] = json!([here.json(&["ps"]), far.json(&["ps"])]);
    expected["ranks"] = ranks;
    look(&expected);
    first.finish();
    second.finish();
}

/// Marks a moment of a process with a name that is no name.
fn mark(daemon: &Daemon, torch: &Torch) {
    let marked = daemon.ask(&["mark", "--pid", &torch.pid_text(), HOSTILE]);
    let marked = marked.ask();
    assert_eq!(marked.code, 0, "{marked:?}");
}

/// Waits until a line of a process is found to grow. From then on the processes rest, so the numbers stay.
fn grows(daemon: &Daemon) {
    until(LONG, "a line is found", || {
        let list = daemon.json(&["ps"]);
        (number(&list["processes"][0]["growing_lines"]) > 0).then_some(())
    });
}

/// What memscope-ctl says of a process.
fn expected(daemon: &Daemon, torch: &Torch) -> Value {
    let pid = torch.pid_text();
    let ask = |words: &[&str]| daemon.json(&[words, &["--pid", &pid]].concat());
    json!({
        "pid": torch.pid(),
        "mark": HOSTILE,
        "silent": [],
        "stats": ask(&["stats"]),
        "steps": ask(&["steps", "--last", "4096"]),
        "pool": ask(&["pool"]),
        "top": ask(&["top", "--by", "line", "--limit", "0"]),
        "leaks": ask(&["leaks", "--no-holders"]),
        "course": ask(&["fluctuation", "--window", "0s"]),
        "owners": ask(&["owners"]),
    })
}

/// Looks at the page in a browser, and compares.
fn look(expected: &Value) {
    let axe = root().join("target/ui/node_modules/axe-core/axe.min.js");
    assert!(
        axe.exists(),
        "{} is missing: cargo xtask setup --browser",
        axe.display()
    );
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
}

/// The program that serves the page, and the address that it prints.
fn address(mut ui: memscope_tests::Program) -> (memscope_tests::Program, String) {
    let address = ui.hear_until("http://");
    (ui, address)
}
