//! Rows of pools beside the framework's own. They become regions in domains of mstx, because ATB and MindSpore report
//! their memory in this way.

use crate::row::{Device, Row};
use memscope_ledger::event::{Body, Domain, Region, RegionChange, Workspace};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Types of pools' rows, and the domain that stands for each. The first type that a process has rows of is the
/// framework's own pool, which needs no domain.
const POOLS: [(&str, &str); 3] = [
    ("PTA", "ptaCaching"),
    ("MINDSPORE", "mindsporeMemPool"),
    ("ATB", "atb"),
];
const WORKSPACE: (&str, &str) = ("PTA_WORKSPACE", "ptaWorkspace");

/// The pools beside the framework's own in one process.
#[derive(Default)]
pub(super) struct Beside {
    types: BTreeSet<&'static str>,
    has_driver: bool,
    named: BTreeSet<u64>,
    /// The total that was reported last, by the pool's number and device.
    totals: BTreeMap<(u64, Option<i32>), u64>,
    /// Sizes of live workspaces by address.
    workspaces: HashMap<u64, i64>,
}

impl Beside {
    /// Remembers the type of a row.
    pub(super) fn note(&mut self, event_type: &str) {
        let known = POOLS.iter().find(|(name, _)| *name == event_type);
        self.types.extend(known.map(|(name, _)| *name));
        self.has_driver |= event_type == "HAL";
    }

    /// Type of the rows of the framework's own pool. It is known when all rows have been noted.
    pub(super) fn main(&self) -> Option<&'static str> {
        let mut names = POOLS.iter().map(|(name, _)| *name);
        names.find(|name| self.types.contains(name))
    }

    /// The events of a row; `None` if the row does not say how large the block is.
    pub(super) fn row(&mut self, row: &Row, frees: bool) -> Option<Vec<Body>> {
        let ptr = row.ptr?;
        let device = match row.device {
            Device::Number(number) => i32::try_from(number).ok(),
            _ => None,
        };
        let size = row.size().filter(|size| i64::try_from(*size).is_ok());
        if row.event_type == WORKSPACE.0 && self.has_driver {
            // The driver's rows have the same memory. This event only says that it is a workspace.
            let signed = if frees {
                -self.workspaces.remove(&ptr)?
            } else {
                let signed = i64::try_from(size?).ok()?;
                self.workspaces.insert(ptr, signed);
                signed
            };
            return Some(vec![Body::Workspace(Workspace {
                device,
                ptr,
                size: signed,
            })]);
        }
        let all = POOLS.iter().chain([&WORKSPACE]);
        let (number, (_, name)) = (1u64..)
            .zip(all)
            .find(|(_, (kind, _))| *kind == row.event_type)?;
        let mut bodies = Vec::new();
        if self.named.insert(number) {
            bodies.push(Body::Domain(Domain {
                handle: number,
                name: Arc::from(*name),
            }));
        }
        let mut say = |change| {
            bodies.push(Body::Region(Region {
                domain: number,
                change,
                untold: 0,
            }));
        };
        if frees {
            say(RegionChange::Went { ptr });
        } else {
            say(RegionChange::Came {
                device,
                ptr,
                size: size?,
                handle: 0,
                heap: 0,
            });
        }
        // The pool's total becomes one heap for each device; the heap's handle is made from the device's number.
        if let Some(total) = row
            .attr_number("total")
            .filter(|n| i64::try_from(*n).is_ok())
            && self.totals.insert((number, device), total) != Some(total)
        {
            say(RegionChange::HeapCame {
                device,
                ptr: 0,
                size: total,
                handle: device.map_or(1, |device| i64::from(device).unsigned_abs() + 2),
            });
        }
        Some(bodies)
    }
}
