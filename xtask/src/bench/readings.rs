//! What readings at level `read` cost by number of blocks: the time and bytes of a reading, and the speed of the process that is
//! read, as a ratio in one run.

use anyhow::{Result, bail};
use serde_json::Value;

use super::measure::{Ground, pairs};
use super::page::{Row, Section};
use crate::live::{Daemon, Python};

/// Numbers of live blocks of the process that is read.
const BLOCKS: [u32; 3] = [1_000, 10_000, 100_000];
/// Number of readings that are measured for each number of blocks.
const READINGS: usize = 15;
/// Time between readings while the process's speed is measured: ten times as often as by default.
const EVERY: &str = "1s";

/// Measures a process of each size.
pub fn measure(ground: &Ground<'_>) -> Result<Section> {
    let mut rows = Vec::new();
    for programs in &ground.programs {
        let daemon = Daemon::launch(&programs.folder, &[])?;
        for blocks in BLOCKS {
            // Each number of blocks gets a new process, so that the first reading really is the first.
            let mut python = ground.python("pairs.py")?;
            python.ask(&format!("hold {blocks}"))?;
            let columns = columns(ground, &daemon, &mut python, blocks)?;
            let name = programs.row(&format!("{blocks} live blocks"));
            rows.push(Row { name, columns });
            python.tell("end")?;
        }
    }
    Ok(Section {
        name: "readings".to_owned(),
        title: "Readings, at level `read`".to_owned(),
        run: None,
        about: "Nothing is traced: what the process holds is read from its memory. The speed is the time of the loop while it is read every second, ten times\n\
                as often as by default, by that of the loop alone; in brackets are the least and the most of all readings."
            .to_owned(),
        columns: [
            "first reading, ms",
            "later ones at rest, ms",
            "bytes of a later one",
            "while it allocates, ms",
            "races for one",
            "time of the loop, ratio",
        ]
        .map(str::to_owned)
        .into(),
        has_reference: false,
        rows,
    })
}

fn columns(
    ground: &Ground<'_>,
    daemon: &Daemon,
    python: &mut Python,
    blocks: u32,
) -> Result<Vec<Vec<f64>>> {
    let pid = python.pid().to_string();
    let runs = ground.options.pairs;
    let attach = |every| {
        let words = ["attach", "--pid", &pid, "--level", "read", "--every", every];
        daemon.json(&words)
    };
    let attached = attach("0s")?;
    let baseline = &attached["processes"][0]["baseline"];
    if baseline["blocks"].as_u64() < Some(blocks.into()) {
        bail!("the first reading has not all blocks: {attached}");
    }
    let first = milliseconds(&baseline["cost"]);
    let (mut rest, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..READINGS {
        let stats = daemon.json(&["stats", "--pid", &pid])?;
        rest.push(milliseconds(&stats["reading"]));
        bytes.push(number(&stats["reading"]["bytes_read"]));
    }
    // The process allocates without a pause, so each reading has to find a moment in which nothing changes.
    let (mut busy, mut races) = (Vec::new(), Vec::new());
    python.tell(&format!("pairs {}", runs * 100))?;
    for _ in 0..READINGS {
        let stats = daemon.json(&["stats", "--pid", &pid])?;
        busy.push(milliseconds(&stats["reading"]));
        races.push(number(&stats["reading"]["raced"]));
    }
    python.line()?;
    daemon.json(&["detach", "--pid", &pid])?;
    let mut ratios = Vec::new();
    let many = (runs * 50).to_string();
    for _ in 0..ground.options.rounds {
        let alone = pairs(python, &many)?;
        attach(EVERY)?;
        ratios.push(pairs(python, &many)? / alone);
        daemon.json(&["detach", "--pid", &pid])?;
    }
    Ok(vec![vec![first], rest, bytes, busy, races, ratios])
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn milliseconds(cost: &Value) -> f64 {
    number(&cost["duration_ns"]) / 1e6
}
