//! The kernels that processes launch, and their names.

use memscope_common::{KERNEL_NAME, KernelRecord};
use memscope_units::demangle;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Most kernels of a process whose names are kept, and most bytes of these names. The launches of further ones have no names.
const MOST: usize = 16_384;
const MOST_BYTES: usize = 1 << 20;
/// The longest name that is kept, in bytes. What is longer is cut off there.
const LONGEST: usize = 1024;

/// The names of a process's kernels, by the driver's handles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kernels {
    names: HashMap<u64, Arc<str>>,
    /// Bytes of all names.
    bytes: usize,
}

impl Kernels {
    /// Takes the name of a kernel. A later one stands in the place of an earlier one, since handles are used again.
    pub(crate) fn named(&mut self, record: &KernelRecord) {
        let len = (record.name_len as usize).min(KERNEL_NAME);
        if let Some(before) = self.names.remove(&record.handle) {
            self.bytes -= before.len();
        }
        if let Some(name) = name(&record.name[..len])
            && self.names.len() < MOST
            && self.bytes + name.len() <= MOST_BYTES
        {
            self.bytes += name.len();
            self.names.insert(record.handle, name.into());
        }
    }

    /// The name of a kernel, if it has one.
    pub(crate) fn name(&self, handle: u64) -> Option<Arc<str>> {
        self.names.get(&handle).map(Arc::clone)
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
    // A demangler takes a short name of C for that of a type: `a` is `signed char`.
    if text.starts_with("_Z") || text.starts_with("_R") {
        return Some(demangle(text, LONGEST));
    }
    Some(text[..text.len().min(LONGEST)].to_owned())
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
        assert_eq!(said("a").unwrap(), "a");
        for not in ["", "7up", "a b", "/lib/x", "\u{1}\u{2}", "näme"] {
            assert_eq!(said(not), None, "{not}");
        }
        let long = "a".repeat(KERNEL_NAME - 1);
        let cut = said(&long).unwrap();
        assert!(cut.ends_with('…') && cut.len() == LONGEST + '…'.len_utf8());
    }

    #[test]
    fn names_are_bounded() {
        let mut record: KernelRecord = zerocopy::FromZeros::new_zeroed();
        record.name = [b'a'; KERNEL_NAME];
        record.name_len = 1000;
        let mut kernels = Kernels::default();
        for handle in 1..=3000 {
            record.handle = handle;
            kernels.named(&record);
        }
        assert_eq!(kernels.names.len(), MOST_BYTES / 1000);
        assert!(kernels.name(1).is_some() && kernels.name(3000).is_none());
        // A name that takes another one's place makes room.
        record.handle = 1;
        record.name_len = 1;
        kernels.named(&record);
        record.handle = 3000;
        kernels.named(&record);
        assert_eq!(kernels.name(1).as_deref(), kernels.name(3000).as_deref());
        assert_eq!(kernels.bytes, (MOST_BYTES / 1000 - 1) * 1000 + 2);
    }
}
