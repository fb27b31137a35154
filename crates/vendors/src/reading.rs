//! What a symbol says that begins like a function's.

use crate::row::Variant;

/// What a symbol that begins like a row's is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// This variant.
    Is(Variant),
    /// A piece of the function that is not an entry of its own (`.cold`): nothing to say.
    Piece,
    /// Not one whose arguments we know; why.
    Refused(String),
}
