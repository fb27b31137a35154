//! Building for 64-bit Arm on another machine: `cargo xtask cross`.
//!
//! This needs a cross compiler for C (SQLite is C, and the compiler also links) and the Rust standard library of that
//! target. If the Rust compiler in use has that library (`rustup target add aarch64-unknown-linux-gnu`), it is used;
//! else Debian's compiler, which builds the BPF object anyway, with the library from Debian's package of exactly that
//! version for arm64.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::debian::Packages;
use crate::process;
use crate::setup::mode::Mode;
use crate::setup::tool::{Tool, Version};

/// Rust's name of the target.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The C compiler, which also links.
pub const CC: &str = "aarch64-linux-gnu-gcc";
const COMPILER: Tool = Tool {
    name: "C compiler for aarch64",
    why: "it links programs for aarch64",
    programs: &[CC],
    ask: &["--version"],
    least: Version(8, 0),
    packages: &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
};
/// Path of Debian's Rust compiler.
const DEBIANS: &str = "/usr/bin/rustc";

/// What to build.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Without debugging aids, for shipping
    #[arg(long)]
    pub release: bool,

    /// Only these packages [default: all]
    #[arg(long, short, value_name = "NAME")]
    pub package: Vec<String>,
}

/// Runs the task. The folder with the programs goes to standard output.
pub fn run(options: &Options) -> Result<()> {
    println!("{}", build(options)?.display());
    Ok(())
}

/// Builds, and returns the folder with the programs.
pub fn build(options: &Options) -> Result<PathBuf> {
    if !ensure(Mode::Check)? {
        bail!("cargo xtask setup --aarch64 installs what is missing");
    }
    let library = library().context("the standard library for aarch64 is gone")?;
    // A folder apart from the builds for this machine, because the compiler may be another one.
    let folder = process::target().join("cross");
    let mut command = process::command("cargo");
    command
        .args(["build", "--locked", "--target", TARGET, "--target-dir"])
        .arg(&folder);
    if options.package.is_empty() {
        command.arg("--workspace");
    }
    for package in &options.package {
        command.args(["--package", package]);
    }
    // Simulated machines run these: of a build without any optimisation the daemon would be too slow there.
    let profile = if options.release { "release" } else { "test" };
    command.args(["--profile", profile]);
    command
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CC)
        .env("CC_aarch64_unknown_linux_gnu", CC);
    if let Library::Debians { sysroot } = &library {
        let flags = format!("--sysroot={}", sysroot.display());
        command
            .env("RUSTC", DEBIANS)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags);
    }
    process::run(&mut command)?;
    let folder = folder.join(TARGET);
    Ok(folder.join(if options.release { "release" } else { "debug" }))
}

/// Makes sure that everything is there. False: something is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    let compiler = COMPILER.ensure(mode)?;
    let library = match (library(), mode) {
        (Some(found), _) => {
            eprintln!("Rust standard library for aarch64: found, {found}");
            true
        }
        (None, Mode::Check) => {
            eprintln!("Rust standard library for aarch64: missing");
            false
        }
        (None, Mode::Install) => {
            install_library()?;
            true
        }
    };
    Ok(compiler && library)
}

/// The Rust standard library of the target.
enum Library {
    /// The compiler in use has it, in this folder.
    Own(PathBuf),
    /// It was fetched for Debian's compiler.
    Debians { sysroot: PathBuf },
}

impl std::fmt::Display for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Library::Own(folder) => write!(f, "{}", folder.display()),
            Library::Debians { sysroot } => write!(f, "{} (for {DEBIANS})", sysroot.display()),
        }
    }
}

fn library() -> Option<Library> {
    let own = process::output(Command::new("rustc").args([
        "--print",
        "target-libdir",
        "--target",
        TARGET,
    ]));
    let own = own.map(|text| PathBuf::from(text.trim())).ok();
    if let Some(folder) = own.filter(|folder| has_library(folder)) {
        return Some(Library::Own(folder));
    }
    let (_, version) = debians()?;
    let sysroot = fetched(&version).join("usr");
    let folder = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    has_library(&folder).then_some(Library::Debians { sysroot })
}

fn has_library(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })
}

/// Name and version of the package that contains Debian's compiler.
fn debians() -> Option<(String, String)> {
    let owner = process::output(Command::new("dpkg-query").args(["--search", DEBIANS])).ok()?;
    let package = owner.split(':').next()?.trim().to_owned();
    let words = ["--show", "--showformat", "${Version}", &package];
    let version = process::output(Command::new("dpkg-query").args(words)).ok()?;
    Some((package, version.trim().to_owned()))
}

/// Folder of the library that was fetched for this version of the compiler: it serves no other version.
fn fetched(version: &str) -> PathBuf {
    folder().join("rust").join(version)
}

/// Folder of what is fetched for aarch64.
fn folder() -> PathBuf {
    process::target().join("aarch64")
}

fn install_library() -> Result<()> {
    let (package, version) = debians().context(
        "no Rust standard library for aarch64; with rustup: rustup target add aarch64-unknown-linux-gnu",
    )?;
    // The library for rustc-web is in libstd-rust-web-dev.
    let name = format!("libstd-{}-dev", package.replacen("rustc", "rust", 1));
    eprintln!("Rust standard library for aarch64: missing, fetching {name} {version}");
    let packages = Packages::new(&folder(), "arm64", None)?;
    packages.update()?;
    packages.unpack(&[&format!("{name}={version}")], &fetched(&version))?;
    if library().is_none() {
        bail!("{name} {version} was fetched, but no standard library is in it");
    }
    Ok(())
}
