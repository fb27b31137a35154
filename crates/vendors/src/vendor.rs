//! The vendors.

use serde::{Deserialize, Serialize};

/// Whose functions, and so whose devices.
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
    /// AMD ROCm, by its HIP runtime.
    Hip,
}
