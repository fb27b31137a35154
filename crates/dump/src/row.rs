//! One row of a dump, independent of the file's format.

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

/// Text of a cell whose value is not known.
pub(crate) const NOTHING: &str = "N/A";

/// The device that a row belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// Number of a device.
    Number(u32),
    /// `cpu`: page-locked memory and tensors of the host.
    Cpu,
    /// `host`: the same in the older generation.
    Host,
    /// `N/A`: the row belongs to no device.
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

/// One row of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of the row, ascending in the order of the events of one process. Files have rows in another order,
    /// because a block's rows are written when the block is freed.
    pub id: u64,
    /// What happened: `MALLOC`, `FREE`, `ACCESS`, `OP_LAUNCH`, `KERNEL_LAUNCH`, `MSTX`, `SYSTEM`, `SNAPSHOT`,
    /// `OOM_DETAIL`, ….
    pub event: String,
    /// The kind of this event: `PTA`, `HAL`, `READ`, `ATEN_START`, `Mark`, ….
    pub event_type: String,
    /// Name of the operator, kernel or mark, without the quotes that marks have in files.
    pub name: Option<String>,
    /// Time of the event as the file has it, in nanoseconds. Dumps of the older generation have microseconds, although
    /// the column is called the same.
    pub timestamp: u64,
    /// Id of the process.
    pub pid: Option<u32>,
    /// Id of the thread.
    pub tid: Option<u32>,
    /// Device that the event is on.
    pub device: Device,
    /// Address of the block.
    pub ptr: Option<u64>,
    /// The other values of this kind of event.
    pub attr: Attr,
    /// Python stack: one frame on each line, `file(line): function`, the innermost first.
    pub python_stack: String,
    /// Stack of compiled code: one frame on each line.
    pub c_stack: String,
    /// Line of the row in a CSV file, or its row id in a table; 0 if it was not read from a file.
    pub line: u64,
}

/// The cells of a row as text, in the order of [`COLUMNS`].
pub(crate) type Cells<'a> = [&'a str; 12];

/// Form of the column `Attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttrForm {
    Csv,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "tables have it"))]
    Json,
}

impl Row {
    /// Whether a collection begins with this row. An attach of memscope's is a collection, too.
    pub(crate) fn begins_collection(&self) -> bool {
        (self.event.as_str(), self.event_type.as_str()) == ("SYSTEM", "START_TRACE")
    }

    /// Reads a row from its cells. `line` is its line or row id in the file.
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

    /// Whether the row is of the older generation of dumps, which has other names, and timestamps in microseconds.
    ///
    /// Every driver row of that generation has the number of a module (`MID`). The later generation has none; its
    /// blocks have an `allocation_id`. What was `acl init` is called `ACL_INIT` there.
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

    /// Nanoseconds in what timestamps of a dump count, given whether any of its rows [is older](Row::is_older). Most rows do not show
    /// their generation, so it is decided for all rows of a dump together.
    pub(crate) const fn tick_ns(is_older: bool) -> u64 {
        if is_older { 1000 } else { 1 }
    }

    /// A number in `Attr`, decimal or hexadecimal with `0x`. `None` if the name does not occur or its value is no
    /// number.
    pub fn attr_number(&self, name: &str) -> Option<u64> {
        self.attr.get(name).and_then(any_number)
    }

    /// Size of the block in bytes. The older generation has negative sizes in rows of frees; the sign is dropped.
    pub fn size(&self) -> Option<u64> {
        let text = self.attr.get("size")?.trim();
        any_number(text.strip_prefix('-').unwrap_or(text))
    }

    /// Text for the column `Ptr`: `0x` and 16 digits, or `N/A`.
    pub fn ptr_text(&self) -> String {
        self.ptr.map_or_else(|| NOTHING.to_owned(), hex)
    }
}

/// An address as `0x` and 16 digits.
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

/// Reads a name. Names of marks are quoted in files: in CSV the quotes are those of the cell, in tables they are part
/// of the text.
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
