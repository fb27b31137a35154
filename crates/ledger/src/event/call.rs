//! Calls of the vendor's runtime and of its driver.
//!
//! Owns: what one call did, and its arguments. Refuses: what follows from it for the state, which `state::driver`
//! knows.

use super::hal::HalFacts;
use memscope_vendors::Vendor;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The layer that a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The runtime: libcudart, or a copy of it inside another object; libascendcl.
    Runtime,
    /// The driver: libcuda; libascend_hal.
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

/// One outermost call of the runtime or the driver. Calls made inside it are no events of their own: they are counted
/// in `nested`.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Name of the function as exported (`cudaMalloc`).
    pub function: Arc<str>,
    /// Layer that the function belongs to.
    pub layer: Layer,
    /// Vendor of that runtime or driver.
    pub vendor: Vendor,
    /// What the function does.
    pub op: CallOp,
    /// Status that the call returned; 0 is success, and only successful calls change the state.
    pub status: i32,
    /// Ordinal of the device within the process, if there is evidence for it.
    pub device: Option<i32>,
    /// Address that the call returned or was given. `Free` of 0 is legal and does nothing.
    pub ptr: u64,
    /// Size in bytes (0 where it is not known: IPC, arrays). For `MemInfo` the device's total bytes.
    pub size: u64,
    /// Raw stream, where the call has one.
    pub stream: Option<u64>,
    /// Handle of physical memory (`Create`, `Release`, `Map`, `Retain`, `Import`), array, or pool; for `Reset` the context that is
    /// destroyed, or 0.
    pub handle: u64,
    /// For `Map` the offset, for `MemInfo` the device's free bytes, for `HostRegister` on Ascend the flags.
    pub extra: u64,
    /// Context to which the memory belongs, or for `Reset` the one in which the thread was: its address, with 1 added if it is known that
    /// the program made it. 0 for a device's primary context, and where none is known.
    pub context: u64,
    /// The memory is the host's: CUDA's `cuMemCreate` and pools can be asked for such memory, too.
    pub of_host: bool,
    /// What Ascend's driver was asked for, by this call or by a call that was made inside it.
    pub hal: Option<HalFacts>,
    /// Number of allocator calls made inside this one, which are no events of their own.
    pub nested: u32,
    /// Time inside the call, nanoseconds.
    pub duration_ns: u64,
}

/// The flag `ACL_HOST_REG_PINNED` of `aclrtHostRegisterV2`.
const REGISTERED_PINNED: u64 = 0x1000_0000;

impl Call {
    /// Whether this call page-locks the memory that it registers. Ascend's newer function does so only with a flag;
    /// without the flag it only maps the memory for the device.
    pub fn is_page_locked(&self) -> bool {
        &*self.function != "aclrtHostRegisterV2" || self.extra & REGISTERED_PINNED != 0
    }
}
