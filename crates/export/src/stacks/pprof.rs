//! The profile format of Go's tools: <https://github.com/google/pprof/blob/main/proto/profile.proto>.

use super::label::{TRUNCATED, clean, name, why_missing};
use super::{Metric, Tallies, Unit, View, device_name};
use crate::ExportError;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use memscope_ledger::report::{Frame, FrameKind, StackReport, StackRow};
use prost::Message;
use std::collections::HashMap;
use std::io::Write;

// The profile's messages, with the numbers of their fields.

#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

/// A function. It has no system name: pprof would derive the name from it again, and take `<module>` for the argument
/// of a template.
#[derive(Clone, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A column of the samples.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    view: View,
}

const fn column(name: &'static str, metric: Metric, unit: Unit) -> Column {
    Column {
        name,
        view: View { metric, unit },
    }
}

/// Columns as Go's heap profiles have them: blocks, then bytes. The columns of growth are used only if the report has
/// an earlier moment.
const COLUMNS: [Column; 8] = [
    column("live_objects", Metric::Live, Unit::Count),
    column("live_space", Metric::Live, Unit::Bytes),
    column("peak_objects", Metric::Peak, Unit::Count),
    column("peak_space", Metric::Peak, Unit::Bytes),
    column("alloc_objects", Metric::Allocated, Unit::Count),
    column("alloc_space", Metric::Allocated, Unit::Bytes),
    column("growth_objects", Metric::Growth, Unit::Count),
    column("growth_space", Metric::Growth, Unit::Bytes),
];

/// Number of samples that are gathered before they are encoded and compressed.
const GATHERED: usize = 1 << 10;

/// Writes a gzip'ed profile that `go tool pprof` reads. Its samples have every metric, in blocks and in bytes
/// (`live_objects`, `live_space`, `peak_…`, `alloc_…`, and with an earlier moment `growth_…`, which may be
/// negative). `view` is the metric that is shown first, and the last column. Tags are `device` (`-tagfocus 'device 0'`,
/// `-tagroot device`), and `stack` where the stack was cut off or is missing. The profile's comments say what limits
/// the answer.
pub fn pprof(report: &StackReport, view: View, out: &mut dyn Write) -> Result<(), ExportError> {
    view.check(report)?;
    let with_growth = report.from.is_some();
    let columns = COLUMNS.iter().filter(|column| {
        let is_growth = column.view.metric == Metric::Growth;
        with_growth || !is_growth
    });
    let mut columns: Vec<Column> = columns.copied().collect();
    // Readers that do not know of a default show the last column.
    columns.sort_by_key(|column| column.view == view);
    // No time and no name in the header: the same report gives the same bytes.
    let zipped = GzBuilder::new().write(out, Compression::default());
    let mut writer = Writer {
        profile: Profile::default(),
        out: zipped,
        strings: HashMap::new(),
        mappings: HashMap::new(),
        functions: HashMap::new(),
        locations: HashMap::new(),
    };
    writer.head(report, view, &columns);
    for row in &report.rows {
        writer.sample(row, &columns)?;
    }
    writer.flush()?;
    writer.out.finish()?;
    Ok(())
}

struct Writer<W: Write> {
    /// The piece of the profile that is not written yet. A profile may be written in pieces, because readers join
    /// repeated fields.
    profile: Profile,
    out: GzEncoder<W>,
    strings: HashMap<String, i64>,
    /// Ids of mappings by path. The empty path is the program's own mapping, for all frames but those of an object
    /// file.
    mappings: HashMap<String, u64>,
    functions: HashMap<(String, String), u64>,
    locations: HashMap<Frame, u64>,
}

/// A remark in the place of a frame.
fn remark(text: &str) -> Frame {
    Frame {
        kind: FrameKind::Python,
        name: text.into(),
        file: "".into(),
        line: 0,
    }
}

impl<W: Write> Writer<W> {
    fn head(&mut self, report: &StackReport, view: View, columns: &[Column]) {
        // The table begins with the empty string.
        self.string("");
        for column in columns {
            let kind = self.value_type(column.name, column.view.unit);
            self.profile.sample_type.push(kind);
        }
        self.profile.period_type = Some(self.value_type("space", Unit::Bytes));
        self.profile.period = 1;
        self.profile.time_nanos = report.as_of.unix_ns.cast_signed();
        let shown = columns.iter().find(|column| column.view == view);
        if let Some(column) = shown {
            self.profile.default_sample_type = self.string(column.name);
        }
        // The first mapping names the program.
        let facts = &report.process.facts;
        self.mapping("", &clean(&facts.comm));
        let notes = report.coverage.iter();
        for note in notes.map(|note| format!("{}: {}", note.code, note.text)) {
            let note = self.string(&clean(&note));
            self.profile.comment.push(note);
        }
    }

    fn value_type(&mut self, name: &str, unit: Unit) -> ValueType {
        ValueType {
            r#type: self.string(name),
            unit: self.string(match unit {
                Unit::Bytes => "bytes",
                Unit::Count => "count",
            }),
        }
    }

    fn sample(&mut self, row: &StackRow, columns: &[Column]) -> Result<(), ExportError> {
        let tallies = Tallies::of(row);
        let mut values = Vec::with_capacity(columns.len());
        for column in columns {
            let value = i64::try_from(column.view.of(&tallies));
            values.push(value.map_err(|_| ExportError::TooMuch)?);
        }
        if values.iter().all(|value| *value == 0) {
            return Ok(());
        }
        let stack = &row.stack;
        let mut locations = Vec::with_capacity(stack.frames.len() + 1);
        for frame in &stack.frames {
            locations.push(self.location(frame));
        }
        // The text `device 0` and not the bare number, because pprof does not look for numbers among text labels.
        let mut labels = vec![self.label("device", &device_name(row.device))];
        if stack.frames.is_empty() {
            locations.push(self.location(&remark(&why_missing(stack))));
            labels.push(self.label("stack", stack.missing.unwrap_or("missing")));
        } else if stack.truncated {
            labels.push(self.label("stack", "truncated"));
        }
        if stack.truncated {
            locations.push(self.location(&remark(TRUNCATED)));
        }
        self.profile.sample.push(Sample {
            location_id: locations,
            value: values,
            label: labels,
        });
        if self.profile.sample.len() >= GATHERED {
            self.flush()?;
        }
        Ok(())
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label {
            key: self.string(key),
            str: self.string(text),
        }
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        if let Some(id) = self.locations.get(frame) {
            return *id;
        }
        let file = clean(&frame.file);
        // Without a line, a compiled frame's file is the object file that contains the code.
        let mapping_id = match frame.kind == FrameKind::Native && frame.line == 0 {
            true => self.mapping(&file, &file),
            false => self.mapping("", ""),
        };
        let function_id = self.function(&name(frame), &file);
        let id = self.locations.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            line: vec![Line {
                function_id,
                line: i64::from(frame.line),
            }],
        });
        self.locations.insert(frame.clone(), id);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (name.to_owned(), file.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        let function = Function {
            id,
            name: self.string(name),
            filename: self.string(file),
        };
        self.profile.function.push(function);
        self.functions.insert(key, id);
        id
    }

    /// Id of the mapping of a path. Its flags tell pprof that all names are known. Otherwise pprof would look for the
    /// files, which may be on another machine.
    fn mapping(&mut self, path: &str, file: &str) -> u64 {
        if let Some(id) = self.mappings.get(path) {
            return *id;
        }
        let id = self.mappings.len() as u64 + 1;
        let mapping = Mapping {
            id,
            filename: self.string(file),
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        };
        self.profile.mapping.push(mapping);
        self.mappings.insert(path.to_owned(), id);
        id
    }

    /// Index of a string in the table. Readers number strings in the order in which they are written.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(place) = self.strings.get(text) {
            return *place;
        }
        let place = self.strings.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), place);
        place
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        let piece = std::mem::take(&mut self.profile);
        self.out.write_all(&piece.encode_to_vec())?;
        Ok(())
    }
}
