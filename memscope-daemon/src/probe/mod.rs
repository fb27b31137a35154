//! The kernel side: loading the BPF object, and attaching its programs to sites. aya appears here
//! and nowhere else.

pub mod calibrate;
pub mod kernel;
pub mod links;
pub mod load;
mod maps;
pub mod multi;
pub mod slot;
mod tables;

/// Why probing failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel's type information lacks something.
    #[error(
        "the kernel's type information (/sys/kernel/btf/vmlinux) {what}; memscope needs a kernel \
         built with CONFIG_DEBUG_INFO_BTF"
    )]
    Btf {
        /// What is wrong with it.
        what: String,
        /// Why it could not be read, if that is the reason.
        #[source]
        source: Option<std::io::Error>,
    },
    /// The object was refused.
    #[error("the kernel refused memscope's BPF object; `memscope-ctl doctor` says what it lacks")]
    Load(#[source] Box<aya::EbpfError>),
    /// A program was refused by the verifier.
    #[error("the kernel refused the BPF program {program}:\n{log}")]
    Program {
        /// Name of the program.
        program: String,
        /// The verifier's last words.
        log: String,
        /// The error number.
        #[source]
        source: std::io::Error,
    },
    /// A program of aya's could not be loaded or attached.
    #[error("the BPF program {program} could not be {action}")]
    Aya {
        /// Name of the program.
        program: String,
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    /// The object lacks a piece that this daemon expects.
    #[error("the BPF object has no {0}; the daemon and its object do not belong together")]
    Missing(String),
    /// A table of the daemon's and the programs' has no room.
    #[error("there is no room for {what}: {most} are known already")]
    Full {
        /// What.
        what: &'static str,
        /// How many there is room for.
        most: u32,
    },
    /// A map operation failed.
    #[error("the BPF map {map} could not be {action}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<aya::maps::MapError>,
    },
    /// Probes could not be placed in a file.
    #[error("probes could not be attached to {path} in process {pid}")]
    Attach {
        /// The file.
        path: String,
        /// The process.
        pid: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The ring buffer could not be mapped.
    #[error(transparent)]
    Ring(#[from] crate::ingest::ring::RingError),
}
