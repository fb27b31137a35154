//! Names of functions and classes as people write them, from the names that compilers give them.
//!
//! A mangled name may refer to its own parts, so that 200 bytes of it stand for terabytes of text. The name comes out of a traced process
//! or its files, so the text is cut off while it is written.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Takes text up to a bound, and stops whoever writes more.
struct Bounded {
    text: String,
    most: usize,
}

impl Bounded {
    fn put(&mut self, text: &str) -> fmt::Result {
        let room = self.most.saturating_sub(self.text.len());
        if text.len() <= room {
            self.text.push_str(text);
            return Ok(());
        }
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
        self.text.push('…');
        Err(fmt::Error)
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text)
    }
}

/// The name as it stands in a C++ or Rust program, cut off after `most` bytes (the cut is marked by `…`). A name that no compiler of these
/// languages has made comes back as it is, cut off likewise.
pub fn demangle(mangled: &str, most: usize) -> String {
    let mut bounded = Bounded {
        text: String::new(),
        most,
    };
    // What was cut off is told by an error, too; the text up to there is wanted.
    if let Ok(name) = rustc_demangle::try_demangle(mangled) {
        let _ = write!(bounded, "{name:#}");
    } else if let Ok(name) = Symbol::new(mangled) {
        let _ = name.structured_demangle(&mut bounded, &DemangleOptions::default());
    }
    if bounded.text.is_empty() {
        let _ = bounded.put(mangled);
    }
    bounded.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_languages_and_others() {
        let name = |mangled| demangle(mangled, 100);
        assert_eq!(name("_ZN2at6Tensor4copyEv"), "at::Tensor::copy()");
        assert_eq!(
            name("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(name("main"), "main");
        assert_eq!(name(""), "");
        assert_eq!(name("_Z"), "_Z");
        assert_eq!(demangle("größer", 3), "gr…");
        assert_eq!(demangle("_ZN2at6Tensor4copyEv", 6), "at::Te…");
    }

    /// `pair<pair<…>, pair<…>>`, as deep as it says: each level names the one inside it twice.
    fn bomb(depth: usize) -> String {
        let mut name = "_Z1fSt4pairI".to_owned();
        name.push_str(&"S_I".repeat(depth - 1));
        name.push_str("iiE");
        for level in 0..depth - 1 {
            let digit = char::from_digit(level as u32, 36).map(|digit| digit.to_ascii_uppercase());
            name.push_str(&format!("S{}_E", digit.unwrap_or('0')));
        }
        name
    }

    #[test]
    fn a_name_that_would_fill_the_memory_is_cut() {
        let small = demangle(&bomb(4), 10_000);
        assert_eq!(small.matches("int").count(), 16, "{small}");
        // Each level doubles it: this one would have 2 to the power of 16 numbers.
        let cut = demangle(&bomb(16), 1024);
        assert!(
            cut.starts_with("f(std::pair<std::pair<") || cut.starts_with("std::pair"),
            "{cut}"
        );
        assert!(cut.len() <= 1024 + '…'.len_utf8(), "{}", cut.len());
        assert!(cut.ends_with('…'));
    }
}
