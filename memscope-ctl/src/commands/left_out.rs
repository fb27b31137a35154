//! Stands in for commands in a build without them.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::session::Session;
use clap::Args;
use std::ffi::OsString;

#[cfg(not(feature = "report"))]
pub(super) use LeftOut as Report;
#[cfg(not(feature = "top"))]
pub(super) use LeftOut as Top;

/// Left out of this memscope-ctl when it was built
#[derive(Args, Debug)]
pub(super) struct LeftOut {
    #[arg(allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

impl Run for LeftOut {
    // It is refused for what it is, also with --fleet.
    const FLEET: bool = true;

    fn check(&self, _: &Session) -> Result<(), Failure> {
        Err(Failure::left_out("this command"))
    }

    async fn run(&self, _: &Session) -> Result<Exit, Failure> {
        Err(Failure::left_out("this command"))
    }
}
