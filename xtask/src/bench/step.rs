//! What a training step costs: a small transformer, forward, backward and optimizer.

use anyhow::Result;

use super::measure::{Ground, median_of, tell};
use super::page::{Row, Section};
use crate::live::Daemon;

/// What is taken at each allocation, by the words of `attach`.
const LEVELS: [(&str, &[&str]); 3] = [
    (
        "memscope, level blocks, no stacks",
        &["--level", "blocks", "--stacks", "none"],
    ),
    (
        "memscope, level trace, Python stacks",
        &["--level", "trace", "--stacks", "python"],
    ),
    (
        "memscope, level trace, all stacks",
        &["--level", "trace", "--stacks", "all"],
    ),
];

/// Measures steps in one process, with each way in turn.
pub fn measure(ground: &Ground<'_>) -> Result<Section> {
    let mut python = ground.python("pairs.py")?;
    let pid = python.pid().to_string();
    let daemons = ground.programs.iter();
    let daemons = daemons.map(|of| Daemon::launch(&of.folder, &[]));
    let daemons: Vec<Daemon> = daemons.collect::<Result<_>>()?;
    let mut rows = vec![Row::new("nothing", 1)];
    for (name, _) in LEVELS {
        rows.extend(ground.programs.iter().map(|of| Row::new(of.row(name), 1)));
    }
    for kind in ["python", "all"] {
        rows.push(Row::new(
            format!("PyTorch's recorder, stacks={kind}, bounded"),
            1,
        ));
    }
    let shape = python.ask_json("step 5")?;
    for _ in 0..ground.options.rounds {
        let mut row = rows.iter_mut();
        let mut put = |value| {
            if let Some(column) = row.next().and_then(|row| row.columns.first_mut()) {
                column.push(value);
            }
        };
        put(median_of(&mut python, "step 20")?);
        for (_, words) in LEVELS {
            for daemon in &daemons {
                tell(daemon, &[&["attach", "--pid", &pid], words].concat())?;
                // Meanwhile the layout is found and the rules of unwinding are made.
                python.ask("step 5")?;
                put(median_of(&mut python, "step 20")?);
                tell(daemon, &["detach", "--pid", &pid])?;
            }
        }
        for kind in ["python", "all"] {
            python.ask(&format!("record {kind}"))?;
            python.ask("step 5")?;
            put(median_of(&mut python, "step 20")?);
            python.ask("record off")?;
        }
    }
    python.tell("end")?;
    Ok(Section {
        name: "step".to_owned(),
        title: "A training step".to_owned(),
        run: None,
        about: format!(
            "A transformer of {} parameters, {} allocations a step. The simulated device computes nothing, so that a step is what Python and PyTorch do on\n\
             the processor: on a real device the same microseconds are added to a longer step, or hide behind it.",
            shape["parameters"], shape["allocations"]
        ),
        columns: vec!["ms a step".to_owned()],
        has_reference: true,
        rows,
    })
}
