//! Stands in for OTLP in a build without it: nothing is sent.

use super::options::Options;
use crate::keeper::KeeperHandle;
use crate::messages::Messages;
use crate::metrics::Source;
use crate::tracer::Since;
use memscope_metrics::Pushed;
use std::convert::Infallible;
use std::sync::Arc;

/// Why nothing can be sent to a collector.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// It was left out when the program was built.
    #[error(
        "this memscoped was built without OTLP (--otlp-endpoint) — build it with its default features, of which one is `otlp`"
    )]
    LeftOut,
}

/// What connections to a collector are made with, which nobody can have.
pub struct Settings(Infallible);

impl Settings {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: Options) -> Result<Settings, OtlpError> {
        Err(OtlpError::LeftOut)
    }
}

/// What waits, which is nothing.
#[derive(Clone)]
pub struct Queues;

impl Queues {
    /// Empty ones.
    #[must_use]
    pub fn new(_: &Messages) -> Queues {
        Queues
    }

    /// Nothing.
    #[must_use]
    pub fn counts(&self) -> Vec<Pushed> {
        Vec::new()
    }
}

/// What would send.
pub struct Pusher(Infallible);

impl Pusher {
    /// Nobody has settings to begin with.
    #[must_use]
    pub fn start(
        settings: Settings,
        _: Queues,
        _: Arc<Source>,
        _: (KeeperHandle, Since),
        _: &Messages,
    ) -> Pusher {
        match settings.0 {}
    }

    /// Nothing has begun.
    pub async fn finish(self) {
        match self.0 {}
    }
}
