//! Records of what programs report through mstx about memory pools of their own: domains, heaps and regions.

use crate::record::{RecordHeader, record};

/// Functions of mstx that report about pools. The numbers are used in the cookie only, not in records.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionOp {
    /// `mstxDomainCreateA(name)`; the handle is the result.
    Domain = 1,
    /// `mstxMemHeapRegister(domain, description)`; the handle is the result.
    HeapRegister = 2,
    /// `mstxMemHeapUnregister(domain, handle)`.
    HeapUnregister = 3,
    /// `mstxMemRegionsRegister(domain, batch)`; it may write handles where the batch says.
    Register = 4,
    /// `mstxMemRegionsUnregister(domain, batch)`.
    Unregister = 5,
}

/// `RegionRecord::what`: a heap was registered.
pub const HEAP_CAME: u16 = 1;
/// `RegionRecord::what`: a heap was unregistered; `handle` names it.
pub const HEAP_WENT: u16 = 2;
/// `RegionRecord::what`: a region was registered.
pub const REGION_CAME: u16 = 3;
/// `RegionRecord::what`: a region was unregistered; `ptr` names it.
pub const REGION_WENT: u16 = 4;
/// `RegionRecord::what`: a region was unregistered; `handle` names it.
pub const REGION_WENT_BY_HANDLE: u16 = 5;

/// Most regions of one call that get a record each. Of the regions beyond this number only the count is reported.
pub const REGIONS_TOLD: usize = 16;
/// Bytes of a domain's name that are kept.
pub const DOMAIN_NAME: usize = 64;

/// A call of an mstx function that a thread has entered and not yet left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionCall {
    /// [`RegionOp`] as a number.
    pub op: u64,
    /// Stack pointer at the entry.
    pub sp: u64,
    /// First two arguments of the call.
    pub args: [u64; 2],
}

record! {
    /// `mstxDomainCreateA` returned a domain.
    #[kind(KIND_DOMAIN = 14)]
    #[first_len(128)]
    pub struct DomainRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Handle of the domain; 0 where no tool is attached to mstx, as for the default domain that always exists.
        pub handle: u64,
        /// Bytes of the name that are in `name`.
        pub name_len: u32,
        /// Always zero.
        pub reserved: u32,
        /// First bytes of the name.
        pub name: [u8; DOMAIN_NAME],
    }
}

record! {
    /// A heap or a region was registered or unregistered.
    #[kind(KIND_REGION = 15)]
    #[first_len(104)]
    pub struct RegionRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Handle of the domain that the call names.
        pub domain: u64,
        /// Address where the heap or region begins; 0 where the call does not give it.
        pub ptr: u64,
        /// Size in bytes; 0 where the call does not give it.
        pub size: u64,
        /// Handle of the region or heap itself; 0: it has none, or it could not be read.
        pub handle: u64,
        /// Handle of the heap that the program names as the owner of a region. A program may leave the field unset; its
        /// value is arbitrary then.
        pub heap: u64,
        /// Device ordinal, or [`crate::DEVICE_UNKNOWN`].
        pub device: i32,
        /// What happened: one of the constants `HEAP_*` and `REGION_*` above.
        pub what: u16,
        /// Always zero.
        pub reserved: u16,
        /// Number of regions of the same call that get no record. It is not 0 only in the last record of a call.
        pub untold: u32,
        /// Always zero.
        pub reserved_too: u32,
    }
}

const _: () = assert!(size_of::<RegionCall>() == 32);
