//! A function in a binary where probes are placed, as the log has it.

use memscope_ledger::event::{CallOp, Layer, Vendor};
use serde::{Deserialize, Serialize};

/// One function in one binary where probes are placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteDefined {
    /// The number that the attach cookie carries.
    pub site: u32,
    /// Name of the function as exported.
    pub function: String,
    /// Whose function, for runtime and driver functions; `None` for a framework's.
    pub layer: Option<Layer>,
    /// Whose devices, for runtime and driver functions; earlier recordings do not say, and have CUDA's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Vendor>,
    /// What it does, for runtime and driver functions.
    pub op: Option<CallOp>,
    /// Path of the binary as the process maps it.
    pub library: String,
    /// Offset of the probe in the file.
    pub offset: u64,
}
