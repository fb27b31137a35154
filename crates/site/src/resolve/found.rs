//! What was found in a process, and what was looked for and is missing.

use std::path::PathBuf;

use memscope_common::Cookie;
use memscope_vendors::{Layer, Row, Variant};

use crate::file_sites::Why;
use crate::identity::FileIdentity;
use crate::mapped::OpenedBy;
use crate::settings::SettingsPlace;

/// What a process has.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// Objects with at least one site of the level, in address order.
    pub objects: Vec<ObjectSites>,
    /// What was looked for and has no probe, with the reason.
    pub missing: Vec<Missing>,
    /// Where the dynamic linker tells that objects were mapped or unmapped.
    pub loader_hook: Option<LoaderHook>,
    /// Address of PyTorch's pointer to the allocator in use ([`crate::backend`]).
    pub allocator_address: Option<u64>,
    /// The file that it is from.
    pub allocator_file: Option<FileIdentity>,
    /// Address of PyTorch's number of devices: a 32-bit number, 0 until PyTorch asked for it.
    pub device_count_address: Option<u64>,
    /// Where PyTorch's allocator settings may be ([`crate::settings`]).
    pub settings: Vec<SettingsPlace>,
    /// PyTorch's CUDA allocator library is mapped.
    pub pytorch: bool,
    /// torch_npu's library is mapped: its allocator is the one in use, whatever else PyTorch was built with.
    pub torch_npu: bool,
    /// A device's runtime or driver is mapped, whether or not a probe may stand in it.
    pub device_library: bool,
    /// Executable objects looked at.
    pub examined: usize,
    /// Of these, objects whose file had to be read (the others were remembered).
    pub scanned: usize,
}

/// One object and its sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSites {
    /// A path to this very file, good for an attach while the mapping exists.
    pub open_path: PathBuf,
    /// How the file was found.
    pub opened_by: OpenedBy,
    /// Path as the process knows it.
    pub display_path: String,
    /// Which file.
    pub identity: FileIdentity,
    /// Runtime address = this + the file's own address (wrapping).
    pub base: u64,
    /// Sites.
    pub sites: Vec<FoundSite>,
    /// The path no longer names this file.
    pub deleted: bool,
}

/// A function that a probe can be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSite {
    /// Which function it is.
    pub row: &'static Row,
    /// Which variant.
    pub variant: Variant,
    /// The symbol that was found.
    pub symbol: String,
    /// Other symbols at the same address.
    pub aliases: Vec<String>,
    /// Offset of the function's first instruction in the file.
    pub function_offset: u64,
    /// File offset for the entry probe.
    pub entry_offset: u64,
    /// File offset for the return probe, where the row wants one.
    pub return_offset: Option<u64>,
    /// The kernel emulates the instruction there.
    pub emulated: bool,
    /// Bytes pushed between the function's entry and the entry probe.
    pub pushed: u32,
    /// Address of the function in the process.
    pub address: u64,
    /// Why the probe stands there: one sentence.
    pub reason: String,
}

impl FoundSite {
    /// The attach cookie.
    pub fn cookie(&self, site: u32) -> Cookie {
        self.row.cookie(site, self.variant)
    }
}

/// The dynamic linker's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderHook {
    /// A path to the linker that is mapped.
    pub open_path: PathBuf,
    /// Path as the process knows it.
    pub display_path: String,
    /// Which file.
    pub identity: FileIdentity,
    /// The function.
    pub site: FoundSite,
}

/// A function without a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Path of the object, as the process knows it.
    pub library: String,
    /// The function; `*` for all of an object.
    pub function: String,
    /// Its layer, where it is one function.
    pub layer: Option<Layer>,
    /// Why.
    pub why: Why,
}

impl Missing {
    /// Nobody needs to be told: nothing in use today goes through it.
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
