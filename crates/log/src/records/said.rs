//! What a record of the kernel's says.

use crate::records::outcome::{Skipped, What};
use memscope_ledger::event::Body;

/// What a kernel record says.
pub(crate) enum Said {
    Event(Body),
    Notice(What),
    Skip(Skipped),
}

/// A name, which may have been cut.
pub(crate) fn ended_by_nul(bytes: &[u8], cut: bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(name) => name.to_owned(),
        // A character that the cut went through is left out; others that are none are replaced.
        Err(error) if error.error_len().is_none() && cut => {
            String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default())
                .into_owned()
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
