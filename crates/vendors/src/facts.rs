//! What is known of a vendor before a process is looked at: its name, its libraries, its functions.

use crate::row::Row;
use crate::vendor::Vendor;

/// What is known of a vendor.
#[derive(Debug)]
pub struct Facts {
    /// Which.
    pub vendor: Vendor,
    /// Its name for people.
    pub name: &'static str,
    /// What an answer calls its devices: `cuda`, `npu`, `hip`.
    pub device_kind: &'static str,
    /// The environment variable by which a process chooses among devices.
    pub visible_devices: &'static str,
    /// Environment variables that choose devices, or change what the allocator does: they are read at the attach.
    pub settings: &'static [&'static str],
    /// Libraries by which a process that uses its devices is recognised.
    pub libraries: &'static [Library],
    /// Its functions.
    pub rows: &'static [&'static [Row]],
}

/// A library by which a process is recognised.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Its name: `libcudart` is `libcudart.so.13` and `libcudart-0d7a4d33.so.12`, and not `libcudart_static.a`.
    pub name: &'static str,
    /// It is a framework's, which brings it along wherever it was built for the vendor, also where it uses other devices.
    pub is_frameworks: bool,
}

impl Library {
    pub(crate) const fn of_device(name: &'static str) -> Library {
        Library {
            name,
            is_frameworks: false,
        }
    }

    pub(crate) const fn of_framework(name: &'static str) -> Library {
        Library {
            name,
            is_frameworks: true,
        }
    }

    /// Whether a file with this name, without its folder, is this library.
    pub fn is(&self, file_name: &[u8]) -> bool {
        let rest = file_name.strip_prefix(self.name.as_bytes());
        rest.is_some_and(|rest| matches!(rest.first(), Some(b'.' | b'-')))
    }
}
