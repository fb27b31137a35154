//! The trait that every command implements.

use crate::failure::{Exit, Failure};
use crate::fleet::Fleet;
use crate::session::Session;

/// A command. The fields of the type are its arguments, and the documentation of the type is its help text.
pub(super) trait Run {
    /// Error message and suggestion where the command cannot be used with `--recording`; `None` if it can.
    const NO_RECORDING: Option<(&'static str, &'static str)> = None;

    /// Whether the command would leave something behind if it were killed. Such a command is dropped on SIGTERM or
    /// SIGINT, so that it can clean up.
    const CLEANS_UP: bool = false;

    /// Whether the command goes on until SIGTERM or SIGINT, waits for these itself, and then ends as it should.
    const ENDS_ITSELF: bool = false;

    /// Whether many nodes can be asked at once, with `--fleet`.
    const FLEET: bool = false;

    /// Refuses arguments that make no sense, before anything is asked or started.
    fn check(&self, _: &Session) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure>;

    /// Asks all nodes of a fleet, and shows one table.
    async fn fleet(&self, _: &Session, _: &Fleet) -> Result<Exit, Failure> {
        Err(Failure::Usage {
            what: "this command cannot ask many nodes at once".into(),
            hint: "leave out --fleet".into(),
        })
    }
}
