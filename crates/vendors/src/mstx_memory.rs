//! mstx's functions for memory (`mstx/ms_tools_ext_mem.h` of CANN's toolkit): through them a pool reports the memory
//! that it has, and what it hands out of that. They are C functions that only pass their arguments on to a tool, if one
//! is attached.
//!
//! All of them have return probes, for two reasons: handles of domains, heaps and regions are results; and when the
//! library initialises, a function calls itself once, so that entries alone would count that call twice.

use memscope_common::RegionOp;

use crate::{Layer, Purpose, Row};

const fn memory(name: &'static str, op: RegionOp) -> Row {
    Row::new(
        name,
        None,
        Layer::Mark,
        "libms_tools_ext",
        Purpose::Region(op),
    )
    .returning()
}

pub(crate) const ROWS: &[Row] = &[
    // Arguments: (const char *name); the handle is the result.
    memory("mstxDomainCreateA", RegionOp::Domain),
    // Arguments: (domain, const mstxMemHeapDesc_t *); the handle is the result.
    memory("mstxMemHeapRegister", RegionOp::HeapRegister),
    // Arguments: (domain, heap).
    memory("mstxMemHeapUnregister", RegionOp::HeapUnregister),
    // Arguments: (domain, const mstxMemRegionsRegisterBatch_t *).
    memory("mstxMemRegionsRegister", RegionOp::Register),
    // Arguments: (domain, const mstxMemRegionsUnregisterBatch_t *).
    memory("mstxMemRegionsUnregister", RegionOp::Unregister),
];
