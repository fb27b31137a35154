//! Runs the machine: starts QEMU and reads its console until it is switched off.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::architecture::Architecture;
use crate::process;

/// Settings of the machine to boot.
pub struct Machine<'a> {
    pub architecture: &'static Architecture,
    pub kernel: &'a Path,
    pub image: &'a Path,
    pub processors: u32,
    pub memory_mib: u32,
    pub deadline: Duration,
}

/// Boots the machine, prints its console's output, and returns that.
pub fn boot(machine: &Machine<'_>) -> Result<String> {
    let architecture = machine.architecture;
    let qemu = architecture.simulator.programs[0];
    // A kernel that meets a fault of its own panics, and one that panics reboots at once, which ends the machine.
    let words = format!("console={} quiet oops=panic panic=-1", architecture.console);
    let mut command = Command::new(qemu);
    command
        .args(["-M", architecture.machine, "-cpu", architecture.cpu])
        .args(["-smp", &machine.processors.to_string()])
        .args(["-accel", "tcg,thread=multi", "-nic", "none", "-no-reboot"])
        .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
        .args(["-m", &machine.memory_mib.to_string()])
        .arg("-kernel")
        .arg(machine.kernel)
        .arg("-initrd")
        .arg(machine.image)
        .args(["-append", &words])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    eprintln!("+ {}", process::words(&command));
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("{qemu} could not be started"))?;
    let console = child.stdout.take().context("no console")?;
    let (send, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut line = Vec::new();
        // A console may also print bytes that are no text.
        while console.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if send.send(text).is_err() {
                break;
            }
        }
    });
    let mut said = String::new();
    let late = loop {
        let left = machine.deadline.saturating_sub(started.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                println!("{line}");
                said.push_str(&line);
                said.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if late {
        child.kill().context("the machine cannot be switched off")?;
    }
    let status = child.wait()?;
    // The machine's end of the pipe is closed now, so the reader ends.
    let _ = reader.join();
    if late {
        bail!(
            "the machine was not done within {} s",
            machine.deadline.as_secs()
        );
    }
    if !status.success() {
        bail!("{qemu}: {status}");
    }
    eprintln!("vm: done in {} s", started.elapsed().as_secs());
    Ok(said)
}
