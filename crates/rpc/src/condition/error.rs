//! Why a text is no condition.

/// A text that is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}; {hint}")]
pub struct ConditionError {
    /// Where, in characters from 1; one past the end where something is missing.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub hint: String,
}
