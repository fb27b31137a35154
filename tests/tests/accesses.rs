//! Which operators use which blocks, against what PyTorch's own dispatcher says in the same process.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::Path;

use memscope_tests::{Asking, Daemon, Device, LONG, Program, dumped, sim_of, until};
use serde_json::Value;

/// Name of the operator that the workload calls between two statements.
const FENCE: &str = "aten::bitwise_left_shift.Tensor_Scalar";

/// Event, type, name and address of a row.
type Row = [String; 4];

/// All rows of a process, as the dumps of its devices have them, in the order of their numbers.
fn rows(daemon: &Daemon, pid: &str, folder: &Path) -> Vec<Row> {
    let output = folder.to_str().unwrap();
    let format = ["--format", "msmemscope-csv", "-o", output, "--pid", pid];
    let made = daemon.json(&[&["export"], &format[..]].concat());
    assert_eq!(made["lost_records"], 0, "{made}");
    dumped(folder, ["Event", "Event Type", "Name", "Ptr"])
}

/// What the rows between each two fences say: addresses, and whether they are read or written.
fn statements(rows: &[Row]) -> Vec<BTreeSet<(u64, String)>> {
    let mut all: Vec<BTreeSet<(u64, String)>> = Vec::new();
    for [event, kind, name, address] in rows {
        match (event.as_str(), kind.as_str()) {
            ("OP_LAUNCH", "ATEN_START") if name == FENCE => all.push(BTreeSet::new()),
            ("ACCESS", kind) => {
                let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
                if let Some(last) = all.last_mut() {
                    last.insert((address.unwrap(), kind.to_owned()));
                }
            }
            _ => {}
        }
    }
    all
}

fn scripted(device: Device, seed: u64, count: usize) {
    let daemon = Daemon::start();
    let mut command = sim_of(device).python("accesses/scripted.py");
    command.args([seed.to_string(), count.to_string()]);
    let mut program = Program::start("scripted.py", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid, "--accesses"]);
    let told = program.ask("go");
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(&daemon, &pid, folder.path());
    let seen = statements(&rows);
    let failures = told["failures"].as_u64().unwrap() as usize;
    let told = told["told"].as_array().unwrap();
    assert_eq!(told.len(), count);
    // Behind the last statement there is one more fence.
    assert_eq!(seen.len(), count + 1);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (number, (told, seen)) in told.iter().zip(&seen).enumerate() {
        let held: BTreeSet<u64> = addresses(&told["held"]);
        let expected: BTreeSet<(u64, String)> = told["touched"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| {
                (
                    one[0].as_u64().unwrap(),
                    one[1].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        let seen: BTreeSet<(u64, String)> = seen
            .iter()
            .filter(|(address, _)| held.contains(address))
            .cloned()
            .collect();
        compared += expected.len();
        if seen != expected {
            let said = &told["statement"];
            wrong.push(format!(
                "{number} (statement {said}): {seen:x?}, PyTorch {expected:x?}"
            ));
        }
    }
    assert!(compared > count, "{compared}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Each beginning has its end, unless an exception ended the operator.
    let number = |kind: &str| rows.iter().filter(|row| row[1] == kind).count();
    assert!(failures > 0, "none was chosen");
    assert_eq!(number("ATEN_START"), number("ATEN_END") + failures);
    program.finish();
}

fn addresses(value: &Value) -> BTreeSet<u64> {
    let all = value.as_array().unwrap().iter();
    all.map(|one| one.as_u64().unwrap()).collect()
}

#[test]
fn what_operators_touch_is_what_the_dispatcher_says() {
    scripted(Device::Cuda, 1, 200);
    scripted(Device::Cuda, 2, 200);
}

/// The class that holds the memory of an NPU's tensor is in a library that comes after PyTorch's operators.
#[test]
fn tensors_of_an_npu_are_seen_although_its_library_comes_late() {
    let daemon = Daemon::start();
    let mut program = Program::start("late.py", sim_of(Device::Npu).python("accesses/late.py"));
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid, "--wait", "--accesses"]);
    // On a busy machine the probes may come only after the first writes.
    until(LONG, "the accesses to the tensor", || {
        let told = program.ask("go");
        let address = told["address"].as_u64().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let rows = rows(&daemon, &pid, folder.path());
        let accesses = rows.iter().filter(|row| row[0] == "ACCESS");
        let of_tensor = accesses.filter(|row| {
            let text = row[3].trim_start_matches("0x");
            u64::from_str_radix(text, 16) == Ok(address)
        });
        (of_tensor.count() >= 10).then_some(())
    });
    program.finish();
}

/// Number of blocks, their bytes, and what is wrong with them, by the function of the workload that allocated them.
fn by_function(answer: &Value) -> Vec<(String, String, u64, u64)> {
    let mut found: Vec<(String, String, u64, u64)> = Vec::new();
    for block in answer["blocks"].as_array().unwrap() {
        let stack = block["stack"].as_array().unwrap();
        let frames: Vec<&str> = stack.iter().map(|one| one.as_str().unwrap()).collect();
        let function = frames[1].rsplit(": ").next().unwrap().to_owned();
        let types = block["types"].to_string();
        let size = block["size_bytes"].as_u64().unwrap();
        assert!(block["unused_ns"].as_u64().unwrap() > 0, "{block}");
        match found
            .iter_mut()
            .find(|one| (&one.0, &one.1) == (&function, &types))
        {
            Some(one) => (one.2, one.3) = (one.2 + 1, one.3 + size),
            None => found.push((function, types, 1, size)),
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_wasted_is_told_by_the_line_and_what_the_peak_would_be() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python("accesses/wasteful.py");
    let mut program = Program::start("wasteful.py", command);
    program.hear();
    let pid = program.pid_text();
    let ask = ["inefficient", "--pid", &pid, "--idle-threshold", "20"];

    // Without accesses nothing is said, and not that nothing is inefficient.
    daemon.json(&["attach", "--pid", &pid]);
    program.ask("go");
    daemon.ctl(&ask).refused(1, &["no access", "--accesses"]);
    daemon.json(&["detach", "--pid", &pid]);

    daemon.json(&["attach", "--pid", &pid, "--accesses"]);
    program.ask("go");
    let answer = daemon.json(&ask);
    const MIB: u64 = 1 << 20;
    let row = |function: &str, kind: &str, mib: u64| {
        let types = format!("[\"{kind}\"]");
        (function.to_owned(), types, 5, 5 * mib * MIB)
    };
    let expected = [
        row("early", "early_allocation", 64),
        row("idle", "temporary_idleness", 16),
        row("late", "late_deallocation", 32),
    ];
    assert_eq!(by_function(&answer), expected);
    assert_eq!(answer["lost_records"], 0);
    // In `late` two blocks of 32 and 64 MiB are held beside the small one; one of them would do.
    let peak = &answer["peaks"][0];
    assert_eq!(peak["peak_bytes"], 97 * MIB, "{peak}");
    assert_eq!(peak["without_bytes"], 65 * MIB, "{peak}");
    let said = daemon.ctl(&ask);
    let text = said.text();
    assert!(text.contains("wasteful.py:33 (late)"), "{text}");
    assert!(text.contains("97.00 MiB"), "{text}");
    assert!(text.contains("65.00 MiB"), "{text}");

    // What happened at the address of the last block that lay idle: it came, was filled twice, and was freed.
    let idle = answer["blocks"].as_array().unwrap().iter();
    let is_idle = |block: &&Value| block["types"] == serde_json::json!(["temporary_idleness"]);
    let idle = idle.rev().find(is_idle).unwrap();
    let address = idle["ptr"].as_str().unwrap();
    let uses = ["uses", address, "--pid", &pid];
    let told = daemon.json(&uses);
    let blocks = told["blocks"].as_array().unwrap();
    let block = blocks
        .iter()
        .rfind(|block| block["size_bytes"] == 16 * MIB)
        .unwrap();
    assert_eq!(block["stack"], idle["stack"]);
    let used = block["uses"].as_array().unwrap();
    for one in used {
        assert_eq!(one["operator"], "aten::fill_.Scalar");
        assert_eq!(one["access"], "WRITE");
    }
    let times: Vec<u64> = used
        .iter()
        .map(|one| one["time_unix_ns"].as_u64().unwrap())
        .collect();
    assert_eq!(times.len(), 2, "{block}");
    assert_eq!(times[1] - times[0], idle["unused_ns"].as_u64().unwrap());
    assert!(block["went_unix_ns"].is_u64(), "{block}");
    let said = daemon.ctl(&uses);
    assert!(said.text().contains("wasteful.py:43 (idle)"), "{said}");
    // An address in the middle of a block is that block's, and beside all blocks there is none.
    let middle = u64::from_str_radix(&address[2..], 16).unwrap() + MIB;
    let middle = daemon.json(&["uses", &middle.to_string(), "--pid", &pid]);
    assert!(middle["blocks"].as_array().unwrap().contains(block));
    daemon
        .ctl(&["uses", "0x10", "--pid", &pid])
        .refused(1, &["no block at 0x10"]);

    // The same of a recording.
    let recording = daemon.recording();
    let recording = ["--json", "--recording", recording.to_str().unwrap()];
    let of_recording = Asking::new([&recording[..], &ask].concat()).ask().json();
    assert_eq!(of_recording["blocks"], answer["blocks"]);
    program.finish();
}

#[test]
fn where_operators_cannot_be_followed_that_is_said() {
    let daemon = Daemon::with(&["--links", "perf"]);
    let command = sim_of(Device::Cuda).python("accesses/wasteful.py");
    let mut program = Program::start("wasteful.py", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid, "--accesses"]);
    let refused = ["attach", "--pid", &pid, "--level", "segments", "--accesses"];
    daemon
        .ctl(&refused)
        .refused(2, &["no block", "blocks or trace"]);
    let stats = daemon.json(&["stats", "--pid", &pid]);
    let notes = stats["coverage"].as_array().unwrap();
    let note = notes.iter().find(|note| note["code"] == "accesses_partly");
    let text = note.unwrap_or_else(|| panic!("{notes:?}"))["text"].to_string();
    assert!(text.contains("Linux 6.6"), "{text}");
    program.finish();
}
