//! What is known of a vendor before a process is examined: its name, its libraries, its functions.

use crate::row::Row;
use crate::vendor::Vendor;

/// What is known of a vendor.
#[derive(Debug)]
pub struct Facts {
    /// The vendor itself.
    pub vendor: Vendor,
    /// Name of the vendor and its platform, for users.
    pub name: &'static str,
    /// Name of its devices in answers: `cuda`, `npu`, `hip`.
    pub device_kind: &'static str,
    /// Environment variable that chooses which devices a process sees.
    pub visible_devices: &'static str,
    /// Environment variables that choose devices, or change what the allocator does. They are read at the attach.
    pub settings: &'static [&'static str],
    /// Libraries by which a process that uses its devices is recognised.
    pub libraries: &'static [Library],
    /// Tables of its functions.
    pub rows: &'static [&'static [Row]],
}

/// A library by which a process is recognised.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Name without version: the files of `libcudart` are `libcudart.so.13` and `libcudart-0d7a4d33.so.12`, but not
    /// `libcudart_static.a`.
    pub name: &'static str,
    /// Whether the library belongs to a framework. A framework that was built for the vendor loads it always, even if
    /// the process uses other devices.
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
