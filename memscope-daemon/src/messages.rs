//! What the daemon has to say about itself, for `status`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use memscope_rpc::{Severity, StatusMessage};

use crate::clock;

/// Messages kept.
const MESSAGES: usize = 64;

/// What the daemon has to say about itself.
#[derive(Clone, Default)]
pub struct Messages(Arc<Mutex<VecDeque<StatusMessage>>>);

impl Messages {
    /// Adds a message; the oldest goes when there are too many.
    pub fn say(&self, severity: Severity, text: String) {
        let (_, unix_ns) = clock::pair();
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == MESSAGES {
            list.pop_front();
        }
        list.push_back(StatusMessage {
            unix_ns,
            severity,
            text,
        });
    }

    /// All that is kept, oldest first.
    pub fn all(&self) -> Vec<StatusMessage> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().cloned().collect()
    }
}
