//! The page's server with real PyTorch behind it: what it answers is what the commands answer.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{
    Asking, Daemon, LONG, Page, Torch, Value, device, eventually, json, number, scratch, tool,
    until,
};
use std::path::Path;
use std::process::Command;

/// `memscope-ctl WORDS`, a page, and through its door.
fn page(words: &[&str]) -> Page {
    let mut command = Command::new(tool("memscope-ctl"));
    command
        .args(words)
        .env_remove("MEMSCOPE_SOCKET")
        .env("MEMSCOPED", tool("memscoped"));
    Page::start(command)
}

fn of_daemon(daemon: &Daemon) -> Page {
    page(&[
        "--socket",
        daemon.socket().to_str().unwrap(),
        "ui",
        "--no-open",
    ])
}

/// The commands, and the questions that they ask, of one process.
fn questions(pid: u32) -> Vec<(&'static str, Value, Vec<String>)> {
    let words = |command: &str| vec![command.to_owned(), "--pid".to_owned(), pid.to_string()];
    vec![
        ("Stats", json!({ "pid": pid }), words("stats")),
        (
            "Fluctuation",
            json!({"pid": pid, "window_ns": 60_000_000_000_u64, "intervals": 20}),
            words("fluctuation"),
        ),
        (
            "Steps",
            json!({"pid": pid, "limit": 10, "every": 1}),
            words("steps"),
        ),
        ("Marks", json!({"pid": pid, "limit": 50}), words("marks")),
        (
            "Stacks",
            json!({"pid": pid, "view": {"metric": "STACK_METRIC_LIVE", "unit": "STACK_UNIT_BYTES"},
                "by": "STACK_GROUPING_STACK", "limit": 10}),
            words("top"),
        ),
        (
            "Leaks",
            json!({"pid": pid, "limit": 20, "sure_after_steps": 100, "holders": true}),
            words("leaks"),
        ),
        ("Pool", json!({ "pid": pid }), words("pool")),
        (
            "Diff",
            json!({"pid": pid, "from": {"step": 1}}),
            [
                words("diff"),
                vec!["--from".to_owned(), "step:1".to_owned()],
            ]
            .concat(),
        ),
    ]
}

/// Takes away what depends on when a running process is asked: the moment itself, and ages.
fn timeless(mut document: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| {
                    !name.starts_with("as_of") && name != "by_age" && !name.ends_with("_unix_ns")
                });
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut document);
    document
}

/// The memscoped that replays a recording for a command ends with the command, also when that is killed, and its folder goes.
#[test]
fn a_killed_client_leaves_nothing_behind() {
    let mut daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    torch.ask("alloc a 3000000");
    torch.finish();
    daemon.stop();
    let folder = scratch();
    let mut command = Command::new(tool("memscope-ctl"));
    command
        .arg("--recording")
        .arg(daemon.recording())
        .args(["ui", "--no-open"])
        .env_remove("MEMSCOPE_SOCKET")
        .env("MEMSCOPED", tool("memscoped"))
        .env("TMPDIR", folder.path());
    let page = Page::start(command);
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left(), 1);
    // It is killed here.
    drop(page);
    eventually("the folder of the socket goes", || left() == 0);
}

#[test]
fn a_stopped_process_and_its_recording_are_shown_as_the_commands_show_them() {
    let mut daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    for command in ["alloc a 3000000", "alloc b 5000000", "train 3", "free a"] {
        torch.ask(command);
    }
    let pid = torch.pid();
    until(LONG, "the program's functions have names", || {
        let stacks = daemon.json(&["stacks", "--pid", &pid.to_string()]);
        stacks.to_string().contains("\"alloc\"").then_some(())
    });
    let live = of_daemon(&daemon);
    for (method, question, words) in questions(pid) {
        // Its ages are those of the moment.
        if ["Leaks", "Fluctuation"].contains(&method) {
            continue;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = timeless(daemon.json(&words));
        let shown = live.ask(method, &question);
        assert_eq!(shown.status, 200, "{method}: {}", shown.text());
        assert_eq!(timeless(shown.json()), told, "{method}");
    }
    let stats = live.ask("Stats", &json!({ "pid": pid })).json();
    let of_device = |stats: &Value, name: &str| number(&device(stats, 0)[name]);
    let allocated = of_device(&stats, "allocated_bytes");
    let reserved = of_device(&stats, "reserved_bytes");
    let memory = live.send(
        "POST",
        "/api/memory",
        &[],
        json!({ "pid": pid }).to_string().as_bytes(),
    );
    assert_eq!(memory.status, 200, "{}", memory.text());
    let memory = memory.json();
    let column = |of: &str, name: &str| memory[of][name].as_array().unwrap().clone();
    let sizes = column("blocks", "size_bytes");
    let states = column("blocks", "state");
    let held = sizes
        .iter()
        .zip(&states)
        .filter(|(_, state)| *state == "active");
    assert_eq!(held.map(|(size, _)| number(size)).sum::<u64>(), allocated);
    assert_eq!(
        column("segments", "size_bytes")
            .iter()
            .map(number)
            .sum::<u64>(),
        reserved
    );
    // What the program called b is there, with the line that allocated it.
    let place = column("blocks", "requested_bytes")
        .iter()
        .position(|size| *size == 5_000_000);
    let stack = &memory["blocks"]["stack"][place.expect("the block b")];
    let frames = memory["stacks"]["frames"][number(stack) as usize]
        .as_array()
        .unwrap();
    let names: Vec<&Value> = frames
        .iter()
        .map(|frame| &memory["frames"][number(frame) as usize]["name"])
        .collect();
    assert!(names.iter().any(|name| *name == "alloc"), "{names:?}");
    torch.finish();
    drop(live);
    daemon.stop();

    let recording = daemon.recording();
    let recording = recording.to_str().unwrap();
    let shown = page(&["ui", "--no-open", recording]);
    let about = shown.get("/api/about").json();
    assert_eq!(about["source"]["kind"], "recording", "{about}");
    assert_eq!(about["source"]["live"], false);
    for (method, question, words) in questions(pid) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = Asking::new([&["--json", "--recording", recording], &words[..]].concat()).ask();
        assert_eq!(told.code, 0, "{method}: {told}");
        let reply = shown.ask(method, &question);
        assert_eq!(reply.status, 200, "{method}: {}", reply.text());
        assert_eq!(reply.json(), told.document(), "{method}");
    }
    let mut tab = shown.listen(&format!("/api/live?pids={pid}"));
    let now = tab.until(|kind, _| kind == "now");
    // What the program freed at its end is no longer there.
    let at_the_end = shown.ask("Stats", &json!({ "pid": pid })).json();
    assert_eq!(
        of_device(&now["stats"][pid.to_string()], "allocated_bytes"),
        of_device(&at_the_end, "allocated_bytes")
    );
}

#[test]
fn a_finding_comes_by_itself_and_the_daemon_may_go_and_come_back() {
    let mut daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    daemon.attach(torch.pid(), "trace");
    let page = of_daemon(&daemon);
    let mut tab = page.listen(&format!("/api/live?pids={}", torch.pid()));
    tab.until(|kind, _| kind == "now");
    torch.tell("leak 130 1500000 10");
    torch.hear();
    let found = tab.until(|kind, event| kind == "event" && event["kind"] == "finding");
    assert_eq!(found["pid"], torch.pid(), "{found}");
    let told = until(LONG, "leaks tells it as well", || {
        let leaks = daemon.json(&["leaks", &torch.pid_text()]);
        leaks["lines"].get(0).cloned()
    });
    assert_eq!(
        found["body"]["line"], told["line"]["line"],
        "{found}\n{told}"
    );
    daemon.stop();
    tab.until(|kind, _| kind == "gone");
    let next = daemon.successor();
    tab.until(|kind, _| kind == "back");
    tab.until(|kind, _| kind == "now");
    eventually("it answers", || {
        page.ask("Status", &json!({})).status == 200
    });
    drop(next);
}

#[test]
fn a_hostile_file_is_an_error_and_nothing_is_run() {
    let folder = memscope_tests::scratch();
    let made = folder.path().join("made");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let pickle = format!("cos\nsystem\n(S'touch {}'\ntR.", made.display());
    let refused = |path: &Path| {
        let said = Asking::new(["ui", "--no-open", path.to_str().unwrap()]).ask();
        assert_ne!(said.code, 0, "{said}");
        assert!(said.output.is_empty(), "{said}");
        assert!(!said.errors.is_empty(), "{said}");
    };
    refused(&write("x.pickle", pickle.as_bytes()));
    refused(&write("empty.mscope", b""));
    refused(&write("noise.mscope", &[0xa5; 100_000]));
    refused(&folder.path().join("absent"));
    assert!(!made.exists());
}
