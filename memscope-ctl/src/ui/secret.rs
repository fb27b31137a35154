//! Words that nobody can guess: the token in the address, and the cookie of whoever came with it.

use std::io;
use subtle::ConstantTimeEq as _;

/// Bytes from the system's random source in one secret.
const BYTES: usize = 32;

/// A word of 256 random bits.
pub(crate) struct Secret(String);

impl Secret {
    /// Takes a new one from the system's random source.
    pub(crate) fn new() -> io::Result<Secret> {
        let mut bytes = [0_u8; BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Secret(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// The word, to be told to whoever may know it.
    pub(crate) fn word(&self) -> &str {
        &self.0
    }

    /// Whether this is the word. How long that takes says nothing of how much of it is right.
    pub(crate) fn is(&self, said: &str) -> bool {
        self.0.as_bytes().ct_eq(said.as_bytes()).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_is_another_and_knows_only_itself() {
        let (one, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_eq!(one.word().len(), 2 * BYTES);
        assert!(one.word().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(one.is(one.word()));
        assert!(!one.is(other.word()));
        assert!(!one.is(""));
        assert!(!one.is(&one.word()[1..]));
        assert!(!one.is(&format!("{}0", one.word())));
    }
}
