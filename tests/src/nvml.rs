//! What the simulated NVML says to a daemon: a file that a test writes.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::daemon::Daemon;
use crate::places::scratch;
use crate::sim::sim;
use tempfile::TempDir;

/// Bytes of each device.
pub const DEVICE_BYTES: u64 = 16 << 30;

/// A machine as NVML shows it: devices of 16 GiB.
pub struct Machine {
    folder: TempDir,
    devices: u32,
}

impl Machine {
    /// As many devices as numbers: the bytes of each that are in use, by whomever.
    pub fn new(used: &[u64]) -> Machine {
        let machine = Machine {
            folder: scratch(),
            devices: used.len() as u32,
        };
        machine.uses(used);
        machine
    }

    /// So much is in use of each device from now on, and nothing else is said.
    pub fn uses(&self, used: &[u64]) {
        self.says(used, "");
    }

    /// The same, and these lines, which `tests/simcuda/README.md` describes.
    pub fn says(&self, used: &[u64], lines: &str) {
        let mut text = String::new();
        for bytes in used {
            writeln!(text, "{bytes}").unwrap();
        }
        // Whoever reads it finds one text or the other.
        let new = self.folder.path().join("new");
        std::fs::write(&new, text + lines).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    /// The file, for a program on the same machine.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("used")
    }

    /// The UUID that this device has.
    pub fn uuid(device: u64) -> String {
        format!("GPU-6d656d73-636f-7065-5ca1-ab1e{device:08x}")
    }

    /// A daemon on this machine.
    pub fn daemon(&self, arguments: &[&str]) -> Daemon {
        let nvml = sim().library("libnvidia-ml.so.");
        self.daemon_with(nvml.parent().unwrap(), arguments)
    }

    /// A daemon that finds its libraries in this folder.
    pub fn daemon_with(&self, libraries: &Path, arguments: &[&str]) -> Daemon {
        let settings = [
            "env".to_owned(),
            format!("LD_LIBRARY_PATH={}", libraries.display()),
            format!("SIMCUDA_DEVICES={}", self.devices),
            format!("SIMCUDA_DEVICE_SIZE={DEVICE_BYTES}"),
            format!("SIMCUDA_NVML_USED={}", self.file().display()),
        ];
        Daemon::wrapped(&settings.each_ref().map(String::as_str), arguments)
    }
}
