//! What is for the service manager: the files in `deploy/`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

use memscope_tests::{root, scratch, tool};

/// Ten times the exposure that the unit may have at most, as `systemd-analyze security` counts it.
const THRESHOLD: &str = "--threshold=20";

fn deploy(name: &str) -> PathBuf {
    root().join("deploy").join(name)
}

/// Runs one of systemd's programs, which works without systemd being the first process.
#[track_caller]
fn systemd(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    // Nothing of this is for a pager.
    command
        .args(arguments)
        .env("SYSTEMD_PAGER", "")
        .env("LC_ALL", "C");
    command.output().unwrap_or_else(|error| {
        panic!(
            "{program} does not start ({error}): Debian's package systemd has it; `cargo xtask setup --systemd` installs it"
        )
    })
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_unit_exposes_little() {
    let unit = deploy("memscoped.service");
    let words = [
        "security",
        "--offline=true",
        THRESHOLD,
        unit.to_str().unwrap(),
    ];
    let output = systemd("systemd-analyze", &words);
    assert!(
        output.status.success(),
        "the unit exposes more than it may:\n{}",
        said(&output)
    );
    assert!(
        said(&output).contains("Overall exposure level"),
        "{}",
        said(&output)
    );
}

#[test]
fn the_unit_has_no_mistakes() {
    // The program that it starts must be there.
    let folder = scratch();
    let unit = std::fs::read_to_string(deploy("memscoped.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/memscoped "), "{unit}");
    let here = unit.replace("/usr/bin/memscoped", tool("memscoped").to_str().unwrap());
    let copy = folder.path().join("memscoped.service");
    std::fs::write(&copy, here).unwrap();
    let more = folder.path().join("memscoped.service.d");
    std::fs::create_dir(&more).unwrap();
    let older = "memscoped-before-6.6.conf";
    std::fs::copy(deploy(older), more.join(older)).unwrap();
    let output = systemd("systemd-analyze", &["verify", copy.to_str().unwrap()]);
    // What concerns other units of this machine does not matter; it names theirs.
    let said = said(&output);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("memscoped"))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_group_is_made() {
    let folder = scratch();
    let place = folder.path().join("usr/lib/sysusers.d");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::create_dir_all(folder.path().join("etc")).unwrap();
    std::fs::copy(
        deploy("memscope.sysusers.conf"),
        place.join("memscope.conf"),
    )
    .unwrap();
    let at = format!("--root={}", folder.path().display());
    let output = systemd("systemd-sysusers", &[&at]);
    assert!(output.status.success(), "{}", said(&output));
    let groups = std::fs::read_to_string(folder.path().join("etc/group")).unwrap();
    assert!(
        groups.lines().any(|line| line.starts_with("memscope:")),
        "{groups}"
    );
}
