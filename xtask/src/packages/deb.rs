//! The .deb in a clean root of a Debian release. apt installs it with what it depends on; systemd, which is the first process of a
//! container, starts the service, reloads it when a newer package comes, and stops it; and after a purge no file is left.
//!
//! Processes are traced by a daemon among the process ids of the machine only; elsewhere memscoped refuses to start, unless it is told that
//! these are the machine's (`initial_pids.c`). A container that shares them cannot have systemd as its first process. So the upgrade while a process is traced has a container of its own, in which a script stands for systemctl. apt,
//! dpkg and the package's scripts are the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::container::{Container, PATIENCE, same, text};
use super::trial::{Trial, base, found};
use crate::live::{Ended, Python};
use crate::setup::torch;
use crate::{process, roots, sim};

/// Recipe of a root. It must change whenever the content of a root changes.
const RECIPE: &str = "debootstrap minbase; libc6 and systemd by apt for the package, dbus, systemd-sysv, man-db, bash-completion; 1";
/// What a machine has besides: an init, man pages that can be read, completions that are loaded.
const MACHINE: [&str; 4] = ["systemd-sysv", "dbus", "man-db", "bash-completion"];
/// The service that is there for those who want it.
const ARCHIVE: &str = "memscope-archive.service";
/// The library that memscoped needs where systemd is the first process.
const PIDS: &str = "initial_pids.so";
/// Where a container has the packages.
const PACKAGES: &str = "/packages";
/// Allocations that are seen before and after the upgrade, so that both have something to compare.
const ENOUGH: u64 = 2000;
/// Files that apt, dpkg and what runs beside them keep for themselves.
const OF_OTHERS: &str =
    "^/(proc|sys|run|tmp|dev|host|packages|var/cache|var/lib/apt|var/lib/dpkg|var/log)(/|$)";

/// Tries the package in this release.
pub fn try_in(release: &str, trial: &Trial) -> Result<()> {
    let root = base(&trial.folder, release);
    make_root(release, &root, trial)?;
    build_pids(trial)?;
    {
        let machine = boot(release, &root, trial)?;
        let before = files(&machine)?;
        install(&machine, trial, release)?;
        hand_over(&machine, trial, release)?;
        remove(&machine, release, &before)?;
    }
    let machine = among_all(release, &root, trial)?;
    apt_install(&machine, &trial.package(1, "deb")?)?;
    upgrade(&machine, trial, release)?;
    machine.shell("apt-get -q --yes purge memscope && ! test -e /sys/fs/bpf/memscope")?;
    Ok(())
}

/// Makes the root. apt installs the package there first without an init, as in the making of an image, and brings what it depends on;
/// then the package goes again.
pub fn make_root(release: &str, root: &Path, trial: &Trial) -> Result<()> {
    if roots::finished(root, RECIPE).is_some() {
        return Ok(());
    }
    roots::make(release, root, &[])?;
    let package = trial.package(1, "deb")?;
    let copy = root.join("tmp/memscope.deb");
    fs::copy(&package, &copy).context("the package cannot be copied")?;
    let install = |words: &[&str]| {
        process::run(
            roots::apt_get(root)
                .args(["--yes", "--no-install-recommends", "install"])
                .args(words),
        )
    };
    install(&["/tmp/memscope.deb"])?;
    let said = process::output(roots::inside(root, "/usr/bin/memscoped").arg("--version"))?;
    found(
        release,
        &format!("installed with its dependencies: {}", said.trim()),
    );
    process::run(roots::apt_get(root).args(["--yes", "purge", "memscope"]))?;
    // The group stays after a purge; the next installation is to make it anew.
    process::run(roots::inside(root, "groupdel").arg("memscope"))?;
    fs::remove_file(&copy)?;
    install(&MACHINE)?;
    roots::finish(root, RECIPE, "")
}

/// Starts systemd in the root. It may do all that it may on a machine, with a BPF file system of its own.
fn boot(release: &str, root: &Path, trial: &Trial) -> Result<Container> {
    let packages = format!("{}:{PACKAGES}:ro", text(&trial.folder)?);
    let root = format!("{}:O", text(root)?);
    let machine = Container::start(
        release,
        &[
            "--privileged",
            "--systemd=always",
            // systemd 257 boots with control groups of version 1 only if it is told to.
            "--env=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",
            &format!("--volume={packages}"),
            "--rootfs",
            &root,
            "/lib/systemd/systemd",
        ],
    )?;
    machine.eventually("systemctl is-system-running | grep -E 'running|degraded'")?;
    machine.shell("mount -t bpf bpf /sys/fs/bpf")?;
    // systemd forgets this folder with the machine.
    machine.shell(&format!(
        "mkdir -p /run/systemd/system/memscoped.service.d && \
         printf '[Service]\\nEnvironment=LD_PRELOAD={PACKAGES}/{PIDS}\\n' > /run/systemd/system/memscoped.service.d/trial.conf && \
         systemctl daemon-reload"
    ))?;
    Ok(machine)
}

/// Compiles what tells memscoped that the container's process ids are the machine's.
fn build_pids(trial: &Trial) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    compiler.arg(trial.folder.join(PIDS));
    compiler.arg(process::root().join("xtask/packages/initial_pids.c"));
    process::run(&mut compiler)
}

/// Starts a container that sees all processes of this machine, with a script in systemctl's place.
fn among_all(release: &str, root: &Path, trial: &Trial) -> Result<Container> {
    let packages = format!("--volume={}:{PACKAGES}:ro", text(&trial.folder)?);
    let script = process::root().join("xtask/packages/systemctl.sh");
    let script = format!("--volume={}:/usr/bin/systemctl:ro", text(&script)?);
    let root = format!("{}:O", text(root)?);
    let machine = Container::start(
        &format!("{release}-traced"),
        &[
            "--privileged",
            "--pid=host",
            "--volume=/:/host:ro,rslave",
            &packages,
            &script,
            "--rootfs",
            &root,
            "sleep",
            "infinity",
        ],
    )?;
    machine.shell("mount -t bpf bpf /sys/fs/bpf && mkdir -p /run/systemd/system")?;
    Ok(machine)
}

/// All files of the machine, but for those of others.
fn files(machine: &Container) -> Result<BTreeSet<String>> {
    let text = machine.shell(&format!("find / -xdev | grep -vE '{OF_OTHERS}'"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn apt_install(machine: &Container, package: &Path) -> Result<String> {
    let path = package
        .parent()
        .and_then(Path::file_name)
        .zip(package.file_name())
        .map(|(folder, file)| Path::new(PACKAGES).join(folder).join(file))
        .context("a package without a folder")?;
    machine.shell(&format!(
        "DEBIAN_FRONTEND=noninteractive apt-get -q --yes install {} 2>&1",
        path.display()
    ))
}

/// Installs the first package, and looks at what it has brought.
fn install(machine: &Container, trial: &Trial, release: &str) -> Result<()> {
    apt_install(machine, &trial.package(1, "deb")?)?;
    machine.eventually("systemctl is-active memscoped")?;
    machine.shell("memscoped --check-config")?;
    machine.shell("systemctl is-enabled memscoped")?;
    let group = machine.shell("stat -c '%G %a' /run/memscope/memscoped.sock")?;
    same(
        "group and mode of the socket",
        &group.trim(),
        &"memscope 660",
    )?;
    same("traced at first", &traced(machine)?, &0)?;
    for page in [
        "memscope-ctl",
        "memscope-ctl-attach",
        "memscoped",
        "memscope-archive",
    ] {
        let page = machine.shell(&format!(
            "MANPAGER=cat man {page} | col -b 2>/dev/null || man {page}"
        ))?;
        if !page.contains("SYNOPSIS") {
            bail!("a man page says nothing: {page}");
        }
    }
    let completed = machine.shell(
        "bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader memscope-ctl 2>/dev/null || _comp_load memscope-ctl; \
         complete -p memscope-ctl'",
    )?;
    found(release, &format!("installed: {}", completed.trim()));
    machine.shell("echo 'retention = 901' >> /etc/memscope/memscoped.toml")?;
    machine.shell("systemctl reload memscoped")?;
    machine.eventually("journalctl -u memscoped | grep -q 'settings=1'")?;
    machine.eventually("memscope-ctl status")?;
    found(release, "a changed setting counts after a reload");
    enable_archive(machine, release)
}

/// Gives memscope-archive its settings and enables it, as an administrator does: the package alone neither enables nor starts it.
fn enable_archive(machine: &Container, release: &str) -> Result<()> {
    machine.shell(&format!(
        "! systemctl is-enabled {ARCHIVE} && ! systemctl is-active {ARCHIVE}"
    ))?;
    machine.shell(
        "echo 'see-all-user = \"memscope-archive\"' >> /etc/memscope/memscoped.toml && systemctl reload memscoped",
    )?;
    machine.shell("install -d -o memscope-archive /var/lib/memscope-archive/store")?;
    machine.shell(
        "umask 077 && printf '%s\\n' MEMSCOPE_ARCHIVE_TO=file:///var/lib/memscope-archive/store MEMSCOPE_ARCHIVE_EVERY=1 \
         > /etc/memscope/archive.env",
    )?;
    machine.eventually("memscope-ctl status")?;
    machine.shell(&format!("systemctl enable --now {ARCHIVE}"))?;
    // Nothing is traced, so there is a batch and nothing in it to upload.
    machine.eventually("test -n \"$(find /var/lib/memscope-archive -name 'batch-*')\"")?;
    let user = machine.shell(&format!(
        "stat -c %U /proc/$(systemctl show -P MainPID {ARCHIVE})"
    ))?;
    found(
        release,
        &format!(
            "memscope-archive, once enabled, asks memscoped as the user {}",
            user.trim()
        ),
    );
    Ok(())
}

/// Installs a newer package under systemd: the running memscoped hands over to the next.
fn hand_over(machine: &Container, trial: &Trial, release: &str) -> Result<()> {
    let old = machine.shell("systemctl show -P MainPID memscoped")?;
    let old_archive = machine.shell(&format!("systemctl show -P MainPID {ARCHIVE}"))?;
    machine.shell("journalctl --rotate && journalctl --vacuum-time=1s")?;
    let said = apt_install(machine, &trial.package(2, "deb")?)?;
    if said.contains("failed") {
        bail!("apt says: {said}");
    }
    machine.eventually(&format!(
        "test \"$(systemctl show -P MainPID memscoped)\" -ne {} && systemctl is-active memscoped && memscope-ctl status",
        old.trim()
    ))?;
    let log = machine.shell("journalctl -u memscoped --no-pager")?;
    if !log.contains("told to hand over (SIGUSR1)") || log.contains("told to stop") {
        bail!("the upgrade was no hand-over: {log}");
    }
    let version = machine.shell("dpkg-query -W -f '${Version}' memscope")?;
    same("the version", &version.trim().ends_with("-2"), &true)?;
    machine.shell("grep -q 'retention = 901' /etc/memscope/memscoped.toml")?;
    machine.eventually(&format!(
        "test \"$(systemctl show -P MainPID {ARCHIVE})\" -ne {} && systemctl is-active {ARCHIVE}",
        old_archive.trim()
    ))?;
    found(
        release,
        &format!(
            "upgraded to {}: handed over, the changed setting is kept, memscope-archive is started anew",
            version.trim()
        ),
    );
    Ok(())
}

/// How many processes are traced.
fn traced(machine: &Container) -> Result<u64> {
    let status = machine.ask("ps")?;
    let processes = status["processes"].as_array().map_or(0, Vec::len);
    Ok(processes as u64)
}

/// A training process in the container, with this machine's PyTorch on a simulated device.
struct Trainer {
    python: Python,
    /// Its process id in the container.
    pid: String,
}

impl Trainer {
    fn start(machine: &Container) -> Result<Trainer> {
        let installation = torch::locate(None)?;
        let variables = sim::environment_of(&installation, &sim::Options::default())?;
        let python = installation.join("bin/python");
        let script = process::root().join("xtask/packages/trainer.py");
        // The root of this machine is read-only there.
        let mut words = vec!["chroot", "/host", "env", "TMPDIR=/dev/shm"];
        let variables: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        words.extend(variables.iter().map(String::as_str));
        words.extend([text(&python)?, text(&script)?]);
        let child: Child = machine
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the trainer could not be started")?;
        let mut python = Python::of(Ended(child))?;
        let pid = python.line()?;
        Ok(Trainer { python, pid })
    }

    fn hold(&mut self) -> Result<Value> {
        self.python.ask_json("hold")
    }
}

/// What memscope knows of the trainer's device, by the trainer's words for it.
fn known(machine: &Container, pid: &str) -> Result<Value> {
    let stats = machine.ask(&format!("stats --pid {pid}"))?;
    let device = &stats["devices"][0];
    Ok(serde_json::json!({
        "allocated": device["allocated_bytes"],
        "reserved": device["reserved_bytes"],
        "blocks": device["live_blocks"],
        "allocations": device["alloc_count"],
        "frees": device["free_count"],
        "lost": stats["lost_records"],
    }))
}

/// Installs a newer package while a process is traced, and compares what memscope knows with what PyTorch counts.
fn upgrade(machine: &Container, trial: &Trial, release: &str) -> Result<()> {
    let mut trainer = Trainer::start(machine)?;
    let pid = trainer.pid.clone();
    let begin = trainer.hold()?;
    machine.shell(&format!("memscope-ctl attach --pid {pid} --level trace"))?;
    trainer.python.tell("go")?;
    let deadline = Instant::now() + PATIENCE;
    while known(machine, &pid)?["allocations"].as_u64() < Some(ENOUGH) {
        if Instant::now() > deadline {
            bail!("few allocations are seen: {}", known(machine, &pid)?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    compare(&mut trainer, machine, &begin, "before the upgrade", release)?;
    trainer.python.tell("go")?;
    let old = machine.shell("systemctl show -P MainPID memscoped")?;
    let said = apt_install(machine, &trial.package(2, "deb")?)?;
    machine.eventually(&format!(
        "test \"$(systemctl show -P MainPID memscoped)\" -ne {} && memscope-ctl status",
        old.trim()
    ))?;
    let messages = machine.ask("status")?["messages"].to_string();
    if !messages.contains("1 traced on") {
        bail!("the new memscoped does not say that it took over: {messages}; apt said {said}");
    }
    compare(&mut trainer, machine, &begin, "after the upgrade", release)?;
    machine.shell(&format!("memscope-ctl detach --pid {pid}"))?;
    Ok(())
}

/// Holds the trainer, and compares all totals, and how much came and went since the beginning.
fn compare(
    trainer: &mut Trainer,
    machine: &Container,
    begin: &Value,
    when: &str,
    release: &str,
) -> Result<()> {
    let theirs = trainer.hold()?;
    let ours = known(machine, &trainer.pid)?;
    for name in ["allocated", "reserved", "blocks"] {
        same(&format!("{name} {when}"), &ours[name], &theirs[name])?;
    }
    for name in ["allocations", "frees"] {
        let since = theirs[name]
            .as_u64()
            .zip(begin[name].as_u64())
            .map(|(now, then)| now - then);
        same(&format!("{name} {when}"), &ours[name].as_u64(), &since)?;
    }
    same("lost records", &ours["lost"].as_u64(), &Some(0))?;
    found(
        release,
        &format!("{when}, memscope and PyTorch agree: {ours}"),
    );
    Ok(())
}

/// Removes and purges the package; nothing of it may be left.
fn remove(machine: &Container, release: &str, before: &BTreeSet<String>) -> Result<()> {
    machine.shell("DEBIAN_FRONTEND=noninteractive apt-get -q --yes remove memscope")?;
    machine.shell(
        "! systemctl is-active memscoped memscope-archive && ! pidof memscoped memscope-archive && \
         ! test -e /sys/fs/bpf/memscope",
    )?;
    machine.shell("test -d /var/lib/memscope/journal && test -f /etc/memscope/memscoped.toml")?;
    // The administrator's own file stays in /etc until they remove it.
    machine.shell("rm /etc/memscope/archive.env")?;
    machine.shell("DEBIAN_FRONTEND=noninteractive apt-get -q --yes purge memscope")?;
    let after = files(machine)?;
    let left: Vec<&String> = after.difference(before).collect();
    if !left.is_empty() {
        bail!("the purge leaves: {left:?}");
    }
    let gone: Vec<&String> = before.difference(&after).collect();
    if !gone.is_empty() {
        bail!("the purge takes more than it brought: {gone:?}");
    }
    let group = machine.shell("getent group memscope")?;
    found(
        release,
        &format!(
            "purged: no file is left; the group stays ({})",
            group.trim()
        ),
    );
    Ok(())
}
