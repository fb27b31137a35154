//! The command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Writes what memscoped knows into a directory or an object store, as Parquet.
///
/// Findings, steps, peaks, stacks, reports of too little memory, the snapshots that memscoped takes by itself and, if wanted, all events: each a
/// table, which DuckDB, ClickHouse and others read as it is. Credentials of a store come from the environment (AWS_ACCESS_KEY_ID and so on)
/// or from what the machine is, never from here.
#[derive(Debug, Parser)]
#[command(name = "memscope-archive", version)]
pub struct Options {
    /// Where the archive lies: file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    #[arg(long, value_name = "URL", env = "MEMSCOPE_ARCHIVE_TO")]
    pub to: String,

    /// The socket of memscoped.
    #[arg(long, value_name = "PATH", env = "MEMSCOPE_SOCKET", default_value = memscope_proto::DEFAULT_SOCKET)]
    pub socket: PathBuf,

    /// Where batches wait until they are uploaded.
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "MEMSCOPE_ARCHIVE_SPOOL",
        default_value = "/var/lib/memscope-archive"
    )]
    pub spool: PathBuf,

    /// Most MiB that wait there. Beyond it files with all events go first, the oldest; then nothing more is taken until there is room.
    #[arg(long, value_name = "N", env = "MEMSCOPE_ARCHIVE_SPOOL_MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub spool_mib: u64,

    /// Name of the cluster, for the paths of the archive.
    #[arg(
        long,
        value_name = "NAME",
        env = "MEMSCOPE_ARCHIVE_CLUSTER",
        default_value = "none"
    )]
    pub cluster: String,

    /// Name of this node, instead of its host name.
    #[arg(long, value_name = "NAME", env = "MEMSCOPE_ARCHIVE_NODE")]
    pub node: Option<String>,

    /// How often a batch is closed. Ended processes can be asked about for some time only (memscoped --retention), so it should be less.
    #[arg(long, value_name = "SECONDS", env = "MEMSCOPE_ARCHIVE_EVERY", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,

    /// Whether all events are archived.
    #[arg(
        long,
        value_name = "WHICH",
        env = "MEMSCOPE_ARCHIVE_EVENTS",
        default_value = "none"
    )]
    pub events: Events,

    /// See whether the daemon answers and the store takes a small object (which is removed again), and end.
    #[arg(long)]
    pub check: bool,
}

/// Which events are archived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// None, beside findings, which have a table of their own.
    None,
    /// All.
    All,
}
