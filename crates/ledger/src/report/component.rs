//! Who holds memory outside a framework's pool, on Ascend.

use crate::event::HalModule;
use serde::{Deserialize, Serialize};

/// Who holds memory outside a framework's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holder {
    /// A component of CANN.
    Module(HalModule),
    /// torch_npu's workspace allocator: scratch memory for operators.
    Workspace,
}

impl Holder {
    /// Name of the component in the driver, or `PTA_WORKSPACE` for torch_npu's workspaces.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Holder::Module(module) => module.name(),
            Holder::Workspace => "PTA_WORKSPACE",
        }
    }
}

/// What a component of Ascend's software holds from the driver, outside a framework's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// The component that holds the memory.
    pub holder: Holder,
    /// Number of live allocations.
    pub count: u64,
    /// Bytes of all live allocations.
    pub bytes: u64,
    /// The part of `bytes` in huge pages (2 MiB).
    pub huge_page_bytes: u64,
    /// The part of `bytes` in giant pages (1 GiB).
    pub giant_page_bytes: u64,
}

impl Component {
    /// A component that holds nothing.
    pub(crate) fn new(holder: Holder) -> Component {
        Component {
            holder,
            count: 0,
            bytes: 0,
            huge_page_bytes: 0,
            giant_page_bytes: 0,
        }
    }

    /// Name of the component in the driver, or `PTA_WORKSPACE` for torch_npu's workspaces.
    pub fn name(&self) -> &'static str {
        self.holder.name()
    }

    /// Its number in the driver, if it is a component of CANN.
    pub fn module(&self) -> Option<HalModule> {
        match self.holder {
            Holder::Module(module) => Some(module),
            Holder::Workspace => None,
        }
    }
}
