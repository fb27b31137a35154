//! What happened to the memory at an address: the blocks that were there, and which operators used each of them.

use std::collections::HashMap;

use crate::error::DumpError;
use crate::row::{Device, Row};

/// What an operator did to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// When, in nanoseconds, as the file has it.
    pub time_ns: u64,
    /// The operator.
    pub operator: String,
    /// `READ`, `WRITE` or `UNKNOWN`.
    pub access: String,
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

/// Finds the blocks that had this address among their own, in the order in which they came.
///
/// # Errors
/// The errors of the rows.
pub fn uses(
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
    address: u64,
) -> Result<Vec<Life>, DumpError> {
    let mut wanted = Vec::new();
    for row in rows {
        let row = row?;
        let is_of_block = matches!(row.event.as_str(), "MALLOC" | "FREE" | "ACCESS");
        if is_of_block && row.ptr.is_some_and(|ptr| ptr <= address) {
            // Of other blocks nothing is kept but what is needed to know that they are others.
            let size = row.size().unwrap_or(0);
            let holds = |ptr: u64| ptr.checked_add(size).is_none_or(|end| address < end);
            if row.event != "MALLOC" || row.ptr.is_some_and(holds) {
                wanted.push(row);
            }
        }
    }
    wanted.sort_by_key(|row| row.id);
    let mut lives: Vec<Life> = Vec::new();
    let mut live: HashMap<Key, usize> = HashMap::new();
    for row in wanted {
        let Some(ptr) = row.ptr else {
            continue;
        };
        let key = key(&row, ptr);
        match row.event.as_str() {
            "MALLOC" if POOLS.contains(&row.event_type.as_str()) => {
                live.insert(key, lives.len());
                let size = row.size().unwrap_or(0);
                let shadow = row.attr.get("shadow") == Some("true");
                lives.push(Life {
                    pid: row.pid,
                    device: row.device,
                    pool: row.event_type,
                    ptr,
                    size,
                    came_ns: row.timestamp,
                    shadow,
                    stack: row.python_stack,
                    went_ns: None,
                    uses: Vec::new(),
                });
            }
            "FREE" => {
                let gone = live.remove(&key).and_then(|place| lives.get_mut(place));
                if let Some(life) = gone {
                    life.went_ns = Some(row.timestamp);
                }
            }
            "ACCESS" => {
                let used = live.get(&key).and_then(|place| lives.get_mut(*place));
                if let Some(life) = used {
                    life.uses.push(Use {
                        time_ns: row.timestamp,
                        operator: row.name.unwrap_or_default(),
                        access: row.event_type,
                    });
                }
            }
            _ => {}
        }
    }
    Ok(lives)
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
        let told = uses(rows.into_iter().map(Ok), 0x10ff).unwrap();
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
    }
}
