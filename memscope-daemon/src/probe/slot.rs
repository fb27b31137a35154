//! The table of traced processes, which the BPF programs and the daemon share: the daemon changes single fields while
//! the programs count in others.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use aya::Ebpf;
use memscope_common::{
    CALIBRATE, FOLLOW_FORKS, FREES_AT_ONCE, NOWHERE, ON_TRIAL, PROCESS_LIVE, ProcessEntry, name,
};

use super::ProbeError;
use super::calibrate::Layout;
use super::maps::map_data;

/// The slots of all traced processes, mapped into the daemon's memory and shared with the programs.
pub(super) struct Slots {
    address: std::ptr::NonNull<ProcessEntry>,
    len: usize,
}

// SAFETY: the mapping is shared memory, and it is only accessed through atomics and volatile accesses of whole
// fields.
unsafe impl Send for Slots {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Slots {}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: `map_slots` mapped this range with this length, and nobody uses it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// The slot of one traced process in the shared table. It is valid until the process is removed with
/// [`Kernel::remove_process`](super::load::Kernel::remove_process). Reads and writes after that would touch the
/// counters of another process, so the owner drops it before.
#[derive(Clone)]
pub struct Slot {
    slots: Arc<Slots>,
    index: u32,
}

impl Slot {
    pub(super) fn new(slots: Arc<Slots>, index: u32) -> Slot {
        Slot { slots, index }
    }

    /// The slot of a process that no program traces.
    #[cfg(test)]
    pub(crate) fn untraced() -> Slot {
        let len = rustix::param::page_size();
        assert!(len >= size_of::<ProcessEntry>());
        // SAFETY: this makes a new mapping of zeros, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        let address = std::ptr::NonNull::new(address.cast::<ProcessEntry>());
        let address = address.unwrap_or_else(|| panic!("a mapping at 0"));
        Slot::new(Arc::new(Slots { address, len }), 0)
    }

    pub(super) fn entry(&self) -> *mut ProcessEntry {
        // SAFETY: all indices come from 0..SLOTS, the length of the mapping.
        unsafe { self.slots.address.as_ptr().add(self.index as usize) }
    }

    /// The handle of the process that has the slot.
    pub fn handle(&self) -> u32 {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).handle) }.load(Ordering::Acquire)
    }

    /// Whether a daemon has told the programs to send nothing of the process any more, or never told them to. Of a process that executes
    /// another image they stop by themselves, but go on to follow its forks.
    pub fn is_silent(&self) -> bool {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) };
        flags.load(Ordering::Acquire) & (PROCESS_LIVE | FOLLOW_FORKS) == 0
    }

    /// Replaces all flags of the process.
    pub fn set_flags(&self, flags: u32) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) }
            .store(flags, Ordering::Release);
    }

    /// Sets whether the probe on `record_trace` also sends the caller's registers and stack.
    pub fn want_registers(&self, wanted: bool) {
        self.set_flag(CALIBRATE, wanted);
    }

    /// Sets whether the place from which the totals are read is on trial, that is, not proven yet.
    pub fn set_on_trial(&self, on_trial: bool) {
        self.set_flag(ON_TRIAL, on_trial);
    }

    /// Sets whether the probe on the call of `record_trace` in `free` also tells that a free completes at once.
    pub fn set_frees_at_once(&self, at_once: bool) {
        self.set_flag(FREES_AT_ONCE, at_once);
    }

    fn set_flag(&self, flag: u32, on: bool) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) };
        if on {
            flags.fetch_or(flag, Ordering::AcqRel);
        } else {
            flags.fetch_and(!flag, Ordering::AcqRel);
        }
    }

    /// From now on the programs send the process's records and report when it forks.
    pub fn go_live(&self) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).flags) }
            .fetch_or(PROCESS_LIVE | FOLLOW_FORKS, Ordering::AcqRel);
    }

    /// From now on the programs report again when code is mapped or unmapped. To be called before the mappings are looked at: what
    /// is mapped from here on is reported, and what was mapped before is seen.
    pub fn tell_mappings(&self) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).mappings_told) }
            .store(0, Ordering::SeqCst);
    }

    /// Sets the device of threads that never chose one.
    pub fn set_default_device(&self, device: i32) {
        // SAFETY: the field is an aligned i32 in the shared mapping.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.entry()).default_device) }
            .store(device, Ordering::Release);
    }

    /// Sets where the probe on `record_trace` reads the block and the totals. With `None` it reads neither.
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
        // SAFETY: this is shared memory. Only the daemon writes these fields, each one whole, and the probe checks
        // what it reads with them.
        unsafe {
            std::ptr::write_volatile(&raw mut (*at).reserved_offset, reserved);
            std::ptr::write_volatile(&raw mut (*at).alloc_place, on_alloc);
            std::ptr::write_volatile(&raw mut (*at).free_place, on_free);
            std::ptr::write_volatile(&raw mut (*at).allocated_offset, allocated);
            std::ptr::write_volatile(&raw mut (*at).block_ptr_offset, block);
        }
    }

    /// Sets the layout with which the programs walk this process's Python stacks, by its number from
    /// [`Kernel::python`](super::load::Kernel::python). 0: no Python stacks are taken.
    pub fn set_python(&self, python: u32) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).python) }
            .store(python, Ordering::Release);
    }

    /// Sets whether stacks of compiled code are taken.
    pub fn set_native(&self, native: bool) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).native) }
            .store(u32::from(native), Ordering::Release);
    }

    /// Makes the programs send each stack of this process once more, at the next event that has it.
    pub fn resend_stacks(&self) {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).stack_salt) }
            .fetch_add(1, Ordering::AcqRel);
    }

    /// Sets whether the process's next record wakes the keeper.
    pub fn set_wake(&self, wake: bool) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).wake) }
            .store(u32::from(wake), Ordering::SeqCst);
    }

    /// Sets the sampling of stacks: one stack is taken for each 2^`sampling` bytes. 0: a stack is taken for every
    /// allocation. [`memscope_common::STACKS_OFF`]: none is taken.
    pub fn set_stack_sampling(&self, sampling: u32) {
        // SAFETY: the field is an aligned u32 in the shared mapping.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entry()).stack_sampling) }
            .store(sampling, Ordering::Release);
    }

    /// Time that the programs have spent on this process's stacks so far, estimated from the stacks that are timed.
    pub fn stack_time(&self) -> std::time::Duration {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        let nanoseconds = unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).stack_ns) };
        std::time::Duration::from_nanos(nanoseconds.load(Ordering::Acquire))
    }

    /// Tables that had no room for something of this process: one bit for each [`memscope_common::DropReason`].
    pub fn full(&self) -> u64 {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).full) }.load(Ordering::Acquire)
    }

    /// Gives bytes of the ring back to the process: that many bytes of its records were read.
    pub fn ring_was_read(&self, bytes: u64) {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).ring_read) }
            .fetch_add(bytes, Ordering::AcqRel);
    }

    /// Everything that the process has put into the ring so far was read. A daemon that takes over says so, because the
    /// one before it may have been killed before it could count what it had read.
    pub fn ring_was_read_to(&self, taken: u64) {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).ring_read) }
            .store(taken, Ordering::Release);
    }

    /// Bytes of the ring that the process's records have taken so far.
    pub fn ring_taken(&self) -> u64 {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).ring_taken) }.load(Ordering::Acquire)
    }

    /// Number of records that the programs have tried to send so far.
    pub fn sequence(&self) -> u64 {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).sequence) }.load(Ordering::Acquire)
    }

    /// Counts records as lost that were sent, but are in no log.
    pub fn add_lost(&self, records: u64) {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).lost) }
            .fetch_add(records, Ordering::AcqRel);
    }

    /// Number of records of this process that could not be sent.
    pub fn lost(&self) -> u64 {
        // SAFETY: the field is an aligned u64 in the shared mapping.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.entry()).lost) }.load(Ordering::Acquire)
    }
}

/// Maps the table of processes into the daemon's memory.
pub(super) fn map_slots(bpf: &Ebpf) -> Result<Slots, ProbeError> {
    let data = bpf
        .map(name::SLOTS)
        .and_then(map_data)
        .ok_or_else(|| ProbeError::Missing(name::SLOTS.to_owned()))?;
    let page = rustix::param::page_size();
    let len = (memscope_common::SLOTS as usize * size_of::<ProcessEntry>()).next_multiple_of(page);
    // SAFETY: this makes a new mapping of a memory-mappable array, at an address that the kernel chooses.
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
