//! Leaks of device memory between three marks.
//!
//! The rule (msMemScope's `check_leaks`): among each device's rows in the order of their IDs, three marks of one name
//! are A, B and C. Memory of the driver (`HAL`) that was allocated from A to B and not freed from A to C is leaked: one
//! round of a loop must not leave anything that the next round does not free.

use crate::error::{DumpError, RowError};
use crate::float::float;
use crate::row::{Device, Row};
use std::collections::{BTreeSet, HashMap};

/// Result of the search on all devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Devices in the order in which the file names them first.
    pub devices: Vec<DeviceReport>,
    /// Names of all marks in the file.
    pub mark_names: BTreeSet<String>,
}

/// Result of the search on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceReport {
    /// Device that was searched.
    pub device: Device,
    /// Number of marks with the given name on this device.
    pub marks: usize,
    /// What was found, or why the device could not be judged.
    pub verdict: Verdict,
}

/// What was found on a device, or why it could not be judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Blocks that leaked, ordered by ID. An empty list means that nothing leaked.
    Leaks(Vec<Leak>),
    /// The device has fewer than three marks of that name.
    TooFewMarks,
    /// Fewer than three marks are left from the start index on.
    StartBeyondEnd {
        /// Index of the first mark to use, from 0, as it was asked for.
        start_index: usize,
    },
}

/// A block that was not given back.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// ID of its `MALLOC` row.
    pub id: u64,
    /// Address of the block, as its row has it.
    pub ptr: Option<u64>,
    /// Size in bytes.
    pub size: u64,
}

/// Why no device could be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaksError {
    /// The file has no mark of that name.
    #[error("no mark is called {name:?}; the marks there are: {}", names(there))]
    UnknownMark {
        /// Name that was asked for.
        name: String,
        /// Names of the marks that the file has.
        there: BTreeSet<String>,
    },
    /// No device has three marks of that name.
    #[error(
        "no device has three marks called {name:?} (at most {most}); the marks there are: {}",
        names(there)
    )]
    TooFewMarks {
        /// Name that was asked for.
        name: String,
        /// Largest number of marks of that name on one device.
        most: usize,
        /// Names of the marks that the file has.
        there: BTreeSet<String>,
    },
    /// No device has three marks of that name from the start index on.
    #[error(
        "no device has three marks called {name:?} from number {start_index} on (at most {most} in all)"
    )]
    StartBeyondEnd {
        /// Name that was asked for.
        name: String,
        /// Index of the first mark to use, from 0, as it was asked for.
        start_index: usize,
        /// Largest number of marks of that name on one device.
        most: usize,
    },
}

fn names(there: &BTreeSet<String>) -> String {
    /// Most names in a message, because a file may have a name for each step.
    const SHOWN: usize = 20;
    if there.is_empty() {
        return "none".to_owned();
    }
    let mut text = there
        .iter()
        .take(SHOWN)
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(", ");
    if there.len() > SHOWN {
        text.push_str(&format!(" and {} more", there.len() - SHOWN));
    }
    text
}

/// Name that stands for the ends of steps, which `msmemscope.step()` and `memscope.step()` report.
const STEP: &str = "step";

/// What the rule needs of a row.
enum LeakRow {
    Mark,
    /// The end of a step, which the dump has as a row of its own.
    End,
    Malloc {
        ptr: Option<u64>,
        size: u64,
    },
    Free {
        ptr: Option<u64>,
    },
}

#[derive(Default)]
struct Steps {
    /// Rows with their IDs; `judge` sorts them by ID.
    steps: Vec<(u64, LeakRow)>,
    marks: usize,
}

impl Steps {
    /// Takes the ends of steps for marks. This is done where no mark is called `step`: then these ends are meant.
    fn ends_are_marks(&mut self) {
        for (_, step) in &mut self.steps {
            if matches!(step, LeakRow::End) {
                *step = LeakRow::Mark;
                self.marks += 1;
            }
        }
    }
}

/// Looks for leaks on every device, between marks called `mark`. `start_index` is the index of the first mark to use,
/// from 0.
///
/// # Errors
/// The errors of the rows. A driver allocation without a size is an error, too; it names `path`.
pub fn offline_leaks(
    path: &std::path::Path,
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
    mark: &str,
    start_index: usize,
) -> Result<Report, DumpError> {
    let mut order: Vec<Device> = Vec::new();
    let mut devices: HashMap<Device, Steps> = HashMap::new();
    let mut mark_names = BTreeSet::new();
    for row in rows {
        let row = row?;
        if row.device == Device::None {
            continue;
        }
        let steps = devices.entry(row.device).or_insert_with(|| {
            order.push(row.device);
            Steps::default()
        });
        let step = match (row.event.as_str(), row.event_type.as_str()) {
            ("MSTX", "Mark") => {
                let name = row.name.as_deref().unwrap_or(crate::row::NOTHING);
                if !mark_names.contains(name) {
                    mark_names.insert(name.to_owned());
                }
                if name != mark {
                    continue;
                }
                steps.marks += 1;
                LeakRow::Mark
            }
            ("SYSTEM", "STEP") => {
                mark_names.insert(STEP.to_owned());
                if mark != STEP {
                    continue;
                }
                LeakRow::End
            }
            ("MALLOC", "HAL") => LeakRow::Malloc {
                ptr: row.ptr,
                size: size_of(path, &row)?,
            },
            ("FREE", "HAL") => LeakRow::Free { ptr: row.ptr },
            _ => continue,
        };
        steps.steps.push((row.id, step));
    }
    let devices = order
        .into_iter()
        .filter_map(|device| {
            let mut steps = devices.remove(&device)?;
            if steps.marks == 0 {
                steps.ends_are_marks();
            }
            Some(DeviceReport {
                device,
                marks: steps.marks,
                verdict: judge(steps, start_index),
            })
        })
        .collect();
    Ok(Report {
        devices,
        mark_names,
    })
}

/// Size of an allocation in bytes. If the row has none, the error names `path`.
pub(crate) fn size_of(path: &std::path::Path, row: &Row) -> Result<u64, DumpError> {
    row.size().ok_or_else(|| DumpError::Row {
        path: path.to_owned(),
        line: row.line,
        id: Some(row.id.to_string()),
        source: RowError::NoAttr { name: "size" },
    })
}

fn judge(mut all: Steps, start_index: usize) -> Verdict {
    all.steps.sort_by_key(|(id, _)| *id);
    let marks: Vec<u64> = all
        .steps
        .iter()
        .filter(|(_, step)| matches!(step, LeakRow::Mark))
        .map(|(id, _)| *id)
        .collect();
    if marks.len() < 3 {
        return Verdict::TooFewMarks;
    }
    let chosen = marks.get(start_index..).unwrap_or_default();
    let [a, b, c, ..] = *chosen else {
        return Verdict::StartBeyondEnd { start_index };
    };
    let mut given: Vec<Option<Leak>> = Vec::new();
    // Indices of blocks by address. A free ends every block that was allocated there.
    let mut live: HashMap<Option<u64>, Vec<usize>> = HashMap::new();
    for (id, step) in all.steps {
        match step {
            LeakRow::Malloc { ptr, size } if (a..=b).contains(&id) => {
                live.entry(ptr).or_default().push(given.len());
                given.push(Some(Leak { id, ptr, size }));
            }
            LeakRow::Free { ptr } if (a..=c).contains(&id) => {
                for place in live.remove(&ptr).unwrap_or_default() {
                    if let Some(leak) = given.get_mut(place) {
                        *leak = None;
                    }
                }
            }
            _ => {}
        }
    }
    let leaks = given.into_iter().flatten().collect();
    Verdict::Leaks(leaks)
}

impl Report {
    /// Fails if no device could be judged.
    ///
    /// # Errors
    /// The name is unknown, or no device has three such marks from the start index on.
    pub fn require(&self, mark: &str) -> Result<(), LeaksError> {
        let judged = |one: &DeviceReport| matches!(one.verdict, Verdict::Leaks(_));
        if self.devices.iter().any(judged) {
            return Ok(());
        }
        let most = self.devices.iter().map(|one| one.marks).max().unwrap_or(0);
        let name = mark.to_owned();
        let there = self.mark_names.clone();
        let beyond = self.devices.iter().find_map(|one| match one.verdict {
            Verdict::StartBeyondEnd { start_index } => Some(start_index),
            _ => None,
        });
        Err(match beyond {
            _ if most == 0 => LeaksError::UnknownMark { name, there },
            None => LeaksError::TooFewMarks { name, most, there },
            Some(start_index) => LeaksError::StartBeyondEnd {
                name,
                start_index,
                most,
            },
        })
    }
}

impl DeviceReport {
    /// The lines that msMemScope prints for this result.
    pub fn messages(&self) -> Vec<String> {
        match &self.verdict {
            Verdict::Leaks(leaks) if leaks.is_empty() => vec![format!(
                "No hal memory leaks detected on device {}.",
                self.device
            )],
            Verdict::Leaks(leaks) => {
                let head = format!(
                    "====== ERROR: Detected memory leaks on device {} ======",
                    self.device
                );
                std::iter::once(head)
                    .chain(leaks.iter().map(Leak::message))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The line that msMemScope logs if the device could not be judged.
    pub fn log(&self) -> Option<String> {
        match self.verdict {
            Verdict::Leaks(_) => None,
            Verdict::TooFewMarks => Some(format!(
                "ERROR: Device {} has fewer than 3 data points. Please re-collect the data points.",
                self.device
            )),
            Verdict::StartBeyondEnd { start_index } => Some(format!(
                "INFO: Start index {start_index} is out of bounds. Device {} has a total of {} MSTX events.",
                self.device, self.marks
            )),
        }
    }
}

impl Leak {
    fn message(&self) -> String {
        let ptr = self
            .ptr
            .map_or_else(|| crate::row::NOTHING.to_owned(), crate::row::hex);
        format!(
            "Direct Hal memory leak of {} Mb(s) at {ptr} in Index {}.",
            float(self.size as f64 / 1_048_576.0),
            self.id
        )
    }
}
