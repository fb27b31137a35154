//! Which node this is.

use anyhow::{Context as _, Result};
use memscope_archive_rows::rows::Node;
use sha2::{Digest as _, Sha256};

/// Reads who this node is. The machine id itself is nobody's business, so a hash of it is taken that is of use here only.
///
/// # Errors
/// If the machine says no host name.
pub fn node(name: Option<&str>) -> Result<Node> {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    let name = match name {
        Some(name) => name.to_owned(),
        None => read("/proc/sys/kernel/hostname").context("this machine has no host name")?,
    };
    let machine = match read("/etc/machine-id") {
        Ok(id) => {
            let hash = Sha256::digest(format!("memscope-archive {id}"));
            let digits = hash.iter().take(8).map(|byte| format!("{byte:02x}"));
            digits.collect()
        }
        // A container may have none; rows have null there.
        Err(_) => String::new(),
    };
    Ok(Node {
        name,
        machine,
        boot: read("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
    })
}
