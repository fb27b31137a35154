//! The vendors of devices.

use serde::{Deserialize, Serialize};

/// The vendor of a function or a device.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA CUDA.
    #[default]
    Cuda,
    /// Huawei Ascend.
    Ascend,
    /// AMD ROCm, with its HIP runtime.
    Hip,
}
