//! The formats of files that snapshots and stacks are written in.
//!
//! Owns: what each format is called, how names of its files end, and what a user is told about it. The server, memscope-ctl, the snapshots that
//! memscoped takes by itself and the Python package all read this list. Refuses: writing, which is memscope-export's; memscope-ctl
//! carries no writers.

use crate::v1::ExportFormat;

/// A format of files.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Its number on the wire.
    pub wire: ExportFormat,
    /// The word by which users choose it.
    pub name: &'static str,
    /// What it is, as help texts say it.
    pub help: &'static str,
    /// How names of such files end. The first is given to files that memscope names itself.
    pub endings: &'static [&'static str],
    /// It is nothing for a terminal.
    pub binary: bool,
    /// What an answer must be exact about before it is written with `--strict`.
    pub tells: Tells,
    /// What to do with a file, as a sentence; `FILE` stands for its name. Empty where there is nothing to say.
    pub open: &'static str,
}

/// What a format tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// What is held at one moment.
    Moment,
    /// What happened up to that moment, too.
    Course,
    /// Sums by stack.
    Stacks {
        /// It can also show what lives and what changed in one picture.
        differences: bool,
    },
}

/// Formats of snapshots. The first is taken where none is chosen, and the first of those with a file's ending is meant by it.
pub const SNAPSHOTS: &[Format] = &[
    Format {
        wire: ExportFormat::MemoryViz,
        name: "memory-viz",
        help: "A pickle that PyTorch's memory viewer opens",
        endings: &[".pickle", ".pkl"],
        binary: true,
        tells: Tells::Moment,
        open: "Open it at https://pytorch.org/memory_viz",
    },
    Format {
        wire: ExportFormat::Perfetto,
        name: "perfetto",
        help: "A trace that ui.perfetto.dev opens: counters per device and pool, long-lived blocks as slices",
        endings: &[".perfetto-trace", ".pftrace"],
        binary: true,
        tells: Tells::Course,
        open: "Open it at https://ui.perfetto.dev",
    },
    Format {
        wire: ExportFormat::Html,
        name: "html",
        help: "One self-contained page for a browser",
        endings: &[".html"],
        binary: false,
        tells: Tells::Course,
        open: "",
    },
    Format {
        wire: ExportFormat::Json,
        name: "json",
        help: "A JSON document {header, segments, trace}",
        endings: &[".json"],
        binary: false,
        tells: Tells::Moment,
        open: "",
    },
    Format {
        wire: ExportFormat::MemoryVizJson,
        name: "memory-viz-json",
        help: "The dictionary of the pickle as JSON",
        endings: &[".json"],
        binary: false,
        tells: Tells::Moment,
        open: "",
    },
];

/// Formats of stacks, in the same order.
pub const STACKS: &[Format] = &[
    Format {
        wire: ExportFormat::Flamegraph,
        name: "svg",
        help: "A flame graph for a browser: click to zoom, Ctrl-F to search",
        endings: &[".svg"],
        binary: false,
        tells: Tells::Stacks { differences: true },
        open: "Open it in a browser.",
    },
    Format {
        wire: ExportFormat::Folded,
        name: "folded",
        help: "A line for each stack: frames from the outermost with ; between them, a space, the number",
        endings: &[".folded", ".txt"],
        binary: false,
        tells: Tells::Stacks { differences: true },
        open: "",
    },
    Format {
        wire: ExportFormat::Pprof,
        name: "pprof",
        help: "A profile for `go tool pprof`, with all metrics in it",
        endings: &[".pb.gz", ".pprof"],
        binary: true,
        tells: Tells::Stacks { differences: false },
        open: "Look at it with: go tool pprof -http=: FILE",
    },
    Format {
        wire: ExportFormat::Speedscope,
        name: "speedscope",
        help: "A file for speedscope, with all devices and metrics in it",
        endings: &[".json"],
        binary: false,
        tells: Tells::Stacks { differences: false },
        open: "Open it at https://www.speedscope.app",
    },
];

/// The format with a number of the wire; `None` for one that this build does not know.
#[must_use]
pub fn of_wire(number: i32) -> Option<&'static Format> {
    SNAPSHOTS
        .iter()
        .chain(STACKS)
        .find(|format| i32::from(format.wire) == number)
}

/// The format of this name; `None` where there is none.
#[must_use]
pub fn named(formats: &'static [Format], name: &str) -> Option<&'static Format> {
    formats.iter().find(|format| format.name == name)
}

/// How names of files of these formats end, each ending once, with the format that is meant.
pub fn endings(
    formats: &'static [Format],
) -> impl Iterator<Item = (&'static str, &'static Format)> + Clone {
    let first = move |index: usize, ending: &str| {
        !formats
            .iter()
            .take(index)
            .any(|before| before.endings.contains(&ending))
    };
    formats.iter().enumerate().flat_map(move |(index, format)| {
        let mine = format
            .endings
            .iter()
            .filter(move |ending| first(index, ending));
        mine.map(move |ending| (*ending, format))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_the_wire_has_one_format() {
        let known = |number: &i32| ExportFormat::try_from(*number).is_ok();
        for number in (1..).take_while(known) {
            let all = SNAPSHOTS.iter().chain(STACKS);
            let count = all.filter(|f| i32::from(f.wire) == number).count();
            assert_eq!(count, 1, "{number}");
        }
        assert!(of_wire(0).is_none());
    }

    #[test]
    fn an_ending_means_the_first_that_has_it() {
        let meant: Vec<(&str, &str)> = endings(SNAPSHOTS).map(|(e, f)| (e, f.name)).collect();
        assert!(meant.contains(&(".json", "json")));
        assert_eq!(
            meant
                .iter()
                .filter(|(ending, _)| *ending == ".json")
                .count(),
            1
        );
    }
}
