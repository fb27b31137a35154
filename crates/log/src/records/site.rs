//! Definition of a site in the log.

use memscope_ledger::event::{CallOp, Layer, Vendor};
use serde::{Deserialize, Serialize};

/// A site: one function in one file, where a probe may be placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteDefined {
    /// The number that the attach cookie carries.
    pub site: u32,
    /// Name of the function as exported.
    pub function: String,
    /// Layer that the function belongs to, for functions of a runtime or driver; `None` for a framework's function.
    pub layer: Option<Layer>,
    /// Vendor of the devices, for functions of a runtime or driver. Earlier recordings do not have this field, and are
    /// of CUDA only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Vendor>,
    /// Operation of the function, for functions of a runtime or driver.
    pub op: Option<CallOp>,
    /// Path of the binary as the process maps it.
    pub library: String,
    /// Offset of the probe in the file, in bytes.
    pub offset: u64,
}
