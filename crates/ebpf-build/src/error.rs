//! Errors of building a BPF object, with advice on what to do.

use std::path::PathBuf;

/// Why the object could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No Rust compiler was found that is new enough and has its library sources installed.
    #[error(
        "no Rust compiler of version {oldest} or newer with library sources was found, which BPF programs need\n  \
         either: cargo xtask setup --bpf\n  \
         or:     rustup toolchain install nightly --component rust-src\n  \
         or:     apt-get update && apt-get install rustc-web rust-web-src   (Debian; on Debian 12 with bookworm-security among the package sources)\n  \
         looked at: {looked}"
    )]
    NoCompiler {
        /// Oldest version of the compiler that works.
        oldest: &'static str,
        /// The compilers that were tried, each with the reason why it cannot be used.
        looked: String,
    },
    /// No `bpf-linker` was found.
    #[error(
        "bpf-linker was not found in {tools} or on PATH\n  \
         either: cargo xtask setup --bpf\n  \
         or:     cargo install bpf-linker"
    )]
    NoLinker {
        /// The project's own folder for tools, where it was looked for first.
        tools: PathBuf,
    },
    /// `memscope-ebpf` has no code for the registers of this architecture.
    #[error(
        "memscope's BPF programs do not know the registers of {0}; x86_64 and aarch64 are supported"
    )]
    Architecture(String),
    /// A program could not be started.
    #[error("{program} could not be started")]
    Start {
        /// Name of the program.
        program: String,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A source file of the BPF programs cannot be read.
    #[error("{} cannot be read", path.display())]
    Source {
        /// The file or folder that cannot be read.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Cargo or the compiler reported an error.
    #[error("building the BPF object failed:\n{output}")]
    Compile {
        /// What they wrote to standard error.
        output: String,
    },
}
