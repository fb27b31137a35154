//! Which line of a program keeps more and more: against what PyTorch says that the program has come to hold.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Daemon, Torch, Value, number, sim, workload_line};

/// What one line of a program keeps is one row, however many stacks and sizes that is.
#[test]
fn a_kept_graph_is_one_line() {
    let daemon = Daemon::start();
    let mut command = sim().python("loops.py");
    command.arg("kept_graph");
    let mut torch = Torch::from_command(command);
    torch.ask("5");
    daemon.attach(torch.pid(), "trace");
    let before = number(&torch.ask("1")["allocated"]);
    let after = number(&torch.ask("200")["allocated"]);
    let answer = daemon.json(&["leaks", "--pid", &torch.pid_text()]);
    let rows: Vec<&Value> = answer["lines"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["verdict"] == "growing")
        .collect();
    let graph = workload_line("loops.py", "# GRAPH");
    let sizes = workload_line("loops.py", "# SIZES");
    let at = |row: &Value| number(&row["line"]["line"]);
    assert_eq!(rows.len(), 2, "{answer:#}");
    let row = |line: u64| *rows.iter().find(|row| at(row) == line).unwrap();
    assert_eq!(row(graph)["looks_like_kept_graph"], true, "{answer:#}");
    assert!(number(&row(graph)["stacks"]) >= 3, "{answer:#}");
    let kept = row(sizes);
    assert_eq!(kept["looks_like_kept_graph"], false, "{answer:#}");
    assert_eq!(number(&kept["smallest_bytes"]), 100 * 64 * 4);
    assert_eq!(number(&kept["largest_bytes"]), 300 * 64 * 4);
    assert_eq!(
        kept["growth_bytes_per_step"],
        600.0 * 64.0 * 4.0,
        "{answer:#}"
    );
    // Together they explain what PyTorch itself says that the program has come to hold.
    let truth = (after - before) as f64 / 200.0;
    let told: f64 = rows
        .iter()
        .map(|row| row["growth_bytes_per_step"].as_f64().unwrap())
        .sum();
    assert!(
        (told / truth - 1.0).abs() < 0.05,
        "{told} a step, {truth} by PyTorch: {answer:#}"
    );
    let said = daemon
        .ctl(&["leaks", "--pid", &torch.pid_text()])
        .text()
        .to_owned();
    for words in [
        "2 lines of the program grow: ",
        &format!("Most of it: loops.py:{sizes} (kept_graph): "),
        &format!("  loops.py:{graph} (kept_graph)"),
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    torch.finish();
}
