//! Rows of operators: `OP_LAUNCH` at the beginning and the end of each operator that no other one has called, and between
//! them an `ACCESS` for each block that it reads or writes, once for each of the two.

use std::collections::HashSet;
use std::sync::Arc;

use memscope_ledger::event::{Operator, OperatorPart, Touched};

use super::scene::{Scene, SceneProcess, Touching, begun, device};
use crate::row::Row;

/// What PyTorch's names of operators begin with.
const NAMESPACE: &str = "aten::";

impl Scene<'_> {
    pub(super) fn operator(&mut self, process: &mut SceneProcess, operator: &Operator) {
        let tid = self.event.tid;
        if operator.part == OperatorPart::Begin {
            let touching = Touching {
                name: Arc::clone(&operator.name),
                since: self.rows.last_allocation,
                told: HashSet::new(),
            };
            process.operators.insert(tid, touching);
            self.launch_of(process, "ATEN_START", &operator.name);
        }
        // An operator whose beginning was lost, or that began before the attach, has no row of its own. What it touches is
        // an access all the same.
        let mut touching = process.operators.remove(&tid).unwrap_or_else(|| Touching {
            name: Arc::clone(&operator.name),
            since: self.rows.last_allocation,
            told: HashSet::new(),
        });
        let returned = matches!(operator.part, OperatorPart::Returned | OperatorPart::End);
        for touched in &operator.memory {
            if let Some(row) = self.access(process, &mut touching, *touched, returned) {
                (self.tell)(row);
            }
        }
        if operator.part == OperatorPart::End {
            self.launch_of(process, "ATEN_END", &operator.name);
        } else {
            process.operators.insert(tid, touching);
        }
    }

    fn launch_of(&mut self, process: &SceneProcess, kind: &str, name: &str) {
        let mut row = self.row(process, "OP_LAUNCH", kind);
        row.name = Some(format!("{NAMESPACE}{name}"));
        row.device = device(process.sums.keys().flatten().next().copied());
        (self.tell)(row);
    }

    /// The row of an access to a block that is known, unless the operator has such a row already.
    fn access(
        &mut self,
        process: &SceneProcess,
        touching: &mut Touching,
        touched: Touched,
        returned: bool,
    ) -> Option<Row> {
        // Addresses of devices differ on one machine, and the pool's memory begins with its block.
        let mut devices = process.sums.keys().flatten();
        let (place, block) = devices.find_map(|ordinal| {
            let place = (*ordinal, touched.ptr);
            Some((place, *process.live.get(&place)?))
        })?;
        if returned && block.allocation <= touching.since {
            return None;
        }
        if !touching.told.insert((block.allocation, touched.writes)) {
            return None;
        }
        let kind = if touched.writes { "WRITE" } else { "READ" };
        let mut row = self.row(process, "ACCESS", kind);
        row.name = Some(format!("{NAMESPACE}{}", touching.name));
        row.device = device(Some(place.0));
        row.ptr = Some(touched.ptr);
        row.attr = begun(Some(block.allocation), touched.ptr).with("size", block.size);
        row.attr.push("type", "PTA");
        Some(row)
    }
}
