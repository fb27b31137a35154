//! `cargo xtask viewers`: opens exports of real processes in the viewers that they are made for.
//!
//! For each scene (`tests/viewers/scene.py`) a PyTorch process on the simulated device is traced and exported in every
//! format. The page is opened in Chromium; the pickle goes through the functions of that PyTorch's own
//! `torch.cuda._memory_viz`. With files that are not part of this project more is checked: PyTorch's viewer draws
//! ours and PyTorch's own snapshot of the same moment, and Perfetto's trace processor answers questions about ours.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::live::{Build, Daemon, Python};
use crate::setup::{self, npm, torch};
use crate::{process, sim};

/// What to open, and with what.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// PyTorch's viewer, torch/utils/viz/MemoryViz.js from its sources (no wheel has it), with the files beside it
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub memory_viz_js: Vec<PathBuf>,

    /// Perfetto's trace_processor_shell, which then answers questions about our traces
    #[arg(long, value_name = "PROGRAM")]
    pub trace_processor: Option<PathBuf>,

    /// These versions of PyTorch [default: the pinned default]
    #[arg(long, value_name = "VERSION", num_args = 1..)]
    pub torch: Vec<String>,

    /// Also open a page of a made-up trace with a million entries, and say how long that takes
    #[arg(long)]
    pub million: bool,

    /// Keep the exports in this folder
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
}

/// Scenes, and the environment variables with which each is played.
const SCENES: &[(&str, &[(&str, &str)])] = &[
    ("training", &[]),
    (
        "expandable",
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
    ),
    // Events that do not complete keep freed blocks waiting for their streams.
    ("streams", &[("SIMCUDA_EVENT_DELAY_US", "600000000")]),
    ("pools", &[]),
    ("oom", &[]),
    ("late", &[]),
    ("devices", &[("SIMCUDA_DEVICES", "2")]),
];

/// Formats of the exports, and the names of their files.
const FORMATS: [(&str, &str); 4] = [
    ("memory-viz", "ours.pickle"),
    ("html", "page.html"),
    ("json", "ours.json"),
    ("perfetto", "ours.pftrace"),
];

/// Largest number of characters that are shown of what is wrong with one export.
const LONGEST: usize = 600;

/// The results so far, as rows of a table.
#[derive(Default)]
struct Found {
    table: String,
    passed: u32,
    failed: u32,
}

impl Found {
    fn add(&mut self, cells: &[&str], wrong: &[String]) {
        if wrong.is_empty() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        let result = if wrong.is_empty() {
            "ok".to_owned()
        } else {
            let text = wrong.join("; ").replace('|', "/").replace('\n', " ");
            format!("wrong: {}", text.chars().take(LONGEST).collect::<String>())
        };
        let _ = writeln!(self.table, "| {} | {result} |", cells.join(" | "));
    }
}

/// Runs the task; tables go to standard output as Markdown and end with the count.
pub fn run(options: &Options) -> Result<()> {
    let versions = match options.torch.as_slice() {
        [] => vec![torch::pins()?.default],
        named => named.to_vec(),
    };
    setup::run(&setup::Options {
        torch: Some(versions.clone()),
        browser: true,
        ..setup::Options::default()
    })?;
    let modules = match options.memory_viz_js.is_empty() {
        true => None,
        false => Some(modules()?),
    };
    let temporary = process::target().join("viewers/exports");
    let folder = options.keep.as_ref().unwrap_or(&temporary);
    let mut found = Found::default();
    found.table.push_str(
        "| torch | scene | opened in | what was seen | result |\n|---|---|---|---|---|\n",
    );
    for version in &versions {
        let daemon = Daemon::start(Build::Checked)?;
        let environment = torch::pins()?.get(Some(version))?.folder();
        let python = environment.join("bin/python");
        for (scene, variables) in SCENES {
            eprintln!("== torch {version}: {scene}");
            let folder = folder.join(version).join(scene);
            export(&daemon, &python, version, scene, variables, &folder)?;
            page(&mut found, version, scene, &folder.join("page.html"))?;
            functions(&mut found, &python, version, scene, &folder)?;
            for viewer in &options.memory_viz_js {
                let modules = modules.as_deref().unwrap_or(Path::new("."));
                drawings(&mut found, viewer, modules, version, scene, &folder)?;
            }
            if let Some(program) = &options.trace_processor {
                perfetto(&mut found, program, version, scene, &folder)?;
            }
        }
    }
    if options.million {
        let file = million(folder)?;
        page(&mut found, "", "made up, 1,000,000 entries", &file)?;
    }
    println!("{}", found.table);
    println!("{} passed, {} failed", found.passed, found.failed);
    if found.failed > 0 || found.passed == 0 {
        bail!("not every viewer shows what it should");
    }
    Ok(())
}

/// Plays a scene and writes its exports, and PyTorch's own snapshot, into the folder.
fn export(
    daemon: &Daemon,
    python: &Path,
    version: &str,
    scene: &str,
    variables: &[(&str, &str)],
    folder: &Path,
) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut environment = sim::environment(&sim::Options {
        torch: Some(version.to_owned()),
        ..sim::Options::default()
    })?;
    environment.extend(
        variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let script = process::root().join("tests/viewers/scene.py");
    let mut torch = Python::start(python, &script, &environment, Stdio::piped())?;
    let mut input = torch.running.0.stdin.take().context("no input")?;
    writeln!(input, "{scene} {}", utf8(folder)?)?;
    torch.until("ready")?;
    let pid = torch.pid().to_string();
    asked(daemon, &["attach", "--pid", &pid])?;
    writeln!(input, "play")?;
    torch.until("played")?;
    for (format, file) in FORMATS {
        let file = folder.join(file);
        let words = ["snapshot", "--pid", &pid, "--format", format, "-o"];
        asked(daemon, &[&words[..], &[utf8(&file)?]].concat())?;
    }
    writeln!(input, "write")?;
    torch.until("written")?;
    asked(daemon, &["detach", "--pid", &pid])?;
    Ok(())
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

fn asked(daemon: &Daemon, words: &[&str]) -> Result<()> {
    let said = daemon.ask(words)?;
    if !said.status.success() {
        bail!(
            "memscope-ctl {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&said.stderr)
        );
    }
    Ok(())
}

/// Runs a program and returns the lines of JSON that it prints. It exits with 0 or, if something is wrong, with 1.
fn lines(command: &mut Command) -> Result<Vec<Value>> {
    eprintln!("+ {}", process::words(command));
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start: {}", process::words(command)))?;
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("it does not print lines of JSON")?;
    if !matches!(output.status.code(), Some(0 | 1)) || lines.is_empty() {
        bail!(
            "{} from: {}\n{}",
            output.status,
            process::words(command),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(lines)
}

fn node(script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(process::root().join("tests/viewers").join(script));
    command
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |item: &Value| item.as_str().unwrap_or_default().to_owned();
    list.iter().map(text).collect()
}

/// Opens our page in Chromium.
fn page(found: &mut Found, version: &str, scene: &str, file: &Path) -> Result<()> {
    for line in lines(node("page.mjs").arg(file))? {
        let devices = line["devices"].as_object();
        let slowest = devices
            .into_iter()
            .flatten()
            .filter_map(|(_, seen)| seen["redrawn"].as_f64())
            .fold(0.0, f64::max);
        let seen = format!(
            "{:.1} MiB; drawn after {} s, again after {slowest} s; {} × 3 views and a table",
            line["bytes"].as_f64().unwrap_or_default() / f64::from(1 << 20),
            line["seconds"],
            devices.map_or(0, serde_json::Map::len),
        );
        let browser = format!("page, {}", line["browser"].as_str().unwrap_or_default());
        found.add(&[version, scene, &browser, &seen], &texts(&line["wrong"]));
    }
    Ok(())
}

/// Applies the functions of `torch.cuda._memory_viz`, from the installed wheel, to our pickle and PyTorch's own.
fn functions(
    found: &mut Found,
    python: &Path,
    version: &str,
    scene: &str,
    folder: &Path,
) -> Result<()> {
    let mut command = Command::new(python);
    command
        .arg(process::root().join("tests/viewers/functions.py"))
        .args(["ours.pickle", "control.pickle"].map(|name| folder.join(name)));
    for line in lines(&mut command)? {
        let seen = texts(&line["functions"]).join(", ");
        found.add(
            &[version, scene, "`torch.cuda._memory_viz`", &seen],
            &texts(&line["wrong"]),
        );
    }
    Ok(())
}

/// Opens our pickle, and the page that PyTorch makes of it, in PyTorch's viewer.
fn drawings(
    found: &mut Found,
    viewer: &Path,
    modules: &Path,
    version: &str,
    scene: &str,
    folder: &Path,
) -> Result<()> {
    let viewer = std::path::absolute(viewer)?;
    let mut command = node("memory-viz.mjs");
    command.env("MEMSCOPE_VIEWER_MODULES", modules).arg(&viewer);
    for ending in ["pickle", "pickle.html"] {
        command.args(["ours", "control"].map(|name| folder.join(format!("{name}.{ending}"))));
    }
    for line in lines(&mut command)? {
        let views = line["table"].as_object().into_iter().flatten();
        let counts: Vec<String> = views
            .map(|(view, counts)| match counts["elements"].as_u64() {
                Some(0) | None => format!("{view}: text"),
                Some(count) => format!("{view}: {count} of {}", counts["control"]),
            })
            .collect();
        let what = match line["file"].as_str().unwrap_or_default().ends_with("html") {
            true => "page of `trace_plot`",
            false => "pickle",
        };
        // The file's name is always the same, so the name of its folder, which has the version, is shown.
        let name = viewer
            .parent()
            .and_then(Path::file_name)
            .unwrap_or_default();
        let with = format!("MemoryViz.js ({}), {what}", name.to_string_lossy());
        found.add(
            &[version, scene, &with, &counts.join("; ")],
            &texts(&line["wrong"]),
        );
    }
    Ok(())
}

/// Asks Perfetto's trace processor about our trace with SQL.
fn perfetto(
    found: &mut Found,
    program: &Path,
    version: &str,
    scene: &str,
    folder: &Path,
) -> Result<()> {
    let mut command = Command::new("python3");
    command
        .arg(process::root().join("tests/viewers/perfetto.py"))
        .arg(program)
        .args(["ours.pftrace", "ours.json"].map(|name| folder.join(name)));
    for line in lines(&mut command)? {
        let seen = line["seen"].as_str().unwrap_or_default();
        found.add(
            &[version, scene, "trace processor", seen],
            &texts(&line["wrong"]),
        );
    }
    Ok(())
}

/// Makes a page of a made-up trace with a million entries; returns its path.
fn million(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = process::command("cargo");
    command
        .args(["run", "--locked", "--release", "-p", "memscope-export"])
        .args(["--example", "million", "1000000", "html"])
        .env("MILLION_KEEP", folder);
    process::run(&mut command)?;
    let file = folder.join("million.html");
    std::fs::rename(folder.join("html"), &file)?;
    Ok(file)
}

/// Installs what PyTorch's viewer imports, in the versions of `package-lock.json`; returns the folder.
fn modules() -> Result<PathBuf> {
    let folder = process::target().join("viewers");
    npm::install(&process::root().join("tests/viewers"), &folder)?;
    Ok(folder)
}
