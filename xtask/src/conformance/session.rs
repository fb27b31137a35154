//! One comparison: a daemon, a script, and their pictures of the same moment.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::installation::Installation;
use super::mode::Mode;
use super::script::{Script, ScriptStep};
use super::workload::Workload;
use crate::live::Daemon;
use crate::process;

/// Time in which the baseline must be read after a late attach.
const READING: Duration = Duration::from_secs(60);

/// Figures that follow from the state alone, and those that follow from the trace.
const OF_STATE: [&str; 4] = ["allocated", "reserved", "active", "inactive"];
const OF_TRACE: [&str; 4] = ["allocations", "peak", "dynamic", "static"];

/// The result of `xtask/conformance/compare.py`, to which that of the reports is added.
#[derive(Debug, Default, Deserialize)]
pub struct Report {
    /// Number of segments compared.
    pub segments: u64,
    /// Number of blocks compared.
    pub blocks: u64,
    /// Number of trace entries compared.
    pub entries: u64,
    /// Number of single values compared.
    pub values: u64,
    /// Number of stacks compared, frame by frame.
    pub stacks: u64,
    /// Number of values that differ, by key.
    pub differing: BTreeMap<String, u64>,
    /// The first differences in full.
    pub differences: Vec<String>,
    /// Keys of the newest format that this PyTorch does not have.
    pub added: Vec<String>,
    /// Smallest and largest difference between the times (memscope's minus PyTorch's), in microseconds.
    pub offset_us: Option<(i64, i64)>,
    /// Codes of the coverage notes in memscope's answer.
    pub coverage: Vec<String>,
    /// The level that was reached.
    #[serde(default)]
    pub level: String,
    /// Number of figures of `memscope-ctl report` that were computed again, of both pickles.
    #[serde(default)]
    pub figures: u64,
}

/// The result of `tests/report/figures.py`.
#[derive(Debug, Deserialize)]
struct Figures {
    /// Number of figures of the report that were computed again.
    values: u64,
    /// Those that differ, in words.
    differences: Vec<String>,
    /// What was computed, by name.
    figures: Value,
}

/// How a comparison ended.
pub enum Outcome {
    /// The comparison was made.
    Compared(Report),
    /// This PyTorch lacks a feature that the script needs.
    Lacking(String),
}

/// Makes one comparison.
pub fn compare(
    installation: &Installation,
    programs: &Path,
    workload: &Workload,
    mode: Mode,
    patience: Duration,
) -> Result<Outcome> {
    if let (true, Some(what)) = (installation.real_device, workload.simulated()) {
        return Ok(Outcome::Lacking(what));
    }
    let folder = tempfile::Builder::new()
        .prefix("memscope-conformance-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    // All of the trace is compared, so nothing of it may be dropped.
    let daemon = Daemon::launch(
        programs,
        &["--trace-entries", "5000000", "--ring-mib", "64"],
    )?;
    let mut variables = installation.variables(workload)?;
    variables.extend(installation.more.iter().cloned());
    let mut script = Script::start(
        &installation.python(),
        workload,
        installation.device,
        &variables,
        mode,
        folder.path(),
        patience,
    )?;
    let active = match script.step()? {
        ScriptStep::Attach { active, .. } => active,
        ScriptStep::Lacking(what) => return Ok(Outcome::Lacking(what)),
        other => bail!("the script is at {other:?} where it was to begin"),
    };
    let pid = script.pid();
    let attached = daemon.json(&["attach", "--pid", &pid, "--level", "trace"])?;
    if mode == Mode::Late && active > 0 {
        wait_for_reading(&daemon, &pid)?;
    }
    script.go_on()?;
    expect(&script, |step| matches!(step, ScriptStep::Compare))?;
    let exported = folder.path().join("exported.pickle");
    let said = daemon.ask(&[
        "snapshot",
        "--pid",
        &pid,
        "--format",
        "memory-viz",
        "-o",
        &exported.to_string_lossy(),
    ])?;
    if !said.status.success() {
        bail!(
            "the export failed: {}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
    script.go_on()?;
    expect(&script, |step| matches!(step, ScriptStep::Done))?;
    let mut command = Command::new(installation.python());
    command
        .arg("-I")
        .arg(process::root().join("xtask/conformance/compare.py"))
        .arg(folder.path().join("own.pickle"))
        .arg(&exported);
    if installation.stripped {
        command.arg("--outline");
    }
    let text = process::output(&mut command)?;
    let mut report: Report =
        serde_json::from_str(&text).context("the comparison is not understood")?;
    report.level = attached["processes"][0]["level"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let own = reported(&daemon, installation, folder.path(), ["snapshot", "own"])?;
    // Without the symbols requested sizes are known of what was there before the attach, and of what came since only rounded ones. A course
    // that adds up both need not end at what the blocks have.
    let ours = match installation.stripped {
        true => None,
        false => Some(reported(
            &daemon,
            installation,
            folder.path(),
            ["exported"; 2],
        )?),
    };
    let is_whole = mode == Mode::FromStart;
    if let Some(ours) = &ours {
        for key in OF_STATE.iter().chain(OF_TRACE.iter().filter(|_| is_whole)) {
            let [theirs, ours] = [&own, ours].map(|one| &one.figures[key]);
            if theirs != ours {
                report.differs(
                    "reports",
                    format!("{key}: PyTorch {theirs}, memscope {ours}"),
                );
            }
        }
    }
    let both = [("PyTorch's", Some(own)), ("memscope's", ours)];
    for (whose, reported) in both {
        let Some(reported) = reported else { continue };
        report.figures += reported.values;
        for difference in reported.differences {
            report.differs(&format!("report of {whose} pickle"), difference);
        }
    }
    if let Some(keep) = std::env::var_os("MEMSCOPE_CONFORMANCE_KEEP") {
        for file in ["own.pickle", "exported.pickle"] {
            std::fs::copy(folder.path().join(file), Path::new(&keep).join(file))?;
        }
    }
    Ok(Outcome::Compared(report))
}

impl Report {
    /// Adds a difference.
    fn differs(&mut self, key: &str, difference: String) {
        *self.differing.entry(key.to_owned()).or_default() += 1;
        self.differences.push(format!("{key}: {difference}"));
    }
}

/// Has `memscope-ctl report` made of a pickle, and its figures computed again by the installation's own Python, from that
/// pickle or from one that has more beside it.
fn reported(
    daemon: &Daemon,
    installation: &Installation,
    folder: &Path,
    [pickle, computed_from]: [&str; 2],
) -> Result<Figures> {
    let path = |name: &str| folder.join(format!("{name}.pickle"));
    let (pickle, output) = (path(pickle), folder.join("reports"));
    let words = [
        "report",
        &pickle.to_string_lossy(),
        "-o",
        &output.to_string_lossy(),
    ];
    let written = daemon.json(&words)?;
    let made = written["folder"].as_str().unwrap_or_default();
    let mut command = Command::new(installation.python());
    command
        .arg("-I")
        .arg(process::root().join("tests/report/figures.py"))
        .arg(path(computed_from))
        .arg(made);
    let text = process::output(&mut command)?;
    serde_json::from_str(&text).context("the figures of a report are not understood")
}

fn expect(script: &Script, wanted: impl Fn(&ScriptStep) -> bool) -> Result<()> {
    let step = script.step()?;
    if !wanted(&step) {
        bail!("the script is at {step:?}, which is not the next step");
    }
    Ok(())
}

/// Waits until the baseline, which is read in the background, is known.
fn wait_for_reading(daemon: &Daemon, pid: &str) -> Result<()> {
    let deadline = Instant::now() + READING;
    loop {
        let stats = daemon.json(&["stats", "--pid", pid])?;
        let codes: Vec<&str> = stats["coverage"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|note| note["code"].as_str())
            .collect();
        if codes.contains(&"baseline_read") {
            return Ok(());
        }
        if let Some(note) = codes.iter().find(|code| **code == "baseline_not_read") {
            bail!("what was there before the attach was not read: {note}: {stats}");
        }
        if Instant::now() > deadline {
            bail!("what was there before the attach was not read in {READING:?}: {stats}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
