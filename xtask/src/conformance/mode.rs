//! When memscope attaches to a script that is compared.

use clap::ValueEnum;

/// When memscope attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Before the first allocation: state and whole trace
    FromStart,
    /// After the script has run once, with what it left alive: then it runs again
    Late,
}

impl Mode {
    /// Name of the mode for the wrapper and in the table.
    pub fn word(self) -> &'static str {
        match self {
            Mode::FromStart => "from-start",
            Mode::Late => "late",
        }
    }
}
