//! The simulated devices' logs: a line for each call of an allocator.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A log file that simulated devices write.
pub struct CallLog {
    file: PathBuf,
}

impl CallLog {
    /// A log of this name in a folder.
    pub fn inside(folder: &Path, name: &str) -> CallLog {
        CallLog {
            file: folder.join(name),
        }
    }

    /// The value of `SIMCUDA_LOG` or `SIMCANN_LOG`.
    pub fn path(&self) -> &str {
        self.file.to_str().expect("a path in UTF-8")
    }

    /// Every call of a process, in order.
    pub fn calls(&self, pid: u32) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let calls = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a line of the log"));
        calls.filter(|call| call["pid"] == pid).collect()
    }
}

/// A number as the log writes addresses and flags.
pub fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a number in hexadecimal")
}
