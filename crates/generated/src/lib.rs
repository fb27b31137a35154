//! Makes what is committed beside the sources that it comes from: the Rust code of the `.proto` files ([`code`]), and the BPF objects
//! ([`objects`]). So whoever builds memscope needs neither the generators nor another compiler, nor the time that they take.
//!
//! Owns: what is made of which sources, and how. Refuses: Python's generated client (`cargo xtask clients`), and how the BPF
//! programs are compiled (`memscope-ebpf-build`, which the daemon's build uses where the committed objects do not fit).

pub mod code;
mod messages;
pub mod objects;

use std::path::{Path, PathBuf};

/// The repository's folder.
#[must_use]
pub fn root() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.nth(2).map(Path::to_owned).unwrap_or_default()
}
