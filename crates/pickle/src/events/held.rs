//! A pool's state at one moment, as a reading has it.

use crate::pool::Pool;
use crate::reader::Value;
use memscope_ledger::event::HeldSegment;

/// Segments, the blocks in them, and allocated and reserved bytes. `stack` gives the identity of a block's stack. Blocks that lie over one
/// another or outside of the segments are left out.
pub(super) fn held(
    pool: &Pool,
    mut stack: impl FnMut(Option<Value>) -> Option<u64>,
) -> (Vec<HeldSegment>, u64, u64) {
    let (mut allocated, mut reserved) = (0u64, 0u64);
    let mut held = Vec::with_capacity(pool.segments.len());
    for (&addr, room) in &pool.segments {
        let end = addr.saturating_add(room.size);
        let mut segment = HeldSegment {
            addr,
            size: room.size,
            stream: room.stream,
            large: room.large,
            pool: room.pool.unwrap_or((0, 0)),
            pool_untold: room.pool.is_none(),
            expandable: room.expandable,
            ..HeldSegment::default()
        };
        let mut at = addr;
        for (&block, one) in pool.blocks.range(addr..end) {
            if block < at || one.size == 0 || one.size > end - block {
                continue;
            }
            at = block + one.size;
            if !one.pending {
                allocated = allocated.saturating_add(one.size);
            }
            let tuple = (block, one.size, one.requested, one.pending);
            segment.blocks.push(tuple);
            if let Some(stack) = stack(one.frames) {
                segment.stacks.push((block, stack));
            }
        }
        reserved = reserved.saturating_add(room.size);
        held.push(segment);
    }
    (held, allocated, reserved)
}
