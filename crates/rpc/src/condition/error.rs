//! Error of a text that cannot be parsed as a condition.

/// A text that cannot be parsed as a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}; {hint}")]
pub struct ConditionError {
    /// Column of the mistake, in characters from 1; one past the end where something is missing.
    pub column: usize,
    /// What is wrong, in words for the message.
    pub what: String,
    /// What would be right, in words for the message.
    pub hint: String,
}
