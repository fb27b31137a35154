//! Pools beside the framework's own: those that report their memory through mstx, and torch_npu's workspaces.
//!
//! Owns: which type of row the regions of a domain become, and that a workspace that two functions report is written
//! only once.

use super::scene::{Scene, SceneProcess, Sums, attr_of, begun, device};
use crate::row::Row;
use memscope_ledger::RegionStep;
use memscope_ledger::event::{Region, Workspace};

/// Type of the rows of workspaces, as msMemScope's documentation names it. Its code writes such rows as `PTA`, where
/// they cannot be distinguished from the others.
const WORKSPACE: &str = "PTA_WORKSPACE";

/// The type of the rows of a domain; `None` if there is none, or if the framework's own functions report the same
/// blocks (`pool_seen`).
fn event_type(name: &str, pool_seen: bool) -> Option<&'static str> {
    match name {
        "atb" => Some("ATB"),
        "mindsporeMemPool" => Some("MINDSPORE"),
        "ptaCaching" | "msleaks" if !pool_seen => Some("PTA"),
        _ => None,
    }
}

impl Scene<'_> {
    pub(super) fn region(&mut self, process: &mut SceneProcess, region: &Region) {
        let pools = &mut process.pools;
        let mut steps: Vec<RegionStep> = Vec::new();
        let (from_start, seen) = (pools.from_start, pools.pool_seen);
        pools
            .book
            .apply(region, from_start, seen, &mut |step| steps.push(step));
        let name = pools.book.name(region.domain, from_start);
        if matches!(name.as_deref(), Some("ptaCaching" | "msleaks")) && seen {
            return;
        }
        if name.as_deref() == Some("ptaWorkspace") {
            for step in steps {
                self.workspace_step(process, step.came, step.device, step.ptr, step.size);
            }
            return;
        }
        let Some(kind) = name.as_deref().and_then(|name| event_type(name, seen)) else {
            self.rows.left_out += steps.len() as u64;
            return;
        };
        for step in steps {
            self.region_step(process, region.domain, kind, step);
        }
    }

    fn region_step(
        &mut self,
        process: &mut SceneProcess,
        domain: u64,
        kind: &str,
        step: RegionStep,
    ) {
        let key = step.number.map(|number| (domain, number));
        let allocation = if step.came {
            let block = self.came(step.size.unwrap_or(0), step.device);
            if let Some(key) = key {
                process.pools.regions.insert(key, block.allocation);
            }
            Some(block.allocation)
        } else {
            key.and_then(|key| process.pools.regions.remove(&key))
        };
        if step.ptr == 0 {
            // Only the region's handle is known, and a row needs an address.
            self.rows.left_out += 1;
            return;
        }
        let event = if step.came { "MALLOC" } else { "FREE" };
        let mut row = self.row(process, event, kind);
        row.device = device(step.device);
        row.ptr = Some(step.ptr);
        row.attr = begun(allocation, step.ptr);
        if let Some(size) = step.size {
            row.attr.push("size", size.to_string());
        }
        if let Some(sums) = process.pools.book.on(domain, step.device) {
            row.attr.push("used", sums.bytes.to_string());
            if let Some(total) = sums.heap_bytes {
                row.attr.push("total", total.to_string());
            }
        }
        (self.tell)(row);
    }

    pub(super) fn workspace(&mut self, process: &mut SceneProcess, workspace: &Workspace) {
        let size = workspace.size.unsigned_abs();
        let came = workspace.size > 0;
        self.workspace_step(process, came, workspace.device, workspace.ptr, Some(size));
    }

    /// Writes the row of a workspace. Two functions may report it, one after the other; the first report counts.
    fn workspace_step(
        &mut self,
        process: &mut SceneProcess,
        came: bool,
        ordinal: Option<i32>,
        ptr: u64,
        size: Option<u64>,
    ) {
        let pools = &mut process.pools;
        let block = match (came, size) {
            (true, Some(size)) if !pools.workspaces.contains_key(&ptr) => {
                let block = self.came(size, ordinal);
                pools.workspaces.insert(ptr, block);
                block
            }
            (false, _) => match pools.workspaces.remove(&ptr) {
                Some(block) => block,
                None => return,
            },
            _ => return,
        };
        let held = pools.in_workspaces.entry(block.device).or_default();
        *held = if came {
            held.saturating_add(block.size)
        } else {
            held.saturating_sub(block.size)
        };
        // Each workspace is taken from the runtime separately, so the allocator has reserved what it has handed out.
        let sums = Sums {
            allocated: Some(*held),
            reserved: Some(*held),
            ..Sums::default()
        };
        let event = if came { "MALLOC" } else { "FREE" };
        let mut row = self.row(process, event, WORKSPACE);
        row.device = device(block.device);
        row.ptr = Some(ptr);
        row.attr = begun(Some(block.allocation), ptr);
        let attr = attr_of(&row, block.size, sums);
        (self.tell)(Row { attr, ..row });
    }
}
