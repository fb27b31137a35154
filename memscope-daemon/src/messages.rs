//! Messages of the daemon about itself, for `status`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use memscope_proto::v1;

use crate::clock;

/// Number of messages that are kept.
const MESSAGES: usize = 64;

/// How serious a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Information; nothing is wrong.
    Info,
    /// Something works less well than it should.
    Warning,
    /// Something failed.
    Error,
}

impl Severity {
    /// The word for it in answers.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The latest messages of the daemon about itself. Clones share one list.
#[derive(Clone, Default)]
pub struct Messages(Arc<Mutex<VecDeque<v1::Message>>>);

impl Messages {
    /// Adds a message. If there are too many, the oldest one is dropped.
    pub fn say(&self, severity: Severity, text: String) {
        let (_, unix_ns) = clock::pair();
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == MESSAGES {
            list.pop_front();
        }
        list.push_back(v1::Message {
            time_unix_ns: unix_ns,
            severity: severity.word().to_owned(),
            text,
        });
    }

    /// Adds a message, and writes it into the log.
    pub fn log(&self, severity: Severity, text: String) {
        match severity {
            Severity::Info => tracing::info!("{text}"),
            Severity::Warning => tracing::warn!("{text}"),
            Severity::Error => tracing::error!("{text}"),
        }
        self.say(severity, text);
    }

    /// All messages that are kept, oldest first.
    pub fn all(&self) -> Vec<v1::Message> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().cloned().collect()
    }
}
