//! Calls of the vendor's runtime and of its driver.
//!
//! Owns: what one call did, and what it was told. Refuses: what follows from it, which `state::driver` knows.

use super::hal::HalFacts;
use memscope_vendors::Vendor;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which layer's function it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// libcudart, or a copy of it inside another object; libascendcl.
    Runtime,
    /// libcuda; libascend_hal.
    Driver,
}

/// What a runtime or driver call did. See `memscope_common::Op` for the numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the operations
pub enum CallOp {
    Alloc,
    Free,
    AsyncAlloc,
    AsyncFree,
    ManagedAlloc,
    HostAlloc,
    HostFree,
    HostRegister,
    HostUnregister,
    Reserve,
    ReserveFree,
    Create,
    Release,
    Map,
    Unmap,
    Retain,
    Import,
    IpcOpen,
    IpcClose,
    MemInfo,
    Reset,
    ArrayAlloc,
    ArrayFree,
}

/// One outermost runtime or driver call. Calls made inside it are not events: they are counted in
/// `nested`.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Function name as exported (`cudaMalloc`).
    pub function: Arc<str>,
    /// Which layer's function.
    pub layer: Layer,
    /// Whose function.
    pub vendor: Vendor,
    /// What it does.
    pub op: CallOp,
    /// 0 is success; only such calls change the state.
    pub status: i32,
    /// Device ordinal, if there is evidence.
    pub device: Option<i32>,
    /// Result or argument pointer. `Free` of 0 is legal and means nothing.
    pub ptr: u64,
    /// Bytes (0 where not known: IPC, arrays). `MemInfo`: total bytes.
    pub size: u64,
    /// Raw stream, where the call has one.
    pub stream: Option<u64>,
    /// Physical handle (`Create`, `Release`, `Map`, `Retain`, `Import`), array, or pool.
    pub handle: u64,
    /// `Map`: offset. `MemInfo`: free bytes. `HostRegister` on Ascend: flags.
    pub extra: u64,
    /// What Ascend's driver was told about the memory, in this call or in one that it made inside this one.
    pub hal: Option<HalFacts>,
    /// Allocator calls inside this one that were not sent.
    pub nested: u32,
    /// Nanoseconds inside the call.
    pub duration_ns: u64,
}

/// `ACL_HOST_REG_PINNED`.
const REGISTERED_PINNED: u64 = 0x1000_0000;

impl Call {
    /// Whether memory that this call registers is page-locked by it. Ascend's newer function says so by a flag; without
    /// that the memory is only mapped for the device.
    pub fn is_page_locked(&self) -> bool {
        &*self.function != "aclrtHostRegisterV2" || self.extra & REGISTERED_PINNED != 0
    }
}
