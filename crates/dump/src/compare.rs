//! Two runs compared, operator by operator or kernel by kernel.
//!
//! The rule (msMemScope's `--compare`): on each device the names of operators or kernels, in the order of time, make a
//! sequence. The two sequences are aligned by a shortest edit script (Myers). The memory of an entry is the size of the
//! next row of the framework's pool, or 0 if there is none. The difference is the second file's memory less the first
//! file's; an entry that one file lacks counts as 0 there.

use crate::error::DumpError;
use crate::leaks::size_of;
use crate::myers::{Edit, NoWay, align};
use crate::row::{Device, NOTHING, Row};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Operators: `ATEN_END` and `ATB_END`, with PyTorch's pool.
    Op,
    /// Kernel launches, with PyTorch's or MindSpore's pool.
    Kernel,
}

/// One of the two files, read for the comparison.
#[derive(Debug)]
pub struct Side {
    path: PathBuf,
    level: Level,
    devices: BTreeMap<Device, Vec<Entry>>,
}

/// An operator or kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    event: String,
    name: String,
    memory: u64,
}

/// One line of the answer: an operator or kernel in either file or in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Text of the row's column `Event`.
    pub event: String,
    /// Name of the operator or kernel.
    pub name: String,
    /// Device that it ran on.
    pub device: Device,
    /// Bytes in the first file; `None` if the entry is not there.
    pub base: Option<u64>,
    /// Bytes in the second file; `None` if the entry is not there.
    pub compare: Option<u64>,
}

impl Difference {
    /// Bytes in the second file less those in the first.
    pub fn bytes(&self) -> i128 {
        i128::from(self.compare.unwrap_or(0)) - i128::from(self.base.unwrap_or(0))
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A file has no operators or kernels, so there is nothing to compare.
    #[error("{path} has no {} on any device", what(*level))]
    Nothing {
        /// Path of the file.
        path: PathBuf,
        /// Level that was asked for.
        level: Level,
    },
    /// The two sequences could not be aligned before `go_on` ended the search.
    #[error(
        "the sequences on device {device} ({base} and {compare} entries) could not be aligned in time"
    )]
    OutOfTime {
        /// Device of the sequences.
        device: Device,
        /// Number of entries in the first file.
        base: usize,
        /// Number of entries in the second file.
        compare: usize,
    },
    /// The two sequences have more differences than fit into memory.
    #[error(
        "the sequences on device {device} ({base} and {compare} entries) differ in more than {edits} places, too many to align"
    )]
    TooDifferent {
        /// Device of the sequences.
        device: Device,
        /// Number of entries in the first file.
        base: usize,
        /// Number of entries in the second file.
        compare: usize,
        /// Number of differences at which the search was given up.
        edits: usize,
    },
}

fn what(level: Level) -> &'static str {
    match level {
        Level::Op => "operators (ATEN_END, ATB_END)",
        Level::Kernel => "kernel launches (KERNEL_LAUNCH)",
    }
}

/// Timestamp and ID of a row, by which rows are ordered.
type RowPlace = (u64, u64);

/// What the rule needs of a row.
enum Found {
    Entry { event: String, name: String },
    Pool { size: u64 },
}

impl Side {
    /// Reads the rows of a file.
    ///
    /// # Errors
    /// The errors of the rows. A row of the pool without a size is an error, too; it names `path`.
    pub fn read(
        path: &Path,
        rows: impl IntoIterator<Item = Result<Row, DumpError>>,
        level: Level,
    ) -> Result<Side, DumpError> {
        let mut devices: BTreeMap<Device, Vec<(RowPlace, Found)>> = BTreeMap::new();
        for row in rows {
            let row = row?;
            if row.device == Device::None {
                continue;
            }
            let found =
                match (row.event.as_str(), row.event_type.as_str(), level) {
                    (_, "ATEN_END" | "ATB_END", Level::Op)
                    | (_, "KERNEL_LAUNCH", Level::Kernel) => Found::Entry {
                        name: row.name.unwrap_or_else(|| NOTHING.to_owned()),
                        event: row.event,
                    },
                    ("MALLOC" | "FREE", "PTA", _)
                    | ("MALLOC" | "FREE", "MINDSPORE", Level::Kernel) => Found::Pool {
                        size: size_of(path, &row)?,
                    },
                    _ => continue,
                };
            let place = (row.timestamp, row.id);
            devices.entry(row.device).or_default().push((place, found));
        }
        let devices = devices
            .into_iter()
            .map(|(device, mut found)| {
                found.sort_by_key(|(place, _)| *place);
                (device, entries(found))
            })
            .filter(|(_, entries)| !entries.is_empty())
            .collect();
        Ok(Side {
            path: path.to_owned(),
            level,
            devices,
        })
    }
}

/// Makes the entries. The memory of each is the size in the pool's next row.
fn entries(found: Vec<(RowPlace, Found)>) -> Vec<Entry> {
    let mut next = 0;
    let mut entries = Vec::new();
    for (_, found) in found.into_iter().rev() {
        match found {
            Found::Pool { size } => next = size,
            Found::Entry { event, name } => entries.push(Entry {
                event,
                name,
                memory: next,
            }),
        }
    }
    entries.reverse();
    entries
}

/// Gives numbers to names, the same ones for both files.
#[derive(Default)]
struct Names<'a>(HashMap<&'a str, u32>);

impl<'a> Names<'a> {
    fn numbers(&mut self, entries: &'a [Entry]) -> Vec<u32> {
        entries
            .iter()
            .map(|entry| {
                // 2^32 different names do not fit into a file.
                let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
                *self.0.entry(&entry.name).or_insert(next)
            })
            .collect()
    }
}

/// Compares two files. `go_on` is called often and says whether there is time left; msMemScope itself gives up after a
/// minute.
///
/// # Errors
/// One of the files has no operators or kernels, or the sequences cannot be aligned.
pub fn compare(
    base: &Side,
    compare: &Side,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<Difference>, CompareError> {
    for side in [base, compare] {
        if side.devices.is_empty() {
            return Err(CompareError::Nothing {
                path: side.path.clone(),
                level: side.level,
            });
        }
    }
    let devices: BTreeSet<Device> = base
        .devices
        .keys()
        .chain(compare.devices.keys())
        .copied()
        .collect();
    let mut answer = Vec::new();
    for device in devices {
        let of = |side: &'_ Side| side.devices.get(&device).cloned().unwrap_or_default();
        let (left, right) = (of(base), of(compare));
        let mut names = Names::default();
        let (a, b) = (names.numbers(&left), names.numbers(&right));
        let way = align(&a, &b, go_on).map_err(|no_way| match no_way {
            NoWay::OutOfTime => CompareError::OutOfTime {
                device,
                base: a.len(),
                compare: b.len(),
            },
            NoWay::TooDifferent(edits) => CompareError::TooDifferent {
                device,
                base: a.len(),
                compare: b.len(),
                edits,
            },
        })?;
        let (mut left, mut right) = (left.into_iter(), right.into_iter());
        for step in way {
            let first = if step == Edit::Compare {
                None
            } else {
                left.next()
            };
            let second = if step == Edit::Base {
                None
            } else {
                right.next()
            };
            let (base, compare) = (
                first.as_ref().map(|e| e.memory),
                second.as_ref().map(|e| e.memory),
            );
            if let Some(entry) = first.or(second) {
                answer.push(Difference {
                    event: entry.event,
                    name: entry.name,
                    device,
                    base,
                    compare,
                });
            }
        }
    }
    Ok(answer)
}

/// Writes msMemScope's `memory_compare_*.csv`, which has two lines of headings.
///
/// # Errors
/// The errors of `out`.
pub fn write_csv(out: &mut impl Write, differences: &[Difference]) -> io::Result<()> {
    writeln!(out, ",,,Base,Compare")?;
    writeln!(
        out,
        "Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)"
    )?;
    for one in differences {
        let side = |bytes: Option<u64>| bytes.map_or_else(|| NOTHING.to_owned(), |b| b.to_string());
        crate::writer::plain(out, &one.event)?;
        crate::writer::plain(out, &one.name)?;
        writeln!(
            out,
            "{},{},{},{}",
            one.device,
            side(one.base),
            side(one.compare),
            one.bytes()
        )?;
    }
    Ok(())
}
