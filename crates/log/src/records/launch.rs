//! The kernels that processes launch, and their names.

use memscope_common::{KERNEL_NAME, KernelRecord};
use memscope_units::demangle;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Most kernels of a process whose names are kept. The launches of further ones have no names.
const MOST: usize = 16_384;
/// The longest name that is kept, in bytes. What is longer is cut off there, and ends in `…`.
const LONGEST: usize = 1024;

/// The names of a process's kernels, by the driver's handles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kernels(HashMap<u64, Arc<str>>);

impl Kernels {
    /// Takes the name of a kernel. A later one stands in the place of an earlier one, since handles are used again.
    pub(crate) fn named(&mut self, record: &KernelRecord) {
        let len = (record.name_len as usize).min(KERNEL_NAME);
        match name(&record.name[..len]) {
            Some(name) if self.0.len() < MOST || self.0.contains_key(&record.handle) => {
                self.0.insert(record.handle, name.into());
            }
            _ => {
                self.0.remove(&record.handle);
            }
        }
    }

    /// The name of a kernel, if it has one.
    pub(crate) fn name(&self, handle: u64) -> Option<Arc<str>> {
        self.0.get(&handle).map(Arc::clone)
    }
}

/// A kernel's name as people write it, if this is one: where the driver keeps it is not documented, and a text that is no name
/// of PTX says that it is elsewhere.
fn name(text: &[u8]) -> Option<String> {
    let (first, rest) = text.split_first()?;
    let begins = first.is_ascii_alphabetic() || matches!(first, b'_' | b'$' | b'%');
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
    if !begins || !rest.iter().all(goes_on) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    if text.len() + 1 >= KERNEL_NAME {
        // It was cut off in the kernel, and no longer means anything to a demangler.
        return Some(format!("{}…", &text[..LONGEST]));
    }
    Some(demangle(text, LONGEST))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_ptx() {
        let said = |text: &str| name(text.as_bytes());
        assert_eq!(said("triton_red_fused_0").unwrap(), "triton_red_fused_0");
        assert_eq!(said("_Z3addPfi").unwrap(), "add(float*, int)");
        for not in ["", "7up", "a b", "/lib/x", "\u{1}\u{2}", "näme"] {
            assert_eq!(said(not), None, "{not}");
        }
        let long = "a".repeat(KERNEL_NAME - 1);
        let cut = said(&long).unwrap();
        assert!(cut.ends_with('…') && cut.len() == LONGEST + '…'.len_utf8());
    }
}
