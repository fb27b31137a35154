//! When memscope attaches to a script that is judged.

use clap::ValueEnum;

/// When memscope attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// When the script is imported, before it makes anything
    FromStart,
    /// After 20 steps
    Late,
}

impl Mode {
    /// Name of the mode in the table.
    pub fn word(self) -> &'static str {
        match self {
            Mode::FromStart => "from-start",
            Mode::Late => "late",
        }
    }
}
