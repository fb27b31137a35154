//! What happened to the memory at an address: the blocks that were there, and which operators used each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::DumpError;
use crate::row::{Device, Row};
use crate::texts::Texts;

/// What an operator did to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// When, in nanoseconds.
    pub time_ns: u64,
    /// Name of the operator, as the file has it.
    pub operator: Arc<str>,
    /// `READ`, `WRITE` or `UNKNOWN`.
    pub access: Arc<str>,
}

/// A block that was at the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Process that it belongs to.
    pub pid: Option<u32>,
    /// Device that it is on.
    pub device: Device,
    /// The pool that it is from: `PTA`, `ATB`, `MINDSPORE`, `PTA_WORKSPACE`.
    pub pool: String,
    /// Its first address.
    pub ptr: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When it was allocated, in nanoseconds. If it was there before the collection began, when that began.
    pub came_ns: u64,
    /// It was there before the collection began.
    pub shadow: bool,
    /// Call stack of its allocation, the innermost frame first; empty if the row has none.
    pub stack: String,
    /// When it was freed; `None`: it was not, among the rows.
    pub went_ns: Option<u64>,
    /// What used it, in order.
    pub uses: Vec<Use>,
}

/// Pools whose blocks are told. What the driver gives out holds these blocks, and is used by nobody itself.
const POOLS: [&str; 4] = ["PTA", "ATB", "MINDSPORE", "PTA_WORKSPACE"];

/// Identity of a live block: process, and its number or, where the rows have none, device and address.
type Key = (Option<u32>, Result<u64, (Device, u64)>);

/// What a row says of a block. Nearly all rows are of other blocks, so little is kept of each.
enum Said {
    Came(Box<Row>),
    Went,
    Used {
        operator: Arc<str>,
        access: Arc<str>,
    },
}

/// Finds the blocks that had this address among their own, in the order in which they came. With `since_start` only what was
/// collected since the last beginning counts, as with [`crate::inefficient::Question::since_start`].
///
/// An operator that touched any part of such a block used it, also where that part does not have the address: accesses are told by the
/// number of the block, and only without one by their own address.
///
/// # Errors
/// The errors of the rows.
pub fn uses(
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
    address: u64,
    since_start: bool,
) -> Result<Vec<Life>, DumpError> {
    let mut texts = Texts::default();
    let mut started: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    let mut all: Vec<(u64, u64, Key, Said)> = Vec::new();
    let mut is_older = false;
    for row in rows {
        let row = row?;
        is_older |= row.is_older();
        if since_start && row.begins_collection() {
            let last = started.entry(row.pid).or_default();
            *last = row.id.max(*last);
        }
        let Some(ptr) = row.ptr.or_else(|| row.attr_number("addr")) else {
            continue;
        };
        let number = row.attr_number("allocation_id");
        let key = (row.pid, number.ok_or((row.device, ptr)));
        let (id, time) = (row.id, row.timestamp);
        let begins_before = ptr <= address;
        let said = match row.event.as_str() {
            "MALLOC" if begins_before && POOLS.contains(&row.event_type.as_str()) => {
                if address - ptr >= row.size().unwrap_or(0) {
                    continue;
                }
                Said::Came(Box::new(row))
            }
            "FREE" if begins_before && POOLS.contains(&row.event_type.as_str()) => Said::Went,
            "ACCESS" => Said::Used {
                operator: texts.kept(row.name.as_deref().unwrap_or_default()),
                access: texts.kept(&row.event_type),
            },
            _ => continue,
        };
        all.push((id, time, key, said));
    }
    all.retain(|(id, _, (pid, _), _)| started.get(pid).is_none_or(|start| id >= start));
    all.sort_by_key(|(id, ..)| *id);
    let mut lives: Vec<Life> = Vec::new();
    let mut live: HashMap<Key, usize> = HashMap::new();
    for (_, time, key, said) in all {
        let time_ns = time.saturating_mul(Row::tick_ns(is_older));
        match said {
            Said::Came(row) => {
                live.insert(key, lives.len());
                lives.push(Life {
                    came_ns: time_ns,
                    ..life(*row)
                });
            }
            Said::Went => {
                let gone = live.remove(&key).and_then(|place| lives.get_mut(place));
                if let Some(life) = gone {
                    life.went_ns = Some(time_ns);
                }
            }
            Said::Used { operator, access } => {
                let place = match key {
                    (_, Ok(_)) => live.get(&key).copied(),
                    // A workspace may be a part of a block: the one that came last is the innermost.
                    (pid, Err(at)) => live
                        .values()
                        .copied()
                        .filter(|place| lives.get(*place).is_some_and(|life| life.has(pid, at)))
                        .max(),
                };
                if let Some(life) = place.and_then(|place| lives.get_mut(place)) {
                    life.uses.push(Use {
                        time_ns,
                        operator,
                        access,
                    });
                }
            }
        }
    }
    Ok(lives)
}

impl Life {
    /// Whether an address of a process's device is in the block.
    fn has(&self, pid: Option<u32>, (device, ptr): (Device, u64)) -> bool {
        let offset = ptr.checked_sub(self.ptr);
        (self.pid, self.device) == (pid, device) && offset.is_some_and(|offset| offset < self.size)
    }
}

fn life(row: Row) -> Life {
    Life {
        pid: row.pid,
        device: row.device,
        ptr: row.ptr.or_else(|| row.attr_number("addr")).unwrap_or(0),
        size: row.size().unwrap_or(0),
        came_ns: 0,
        shadow: row.attr.get("shadow") == Some("true"),
        pool: row.event_type,
        stack: row.python_stack,
        went_ns: None,
        uses: Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::attr::Attr;

    fn row(id: u64, event: &str, kind: &str, ptr: u64, number: u64) -> Row {
        let attr = Attr::new()
            .with("allocation_id", number)
            .with("size", 0x100);
        Row {
            id,
            event: event.to_owned(),
            event_type: kind.to_owned(),
            name: (event == "ACCESS").then(|| format!("aten::op{id}")),
            timestamp: id * 10,
            pid: Some(7),
            device: Device::Number(0),
            ptr: Some(ptr),
            attr,
            ..Row::default()
        }
    }

    #[test]
    fn each_block_at_the_address_has_its_own_uses() {
        let mut rows = vec![
            row(1, "MALLOC", "PTA", 0x1000, 1),
            row(2, "MALLOC", "PTA", 0x1100, 2),
            row(3, "ACCESS", "WRITE", 0x1000, 1),
            row(4, "ACCESS", "READ", 0x1100, 2),
            row(5, "FREE", "PTA", 0x1000, 1),
            row(6, "MALLOC", "PTA", 0x1000, 3),
            row(7, "ACCESS", "READ", 0x1000, 3),
            row(8, "MALLOC", "HAL", 0x0, 4),
        ];
        // Files are in the order of frees.
        rows.reverse();
        let told = uses(rows.clone().into_iter().map(Ok), 0x10ff, true).unwrap();
        let told: Vec<_> = told
            .iter()
            .map(|life| {
                let uses = life.uses.iter();
                let uses: Vec<_> = uses
                    .map(|one| (one.time_ns, &*one.operator, &*one.access))
                    .collect();
                (life.ptr, life.came_ns, life.went_ns, uses)
            })
            .collect();
        assert_eq!(
            told,
            [
                (0x1000, 10, Some(50), vec![(30, "aten::op3", "WRITE")]),
                (0x1000, 60, None, vec![(70, "aten::op7", "READ")]),
            ]
        );
        // A block of an attach that has ended is not known to be held since.
        rows.push(row(9, "SYSTEM", "START_TRACE", 0, 0));
        rows.push(row(10, "MALLOC", "PTA", 0x1000, 5));
        let came = |since_start| -> Vec<u64> {
            let told = uses(rows.clone().into_iter().map(Ok), 0x10ff, since_start).unwrap();
            told.iter().map(|life| life.came_ns).collect()
        };
        assert_eq!((came(true), came(false)), (vec![100], vec![10, 60, 100]));
    }

    #[test]
    fn an_operator_that_touched_another_part_of_the_block_used_it() {
        let at = |mut row: Row, ptr| {
            row.ptr = Some(ptr);
            row
        };
        let rows = [
            row(1, "MALLOC", "PTA", 0x1000, 1),
            row(2, "MALLOC", "PTA", 0x1100, 2),
            at(row(3, "ACCESS", "WRITE", 0, 1), 0x1080),
            at(row(4, "ACCESS", "READ", 0, 1), 0x1010),
            at(row(5, "ACCESS", "READ", 0, 2), 0x1180),
        ];
        let operators = |rows: &[Row]| -> Vec<String> {
            let told = uses(rows.iter().cloned().map(Ok), 0x1020, false).unwrap();
            let used = told.iter().flat_map(|life| &life.uses);
            used.map(|one| one.operator.to_string()).collect()
        };
        assert_eq!(operators(&rows), ["aten::op3", "aten::op4"]);
        // Without numbers, the addresses tell the blocks apart.
        let without = rows.map(|row| Row {
            attr: Attr::new().with("size", 0x100),
            ..row
        });
        assert_eq!(operators(&without), ["aten::op3", "aten::op4"]);
    }

    #[test]
    fn the_older_generation_counts_in_microseconds() {
        let mut rows = vec![
            row(1, "MALLOC", "PTA", 0x1000, 1),
            row(2, "ACCESS", "READ", 0x1000, 1),
            row(3, "FREE", "PTA", 0x1000, 1),
        ];
        let times = |rows: &[Row]| {
            let told = uses(rows.iter().cloned().map(Ok), 0x1000, false).unwrap();
            let life = &told[0];
            (life.came_ns, life.uses[0].time_ns, life.went_ns)
        };
        assert_eq!(times(&rows), (10, 20, Some(30)));
        rows.push(row(4, "SYSTEM", "acl init", 0, 0));
        assert_eq!(times(&rows), (10_000, 20_000, Some(30_000)));
    }
}
