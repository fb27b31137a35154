//! The context that memory goes with.
//!
//! Owns: which memory goes when a context is destroyed or a device is reset. Refuses: memory that outlives its context, which `vmm` and the
//! kind of an allocation know.
//!
//! CUDA's rules are those that NVIDIA documents for `cuCtxDestroy`, `cuDevicePrimaryCtxReset` and `cudaDeviceReset`.

use crate::event::{Call, Layer};
use serde::{Deserialize, Serialize};

/// In a context: the program is known to have made it.
const MADE: u64 = 1;

/// A context: the device on which it is, and which of the device's contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Home {
    device: Option<i32>,
    context: u64,
}

impl Home {
    /// The context in which the thread made this call.
    pub(crate) fn of(call: &Call) -> Home {
        Home {
            device: call.device,
            context: call.context,
        }
    }

    /// Memory of this context, which a pool on this device uses.
    pub(crate) fn on(device: Option<i32>, context: u64) -> Home {
        Home { device, context }
    }

    /// Whether what belongs to this context goes with this call, which resets a device or destroys a context.
    pub(crate) fn goes_with(&self, reset: &Call) -> bool {
        if reset.handle != 0 {
            // The probe keeps the lower 48 bits of a context's address.
            return self.context & !MADE == reset.handle & ((1 << 48) - 1);
        }
        self.device == reset.device && self.context & MADE == 0
    }
}

/// Whether this call resets a device or a context at all: the runtime's reset does nothing to the memory while the thread has selected a
/// context that the program made.
pub(crate) fn resets(call: &Call) -> bool {
    call.layer != Layer::Runtime || call.context & MADE == 0
}
