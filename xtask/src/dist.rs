//! `cargo xtask dist`: builds the programs as users get them, in a folder and an archive of it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process;

/// How to build them.
#[derive(Args, Clone, Default)]
pub struct Options {}

/// Largest allowed size of each program, in bytes. Debugging information alone would be several times as much.
const LIMIT: u64 = 20 << 20;

const PROGRAMS: [&str; 3] = ["memscoped", "memscope-ctl", "memscope-archive"];

/// Files that are put beside the programs.
const MORE: &[&str] = &[
    "deploy/memscoped.service",
    "deploy/memscoped-before-6.6.conf",
    "deploy/memscoped-network.conf",
    "deploy/memscoped.toml",
    "deploy/prometheus/memscope.rules.yml",
    "deploy/grafana/node.json",
    "deploy/grafana/job.json",
    "deploy/grafana/rank.json",
    "deploy/memscope.sysusers.conf",
    "deploy/memscope-archive.service",
    "deploy/memscope-archive.sysusers.conf",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "CHANGELOG.md",
    "SECURITY.md",
];

/// Runs the task.
pub fn run(_: &Options) -> Result<()> {
    let mut build = process::command("cargo");
    build.args(["build", "--locked", "--profile", "dist"]);
    build.args(["-p", "memscope-daemon", "-p", "memscope-ctl"]);
    build.args(["-p", "memscope-archive"]);
    process::run(&mut build)?;
    let built = process::target().join("dist");
    let machine = std::env::consts::ARCH;
    let name = format!("memscope-{}-{machine}-linux", env!("CARGO_PKG_VERSION"));
    let folder = built.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for program in PROGRAMS {
        let file = folder.join(program);
        let size = fs::copy(built.join(program), &file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!(
            "{}  {:.1} MiB",
            file.display(),
            size as f64 / f64::from(1 << 20)
        );
        if size > LIMIT {
            bail!("{program} has {size} bytes, more than the {LIMIT} that it may have");
        }
    }
    for path in MORE {
        let from = process::root().join(path);
        let to = folder.join(from.file_name().context("a file without a name")?);
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let archive = built.join(format!("{name}.tar.gz"));
    process::run(
        Command::new("tar")
            .args(["--owner=0", "--group=0", "-czf"])
            .arg(&archive)
            .arg("-C")
            .arg(&built)
            .arg(&name),
    )?;
    let size = archive
        .metadata()
        .context("the archive is not there")?
        .len();
    println!(
        "{}  {:.1} MiB",
        archive.display(),
        size as f64 / f64::from(1 << 20)
    );
    Ok(())
}
