//! What happened to the memory at an address: the blocks that were there, and which operators used each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::error::DumpError;
use crate::row::{Device, Row};
use crate::texts::Texts;

/// What an operator did to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// When, in nanoseconds, as the file has it.
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

fn key(row: &Row, ptr: u64) -> Key {
    let number = row.attr_number("allocation_id");
    (row.pid, number.ok_or((row.device, ptr)))
}

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
    for row in rows {
        let row = row?;
        if since_start && row.begins_collection() {
            let last = started.entry(row.pid).or_default();
            *last = row.id.max(*last);
        }
        let Some(ptr) = row.ptr.filter(|ptr| *ptr <= address) else {
            continue;
        };
        let (id, time_ns, key) = (row.id, row.timestamp, key(&row, ptr));
        let said = match row.event.as_str() {
            "MALLOC" if POOLS.contains(&row.event_type.as_str()) => {
                if address - ptr >= row.size().unwrap_or(0) {
                    continue;
                }
                Said::Came(Box::new(row))
            }
            "FREE" if POOLS.contains(&row.event_type.as_str()) => Said::Went,
            "ACCESS" => Said::Used {
                operator: texts.kept(row.name.as_deref().unwrap_or_default()),
                access: texts.kept(&row.event_type),
            },
            _ => continue,
        };
        all.push((id, time_ns, key, said));
    }
    all.retain(|(id, _, (pid, _), _)| started.get(pid).is_none_or(|start| id >= start));
    all.sort_by_key(|(id, ..)| *id);
    let mut lives: Vec<Life> = Vec::new();
    let mut live: HashMap<Key, usize> = HashMap::new();
    for (_, time_ns, key, said) in all {
        match said {
            Said::Came(row) => {
                live.insert(key, lives.len());
                lives.push(life(*row));
            }
            Said::Went => {
                let gone = live.remove(&key).and_then(|place| lives.get_mut(place));
                if let Some(life) = gone {
                    life.went_ns = Some(time_ns);
                }
            }
            Said::Used { operator, access } => {
                let used = live.get(&key).and_then(|place| lives.get_mut(*place));
                if let Some(life) = used {
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

fn life(row: Row) -> Life {
    Life {
        pid: row.pid,
        device: row.device,
        ptr: row.ptr.unwrap_or(0),
        size: row.size().unwrap_or(0),
        came_ns: row.timestamp,
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
}
