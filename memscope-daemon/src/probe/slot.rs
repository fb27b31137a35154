//! The table of traced processes, which the programs and the daemon share: single fields are changed here while
//! programs count in others.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use aya::Ebpf;
use memscope_common::{
    CALIBRATE, FOLLOW_FORKS, NOWHERE, ON_TRIAL, PROCESS_LIVE, ProcessEntry, name,
};

use super::ProbeError;
use super::calibrate::Layout;
use super::maps::map_data;

/// The slots of traced processes, shared with the programs.
pub(super) struct Slots {
    address: std::ptr::NonNull<ProcessEntry>,
    len: usize,
}

// SAFETY: shared memory, touched through atomics and whole-field volatile accesses only.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: mapped in `Kernel::load` with this length.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// The kernel side's view of one traced process. Valid until the process is forgotten; what is read
/// or written through it later touches another process's counters, so its owner drops it first.
#[derive(Clone)]
pub struct Slot {
    slots: Arc<Slots>,
    index: u32,
}

impl Slot {
    pub(super) fn new(slots: Arc<Slots>, index: u32) -> Slot {
        Slot { slots, index }
    }

    pub(super) fn entry(&self) -> *mut ProcessEntry {
        // SAFETY: indices come from 0..SLOTS, the length of the mapping.
        unsafe { self.slots.address.as_ptr().add(self.index as usize) }
    }

    /// Sets the process's flags.
    pub fn set_flags(&self, flags: u32) {
        // SAFETY: an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) }
            .store(flags, Ordering::Release);
    }

    /// Whether `record_trace`'s probe sends the caller's registers too.
    pub fn want_registers(&self, wanted: bool) {
        self.set_flag(CALIBRATE, wanted);
    }

    /// Whether the totals are read at a place that is not proven yet.
    pub fn set_on_trial(&self, on_trial: bool) {
        self.set_flag(ON_TRIAL, on_trial);
    }

    fn set_flag(&self, flag: u32, on: bool) {
        // SAFETY: an aligned u32 in the shared mapping.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) };
        if on {
            flags.fetch_or(flag, Ordering::AcqRel);
        } else {
            flags.fetch_and(!flag, Ordering::AcqRel);
        }
    }

    /// Records are wanted from now on, and forks are told.
    pub fn go_live(&self) {
        // SAFETY: an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) }
            .fetch_or(PROCESS_LIVE | FOLLOW_FORKS, Ordering::AcqRel);
    }

    /// Sets the device of threads that chose none.
    pub fn set_default_device(&self, device: i32) {
        // SAFETY: an aligned i32 in the shared mapping.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.entry()).default_device) }
            .store(device, Ordering::Release);
    }

    /// Tells the `record_trace` probe where to read; `None`: nowhere.
    pub fn set_layout(&self, layout: Option<&Layout>) {
        let at = self.entry();
        let (allocated, reserved, block, on_alloc, on_free) = match layout {
            Some(l) => (
                l.allocated_offset,
                l.reserved_offset,
                l.block_ptr_offset,
                l.alloc_place,
                l.free_place,
            ),
            None => (0, 0, 0, NOWHERE, NOWHERE),
        };
        // SAFETY: shared memory; these fields are written by this side only, each one whole, and the
        // probe checks what it reads with them.
        unsafe {
            std::ptr::write_volatile(&raw mut (*at).reserved_offset, reserved);
            std::ptr::write_volatile(&raw mut (*at).alloc_place, on_alloc);
            std::ptr::write_volatile(&raw mut (*at).free_place, on_free);
            std::ptr::write_volatile(&raw mut (*at).allocated_offset, allocated);
            std::ptr::write_volatile(&raw mut (*at).block_ptr_offset, block);
        }
    }

    /// Stacks of this process are walked with this layout (see [`Kernel::python`]); 0: none are taken.
    pub fn set_python(&self, python: u32) {
        // SAFETY: an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).python) }
            .store(python, Ordering::Release);
    }

    /// Has stacks of compiled code taken.
    pub fn set_native(&self, native: bool) {
        // SAFETY: an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).native) }
            .store(u32::from(native), Ordering::Release);
    }

    /// Has every stack of this process sent again at its next sight.
    pub fn resend_stacks(&self) {
        // SAFETY: an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).stack_salt) }
            .fetch_add(1, Ordering::AcqRel);
    }

    /// Has stacks taken of one allocation in two to the power of this many bytes; 0: of every one.
    pub fn set_stack_sampling(&self, sampling: u32) {
        // SAFETY: an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).stack_sampling) }
            .store(sampling, Ordering::Release);
    }

    /// Time that stacks have taken so far.
    pub fn stack_time(&self) -> std::time::Duration {
        // SAFETY: an aligned u64 in the shared mapping.
        let nanoseconds = unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).stack_ns) };
        std::time::Duration::from_nanos(nanoseconds.load(Ordering::Acquire))
    }

    /// Which tables had no room for something of this process, a bit for each [`memscope_common::DropReason`].
    pub fn full(&self) -> u64 {
        // SAFETY: an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).full) }.load(Ordering::Acquire)
    }

    /// Records of this process that could not be sent.
    pub fn lost(&self) -> u64 {
        // SAFETY: an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).lost) }.load(Ordering::Acquire)
    }
}

/// Maps the table into the daemon's memory.
pub(super) fn map_slots(bpf: &Ebpf) -> Result<Slots, ProbeError> {
    let data = bpf
        .map(name::SLOTS)
        .and_then(map_data)
        .ok_or_else(|| ProbeError::Missing(name::SLOTS.to_owned()))?;
    let page = rustix::param::page_size();
    let len = (memscope_common::SLOTS as usize * size_of::<ProcessEntry>()).next_multiple_of(page);
    // SAFETY: a new mapping of a memory-mappable array, at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            data.fd().as_fd().as_raw_fd(),
            0,
        )
    };
    let failed = || {
        ProbeError::Ring(crate::ingest::ring::RingError::Map {
            part: "table of processes",
            source: std::io::Error::last_os_error(),
        })
    };
    if address == libc::MAP_FAILED {
        return Err(failed());
    }
    let address = std::ptr::NonNull::new(address.cast::<ProcessEntry>()).ok_or_else(failed)?;
    Ok(Slots { address, len })
}
