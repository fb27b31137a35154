//! The kernel side: loading the BPF object and attaching its programs to sites. aya is used here and nowhere else.

pub mod calibrate;
pub mod kernel;
pub mod links;
pub mod load;
mod maps;
pub mod multi;
pub mod pins;
pub mod removal;
pub mod slot;
mod tables;

/// Why the BPF object could not be loaded or a probe could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel is too old.
    #[error(
        "Linux 5.15 or newer is needed; this is Linux {release}, which cannot tell a BPF program at which probe \
         it runs (attach cookies) — boot a newer kernel"
    )]
    Kernel {
        /// Release of the kernel, as `uname -r` prints it.
        release: String,
    },
    /// The kernel's type information could not be read, or lacks something.
    #[error(
        "the kernel's type information (/sys/kernel/btf/vmlinux) {what}; memscope needs a kernel \
         built with CONFIG_DEBUG_INFO_BTF"
    )]
    Btf {
        /// What is wrong with it, as the end of the message's first clause.
        what: String,
        /// Error of reading the file, if that is what failed.
        #[source]
        source: Option<std::io::Error>,
    },
    /// The BPF object was refused.
    #[error("the kernel refused memscope's BPF object; `memscope-ctl doctor` says what it lacks")]
    Load(#[source] Box<aya::EbpfError>),
    /// The kernel refused to load a program for multi-uprobe links.
    #[error("the kernel refused the BPF program {program}:\n{log}")]
    Program {
        /// Name of the program.
        program: String,
        /// The last lines of the verifier's log.
        log: String,
        /// Error of the system call.
        #[source]
        source: std::io::Error,
    },
    /// A program could not be loaded or attached through aya.
    #[error("the BPF program {program} could not be {action}")]
    Aya {
        /// Name of the program.
        program: String,
        /// The operation that failed, as a participle for the message: `loaded` or `attached`.
        action: &'static str,
        /// The error that aya returned.
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    /// The object lacks something that this daemon expects: the name of a map or program, for example.
    #[error("the BPF object has no {0}; the daemon and its object do not belong together")]
    Missing(String),
    /// A table that the daemon shares with the programs has no free entry.
    #[error("there is no room for {what}: {most} are known already")]
    Full {
        /// What there is no room for.
        what: &'static str,
        /// Number of entries that the table has.
        most: u32,
    },
    /// An operation on a map failed.
    #[error("the BPF map {map} could not be {action}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// The operation that failed, as a participle for the message: `opened`, `read`, `set` or `changed`.
        action: &'static str,
        /// The error that aya returned.
        #[source]
        source: Box<aya::maps::MapError>,
    },
    /// Probes could not be attached to a file.
    #[error("probes could not be attached to {path} in process {pid}")]
    Attach {
        /// Path of the file, as users see it.
        path: String,
        /// Process in which the file is mapped.
        pid: u32,
        /// Error of the system call, or `InvalidInput` if the path contains a zero byte.
        #[source]
        source: std::io::Error,
    },
    /// What is to outlive the daemon could not be pinned.
    #[error(transparent)]
    Pin(#[from] pins::PinError),
    /// The ring buffer or the table of processes could not be mapped.
    #[error(transparent)]
    Ring(#[from] crate::ingest::ring::RingError),
}
