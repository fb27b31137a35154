//! Arguments of the commands that show whose memory it is.

use crate::args::{Process, Processes};
use crate::failure::Failure;
use crate::output::format_of_name;
use clap::{Args as ClapArgs, ValueEnum};
use memscope_proto::v1::{self, Moment};
use std::path::PathBuf;

/// What is shown of the stacks.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct View {
    /// What to count; live unless --from is given, then growth.
    #[arg(long, value_enum)]
    metric: Option<Metric>,
    /// In what to count it.
    #[arg(long, value_enum, default_value_t = Unit::Bytes)]
    unit: Unit,
    /// Only this device.
    #[arg(long, value_name = "ORDINAL", value_parser = clap::value_parser!(i32).range(0..))]
    device: Option<i32>,
    /// Compare with this earlier moment, from the journal: an age (-5m), a time
    /// (2026-11-20T08:30:00Z, or nanoseconds since 1970), event:NUMBER, step:NUMBER, or mark:NAME.
    #[arg(
        long,
        value_name = "MOMENT",
        value_parser = crate::moment::parse,
        allow_hyphen_values = true,
        required_if_eq("metric", "growth")
    )]
    pub(crate) from: Option<Moment>,
    /// Describe this moment; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
}

impl View {
    /// On the wire.
    pub(crate) fn wire(&self) -> v1::StackView {
        let metric = match (self.metric, &self.from) {
            (Some(Metric::Live), _) | (None, None) => v1::StackMetric::Live,
            (Some(Metric::Peak), _) => v1::StackMetric::Peak,
            (Some(Metric::Allocated), _) => v1::StackMetric::Allocated,
            (Some(Metric::Growth), _) | (None, Some(_)) => v1::StackMetric::Growth,
        };
        let unit = match self.unit {
            Unit::Bytes => v1::StackUnit::Bytes,
            Unit::Count => v1::StackUnit::Count,
        };
        v1::StackView {
            metric: metric.into(),
            unit: unit.into(),
            device: self.device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// What lives.
    Live,
    /// What lived when the device's allocated bytes were largest since the attach.
    Peak,
    /// Everything that came since the attach, freed or not.
    Allocated,
    /// What lives less what lived at the moment --from.
    Growth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// Bytes of the blocks, as the allocator rounds them.
    Bytes,
    /// Number of blocks.
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Each stack for itself.
    Stack,
    /// Function: name and file.
    Function,
    /// File.
    File,
    /// The program's own line: what a library's function allocates belongs to the line that called it.
    Line,
    /// Any line, also of libraries.
    AnyLine,
}

impl By {
    /// On the wire.
    pub(crate) fn wire(self) -> v1::StackGrouping {
        match self {
            By::Stack => v1::StackGrouping::Stack,
            By::Function => v1::StackGrouping::Function,
            By::File => v1::StackGrouping::File,
            By::Line => v1::StackGrouping::OwnLine,
            By::AnyLine => v1::StackGrouping::Line,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) processes: Processes,
    /// By what to sum up.
    #[arg(long, value_enum, default_value_t = By::Stack)]
    pub(crate) by: By,
    #[command(flatten)]
    pub(crate) view: View,
    /// Sums in order of the inclusive column.
    #[arg(long)]
    pub(crate) cumulative: bool,
    /// At most so many rows, 0 for as many as an answer takes.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) limit: u32,
    /// At most so many lines of each stack, 0 for all its frames.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) frames: usize,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FlameGraph {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Format of the file; without it, what its name ends in says: .svg, .folded or .txt, .pb.gz or .pprof,
    /// .json (speedscope); svg for a name without an ending.
    #[arg(long, value_enum)]
    format: Option<StackFormat>,
    #[command(flatten)]
    pub(crate) view: View,
    /// Draw what lives, coloured by what changed since --from: red grew, blue shrank.
    ///
    /// As folded text: two numbers, before and now.
    #[arg(long, requires = "from", conflicts_with = "metric")]
    pub(crate) diff: bool,
    /// The file; written whole or not at all. Without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackFormat {
    /// A flame graph for a browser: click to zoom, Ctrl-F to search.
    Svg,
    /// A line for each stack: frames from the outermost with ; between them, a space, the number.
    Folded,
    /// A profile for `go tool pprof`, with all metrics in it.
    Pprof,
    /// A file for speedscope, with all devices and metrics in it.
    Speedscope,
}

impl StackFormat {
    /// On the wire.
    pub(crate) fn wire(self) -> v1::ExportFormat {
        match self {
            StackFormat::Svg => v1::ExportFormat::Flamegraph,
            StackFormat::Folded => v1::ExportFormat::Folded,
            StackFormat::Pprof => v1::ExportFormat::Pprof,
            StackFormat::Speedscope => v1::ExportFormat::Speedscope,
        }
    }

    /// What a file's name may end in.
    const ENDINGS: [(&str, StackFormat); 6] = [
        (".svg", StackFormat::Svg),
        (".folded", StackFormat::Folded),
        (".txt", StackFormat::Folded),
        (".pb.gz", StackFormat::Pprof),
        (".pprof", StackFormat::Pprof),
        (".json", StackFormat::Speedscope),
    ];
}

impl FlameGraph {
    /// The format asked for.
    pub(crate) fn format(&self) -> Result<StackFormat, Failure> {
        let named = match (self.format, &self.output) {
            (Some(format), _) => Some(format),
            (None, Some(path)) => format_of_name(path, &StackFormat::ENDINGS)?,
            (None, None) => None,
        };
        Ok(named.unwrap_or(StackFormat::Svg))
    }

    /// Refuses what no format can do, before anything is asked.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.format()? {
            StackFormat::Pprof | StackFormat::Speedscope if self.diff => Err(Failure::Usage {
                what: "--diff is drawn in a flame graph only".into(),
                hint: "choose --format svg or folded, or --metric growth instead of --diff".into(),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::path::Path;

    #[test]
    fn names_of_files_say_their_format() {
        for (name, format) in [
            ("x.svg", Some(StackFormat::Svg)),
            ("x", None),
            ("/a.b/x", None),
            ("/a/b.folded", Some(StackFormat::Folded)),
            ("x.txt", Some(StackFormat::Folded)),
            ("heap.pb.gz", Some(StackFormat::Pprof)),
            ("x.speedscope.json", Some(StackFormat::Speedscope)),
        ] {
            let said = format_of_name(Path::new(name), &StackFormat::ENDINGS);
            assert_eq!(said.unwrap(), format, "{name}");
        }
        for name in ["x.html", "x.gz"] {
            let said = format_of_name(Path::new(name), &StackFormat::ENDINGS);
            assert!(matches!(said, Err(Failure::Usage { .. })), "{name}");
        }
    }
}
