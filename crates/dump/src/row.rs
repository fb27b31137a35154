//! One row of a dump, whichever format it came from.

use crate::attr::Attr;
use crate::error::{RowError, beginning};

/// The columns of a dump in their order.
pub const COLUMNS: [&str; 12] = [
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
];

/// The first line of a CSV file.
pub(crate) fn header() -> String {
    COLUMNS.join(",")
}

/// What stands where nothing is known.
pub(crate) const NOTHING: &str = "N/A";

/// Whose memory it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// A device's number.
    Number(u32),
    /// `cpu`: page-locked memory and tensors of the host.
    Cpu,
    /// `host`: the same in the older generation.
    Host,
    /// `N/A`.
    #[default]
    None,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Number(number) => write!(f, "{number}"),
            Device::Cpu => f.write_str("cpu"),
            Device::Host => f.write_str("host"),
            Device::None => f.write_str(NOTHING),
        }
    }
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its number, ascending in the order of events of one process. Files have them in another order: a block's rows are
    /// written when the block is freed.
    pub id: u64,
    /// `MALLOC`, `FREE`, `ACCESS`, `OP_LAUNCH`, `KERNEL_LAUNCH`, `MSTX`, `SYSTEM`, `SNAPSHOT`, `OOM_DETAIL`, ….
    pub event: String,
    /// `PTA`, `HAL`, `READ`, `ATEN_START`, `Mark`, ….
    pub event_type: String,
    /// Name of the operator, kernel or mark, without the quotes that marks have in files.
    pub name: Option<String>,
    /// When, as the file says. Nanoseconds; in the older generation microseconds, whatever the column is called.
    pub timestamp: u64,
    /// Whose.
    pub pid: Option<u32>,
    /// Which thread's.
    pub tid: Option<u32>,
    /// Where.
    pub device: Device,
    /// Address of the block.
    pub ptr: Option<u64>,
    /// Whatever else belongs to this kind of event.
    pub attr: Attr,
    /// One frame a line, `file(line): function`, innermost first.
    pub python_stack: String,
    /// One frame a line.
    pub c_stack: String,
    /// Where it stands: line of a CSV file, row of a table; 0 where it was not read from one.
    pub line: u64,
}

/// The cells of a row as text, in the order of [`COLUMNS`].
pub(crate) type Cells<'a> = [&'a str; 12];

/// Form of the column `Attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttrForm {
    Csv,
    Json,
}

impl Row {
    /// Reads the cells of a row at a place.
    pub(crate) fn from_cells(cells: &Cells, form: AttrForm, line: u64) -> Result<Row, RowError> {
        let [
            id,
            event,
            event_type,
            name,
            time,
            pid,
            tid,
            device,
            ptr,
            attr,
            python,
            c,
        ] = *cells;
        let expected = "a number";
        let parsed = match form {
            AttrForm::Csv => Attr::from_csv(attr),
            AttrForm::Json => Attr::from_json(attr),
        };
        Ok(Row {
            id: number(COLUMNS[0], id, expected)?,
            event: event.trim().to_owned(),
            event_type: event_type.trim().to_owned(),
            name: name_of(event, name),
            timestamp: number(COLUMNS[4], time, expected)?,
            pid: maybe(COLUMNS[5], pid)?,
            tid: maybe(COLUMNS[6], tid)?,
            device: device_of(device)?,
            ptr: address(ptr)?,
            attr: parsed.ok_or_else(|| wrong(COLUMNS[9], attr, "{name:value,…}"))?,
            python_stack: python.to_owned(),
            c_stack: c.to_owned(),
            line,
        })
    }

    /// Whether it is of the older generation: what it calls its things differently, and its timestamps are microseconds.
    ///
    /// The number of a module (`MID`) is in every driver row of that generation and in none of the later one, whose blocks
    /// have an `allocation_id`; `acl init` is called `ACL_INIT` since.
    pub fn is_older(&self) -> bool {
        match self.event.as_str() {
            "MALLOC" | "FREE" => {
                self.attr.get("MID").is_some()
                    || (self.attr.get("allocation_id").is_none()
                        && self.attr.get("owner") == Some(""))
            }
            "SYSTEM" => matches!(self.event_type.as_str(), "acl init" | "acl finalize"),
            _ => false,
        }
    }

    /// A number of `Attr`: decimal, or hexadecimal with `0x`.
    pub fn attr_number(&self, name: &str) -> Option<u64> {
        self.attr.get(name).and_then(any_number)
    }

    /// Bytes of the block. The older generation has those of a free negative.
    pub fn size(&self) -> Option<u64> {
        let text = self.attr.get("size")?.trim();
        any_number(text.strip_prefix('-').unwrap_or(text))
    }

    /// What the column `Ptr` says: `0x` and 16 digits, or `N/A`.
    pub fn ptr_text(&self) -> String {
        self.ptr.map_or_else(|| NOTHING.to_owned(), hex)
    }
}

/// `0x` and 16 digits.
pub(crate) fn hex(address: u64) -> String {
    format!("0x{address:016x}")
}

fn wrong(column: &'static str, text: &str, expected: &'static str) -> RowError {
    RowError::Value {
        column,
        text: beginning(text),
        expected,
    }
}

fn number<T: std::str::FromStr>(
    column: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<T, RowError> {
    text.trim()
        .parse()
        .map_err(|_| wrong(column, text, expected))
}

fn is_nothing(text: &str) -> bool {
    matches!(text.trim(), "" | NOTHING)
}

fn maybe(column: &'static str, text: &str) -> Result<Option<u32>, RowError> {
    if is_nothing(text) {
        return Ok(None);
    }
    number(column, text, "a number or N/A").map(Some)
}

fn device_of(text: &str) -> Result<Device, RowError> {
    Ok(match text.trim() {
        "" | NOTHING => Device::None,
        "cpu" => Device::Cpu,
        "host" => Device::Host,
        text => Device::Number(number(COLUMNS[7], text, "a number, cpu, host or N/A")?),
    })
}

fn any_number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn address(text: &str) -> Result<Option<u64>, RowError> {
    if is_nothing(text) {
        return Ok(None);
    }
    any_number(text)
        .map(Some)
        .ok_or_else(|| wrong(COLUMNS[8], text, "a hexadecimal or decimal number, or N/A"))
}

/// Marks are quoted in files; in CSV the quotes are those of the cell, in tables they are part of the text.
fn name_of(event: &str, text: &str) -> Option<String> {
    if text == NOTHING {
        return None;
    }
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    Some(match inner {
        Some(inner) if event.trim() == "MSTX" => inner.to_owned(),
        _ => text.to_owned(),
    })
}
