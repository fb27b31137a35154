//! Numbers in words, for the sentences in coverage notes and verdicts.
//!
//! Owns: rounding for people. Refuses: anything a program would read.

/// `device 0`, `an unknown device`.
pub(crate) fn device(ordinal: Option<i32>) -> String {
    match ordinal {
        Some(ordinal) => format!("device {ordinal}"),
        None => "an unknown device".to_owned(),
    }
}
