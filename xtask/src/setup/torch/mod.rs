//! PyTorch as the tests use it: the versions that are pinned, installing them, finding the one to use, and the
//! stand-ins
//! for libraries that a machine without a GPU need not have.

mod absent;
mod gpu;
pub mod install;
mod locate;
mod packages;
mod pins;
pub mod stubs;
pub mod wheels;

pub use gpu::has_gpu;
pub use locate::{locate, locate_npu};
pub use packages::site_packages;
pub use pins::pins;
