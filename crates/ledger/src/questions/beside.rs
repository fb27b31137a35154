//! The answer to `beside_the_pool`: memory that a process has from the driver beside its framework's pool.
//!
//! Owns: how these allocations are put together by stack. Refuses: what belongs to the pool, and memory of other processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::report::{BesidePool, DriverBytes, Source};
use crate::state::driver::allocation::add;
use crate::state::process::Process;

/// All such memory, by device, component and stack; none for a process without a pool, whose snapshot has it already.
pub(crate) fn report(process: &Process) -> Vec<BesidePool> {
    if process.source() == Source::Driver {
        return Vec::new();
    }
    let live = process.driver.live().map(|(_, allocation)| allocation);
    let all = live.chain(process.driver.vmm.allocations());
    let mut rows: BTreeMap<_, DriverBytes> = BTreeMap::new();
    for allocation in all.filter(|allocation| !allocation.pooled) {
        let component = allocation.holder().map(|(holder, _)| holder.name());
        let key = (allocation.device, component, allocation.stack);
        add(rows.entry(key).or_default(), allocation.size);
    }
    let row = |((device, component, stack), live)| BesidePool {
        device,
        component,
        stack: Arc::new(process.stacks.stack(stack)),
        live,
    };
    rows.into_iter().map(row).collect()
}
