//! The image, built of the .deb and run with the capabilities that the chart names and no others: it must trace a process of this
//! machine. Without each of these capabilities it must not, or `doctor` must warn; but for those that a process of root's does not need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use super::container::{Container, podman, same, text};
use super::deb;
use super::trial::{Trial, base, found};
use crate::live::Python;
use crate::setup::torch;
use crate::{process, sim};

/// Names of images that are removed afterwards.
const BASE: &str = "localhost/memscope-trial-base";
const IMAGE: &str = "localhost/memscope-trial";

/// Builds the image from a root of this release, and tries it.
pub fn try_from(release: &str, trial: &Trial) -> Result<()> {
    let root = base(&trial.folder, release);
    deb::make_root(release, &root, trial)?;
    let _images = Images;
    build(&root, trial)?;
    let capabilities = capabilities()?;
    let all: Vec<&str> = capabilities.iter().map(String::as_str).collect();
    trace(trial, &all)?.map_err(anyhow::Error::msg)?;
    found("image", &format!("traces with {}", all.join(", ")));
    for without in &all {
        let rest: Vec<&str> = all.iter().filter(|it| *it != without).copied().collect();
        let outcome = trace(trial, &rest)?;
        found("image", &judged(without, &outcome)?);
    }
    Ok(())
}

/// Capabilities without which the trial's process is traced all the same, since it is root's as memscoped is.
const NOT_SHOWN: [&str; 1] = ["DAC_READ_SEARCH"];

/// What is said of a run without this capability; an error where it shows that the chart asks for too much.
fn judged(without: &str, outcome: &Result<(), String>) -> Result<String> {
    match outcome {
        Err(why) => Ok(format!("without {without}: {why}")),
        Ok(()) if NOT_SHOWN.contains(&without) => Ok(format!(
            "without {without} it traces the trial's process as well"
        )),
        Ok(()) => bail!("it traces without {without} as well, which the chart need not ask for"),
    }
}

/// The images of the trial, which are removed when this is dropped.
struct Images;

impl Drop for Images {
    fn drop(&mut self) {
        let _ = process::output(podman().args(["rmi", "--force", IMAGE, BASE]));
    }
}

fn build(root: &Path, trial: &Trial) -> Result<()> {
    let mut tar = Command::new("tar")
        .args(["--one-file-system", "-c", "-C"])
        .arg(root)
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .context("tar could not be started")?;
    let input = tar.stdout.take().context("no output")?;
    let mut import = podman();
    import.args(["import", "--quiet", "-", BASE]).stdin(input);
    let status = import.stdout(Stdio::null()).status()?;
    if !tar.wait()?.success() || !status.success() {
        bail!("the base of the image cannot be imported");
    }
    process::run(
        podman()
            .args(["build", "--isolation=chroot", "--quiet"])
            .args(["--pull=never", "--build-arg", &format!("BASE={BASE}")])
            .args(["--tag", IMAGE, "--file"])
            .arg(process::root().join("deploy/image/Containerfile"))
            .arg(trial.packages(1)?)
            .stdout(std::io::stderr()),
    )
}

/// The capabilities that the chart's container has, as the rendered manifest names them.
fn capabilities() -> Result<Vec<String>> {
    let manifest = process::root().join("deploy/kubernetes/memscope.yaml");
    let text = fs::read_to_string(&manifest)
        .with_context(|| format!("cannot read {}", manifest.display()))?;
    let names: Vec<String> = text
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "add:")
        .skip(1)
        .map_while(|line| line.strip_prefix("- "))
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        bail!("{} names no capability", manifest.display());
    }
    Ok(names)
}

/// Folders of this machine that the container has, as a node's. They are removed when this is dropped.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Result<Node> {
        let folder = tempfile::tempdir().context("no folder for the node")?;
        for name in ["run", "state", "bpf", "etc"] {
            fs::create_dir(folder.path().join(name))?;
        }
        fs::write(
            folder.path().join("etc/memscoped.toml"),
            "state-dir = \"/var/lib/memscope\"\njournal-mib = 64\n",
        )?;
        let node = Node { folder };
        fs::write(node.path("seccomp.json"), seccomp()?)?;
        process::output(
            Command::new("mount")
                .args(["-t", "bpf", "bpf"])
                .arg(node.path("bpf")),
        )?;
        Ok(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// memscope-ctl of this machine, at the socket that the container shares with it.
    fn ask(&self, trial: &Trial, words: &[&str]) -> Result<Output> {
        Command::new(trial.programs.join("memscope-ctl"))
            .arg("--socket")
            .arg(self.path("run/memscoped.sock"))
            .args(words)
            .output()
            .context("memscope-ctl could not be started")
    }
}

/// podman's own profile of system calls, in which CAP_BPF and CAP_PERFMON allow their calls. The profile of podman 4.3 asks for
/// CAP_SYS_ADMIN instead, which no kernel from 6.6 on does. Other engines' profiles were not looked at.
fn seccomp() -> Result<String> {
    const PROFILE: &str = "/usr/share/containers/seccomp.json";
    let text = fs::read_to_string(PROFILE).with_context(|| format!("cannot read {PROFILE}"))?;
    let mut profile: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{PROFILE} is not understood"))?;
    let rules = profile["syscalls"]
        .as_array_mut()
        .context("a profile without calls")?;
    for rule in rules.iter_mut() {
        if let Some(names) = rule["names"].as_array_mut() {
            names.retain(|name| name != "bpf" && name != "perf_event_open");
        }
    }
    for (name, capability) in [("bpf", "CAP_BPF"), ("perf_event_open", "CAP_PERFMON")] {
        rules.push(serde_json::json!({
            "names": [name],
            "action": "SCMP_ACT_ALLOW",
            "includes": {"caps": [capability]},
        }));
    }
    Ok(profile.to_string())
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = process::output(Command::new("umount").arg(self.path("bpf")));
    }
}

/// Runs the image with these capabilities beside a training process of this machine. The inner error says why it cannot trace it.
fn trace(trial: &Trial, capabilities: &[&str]) -> Result<Result<(), String>> {
    let node = Node::new()?;
    let mut words: Vec<String> = [
        "--pid=host",
        "--read-only",
        "--tmpfs=/tmp",
        "--cap-drop=all",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(capabilities.iter().map(|name| format!("--cap-add={name}")));
    words.push("--security-opt=no-new-privileges".to_owned());
    words.push(format!(
        "--security-opt=seccomp={}",
        text(&node.path("seccomp.json"))?
    ));
    for (name, to) in [
        ("run", "/run/memscope"),
        ("state", "/var/lib/memscope"),
        ("bpf", "/sys/fs/bpf"),
        ("etc", "/etc/memscope"),
    ] {
        words.push(format!("--volume={}:{to}", text(&node.path(name))?));
    }
    words.push("--volume=/sys/fs/cgroup:/sys/fs/cgroup:ro".to_owned());
    words.push(IMAGE.to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let machine = Container::start("image", &words)?;
    if machine.eventually("memscope-ctl status").is_err() {
        return Ok(Err("memscoped does not start".to_owned()));
    }
    let installation = torch::locate(None)?;
    let variables = sim::environment_of(&installation, &sim::Options::default())?;
    let mut python = Python::start(
        &installation.join("bin/python"),
        &process::root().join("xtask/packages/trainer.py"),
        &variables,
        Stdio::piped(),
    )?;
    let pid = python.line()?;
    let attached = node.ask(trial, &["attach", "--pid", &pid, "--level", "trace"])?;
    if !attached.status.success() {
        let said = String::from_utf8_lossy(&attached.stderr);
        return Ok(Err(said.lines().next().unwrap_or_default().to_owned()));
    }
    python.tell("go")?;
    let deadline = std::time::Instant::now() + super::container::PATIENCE;
    let known = loop {
        let stats = node.ask(trial, &["--json", "stats", "--pid", &pid])?;
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout)
            .context("memscope-ctl's answer is not understood")?;
        if stats["devices"][0]["alloc_count"].as_u64() > Some(500) {
            break stats;
        }
        if std::time::Instant::now() > deadline {
            return Ok(Err(format!(
                "no allocations are seen: {}",
                stats["coverage"]
            )));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    let theirs = python.ask_json("hold")?;
    let stats = node.ask(trial, &["--json", "stats", "--pid", &pid])?;
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout)?;
    let device = &stats["devices"][0];
    if device["allocated_bytes"] != theirs["allocated"] {
        return Ok(Err(format!("{device} and not {theirs}")));
    }
    same("lost records", &known["lost_records"].as_u64(), &Some(0))?;
    let doctor = machine.shell("memscope-ctl doctor || true")?;
    let poor: Vec<&str> = doctor
        .lines()
        .filter(|line| {
            line.trim_start().starts_with("fail") || line.trim_start().starts_with("warn")
        })
        .collect();
    node.ask(trial, &["detach", "--all"])?;
    if !poor.is_empty() {
        return Ok(Err(format!("doctor: {}", poor.join("; "))));
    }
    Ok(Ok(()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Each packaging leaves its file beside those before.
    #[test]
    fn the_newest_of_several_packages_is_taken() {
        let file = process::root().join("deploy/image/Containerfile");
        let text = fs::read_to_string(file).unwrap();
        let (_, after) = text.split_once("--fsys-tarfile ").unwrap();
        let (word, _) = after.split_once(" | tar").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let of = |version: &str| {
            let name = format!("memscope_{version}_amd64.deb");
            folder.path().join(name)
        };
        for version in ["0.1.0-2", "0.1.0-10", "0.1.0-9"] {
            fs::write(of(version), "").unwrap();
        }
        let script = word.replace("/context", text_of(folder.path()));
        let output = Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {script}")])
            .output()
            .unwrap();
        let taken = String::from_utf8(output.stdout).unwrap();
        assert_eq!(taken.trim_end(), text_of(&of("0.1.0-10")));
    }

    fn text_of(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    #[test]
    fn a_capability_that_is_not_needed_is_an_error() {
        let refused = Err("the attach is refused".to_owned());
        for name in capabilities().unwrap() {
            let said = judged(&name, &refused).unwrap();
            assert!(said.contains("the attach is refused"), "{said}");
            let is_fine = judged(&name, &Ok(())).is_ok();
            assert_eq!(is_fine, name == "DAC_READ_SEARCH", "{name}");
        }
    }
}
