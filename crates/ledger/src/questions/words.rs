//! Values in words, for the sentences in coverage notes.
//!
//! Owns: the words for people. Refuses: anything that a program would read.

/// A device in words: `device 0`, or `an unknown device`.
pub(crate) fn device(ordinal: Option<i32>) -> String {
    match ordinal {
        Some(ordinal) => format!("device {ordinal}"),
        None => "an unknown device".to_owned(),
    }
}
