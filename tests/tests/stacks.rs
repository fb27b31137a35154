//! Python stacks: of every allocation, and equal to PyTorch's own recorder's, frame by frame.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Daemon, LONG, Torch, Value, number, scratch, until};

/// What PyTorch's recorder and the export have to say about the same allocations.
#[track_caller]
fn compared(daemon: &Daemon, torch: &mut Torch) -> Value {
    let folder = scratch();
    let file = folder.path().join("snapshot.pickle");
    let file = file.to_str().unwrap();
    daemon
        .ctl(&["snapshot", "--pid", &torch.pid_text(), "-o", file])
        .text();
    let told = torch.ask(&format!("compare_frames {file}"));
    assert_eq!(told["aligned"], true, "{told:#}");
    told
}

fn frames_are_equal(level: &str, commands: &[&str]) -> Value {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    daemon.attach(torch.pid(), level);
    torch.ask("history");
    for command in commands {
        torch.ask(command);
    }
    let told = compared(&daemon, &mut torch);
    assert_eq!(told["different"], 0, "{told:#}");
    assert_eq!(told["exported_count"], told["own_count"], "{told:#}");
    torch.finish();
    told
}

#[test]
fn of_a_training_run() {
    let told = frames_are_equal("trace", &["train 5", "oom", "empty_cache", "train 2"]);
    assert!(number(&told["own_count"]) > 500, "{told:#}");
    assert!(number(&told["stacks"]) > 20, "{told:#}");
    // The backward threads run no Python; they are a part, not all.
    assert!(
        number(&told["without"]) < number(&told["own_count"]) * 3 / 4,
        "{told:#}"
    );
}

#[test]
fn of_every_kind_of_frame() {
    let told = frames_are_equal("trace", &["shapes 150", "shapes 300", "threads 8 20"]);
    assert!(number(&told["deepest"]) > 300, "{told:#}");
}

/// Beside a thread's state may lie memory that nobody has touched: it cannot be read in a probe.
#[test]
fn of_threads_at_the_edge_of_what_can_be_read() {
    let told = frames_are_equal("trace", &["threads 8 1", "edge_threads 300"]);
    assert_eq!(told["without"], 0, "{told:#}");
}

#[test]
fn at_level_blocks() {
    let told = frames_are_equal("blocks", &["train 3", "shapes 20"]);
    assert!(number(&told["own_count"]) > 200, "{told:#}");
}

/// Compiled code without frame pointers, threads without Python among it: the innermost ten frames, by name.
#[test]
fn of_compiled_code() {
    let daemon = Daemon::start();
    // PyTorch 2.15 would name exported functions only.
    let mut torch = Torch::start(&[("TORCH_SYMBOLIZE_MODE", "addr2line")]);
    torch.ask("init");
    let pid = torch.pid_text();
    daemon.json(&[
        "attach", "--pid", &pid, "--level", "trace", "--stacks", "native",
    ]);
    torch.ask("history native");
    for command in ["train 5", "shapes 20", "threads 4 5", "oom", "train 2"] {
        torch.ask(command);
    }
    let told = until(LONG, "every frame is named", || {
        let folder = scratch();
        let file = folder.path().join("snapshot.pickle");
        let file = file.to_str().unwrap();
        daemon.ctl(&["snapshot", "--pid", &pid, "-o", file]).text();
        let told = torch.ask(&format!("compare_natives {file} 10"));
        assert_eq!(told["aligned"], true, "{told:#}");
        // What is there is right at any time; the outer frames of stacks that had no rules yet come later. Where the
        // machine had no time for their pieces they never come, and that is counted.
        assert_eq!(number(&told["wrong"]), number(&told["unnamed"]), "{told:#}");
        let most = number(&told["equal"]) * 100 >= number(&told["frames"]) * 95;
        (told["unnamed"] == 0 && most).then_some(told)
    });
    println!("{} of {} frames", told["equal"], told["frames"]);
    assert_eq!(told["exported_count"], told["own_count"], "{told:#}");
    assert!(number(&told["frames"]) > 5000, "{told:#}");
    assert_eq!(told["without"], 0, "{told:#}");
    torch.finish();
}

/// Both kinds as one stack: Python's frames are PyTorch's own recorder's, and stand among those of compiled code where
/// the interpreter executes them.
#[test]
fn of_both_kinds() {
    let daemon = Daemon::start();
    let mut torch = Torch::start(&[]);
    torch.ask("init");
    let pid = torch.pid_text();
    daemon.json(&[
        "attach", "--pid", &pid, "--level", "trace", "--stacks", "all",
    ]);
    let commands = ["train 2", "shapes 20", "reenters"];
    // Until rules and names are there, on a machine that has much else to do.
    for command in commands {
        torch.ask(command);
    }
    torch.ask("history native");
    for command in commands {
        torch.ask(command);
    }
    let told = until(LONG, "every frame is named", || {
        let folder = scratch();
        let file = folder.path().join("snapshot.pickle");
        let file = file.to_str().unwrap();
        daemon.ctl(&["snapshot", "--pid", &pid, "-o", file]).text();
        let told = torch.ask(&format!("compare_mixed {file}"));
        let outermost = told["reentered"].as_array().unwrap().last();
        let whole = told["unnamed"] == 0 && outermost.is_some_and(|name| name == "native");
        if !whole {
            // A stack whose piece found no room in the ring stays without its outer frames, which is counted. The last
            // one of its size is compared, so another one that finds room will do.
            torch.ask("reenters");
        }
        whole.then_some(told)
    });
    assert_eq!(told["different"], 0, "{told:#}");
    assert!(number(&told["count"]) > 200, "{told:#}");
    assert!(number(&told["natives"]) > 3, "{told:#}");
    let order = told["reentered"].as_array().unwrap().iter();
    let order: Vec<&str> = order.map(|name| name.as_str().unwrap()).collect();
    // A call from Python to Python needs no compiled code in 3.11, one through `sorted` does.
    let inner = [
        "native", "take", "key", "native", "sorts", "calls_it", "reenters",
    ];
    assert_eq!(order[..inner.len()], inner, "{told:#}");
    assert_eq!(order.last(), Some(&"native"), "{told:#}");
    torch.finish();
}

/// Code objects that are made and freed at the same addresses, again and again.
#[test]
fn of_functions_that_are_made_and_freed() {
    let told = frames_are_equal("trace", &["made 300"]);
    assert!(number(&told["stacks"]) >= 300, "{told:#}");
}
