//! `snapshot`.

use super::Process;
use crate::failure::Failure;
use crate::output::format_of_name;
use clap::{Args as ClapArgs, ValueEnum};
use memscope_proto::v1::Moment;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Format of the file; without it, what its name ends in says: .pickle or .pkl (memory-viz), .html, .json, .pftrace or
    /// .perfetto-trace (perfetto); memory-viz for a name without an ending.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// An earlier moment, from the journal: an age (-5m, -30s), a time (2026-11-20T08:30:00Z, or
    /// nanoseconds since 1970 as in `as_of`), event:NUMBER for right after that event, step:NUMBER for the end of
    /// that step, or mark:NAME for the last mark with that name (mark:NAME#2: the second; see marks).
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A pickle that PyTorch's memory viewer opens.
    MemoryViz,
    /// A trace that ui.perfetto.dev opens: counters per device and pool, long-lived blocks as slices.
    Perfetto,
    /// One self-contained page for a browser.
    Html,
    /// A JSON document {header, segments, trace}.
    Json,
}

impl Format {
    /// What a file's name may end in.
    const ENDINGS: [(&str, Format); 6] = [
        (".pickle", Format::MemoryViz),
        (".pkl", Format::MemoryViz),
        (".html", Format::Html),
        (".json", Format::Json),
        (".pftrace", Format::Perfetto),
        (".perfetto-trace", Format::Perfetto),
    ];
}

impl Snapshot {
    /// The format asked for.
    pub(crate) fn format(&self) -> Result<Format, Failure> {
        let named = match (self.format, &self.output) {
            (Some(format), _) => Some(format),
            (None, Some(path)) => format_of_name(path, &Format::ENDINGS)?,
            (None, None) => None,
        };
        Ok(named.unwrap_or(Format::MemoryViz))
    }
}
