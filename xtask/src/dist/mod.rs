//! `cargo xtask dist`: builds the programs as users get them: in a folder and an archive of it, as a .deb and as an .rpm.
//!
//! dpkg-deb and rpmbuild make the packages. They define what such files are, every distribution of their kind has them, and nobody
//! who only builds memscope compiles a library for it. Two runs of the same commit give the same bytes.

pub mod contents;
mod deb;
mod licences;
mod release;
mod rpm;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process;
use crate::setup::mode::Mode;
use crate::setup::toolchain;
use contents::{ITEMS, LICENCES, PROGRAMS};
use release::{Commit, Release};

/// What to make.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Also a .deb and an .rpm
    #[arg(long)]
    pub packages: bool,

    /// Of --packages: programs that are built already, in this folder; no archive is made
    #[arg(long, value_name = "FOLDER", requires = "packages")]
    pub programs: Option<PathBuf>,

    /// Of --packages: the folder in which they are put [default: target/dist]
    #[arg(long, value_name = "FOLDER", requires = "packages")]
    pub output: Option<PathBuf>,

    /// Of --packages: which packaging of this version it is
    #[arg(long, value_name = "N", default_value_t = 1, requires = "packages")]
    pub revision: u32,

    /// Of --packages: compress little, which is done in a moment
    #[arg(long, requires = "packages")]
    pub quick: bool,
}

/// Largest allowed size of each program, in bytes. Debugging information alone would be several times as much.
const LIMIT: u64 = 20_000_000;

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let built = process::target().join("dist");
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => {
            build()?;
            archive(&built)?;
            built.clone()
        }
    };
    if options.packages {
        toolchain::ensure_packagers(Mode::Install)?;
        let output = options.output.clone().unwrap_or(built);
        for file in packages(&programs, &output, options)? {
            tell_size(&file)?;
        }
    }
    Ok(())
}

/// Builds the programs, stripped and optimised as a whole.
fn build() -> Result<()> {
    let mut build = process::command("cargo");
    build.args(["build", "--locked", "--profile", "dist"]);
    build.args(PROGRAMS.iter().flat_map(|program| ["-p", program.package]));
    process::run(&mut build)
}

/// Puts the programs and what belongs to them into a folder, and makes an archive of it.
fn archive(built: &Path) -> Result<()> {
    let machine = std::env::consts::ARCH;
    let name = format!("memscope-{}-{machine}-linux", env!("CARGO_PKG_VERSION"));
    let folder = built.join(&name);
    tree::empty(&folder)?;
    for program in &PROGRAMS {
        let file = folder.join(program.file);
        let size = fs::copy(built.join(program.file), &file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        tell_size(&file)?;
        if size > LIMIT {
            let name = program.file;
            bail!("{name} has {size} bytes, more than the {LIMIT} that it may have");
        }
    }
    for path in ITEMS.iter().map(|item| item.from).chain(LICENCES) {
        let from = process::root().join(path);
        let to = folder.join(from.file_name().context("a file without a name")?);
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    licences::write(&folder.join("third-party.txt"))?;
    let commit = Commit::of()?;
    tree::write_pages(built, &folder.join("share"), &commit)?;
    let archive = built.join(format!("{name}.tar.gz"));
    process::run(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", commit.seconds))
            .arg("--use-compress-program=gzip -n")
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(built)
            .arg(&name),
    )?;
    tell_size(&archive)
}

/// Makes both packages; returns their paths.
fn packages(programs: &Path, output: &Path, options: &Options) -> Result<Vec<PathBuf>> {
    let commit = Commit::of()?;
    fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    // rpmbuild must be told whole paths.
    let output = fs::canonicalize(output)?;
    let programs = fs::canonicalize(programs)
        .with_context(|| format!("there are no programs in {}", programs.display()))?;
    let work = tempfile::tempdir().context("no folder to work in")?;
    let release = Release {
        version: env!("CARGO_PKG_VERSION"),
        revision: options.revision,
        commit,
        quick: options.quick,
    };
    Ok(vec![
        deb::make(&programs, work.path(), &output, &release)?,
        rpm::make(&programs, work.path(), &output, &release)?,
    ])
}

fn tell_size(file: &Path) -> Result<()> {
    let size = file
        .metadata()
        .with_context(|| format!("{} is not there", file.display()))?
        .len();
    println!(
        "{}  {:.1} MiB",
        file.display(),
        size as f64 / f64::from(1 << 20)
    );
    Ok(())
}
