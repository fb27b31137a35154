//! The result of reading a symbol that begins like that of a row's function.

use crate::row::Variant;

/// What a symbol is that begins like that of a row's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The symbol is this variant of the function.
    Is(Variant),
    /// The symbol is a piece of the function that is not entered by a call (`.cold`). It is ignored without a note.
    Piece,
    /// The places of its arguments are not known. The text is the reason, for users.
    Refused(String),
}
