//! The content of a decoded record.

use crate::records::outcome::{Skipped, What};
use memscope_ledger::event::Body;

/// The content of a decoded record: an event, a notice, or the reason why it is skipped.
pub(crate) enum Said {
    Event(Body),
    Notice(What),
    Skip(Skipped),
}

/// Decodes a name, which may have been cut in the middle of a character.
pub(crate) fn ended_by_nul(bytes: &[u8], cut: bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(name) => name.to_owned(),
        // An incomplete character at the cut is left out. Other invalid bytes are replaced.
        Err(error) if error.error_len().is_none() && cut => {
            String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default())
                .into_owned()
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
