//! Turns rows into the ledger's events.
//!
//! Owns: what each kind of row means to the ledger, and the number of those that mean nothing to it, which coverage
//! notes report. Refuses: to make up a size, an address, or a device.
//!
//! | row | event |
//! |---|---|
//! | `MALLOC`, `FREE` of the framework's own pool: `PTA`, else `MINDSPORE`, else `ATB` | [`Body::Report`] |
//! | `MALLOC`, `FREE` of the other ones of these three | [`Body::Domain`], [`Body::Region`] |
//! | `MALLOC`, `FREE` of `PTA_WORKSPACE` | [`Body::Workspace`], or [`Body::Domain`] and [`Body::Region`] (see below) |
//! | `MALLOC`, `FREE` of `HAL`, `HOST_PINNED` | [`Body::Call`] of Ascend's driver (see below) |
//! | `MSTX`, `SYSTEM` | [`Body::Mark`]; `SYSTEM` of type `STEP` is a mark of kind step |
//! | `KERNEL_LAUNCH` of type `KERNEL_LAUNCH` | [`Body::Launches`] |
//! | `OOM_DETAIL` of type `OOM_TRIGGER` | [`Body::Oom`] |
//! | `CLEAN_UP` of type `PROC_EXIT` | [`Body::Exited`] |
//!
//! Workspaces become [`Body::Workspace`] if the process has rows of `HAL`, because those have the same memory. Calls of
//! the driver name the component that asked for the memory (`owner`); on the host (`cpu`, `host`) they are calls for
//! page-locked memory.
//!
//! The time of a row is used both as boot time and as time of day; the difference of the two is zero. Within a process
//! rows are ordered by ID, and no event is earlier than the one before it.

mod beside;
mod log;
mod process;
mod stacks;

use crate::error::DumpError;
use crate::row::Row;
use log::Log;
pub use log::{FUNCTIONS, SYSTEM_MARK};
use memscope_ledger::event::{Body, Event, ProcessHandle, StackRef};
use process::ProcessRows;
use std::collections::BTreeMap;

/// The events of a dump.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Events in order, numbered from 1.
    pub events: Vec<Event>,
    /// Time of the first event, in nanoseconds since 1970; 0 if no row became an event.
    pub begun_unix_ns: u64,
    /// Number of rows read.
    pub rows: u64,
    /// Number of those rows for which there is no event.
    pub left_out: u64,
}

/// A row and the moment by which it is ordered.
struct Timed {
    at_ns: u64,
    row: Row,
}

/// Turns rows into events. All rows that become events are held in memory, because they must be ordered first.
///
/// # Errors
/// The errors of the rows.
pub fn import(
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
) -> Result<Imported, DumpError> {
    let mut kept: Vec<Row> = Vec::new();
    let mut processes: BTreeMap<Option<u32>, ProcessRows> = BTreeMap::new();
    let mut older = false;
    let mut count = 0;
    for row in rows {
        let row = row?;
        count += 1;
        older |= row.is_older();
        let next = ProcessHandle(processes.len() as u32 + 1);
        let process = processes
            .entry(row.pid)
            .or_insert_with(|| ProcessRows::new(next, row.pid));
        if process.wants(&row) {
            kept.push(row);
        }
    }
    let rows = ordered(kept, older, &mut processes);
    let begun_unix_ns = rows.first().map_or(0, |first| first.at_ns);
    let mut log = Log {
        epoch: begun_unix_ns.max(1),
        now_ns: begun_unix_ns,
        events: Vec::new(),
    };
    log.push(
        ProcessHandle(0),
        0,
        StackRef::NotTaken,
        Body::Clock {
            unix_ns: begun_unix_ns,
        },
    );
    for process in processes.values_mut() {
        process.attach(&mut log);
    }
    for timed in rows {
        log.now_ns = timed.at_ns;
        if let Some(process) = processes.get_mut(&timed.row.pid) {
            process.apply(&mut log, &timed.row);
        }
    }
    for process in processes.values_mut() {
        process.end(&mut log, older);
    }
    Ok(Imported {
        events: log.events,
        begun_unix_ns,
        rows: count,
        left_out: processes.values().map(ProcessRows::left_out).sum(),
    })
}

/// Orders rows by ID within each process, and by time between processes.
fn ordered(
    mut rows: Vec<Row>,
    older: bool,
    processes: &mut BTreeMap<Option<u32>, ProcessRows>,
) -> Vec<Timed> {
    rows.sort_by_key(|row| (row.pid, row.id));
    let mut last: Option<(Option<u32>, u64)> = None;
    let mut timed: Vec<Timed> = rows
        .into_iter()
        .map(|row| {
            let own_ns = row.timestamp.saturating_mul(Row::tick_ns(older));
            let at_ns = match last {
                Some((pid, before_ns)) if pid == row.pid => own_ns.max(before_ns),
                _ => own_ns,
            };
            if at_ns != own_ns
                && let Some(process) = processes.get_mut(&row.pid)
            {
                process.moved();
            }
            last = Some((row.pid, at_ns));
            Timed { at_ns, row }
        })
        .collect();
    timed.sort_by_key(|timed| timed.at_ns);
    timed
}
