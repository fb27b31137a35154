//! What programs tell through mstx of pools of their own: domains, heaps and regions.

use crate::record::{RecordHeader, record};

/// Functions of mstx that tell of pools. The numbers travel in the cookie only.
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

/// `RegionRecord::what`: a heap came.
pub const HEAP_CAME: u16 = 1;
/// A heap went; `handle` says which.
pub const HEAP_WENT: u16 = 2;
/// A region came.
pub const REGION_CAME: u16 = 3;
/// A region went; `ptr` says which.
pub const REGION_WENT: u16 = 4;
/// A region went; `handle` says which.
pub const REGION_WENT_BY_HANDLE: u16 = 5;

/// Regions of one call that are told of; of the rest, how many there were.
pub const REGIONS_TOLD: usize = 16;
/// Bytes of a domain's name that are kept.
pub const DOMAIN_NAME: usize = 64;

/// A call that a thread is inside of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionCall {
    /// [`RegionOp`] as a number.
    pub op: u64,
    /// Stack pointer at the entry.
    pub sp: u64,
    /// The first two arguments.
    pub args: [u64; 2],
}

record! {
    /// `mstxDomainCreateA` returned.
    #[kind(KIND_DOMAIN = 14)]
    #[first_len(128)]
    pub struct DomainRecord {
        /// Common part.
        pub header: RecordHeader,
        /// The handle; 0 where no tool takes part, as for the domain that is always there.
        pub handle: u64,
        /// Bytes of the name that were kept.
        pub name_len: u32,
        /// Zero.
        pub reserved: u32,
        /// The name's first bytes.
        pub name: [u8; DOMAIN_NAME],
    }
}

record! {
    /// A heap or a region came or went.
    #[kind(KIND_REGION = 15)]
    #[first_len(104)]
    pub struct RegionRecord {
        /// Common part.
        pub header: RecordHeader,
        /// The domain's handle.
        pub domain: u64,
        /// Address.
        pub ptr: u64,
        /// Bytes.
        pub size: u64,
        /// The region's or heap's own handle; 0: none, or not read.
        pub handle: u64,
        /// Handle of the heap that a region is said to be of. A program may leave it unset, and it is anything then.
        pub heap: u64,
        /// Device ordinal, or [`crate::DEVICE_UNKNOWN`].
        pub device: i32,
        /// One of the constants above.
        pub what: u16,
        /// Zero.
        pub reserved: u16,
        /// Regions of the same call that are not told of: not 0 only in the last record of a call.
        pub untold: u32,
        /// Zero.
        pub reserved_too: u32,
    }
}

const _: () = assert!(size_of::<RegionCall>() == 32);
