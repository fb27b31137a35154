//! The sites that were found in a process, and the functions that are missing.

use std::path::PathBuf;

use memscope_common::Cookie;
use memscope_vendors::{Layer, Row, Variant};

use crate::calls::{NoCalls, TraceCalls};
use crate::file_sites::Why;
use crate::identity::FileIdentity;
use crate::mapped::OpenedBy;
use crate::settings::SettingsPlace;

/// What was found in a process.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// Objects with at least one site of the level, in address order.
    pub objects: Vec<ObjectSites>,
    /// Functions that were looked for and get no probe, with the reasons.
    pub missing: Vec<Missing>,
    /// The function that the dynamic linker calls when objects were mapped or unmapped.
    pub loader_hook: Option<LoaderHook>,
    /// Address of PyTorch's pointer to the allocator in use ([`crate::backend`]).
    pub allocator_address: Option<u64>,
    /// File that contains this pointer.
    pub allocator_file: Option<FileIdentity>,
    /// Address of PyTorch's number of devices: a 32-bit number, which is 0 until PyTorch has asked for it.
    pub device_count_address: Option<u64>,
    /// Addresses at which PyTorch's allocator settings may be ([`crate::settings`]).
    pub settings: Vec<SettingsPlace>,
    /// Whether a library with PyTorch's caching allocator is mapped.
    pub pytorch: bool,
    /// Whether torch_npu's library is mapped. If so, its allocator is the one in use, whatever else PyTorch was built
    /// with.
    pub torch_npu: bool,
    /// Whether a device's runtime or driver is mapped, even if no probe may stand in it.
    pub device_library: bool,
    /// Whether a file was not delivered in time, so that it may be found if it is looked at again, without any change of the mappings.
    pub undelivered: bool,
    /// Number of executable objects that were examined.
    pub examined: usize,
    /// Number of these objects whose file had to be searched; for the others an earlier result was used.
    pub scanned: usize,
    /// Bytes of the files' tables that were read. A file that is known is not read at all.
    pub read_bytes: u64,
    /// Bytes of code that were decoded, and of names that were compared.
    pub looked_at_bytes: u64,
}

/// One mapped file and its sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSites {
    /// A path to this same file, which can be used for an attach while the mapping exists.
    pub open_path: PathBuf,
    /// How the file was opened.
    pub opened_by: OpenedBy,
    /// Path in the process's mount namespace, for users.
    pub display_path: String,
    /// Identity of the file.
    pub identity: FileIdentity,
    /// Number that is added (wrapping) to an address in the file's own numbering to get the address in memory.
    pub base: u64,
    /// The sites in this file.
    pub sites: Vec<FoundSite>,
    /// Whether the path no longer names this file.
    pub deleted: bool,
}

/// A function that a probe can be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSite {
    /// Row of the function in the vendors' tables.
    pub row: &'static Row,
    /// Variant of the function.
    pub variant: Variant,
    /// Symbol that was found. For functions that were found without a symbol it is the row's name.
    pub symbol: String,
    /// Other symbols at the same address.
    pub aliases: Vec<String>,
    /// Offset of the function's first instruction in the file.
    pub function_offset: u64,
    /// Offset in the file of the entry probe.
    pub entry_offset: u64,
    /// Offset in the file of the return probe, if the row wants one.
    pub return_offset: Option<u64>,
    /// Whether the kernel emulates the instruction at the entry probe.
    pub emulated: bool,
    /// Bytes pushed on the stack between the function's entry and the entry probe.
    pub pushed: u32,
    /// Address of the function in the process.
    pub address: u64,
    /// Which instruction the probe stands on, and why, in words for users.
    pub reason: String,
    /// For PyTorch's `record_trace`: where it is called, or why that cannot be used.
    pub calls: Option<Result<TraceCalls, NoCalls>>,
}

impl FoundSite {
    /// The attach cookie for this site, with the number that the daemon gave to the site.
    pub fn cookie(&self, site: u32) -> Cookie {
        self.row.cookie(site, self.variant)
    }
}

/// The dynamic linker's hook: the function that it calls when objects were mapped or unmapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderHook {
    /// A path to the linker's file that is mapped.
    pub open_path: PathBuf,
    /// Path in the process's mount namespace, for users.
    pub display_path: String,
    /// Identity of the file.
    pub identity: FileIdentity,
    /// The function in the linker's file.
    pub site: FoundSite,
}

/// A function without a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Path of the object in the process's mount namespace; `the process` if no object has the function.
    pub library: String,
    /// Name of the function; `*` for all functions of an object.
    pub function: String,
    /// Layer of the function; `None` for all functions of an object.
    pub layer: Option<Layer>,
    /// Reason why there is no probe.
    pub why: Why,
}

impl Missing {
    /// Whether this need not be reported, since no program that is in use today calls the function.
    pub fn is_harmless(&self) -> bool {
        self.why == Why::Narrow
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.function.as_str() {
            "*" => write!(f, "{}: {}", self.library, self.why),
            function => write!(f, "{function} in {}: {}", self.library, self.why),
        }
    }
}
