//! Whether setup may install what is missing, or only says so.

/// Whether a missing thing is installed or only reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Install it.
    Install,
    /// Say that it is missing.
    Check,
}
