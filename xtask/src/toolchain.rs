//! The compilers: one for C, for the simulated devices; one for BPF, which is a Rust compiler with the
//! sources of its library, and `bpf-linker`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::setup::Mode;

const LINKER_VERSION: &str = "0.13.0";
/// The LLVM that `bpf-linker` is built with: at least as new as that of the Rust compilers in question.
const LLVM: &str = "22";

/// Makes sure that all compilers are there. False: something is missing (only with [`Mode::Check`]).
pub fn ensure(mode: Mode) -> Result<bool> {
    // Each reports for itself, also after one that is missing.
    let found = [
        ensure_c(mode)?,
        ensure_python(mode)?,
        ensure_bpf_compiler(mode)?,
        ensure_bpf_linker(mode)?,
        ensure_node(mode)?,
    ];
    Ok(found.into_iter().all(|found| found))
}

fn ensure_c(mode: Mode) -> Result<bool> {
    let works = || {
        let program = process::find_program("cc")?;
        let output = Command::new(&program)
            .args(["-E", "-include", "stdio.h", "-x", "c", "/dev/null"])
            .output();
        output
            .is_ok_and(|output| output.status.success())
            .then_some(program)
    };
    let why = "it builds the simulated devices";
    provide("C compiler", why, mode, works, || {
        apt(&["gcc", "libc6-dev"])
    })
}

/// Python with the means to make virtual environments.
pub fn ensure_python(mode: Mode) -> Result<bool> {
    let works = || {
        let program = process::find_program("python3")?;
        let output = Command::new(&program)
            .args(["-c", "import ensurepip, venv"])
            .output();
        output
            .is_ok_and(|output| output.status.success())
            .then_some(program)
    };
    let why = "PyTorch runs in environments that it makes";
    provide("Python 3 with venv", why, mode, works, || {
        apt(&["python3", "python3-venv"])
    })
}

fn ensure_node(mode: Mode) -> Result<bool> {
    let why = "it checks the script in exported pages";
    let find = || process::find_program("node");
    provide("Node.js", why, mode, find, || apt(&["nodejs"]))
}

/// What makes roots of other releases of Debian.
pub fn ensure_debootstrap(mode: Mode) -> Result<bool> {
    let why = "it makes roots with other versions of Python";
    let find = || process::find_program("debootstrap");
    provide("debootstrap", why, mode, find, || apt(&["debootstrap"]))
}

/// Node.js's package manager.
pub fn ensure_npm(mode: Mode) -> Result<bool> {
    let why = "PyTorch's viewer imports what it gets";
    let find = || process::find_program("npm");
    provide("npm", why, mode, find, || apt(&["npm"]))
}

/// A browser without a window. The names are those that tests/viewers/browser.mjs looks for.
pub fn ensure_browser(mode: Mode) -> Result<bool> {
    let why = "it opens exported pages";
    let find = || {
        let named = std::env::var_os("MEMSCOPE_CHROMIUM").map(PathBuf::from);
        let names = [
            "chromium",
            "chromium-browser",
            "google-chrome",
            "google-chrome-stable",
        ];
        named.or_else(|| names.into_iter().find_map(process::find_program))
    };
    provide("Chromium", why, mode, find, || {
        apt(&["chromium"]).context(
            "any Chromium or Chrome will do: put it on PATH or name it with MEMSCOPE_CHROMIUM",
        )
    })
}

/// A program that comes with packages.
pub fn ensure_packages(
    name: &str,
    why: &str,
    mode: Mode,
    find: impl Fn() -> Option<PathBuf>,
    packages: &[&str],
) -> Result<bool> {
    provide(name, why, mode, find, || apt(packages))
}

fn ensure_bpf_compiler(mode: Mode) -> Result<bool> {
    let name = "Rust compiler with library sources";
    let why = "it compiles the BPF programs";
    let find = || Some(memscope_ebpf_build::find_toolchain().ok()?.rustc);
    let packages = ["rustc-web", "rust-web-src"];
    provide(name, why, mode, find, || {
        apt(&packages).context(
            "with rustup, this is the usual way: rustup toolchain install nightly --component rust-src",
        )?;
        if let Err(error) = memscope_ebpf_build::find_toolchain() {
            // What lists that are out of date call the newest can be too old.
            eprintln!("setup: {error}; trying again with fresh package lists");
            process::run(&mut apt_get(&["update"]))?;
            apt(&packages)?;
            memscope_ebpf_build::find_toolchain()?;
        }
        Ok(())
    })
}

fn ensure_bpf_linker(mode: Mode) -> Result<bool> {
    let why = "it links the BPF programs";
    provide("bpf-linker", why, mode, bpf_linker, install_bpf_linker)
}

/// Looks for a thing, and installs or reports it if it is missing.
fn provide(
    name: &str,
    why: &str,
    mode: Mode,
    find: impl Fn() -> Option<PathBuf>,
    install: impl FnOnce() -> Result<()>,
) -> Result<bool> {
    if let Some(place) = find() {
        eprintln!("{name}: found, {}", place.display());
        return Ok(true);
    }
    if mode == Mode::Check {
        eprintln!("{name}: missing; {why}");
        return Ok(false);
    }
    eprintln!("{name}: missing, installing; {why}");
    install().with_context(|| format!("cannot install: {name}"))?;
    match find() {
        Some(place) => eprintln!("{name}: installed, {}", place.display()),
        None => bail!("{name}: was installed but cannot be found"),
    }
    Ok(true)
}

/// Our own first: its version is known.
fn bpf_linker() -> Option<PathBuf> {
    let own = tools().join("bin/bpf-linker");
    if own.exists() {
        Some(own)
    } else {
        process::find_program("bpf-linker")
    }
}

fn tools() -> PathBuf {
    process::target().join("tools")
}

fn install_bpf_linker() -> Result<()> {
    // It links LLVM, which is C++.
    let packages = [
        format!("llvm-{LLVM}-dev"),
        format!("libpolly-{LLVM}-dev"),
        "g++".to_owned(),
    ];
    let packages = packages.each_ref().map(String::as_str);
    let prefix = match llvm_prefix() {
        Some(prefix) if process::find_program("c++").is_some() => prefix,
        _ => {
            apt(&packages).with_context(|| {
                format!("LLVM {LLVM} with its headers is needed; with another LLVM: cargo install bpf-linker")
            })?;
            llvm_prefix()
                .with_context(|| format!("LLVM {LLVM} was installed but cannot be found"))?
        }
    };
    process::run(
        process::command("cargo")
            .args([
                "install",
                "bpf-linker",
                "--version",
                LINKER_VERSION,
                "--locked",
            ])
            .args([
                "--no-default-features",
                "--features",
                &format!("llvm-{LLVM}"),
            ])
            .arg("--root")
            .arg(tools())
            // bpf-linker's build asks for the first, its crate llvm-sys for the second.
            .env("LLVM_PREFIX", &prefix)
            .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix)
            .env_remove("RUSTC")
            .env_remove("RUSTC_WORKSPACE_WRAPPER"),
    )
}

fn llvm_prefix() -> Option<PathBuf> {
    let prefix = match process::output(Command::new(format!("llvm-config-{LLVM}")).arg("--prefix"))
    {
        Ok(text) => PathBuf::from(text.trim()),
        Err(_) => PathBuf::from(format!("/usr/lib/llvm-{LLVM}")),
    };
    // The library's package comes without headers; libPolly's is separate.
    let complete =
        prefix.join("include/llvm-c/Core.h").exists() && prefix.join("lib/libPolly.a").exists();
    complete.then_some(prefix)
}

/// Installs packages of Debian or a relative of it.
fn apt(packages: &[&str]) -> Result<()> {
    let by_hand = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    if process::find_program("apt-get").is_none() {
        bail!(
            "this system has no apt-get; install what corresponds to Debian's {}",
            packages.join(", ")
        );
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("installing packages needs root; run: sudo {by_hand}");
    }
    // Fresh machines and containers have no package lists.
    if !known(packages) {
        process::run(&mut apt_get(&["update"]))?;
    }
    if !known(packages) {
        bail!(
            "this system's package sources do not have all of: {}",
            packages.join(", ")
        );
    }
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(packages);
    if let Err(error) = process::run(&mut apt_get(&words)) {
        // Lists that are out of date name files that are gone.
        eprintln!("setup: {error:#}; trying again with fresh package lists");
        process::run(&mut apt_get(&["update"]))?;
        process::run(&mut apt_get(&words)).with_context(|| format!("by hand: {by_hand}"))?;
    }
    Ok(())
}

fn apt_get(words: &[&str]) -> Command {
    let mut command = process::command("apt-get");
    command
        .args([
            "-q",
            "-o",
            "Acquire::Retries=3",
            "-o",
            "DPkg::Lock::Timeout=120",
        ])
        .args(words);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether the package lists have a version of each.
fn known(packages: &[&str]) -> bool {
    packages.iter().all(|package| {
        let policy = process::output(
            Command::new("apt-cache")
                .args(["policy", package])
                .env("LC_ALL", "C"),
        );
        policy.is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
    })
}
