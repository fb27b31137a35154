//! The profile of Go's tools: <https://github.com/google/pprof/blob/main/proto/profile.proto>.

use super::label::{TRUNCATED, clean, name, why_missing};
use super::{Metric, Tallies, Unit, View, device_name};
use crate::ExportError;
use crate::wire::Message;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use memscope_ledger::report::{Frame, FrameKind, StackReport, StackRow};
use std::collections::HashMap;
use std::io::Write;

/// Fields of `Profile`.
mod profile {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Bytes gathered before they are compressed.
const GATHERED: usize = 64 << 10;

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

/// Columns as Go's heap profiles have them: blocks, then bytes. Growth is there where there is an earlier moment.
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

/// Writes a gzip'ed profile that `go tool pprof` reads. Its samples have every metric, in blocks and in bytes
/// (`live_objects`, `live_space`, `peak_…`, `alloc_…`, and with an earlier moment `growth_…`, which may be
/// negative); `view` is the one shown first, and the last column. Tags: `device` (`-tagfocus 'device 0'`, `-tagroot device`),
/// and `stack` where it was cut off or is missing.
/// What limits the answer is in the comments.
pub fn pprof(report: &StackReport, view: View, out: &mut dyn Write) -> Result<(), ExportError> {
    view.check(report)?;
    let with_growth = report.from.is_some();
    let columns = COLUMNS.iter().filter(|column| {
        let is_growth = column.view.metric == Metric::Growth;
        with_growth || !is_growth
    });
    let mut columns: Vec<Column> = columns.copied().collect();
    // Readers that know nothing of a default take the last one.
    columns.sort_by_key(|column| column.view == view);
    // No time and no name in the header: the same report gives the same bytes.
    let zipped = GzBuilder::new().write(out, Compression::default());
    let mut writer = Writer {
        message: Message::default(),
        out: zipped,
        strings: HashMap::new(),
        mappings: HashMap::new(),
        functions: HashMap::new(),
        locations: HashMap::new(),
    };
    writer.head(report, view, &columns)?;
    for row in &report.rows {
        writer.sample(row, &columns)?;
    }
    writer.flush_if(0)?;
    writer.out.finish()?;
    Ok(())
}

struct Writer<W: Write> {
    message: Message,
    out: GzEncoder<W>,
    strings: HashMap<String, u64>,
    /// By path; the empty one is Python's.
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
    fn head(
        &mut self,
        report: &StackReport,
        view: View,
        columns: &[Column],
    ) -> Result<(), ExportError> {
        // The table begins with the empty string.
        self.string("")?;
        for column in columns {
            self.value_type(profile::SAMPLE_TYPE, column.name, column.view.unit)?;
        }
        self.value_type(profile::PERIOD_TYPE, "space", Unit::Bytes)?;
        self.message.uint(profile::PERIOD, 1);
        self.message.uint(profile::TIME_NANOS, report.as_of.unix_ns);
        let shown = columns.iter().find(|column| column.view == view);
        if let Some(column) = shown {
            let name = self.string(column.name)?;
            self.message.uint(profile::DEFAULT_SAMPLE_TYPE, name);
        }
        // The first mapping names the program.
        let facts = &report.process.facts;
        self.mapping("", &clean(&facts.comm))?;
        let notes = report.coverage.iter();
        for note in notes.map(|note| format!("{}: {}", note.code, note.text)) {
            let note = self.string(&clean(&note))?;
            self.message.uint(profile::COMMENT, note);
        }
        self.flush_if(GATHERED)
    }

    fn value_type(&mut self, field: u32, name: &str, unit: Unit) -> Result<(), ExportError> {
        let name = self.string(name)?;
        let unit = self.string(match unit {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
        })?;
        self.message.nested(field, |kind| {
            kind.uint(1, name);
            kind.uint(2, unit);
        });
        Ok(())
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
            locations.push(self.location(frame)?);
        }
        // Not the bare number, which pprof would not look for among texts.
        let device = device_name(row.device);
        let mut labels = vec![(self.string("device")?, self.string(&device)?)];
        if stack.frames.is_empty() {
            locations.push(self.location(&remark(&why_missing(stack)))?);
            let word = stack.missing.unwrap_or("missing");
            labels.push((self.string("stack")?, self.string(word)?));
        } else if stack.truncated {
            labels.push((self.string("stack")?, self.string("truncated")?));
        }
        if stack.truncated {
            locations.push(self.location(&remark(TRUNCATED))?);
        }
        self.message.nested(profile::SAMPLE, |sample| {
            for location in &locations {
                sample.uint(1, *location);
            }
            for value in &values {
                // A negative int64 is its two's complement on the wire.
                sample.uint(2, value.cast_unsigned());
            }
            for (key, value) in &labels {
                sample.nested(3, |label| {
                    label.uint(1, *key);
                    label.uint(2, *value);
                });
            }
        });
        self.flush_if(GATHERED)
    }

    fn location(&mut self, frame: &Frame) -> Result<u64, ExportError> {
        if let Some(id) = self.locations.get(frame) {
            return Ok(*id);
        }
        let file = clean(&frame.file);
        // Without a line, the file is the object that the code lies in.
        let mapping = match frame.kind == FrameKind::Native && frame.line == 0 {
            true => self.mapping(&file, &file)?,
            false => self.mapping("", "")?,
        };
        let function = self.function(&name(frame), &file)?;
        let id = self.locations.len() as u64 + 1;
        let line = u64::from(frame.line);
        self.message.nested(profile::LOCATION, |location| {
            location.uint(1, id);
            location.uint(2, mapping);
            location.nested(4, |of| {
                of.uint(1, function);
                of.uint(2, line);
            });
        });
        self.locations.insert(frame.clone(), id);
        Ok(id)
    }

    fn function(&mut self, name: &str, file: &str) -> Result<u64, ExportError> {
        let key = (name.to_owned(), file.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return Ok(*id);
        }
        let (name, file) = (self.string(name)?, self.string(file)?);
        let id = self.functions.len() as u64 + 1;
        self.message.nested(profile::FUNCTION, |function| {
            function.uint(1, id);
            // Without a system name, which pprof would make the name of once more: for it, `<module>` is
            // the argument of a template.
            function.uint(2, name);
            function.uint(4, file);
        });
        self.functions.insert(key, id);
        Ok(id)
    }

    /// The mapping of a path. All names are known already, and pprof is told so: it would look for the
    /// files otherwise, which may be another machine's.
    fn mapping(&mut self, path: &str, file: &str) -> Result<u64, ExportError> {
        if let Some(id) = self.mappings.get(path) {
            return Ok(*id);
        }
        let file = self.string(file)?;
        let id = self.mappings.len() as u64 + 1;
        self.message.nested(profile::MAPPING, |mapping| {
            mapping.uint(1, id);
            mapping.uint(5, file);
            for known in 7..=9 {
                mapping.uint(known, 1);
            }
        });
        self.mappings.insert(path.to_owned(), id);
        Ok(id)
    }

    /// The place of a string in the table, which is in the order in which they are written.
    fn string(&mut self, text: &str) -> Result<u64, ExportError> {
        if let Some(place) = self.strings.get(text) {
            return Ok(*place);
        }
        let place = self.strings.len() as u64;
        self.message.text(profile::STRING_TABLE, text);
        self.strings.insert(text.to_owned(), place);
        Ok(place)
    }

    fn flush_if(&mut self, gathered: usize) -> Result<(), ExportError> {
        if self.message.bytes().len() >= gathered {
            self.out.write_all(self.message.bytes())?;
            self.message.clear();
        }
        Ok(())
    }
}
