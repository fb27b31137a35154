//! What a device holds, according to the simulator and according to the ledger.

use super::{P, Sim, event, stats};
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;

pub fn note(ledger: &Ledger, code: &str) -> Option<String> {
    let notes = stats(ledger).coverage;
    notes.into_iter().find(|n| n.code == code).map(|n| n.text)
}

pub fn tell(ledger: &mut Ledger, time_ns: u64, parts: Vec<HeldPart>) {
    for part in parts {
        ledger.apply(&event(P, time_ns, Body::Held(Box::new(part))));
    }
}

/// Segments and blocks as PyTorch's own snapshot would have them.
pub type Picture = Vec<(
    (u64, u64, u64, (u64, u64), bool),
    Vec<(u64, u64, u64, bool)>,
    Vec<(u64, u64)>,
)>;

pub fn truth(sim: &Sim, device: i32) -> Picture {
    sim.held(device)
        .into_iter()
        .map(|s| {
            let segment = (s.addr, s.size, s.stream, s.pool, s.expandable);
            (segment, s.blocks, s.rooms)
        })
        .collect()
}

pub fn seen(report: &SnapshotReport, device: i32) -> Picture {
    report
        .segments
        .iter()
        .filter(|s| s.device == device)
        .map(|s| {
            let blocks = s
                .blocks
                .iter()
                .filter(|b| b.state != BlockState::Inactive)
                .map(|b| {
                    let pending = b.state == BlockState::PendingFree;
                    (b.addr, b.size, b.requested.unwrap(), pending)
                })
                .collect();
            let rooms = s
                .blocks
                .iter()
                .filter(|b| b.state == BlockState::Inactive && b.requested != Some(0))
                .map(|b| (b.addr, b.requested.unwrap()))
                .collect();
            let segment = (s.addr, s.size, s.stream, s.pool, s.expandable);
            (segment, blocks, rooms)
        })
        .collect()
}
