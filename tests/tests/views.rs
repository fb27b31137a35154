//! Whose memory it is: the views of stacks, against PyTorch's own numbers, live and from the recording.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Asking, Daemon, Torch, Value, number, scratch};

/// The device's sums in an answer to `stacks`, which has one device.
#[track_caller]
fn device_bytes(top: &Value, what: &str) -> u64 {
    let devices = top["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "{top:#}");
    number(&devices[0]["amounts"][what]["bytes"])
}

/// Bytes of what is listed, which is everything.
#[track_caller]
fn listed(top: &Value, part: &str, of: &str, what: &str) -> i64 {
    assert_eq!(top["omitted"], 0, "{top:#}");
    let rows = top[part].as_array().unwrap().iter();
    rows.map(|row| signed(&row[of][what])).sum()
}

fn signed(amount: &Value) -> i64 {
    i64::try_from(number(&amount["bytes"])).unwrap()
}

fn grew(row: &Value) -> i64 {
    signed(&row["amounts"]["live"]) - signed(&row["amounts"]["before"])
}

fn functions(row: &Value) -> Vec<&str> {
    let frames = row["frames"].as_array().unwrap().iter();
    frames
        .map(|frame| frame["name"].as_str().unwrap_or_default())
        .collect()
}

/// Sum of the numbers at the ends of the lines.
fn folded_sum(text: &str) -> u64 {
    let numbers = text.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    numbers.map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn add_up_to_what_the_allocator_says() {
    let mut daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    // Some of it is from before the attach.
    torch.ask("alloc old 3000000");
    daemon.attach(torch.pid(), "trace");
    let pid = torch.pid_text();
    torch.ask("train 3");
    let told = torch.ask("allocs small 40 70000");
    let before = number(&told["devices"][0]["allocated"]);
    let ask = |daemon: &Daemon, words: &[&str]| {
        let words = [&["stacks", "--pid", &pid, "--limit", "0", "--json"], words].concat();
        daemon.ctl(&words).document()
    };
    let top = ask(&daemon, &[]);
    let moment = format!("event:{}", number(&top["as_of_event"]["sequence"]));
    assert_eq!(device_bytes(&top, "live"), before);
    assert_eq!(
        u64::try_from(listed(&top, "rows", "amounts", "live")).unwrap(),
        before
    );
    for by in ["function", "file", "line", "any-line"] {
        let groups = ask(&daemon, &["--by", by]);
        let sum = listed(&groups, "groups", "own", "live");
        assert_eq!(u64::try_from(sum).unwrap(), before, "{by}");
    }

    torch.ask("leak 5 2000000 0");
    torch.ask("free old");
    let told = torch.ask("memory_stats");
    let after = number(&told["stats"]["allocated_bytes.all.current"]);
    let growth = ask(&daemon, &["--from", &moment]);
    assert_eq!(growth["metric"], "growth");
    assert_eq!(device_bytes(&growth, "live"), after);
    let rows = growth["rows"].as_array().unwrap();
    assert_eq!(
        rows.iter().map(grew).sum::<i64>(),
        i64::try_from(after).unwrap() - i64::try_from(before).unwrap()
    );
    // The first is the leak, named; 2,000,000 bytes are 2,000,384 rounded.
    assert_eq!(grew(&rows[0]), 5 * 2_000_384, "{:#}", rows[0]);
    assert_eq!(functions(&rows[0])[0], "leak");
    // The last is what was there before the attach, and was freed.
    let last = rows.last().unwrap();
    assert_eq!(
        (last["missing"].as_str(), grew(last)),
        (Some("before_attach"), -3_000_320),
        "{last:#}"
    );
    // At the peak since the attach all stacks together held what PyTorch's peak says.
    let peak = number(&told["stats"]["allocated_bytes.all.peak"]);
    assert_eq!(device_bytes(&growth, "peak"), peak);

    let folder = scratch();
    let file = folder.path().join("live.folded");
    let path = file.to_str().unwrap();
    daemon
        .ctl(&["flamegraph", "--pid", &pid, "-o", path])
        .text();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(folded_sum(&text), after);
    assert!(text.contains(";leak ("), "{text}");

    // The recording says the same of both moments.
    let live = ask(&daemon, &[]);
    torch.finish();
    daemon.stop();
    let journal = std::fs::read_dir(daemon.state().join("journal")).unwrap();
    let mut folders = journal.flatten().map(|entry| entry.path());
    let recording = folders.find(|path| path.is_dir()).unwrap();
    let recorded = |words: &[&str]| {
        let recording = recording.to_str().unwrap();
        let begin = ["--recording", recording, "stacks", "--pid", &pid];
        let words = [&begin[..], &["--limit", "0", "--json"], words].concat();
        Asking::new(words).ask().document()
    };
    let event = format!("event:{}", number(&live["as_of_event"]["sequence"]));
    assert_eq!(recorded(&["--at", &event])["rows"], live["rows"]);
    let again = recorded(&["--at", &event, "--from", &moment]);
    assert_eq!(again["rows"], growth["rows"]);
}
