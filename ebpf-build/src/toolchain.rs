//! Finding a compiler and a linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::BuildError;

/// A compiler that can build `core` for BPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: PathBuf,
    /// Name of the rustup toolchain, if it is one.
    pub rustup: Option<String>,
    /// What `rustc --version` says.
    pub version: String,
}

fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn has_sources(sysroot: &str) -> bool {
    Path::new(sysroot)
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .exists()
}

/// A nightly of rustup first (the usual way), then compilers of the distribution.
pub fn find_toolchain() -> Result<Toolchain, BuildError> {
    let mut looked = Vec::new();
    let sysroot = output_of(
        Command::new("rustup")
            .args(["run", "nightly", "rustc", "--print", "sysroot"])
            .env("RUSTUP_AUTO_INSTALL", "0"),
    );
    match sysroot {
        Some(sysroot) if has_sources(&sysroot) => {
            let rustc = Path::new(&sysroot).join("bin/rustc");
            let version = output_of(Command::new(&rustc).arg("--version")).unwrap_or_default();
            return Ok(Toolchain {
                rustc,
                rustup: Some("nightly".to_owned()),
                version,
            });
        }
        Some(sysroot) => looked.push(format!("nightly at {sysroot} (no rust-src)")),
        None => looked.push("rustup's nightly (not installed)".to_owned()),
    }
    let mut candidates: Vec<PathBuf> = vec!["/usr/bin/rustc".into(), "/usr/local/bin/rustc".into()];
    candidates.push("rustc".into());
    for rustc in candidates {
        let Some(sysroot) = output_of(
            Command::new(&rustc)
                .args(["--print", "sysroot"])
                .env_remove("RUSTUP_TOOLCHAIN"),
        ) else {
            looked.push(format!("{} (not there)", rustc.display()));
            continue;
        };
        if has_sources(&sysroot) {
            let version = output_of(Command::new(&rustc).arg("--version")).unwrap_or_default();
            return Ok(Toolchain {
                rustc,
                rustup: None,
                version,
            });
        }
        looked.push(format!(
            "{} (no library sources in {sysroot})",
            rustc.display()
        ));
    }
    Err(BuildError::NoCompiler {
        looked: looked.join("; "),
    })
}

/// The project's own `bpf-linker`, else the one on PATH.
pub fn find_linker(tools: &Path) -> Result<PathBuf, BuildError> {
    let own = tools.join("bpf-linker");
    if own.exists() {
        return Ok(own);
    }
    std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .map(|dir| dir.join("bpf-linker"))
        .find(|path| path.exists())
        .ok_or_else(|| BuildError::NoLinker {
            tools: tools.to_owned(),
        })
}
