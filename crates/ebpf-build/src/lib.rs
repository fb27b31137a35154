//! The one code path that turns `memscope-ebpf/` into a BPF object, and access to the objects that were built by it and
//! are committed beside their sources.
//!
//! Building needs `bpf-linker` and a Rust compiler with its library sources (`rust-src`); unstable features are
//! switched on for it. A nightly toolchain of rustup is used if there is one, else any `rustc` whose sources are
//! installed (Debian's `rustc-web` and `rust-web-src`).

mod built;
mod error;
mod toolchain;

pub use built::{Built, FOLDER, digest, sources};
pub use error::BuildError;
pub use toolchain::{Toolchain, find_linker, find_toolchain, linker_version};

use std::path::{Path, PathBuf};
use std::process::Command;

/// Architectures that the BPF programs can be built for.
pub const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Builds the object for programs that trace processes of `arch` and returns its path.
///
/// `root` is the workspace. The build products of each architecture go to a folder of their own in `target_dir`, since
/// builds for several architectures may run at the same time.
pub fn build(root: &Path, arch: &str, target_dir: &Path) -> Result<PathBuf, BuildError> {
    if !ARCHITECTURES.contains(&arch) {
        return Err(BuildError::Architecture(arch.to_owned()));
    }
    let target_dir = target_dir.join(arch);
    let toolchain = find_toolchain()?;
    let tools = root.join("target/tools/bin");
    let linker = find_linker(&tools)?;
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        // A build script and `cargo clippy` pass on settings that belong to the outer build.
        let text = name.to_string_lossy();
        if text.starts_with("CARGO") && text != "CARGO_HOME" && !text.starts_with("CARGO_REGISTR")
            || text.starts_with("RUSTC")
            || text == "RUSTFLAGS"
            || text == "RUSTUP_TOOLCHAIN"
            || text == "CLIPPY_ARGS"
            || text == "MAKEFLAGS"
        {
            command.env_remove(&name);
        }
    }
    let rename = |from: PathBuf, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [
        // The object must not contain the path where it was built, so that it is the same wherever it is built.
        rename(root.to_owned(), "."),
        rename(cargo_home().join("registry/src"), "registry"),
        rename(toolchain.sysroot.join("lib/rustlib/src/rust"), "rust"),
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".to_owned(),
        // Version 3 of the instruction set has atomics that return the old value; kernels know it from 5.12 on.
        "-Ctarget-cpu=v3".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "--cfg".to_owned(),
        format!("bpf_target_arch=\"{arch}\""),
    ]
    .join("\x1f");
    if let Some(name) = &toolchain.rustup {
        command.env("RUSTUP_TOOLCHAIN", name);
    } else {
        command.env("RUSTC", &toolchain.rustc);
    }
    let output = command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .current_dir(root.join("memscope-ebpf"))
        .args(["build", "--release", "--locked"])
        .args(["-Z", "build-std=core", "--target", "bpfel-unknown-none"])
        .arg("--target-dir")
        .arg(&target_dir)
        .output()
        .map_err(|source| BuildError::Start {
            program: "cargo".to_owned(),
            source,
        })?;
    if !output.status.success() {
        return Err(BuildError::Compile {
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(target_dir.join("bpfel-unknown-none/release/memscope"))
}

/// The folder where cargo keeps what it downloads.
fn cargo_home() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match std::env::var_os("CARGO_HOME") {
        Some(path) => PathBuf::from(path),
        None => home.unwrap_or_default().join(".cargo"),
    }
}
