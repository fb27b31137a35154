//! Versions of CPython, as `PY_VERSION_HEX` writes them.

use std::fmt;

/// A version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Always 3.
    pub major: u8,
    /// The 11 of 3.11.7.
    pub minor: u8,
    /// The 7 of 3.11.7; before 3.11 it cannot always be determined.
    pub micro: Option<u8>,
    /// Whether it is a release, or an alpha, a beta or a candidate for one.
    pub release: Release,
}

/// Kind of a release, with the number of an alpha, beta or candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// An alpha: CPython's structures may still change after it.
    Alpha(u8),
    /// A beta: CPython's structures may still change after it.
    Beta(u8),
    /// A release candidate.
    Candidate(u8),
    /// A final release.
    Final,
    /// Not known, because only the first two numbers of the version are known.
    Unknown,
}

/// The oldest supported minor version of Python 3.
pub const FIRST: u8 = 9;
/// The newest supported minor version of Python 3.
pub const LAST: u8 = 15;

impl Version {
    /// A version of which only major and minor number are known.
    pub fn minor_only(minor: u8) -> Version {
        Version {
            major: 3,
            minor,
            micro: None,
            release: Release::Unknown,
        }
    }

    /// Reads a value of `PY_VERSION_HEX`; `None` for a value that no CPython 3 has.
    pub fn from_hex(hex: u64) -> Option<Version> {
        let hex = u32::try_from(hex).ok()?;
        let [major, minor, micro, last] = hex.to_be_bytes();
        let serial = last & 15;
        let release = match last >> 4 {
            0xa => Release::Alpha(serial),
            0xb => Release::Beta(serial),
            0xc => Release::Candidate(serial),
            0xf => Release::Final,
            _ => return None,
        };
        (major == 3).then_some(Version {
            major,
            minor,
            micro: Some(micro),
            release,
        })
    }

    /// Reads a text as the sources define it as `PY_VERSION`: `3.9.2`, `3.12.0rc1`, `3.10.4+`.
    pub fn from_text(text: &str) -> Option<Version> {
        let rest = text.strip_suffix('+').unwrap_or(text).strip_prefix("3.")?;
        let (minor, rest) = rest.split_once('.')?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (micro, tail) = rest.split_at(end);
        let serial = |text: &str| number(text);
        let release = if tail.is_empty() {
            Release::Final
        } else if let Some(text) = tail.strip_prefix("rc") {
            Release::Candidate(serial(text)?)
        } else if let Some(text) = tail.strip_prefix('a') {
            Release::Alpha(serial(text)?)
        } else if let Some(text) = tail.strip_prefix('b') {
            Release::Beta(serial(text)?)
        } else {
            return None;
        };
        Some(Version {
            major: 3,
            minor: number(minor)?,
            micro: Some(number(micro)?),
            release,
        })
    }

    /// Whether this crate knows the version's structures: no alphas, no betas.
    pub fn is_supported(&self) -> bool {
        (FIRST..=LAST).contains(&self.minor)
            && !matches!(self.release, Release::Alpha(_) | Release::Beta(_))
    }
}

fn number(text: &str) -> Option<u8> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if let Some(micro) = self.micro {
            write!(f, ".{micro}")?;
        }
        match self.release {
            Release::Alpha(serial) => write!(f, "a{serial}"),
            Release::Beta(serial) => write!(f, "b{serial}"),
            Release::Candidate(serial) => write!(f, "rc{serial}"),
            Release::Final | Release::Unknown => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_and_text_agree() {
        for (hex, text) in [
            (0x0309_02f0, "3.9.2"),
            (0x030b_00c1, "3.11.0rc1"),
            (0x030d_00a3, "3.13.0a3"),
            (0x030f_02f0, "3.15.2"),
        ] {
            let version = Version::from_hex(hex).unwrap();
            assert_eq!(Some(version), Version::from_text(text));
            assert_eq!(version.to_string(), text);
        }
        assert_eq!(
            Version::from_text("3.9.18+"),
            Version::from_hex(0x0309_12f0)
        );
    }

    #[test]
    fn what_is_no_version() {
        for text in [
            "3.9", "3.9.", "3..1", "3.9.1x", "2.7.18", "3.9.999", "3.+.1", "",
        ] {
            assert_eq!(Version::from_text(text), None, "{text}");
        }
        for hex in [0, 0x0209_12f0, 0x0309_1200, 0x1_0309_02f0] {
            assert_eq!(Version::from_hex(hex), None, "{hex:x}");
        }
    }

    #[test]
    fn supported() {
        let supported = |text| Version::from_text(text).unwrap().is_supported();
        assert!(supported("3.9.0") && supported("3.15.2") && supported("3.14.0rc3"));
        assert!(!supported("3.8.18") && !supported("3.16.0") && !supported("3.13.0b1"));
    }
}
