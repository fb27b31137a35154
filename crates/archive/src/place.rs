//! Where a file lies: `TABLE/v1/date=…/cluster=…/job=…/NAME.parquet`.

use crate::table::VERSION;

/// Longest name, in bytes after encoding, that stands in a path as it is. File systems take 255 bytes for a part of a path.
const LONGEST: usize = 160;

/// Where a file of the archive lies, without its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of the table.
    pub table: String,
    /// Day, `YYYY-MM-DD`.
    pub date: String,
    /// Name of the cluster, as it was given.
    pub cluster: String,
    /// Name of the job, as it was given.
    pub job: String,
}

impl Place {
    /// The path of the file with this name, within the archive.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!(
            "{}/v{VERSION}/date={}/cluster={}/job={}/{name}.parquet",
            self.table,
            encoded(&self.date),
            encoded(&self.cluster),
            encoded(&self.job)
        )
    }
}

/// A name as a part of a path. Whoever started a job chose its name, so nothing in it may lead elsewhere: all but letters, digits, `-`, `_` and
/// `.` is written as `%` and two hexadecimal digits, as Hive does it. Names that are too long end in a number that follows from the whole name.
#[must_use]
pub fn encoded(name: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                text.push(char::from(byte));
            }
            _ => {
                // Writing to a text cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    if text.is_empty() {
        return "none".to_owned();
    }
    if text.len() > LONGEST {
        text.truncate(LONGEST);
        // A code that was cut in two is left out.
        if let Some(at) = text.rfind('%').filter(|at| at + 3 > text.len()) {
            text.truncate(at);
        }
        let _ = write!(text, "-{:016x}", fnv(name.as_bytes()));
    }
    text
}

/// FNV-1a: the same in every build, as the path of what is written again must be.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hostile_names_stay_in_their_folder() {
        let path = |job: &str| {
            let place = Place {
                table: "steps".into(),
                date: "2026-01-02".into(),
                cluster: "a b".into(),
                job: job.into(),
            };
            place.path("f")
        };
        let begin = "steps/v1/date=2026-01-02/cluster=a%20b/job=";
        assert_eq!(
            path("../../etc/x"),
            format!("{begin}..%2F..%2Fetc%2Fx/f.parquet")
        );
        assert_eq!(path(""), format!("{begin}none/f.parquet"));
        assert_eq!(path("a=b\n%\0"), format!("{begin}a%3Db%0A%25%00/f.parquet"));
    }

    proptest! {
        #[test]
        fn no_name_leads_elsewhere(job in ".{0,300}", other in ".{0,300}") {
            let one = encoded(&job);
            prop_assert!(one.len() < 200 && !one.is_empty());
            prop_assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.%".contains(&byte)));
            if job != other && !job.is_empty() && !other.is_empty() {
                prop_assert_ne!(one, encoded(&other));
            }
        }
    }
}
