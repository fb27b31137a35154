//! Live blocks and allocations as the answer to `leaks` counts them.
//!
//! Owns: which of them are counted, and the sums of those that are shown together. Refuses: verdicts.

use crate::report::Source;
use crate::state::driver::allocation::Allocation;
use crate::state::membership::Membership;
use crate::state::process::Process;
use crate::state::stacks::{self, StackIndex};

/// Number of addresses that are shown of a group.
const EXAMPLES: usize = 5;

/// One live block or allocation.
pub(super) struct Item {
    pub(super) addr: Option<u64>,
    /// Bytes that it takes on the device (rounded).
    pub(super) size: u64,
    /// Boot time of the allocation; `None` for one that a process freed as it ended.
    pub(super) born_ns: Option<u64>,
    /// The groups that it belongs to.
    pub(super) place: Membership,
    pub(super) stack: Option<StackIndex>,
}

/// Count, bytes and ages of the live blocks of one group.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// Bytes of the smallest and of the largest of them.
    pub(super) sizes: [u64; 2],
    /// Of those whose times are known.
    pub(super) oldest_ns: Option<u64>,
    pub(super) newest_ns: Option<u64>,
    /// Boot time of the allocation and address of the oldest blocks, oldest first.
    pub(super) examples: Vec<(u64, u64)>,
}

impl Tally {
    pub(super) fn add(&mut self, item: &Item) {
        if self.count == 0 {
            self.sizes = [item.size; 2];
        }
        let [smallest, largest] = self.sizes;
        self.sizes = [smallest.min(item.size), largest.max(item.size)];
        self.count += 1;
        self.bytes = self.bytes.saturating_add(item.size);
        self.newest_ns = self.newest_ns.max(item.born_ns);
        self.oldest_ns = match (self.oldest_ns, item.born_ns) {
            (Some(known), Some(born)) => Some(known.min(born)),
            (known, born) => known.or(born),
        };
        if let (Some(addr), Some(born_ns)) = (item.addr, item.born_ns) {
            let is_full = self.examples.len() == EXAMPLES;
            if is_full && self.examples.last() <= Some(&(born_ns, addr)) {
                return;
            }
            let place = self.examples.partition_point(|e| *e <= (born_ns, addr));
            if place < EXAMPLES {
                self.examples.insert(place, (born_ns, addr));
                self.examples.truncate(EXAMPLES);
            }
        }
    }
}

/// Passes on all live blocks and allocations that are watched for growth, in no order. There may be millions, so no list of
/// them is made.
pub(super) fn each_item(process: &Process, mut take: impl FnMut(&Item)) {
    if process.source() == Source::Pool {
        for (addr, block) in process.pool.blocks().filter(|(_, b)| !b.pending) {
            take(&Item {
                addr: Some(addr),
                size: block.rounded,
                born_ns: Some(block.born_ns),
                place: block.place,
                stack: Some(stacks::place(block.stack)),
            });
        }
    }
    let allocated = process.driver.host.allocated();
    let allocated = allocated.map(|(addr, pinned)| (Some(addr), pinned));
    let physical = process.driver.vmm.of_host().map(|pinned| (None, pinned));
    for (addr, pinned) in allocated.chain(physical) {
        take(&Item {
            addr,
            size: pinned.size,
            born_ns: Some(pinned.born_ns),
            place: pinned.place,
            stack: None,
        });
    }
    let mut direct = |addr: Option<u64>, allocation: &Allocation| {
        if !allocation.pooled {
            take(&Item {
                addr,
                size: allocation.size,
                born_ns: Some(allocation.born_ns),
                place: allocation.place,
                stack: Some(stacks::place(allocation.stack)),
            });
        }
    };
    for (addr, allocation) in process.driver.live() {
        direct(Some(addr), allocation);
    }
    for allocation in process.driver.vmm.allocations() {
        direct(None, allocation);
    }
}
