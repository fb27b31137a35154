//! mstx's functions for memory (`mstx/ms_tools_ext_mem.h` of CANN's toolkit): a pool tells through them what it has, and
//! what it hands out of that. They are C functions that only pass their arguments on to a tool, if there is one.
//!
//! All of them have return probes: handles of domains, heaps and regions are results, and where the library looks for
//! tools, each calls itself once.

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
    // (const char *name), the handle is the result.
    memory("mstxDomainCreateA", RegionOp::Domain),
    // (domain, const mstxMemHeapDesc_t *), the handle is the result.
    memory("mstxMemHeapRegister", RegionOp::HeapRegister),
    // (domain, heap).
    memory("mstxMemHeapUnregister", RegionOp::HeapUnregister),
    // (domain, const mstxMemRegionsRegisterBatch_t *).
    memory("mstxMemRegionsRegister", RegionOp::Register),
    // (domain, const mstxMemRegionsUnregisterBatch_t *).
    memory("mstxMemRegionsUnregister", RegionOp::Unregister),
];
