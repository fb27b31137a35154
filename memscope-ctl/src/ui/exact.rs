//! Integers that JavaScript would read with other digits.
//!
//! A number of JavaScript has 53 bits. Times in nanoseconds since 1970 and the numbers of stacks have more; such integers are sent as strings
//! to whoever asks for exact numbers, and all others as numbers.

use std::io::Write as _;

/// The largest integer that JavaScript has exactly, as it has all smaller ones.
const LARGEST: u64 = (1 << 53) - 1;
/// Integers with fewer digits are below it.
const FEW_DIGITS: usize = 16;

/// What a page names in `Accept` to get exact numbers.
pub(crate) const ACCEPT: &str = "numbers=exact";

/// Writes an integer: as a number, or as a string if a number would not be exact.
pub(crate) fn integer(value: u64, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = match value > LARGEST {
        true => write!(out, "\"{value}\""),
        false => write!(out, "{value}"),
    };
}

/// The same JSON, with integers that JavaScript would change as strings.
pub(crate) fn exact(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() + json.len() / 16);
    let mut rest = json;
    while let Some(&first) = rest.first() {
        let length = match first {
            b'"' => string(rest),
            b'-' | b'0'..=b'9' => number(rest),
            _ => 1,
        };
        let (token, behind) = rest.split_at(length.min(rest.len()));
        match is_large(token) {
            true => {
                out.push(b'"');
                out.extend_from_slice(token);
                out.push(b'"');
            }
            false => out.extend_from_slice(token),
        }
        rest = behind;
    }
    out
}

/// Length of the string with which the text begins, with its quotes.
fn string(text: &[u8]) -> usize {
    let mut place = 1;
    while let Some(byte) = text.get(place) {
        match byte {
            b'\\' => place += 2,
            b'"' => return place + 1,
            _ => place += 1,
        }
    }
    text.len()
}

/// Length of the number with which the text begins.
fn number(text: &[u8]) -> usize {
    let is_of_number = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
    text.iter().take_while(|byte| is_of_number(byte)).count()
}

fn is_large(token: &[u8]) -> bool {
    let digits = token.strip_prefix(b"-").unwrap_or(token);
    if digits.len() < FEW_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let value = std::str::from_utf8(digits).ok();
    let value = value.and_then(|digits| digits.parse::<u64>().ok());
    value.is_none_or(|value| value > LARGEST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn changed(document: &Value) -> Value {
        serde_json::from_slice(&exact(&serde_json::to_vec(document).unwrap())).unwrap()
    }

    #[test]
    fn only_what_is_too_large_becomes_a_string() {
        let document = json!({
            "small": 1, "largest": LARGEST, "above": LARGEST + 1, "most": u64::MAX, "least": i64::MIN,
            "below": -9_007_199_254_740_991_i64, "half": 0.5, "far": 1e300, "long": 12345678901234567.25,
            "text": "12345678901234567890, \" \\", "9999999999999999999": [u64::MAX, 3],
        });
        let expected = json!({
            "small": 1, "largest": LARGEST, "above": "9007199254740992", "most": "18446744073709551615",
            "least": "-9223372036854775808", "below": -9_007_199_254_740_991_i64, "half": 0.5, "far": 1e300,
            "long": 12345678901234567.25, "text": "12345678901234567890, \" \\",
            "9999999999999999999": ["18446744073709551615", 3],
        });
        assert_eq!(changed(&document), expected);
    }

    #[test]
    fn one_integer_is_written_alike() {
        for value in [0, LARGEST, LARGEST + 1, u64::MAX] {
            let mut out = Vec::new();
            integer(value, &mut out);
            assert_eq!(out, exact(value.to_string().as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn no_text_is_changed(text in ".{0,40}", number: u64) {
            let document = json!({ text.clone(): [text, number as u32] });
            prop_assert_eq!(changed(&document), document);
        }

        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            let out = exact(&bytes);
            prop_assert!(out.len() <= bytes.len() * 2);
        }
    }
}
