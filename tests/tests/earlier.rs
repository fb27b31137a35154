//! What a daemon recorded before it was started anew.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Asking, Daemon, Torch, Value, json, number};

fn earlier(state: &str) -> Value {
    Asking::new(["--json", "ps", "--earlier", "--state-dir", state])
        .ask()
        .json()
}

#[test]
fn a_recording_of_the_run_before_is_offered_by_name() {
    let mut daemon = Daemon::start();
    let state = daemon.state().to_str().unwrap().to_owned();
    let mut torch = Torch::start(&[]);
    let pid = torch.pid();
    daemon.attach(pid, "trace");
    torch.ask("alloc a 3000000");
    let stats = daemon.stats(pid);
    // The run that goes on is none of the earlier ones.
    assert_eq!(earlier(&state), json!([]));

    // The daemon is stopped and started anew, and knows nothing of it.
    daemon.stop();
    let daemon = daemon.successor();
    assert_eq!(daemon.process(pid), None);
    let said = daemon.ctl(&["ps"]);
    assert!(said.text().contains("ps --earlier"), "{said}");
    let found = earlier(&state);
    // The daemon that runs says where it keeps its state.
    assert_eq!(daemon.json(&["ps", "--earlier"]), found);
    let [run] = &found.as_array().unwrap()[..] else {
        panic!("{found:#}");
    };
    assert_eq!(run["problem"], Value::Null, "{run:#}");
    assert!(number(&run["from_unix_ns"]) < number(&run["until_unix_ns"]));
    assert_eq!(run["processes"][0]["pid"], pid, "{run:#}");
    let text = Asking::new(["ps", "--earlier", "--state-dir", &state]).ask();
    let recording = run["recording"].as_str().unwrap();
    assert!(
        text.text()
            .contains(&format!("--recording {recording} leaks"))
    );

    // By its name, and by the directory in which it is the latest one.
    let pid = pid.to_string();
    for name in [recording, &state, &format!("{state}/journal")] {
        let told = Asking::new(["--json", "--recording", name, "stats", "--pid", &pid]).ask();
        let told = told.json();
        assert_eq!(told["devices"], stats["devices"], "{name}");
    }
}

#[test]
fn where_there_is_none_it_says_so() {
    let daemon = Daemon::start();
    let state = daemon.state();
    let said = Asking::new(
        ["ps", "--earlier", "--state-dir"]
            .map(Into::into)
            .iter()
            .chain([&state.clone().into_os_string()]),
    )
    .ask();
    assert!(said.text().starts_with("No earlier run"), "{said}");
    let missing = state.join("not there");
    let missing = missing.to_str().unwrap();
    Asking::new(["ps", "--earlier", "--state-dir", missing])
        .ask()
        .refused(1, &["not there", "--state-dir"]);
    Asking::new(["--recording", missing, "ps", "--earlier"])
        .ask()
        .refused(2, &["earlier runs"]);
}
