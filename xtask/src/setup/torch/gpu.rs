//! Whether this machine has a GPU.

use std::path::Path;

/// Whether there is an NVIDIA GPU, for which PyTorch needs all of its libraries.
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists()
}
