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

/// Number of steps before a late attach.
const BEFORE_LATE: u64 = 20;

impl Mode {
    /// Number of steps that a script makes before memscope attaches.
    pub fn steps_before(self) -> u64 {
        match self {
            Mode::FromStart => 0,
            Mode::Late => BEFORE_LATE,
        }
    }

    /// Name of the mode in the table.
    pub fn word(self) -> &'static str {
        match self {
            Mode::FromStart => "from-start",
            Mode::Late => "late",
        }
    }
}
