//! Finds the compiler and the linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::BuildError;

/// A compiler that can build `core` for BPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// Path or name of the compiler.
    pub rustc: PathBuf,
    /// Name of the rustup toolchain, if the compiler belongs to one.
    pub rustup: Option<String>,
    /// Output of `rustc --version`.
    pub version: String,
    /// Folder of its libraries and their sources (`rustc --print sysroot`).
    pub sysroot: PathBuf,
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

/// Oldest compiler that can build the programs: the one that the whole project requires.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Finds a compiler: first rustup's nightly (the usual case), then compilers of the distribution. A compiler that is
/// too old or has no library sources is skipped. If none is left, the error lists all that were skipped, with the
/// reasons.
pub fn find_toolchain() -> Result<Toolchain, BuildError> {
    let mut looked = Vec::new();
    let nightly = output_of(
        Command::new("rustup")
            .args(["run", "nightly", "rustc", "--print", "sysroot"])
            .env("RUSTUP_AUTO_INSTALL", "0"),
    );
    match nightly {
        None => looked.push("rustup's nightly (not installed)".to_owned()),
        Some(sysroot) => {
            let rustc = Path::new(&sysroot).join("bin/rustc");
            match usable(&rustc, Some("nightly"), &sysroot) {
                Ok(toolchain) => return Ok(toolchain),
                Err(why) => looked.push(why),
            }
        }
    }
    for rustc in ["/usr/bin/rustc", "/usr/local/bin/rustc", "rustc"].map(PathBuf::from) {
        let sysroot = output_of(
            Command::new(&rustc)
                .args(["--print", "sysroot"])
                .env_remove("RUSTUP_TOOLCHAIN"),
        );
        let Some(sysroot) = sysroot else {
            looked.push(format!("{} (not there)", rustc.display()));
            continue;
        };
        match usable(&rustc, None, &sysroot) {
            Ok(toolchain) => return Ok(toolchain),
            Err(why) => looked.push(why),
        }
    }
    Err(BuildError::NoCompiler {
        oldest: OLDEST,
        looked: looked.join("; "),
    })
}

/// The compiler, or the reason why it cannot be used.
fn usable(rustc: &Path, rustup: Option<&str>, sysroot: &str) -> Result<Toolchain, String> {
    let name = rustc.display();
    if !has_sources(sysroot) {
        return Err(format!("{name} (no library sources in {sysroot})"));
    }
    let mut asked = Command::new(rustc);
    let version = output_of(asked.arg("--version").env_remove("RUSTUP_TOOLCHAIN"));
    let version = version.ok_or_else(|| format!("{name} (does not say its version)"))?;
    if number(version.split_whitespace().nth(1).unwrap_or_default()) < number(OLDEST) {
        return Err(format!("{name} (too old: {version})"));
    }
    Ok(Toolchain {
        rustc: rustc.to_owned(),
        rustup: rustup.map(str::to_owned),
        version,
        sysroot: PathBuf::from(sysroot),
    })
}

/// Major and minor number of a version such as `1.97.0-nightly`. `None`, which is less than every number, if the text
/// has none.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Path of the project's own `bpf-linker` in the folder `tools`, else of the first one on PATH.
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

/// Output of the linker's `--version`; `None` if it cannot be run.
pub fn linker_version(linker: &Path) -> Option<String> {
    output_of(Command::new(linker).arg("--version"))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(number("1.85.0") < number("1.95"));
        assert!(number("1.100.0-nightly") > number("1.95"));
        assert!(number("2.0.0") > number("1.95"));
        assert_eq!(number("1.95.0"), number("1.95"));
        assert!(number("(unknown)") < number("1.0"));
    }
}
