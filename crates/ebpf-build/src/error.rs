//! Why a BPF object could not be built, with the way out.

use std::path::PathBuf;

/// Why the object could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No compiler with its library sources.
    #[error(
        "no Rust compiler of version {oldest} or newer with library sources was found, which BPF programs need\n  \
         either: cargo xtask setup\n  \
         or:     rustup toolchain install nightly --component rust-src\n  \
         or:     apt-get update && apt-get install rustc-web rust-web-src   (Debian; on Debian 12 with bookworm-security among the package sources)\n  \
         looked at: {looked}"
    )]
    NoCompiler {
        /// The oldest version that will do.
        oldest: &'static str,
        /// What was tried, with the reason for each refusal.
        looked: String,
    },
    /// No `bpf-linker`.
    #[error(
        "bpf-linker was not found in {tools} or on PATH\n  \
         either: cargo xtask setup\n  \
         or:     cargo install bpf-linker"
    )]
    NoLinker {
        /// The project's own folder for tools.
        tools: PathBuf,
    },
    /// The architecture has no register layout in `memscope-ebpf`.
    #[error(
        "memscope's BPF programs do not know the registers of {0}; x86_64 and aarch64 are supported"
    )]
    Architecture(String),
    /// A program could not be started.
    #[error("{program} could not be started")]
    Start {
        /// Which.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A source of the programs cannot be read.
    #[error("{} cannot be read", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The compiler said no.
    #[error("building the BPF object failed:\n{output}")]
    Compile {
        /// Its messages.
        output: String,
    },
}
