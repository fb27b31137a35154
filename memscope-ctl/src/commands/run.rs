//! What every command has.

use crate::failure::{Exit, Failure};
use crate::session::Session;

/// A command: what it takes, in fields, and what it does. The documentation of the type is its help.
pub(super) trait Run {
    /// Why it makes no sense of a recording, and what helps; `None`: it does.
    const NO_RECORDING: Option<(&'static str, &'static str)> = None;

    /// Whether something is left behind if it is killed while it works: then it is ended by a signal in its own time.
    const CLEANS_UP: bool = false;

    /// Refuses what makes no sense, before anything is asked or started.
    fn check(&self, _: &Session) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure>;
}
