//! The maps through which records are sent, and the code that reserves and submits them. Only stacks, pieces of stacks
//! and code objects are sent by the modules that read them.

use aya_ebpf::bindings::{
    BPF_F_MMAPABLE, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE,
};
use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_ringbuf_output};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, RingBuf};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use core::ptr::read_volatile;
use memscope_common::{
    DropReason, GlobalConfig, KIND_LAUNCHES_SO_FAR, LaunchesRecord, PROCESS_LIVE, ProcessEntry,
    RECORD_VERSION, RING_BYTES_DEFAULT, RING_SHARE, RING_UNLIMITED, RecordHeader, STACK_NONE,
    ring_bytes,
};

#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(RING_BYTES_DEFAULT, 0);
#[map]
static PROCESSES: HashMap<u32, u32> = HashMap::with_max_entries(memscope_common::SLOTS, 0);
#[map]
static SLOTS: Array<ProcessEntry> = Array::with_max_entries(memscope_common::SLOTS, BPF_F_MMAPABLE);
#[map]
static DROPS: Array<u64> = Array::with_max_entries(16, 0);
#[map]
pub static CONFIG: Array<GlobalConfig> = Array::with_max_entries(1, 0);

/// The fill of the ring is checked once for every 32 events of a process.
const WAKE_CHECK_MASK: u64 = 31;

#[inline(always)]
pub fn add(counter: *mut u64, n: u64) -> u64 {
    // The atomic types offer no addition on this target, so the intrinsic is used. With relaxed ordering it would
    // compile to an instruction that does not return the old value.
    // SAFETY: the pointer points into a map value, which stays valid while the program runs.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(counter, n) }
}

/// Counts a loss by its cause.
#[inline(always)]
pub fn count_drop(reason: DropReason) {
    count_drops(reason, 1);
}

/// Counts several losses at once by their cause.
#[inline(always)]
pub fn count_drops(reason: DropReason, count: u64) {
    if let Some(counter) = DROPS.get_ptr_mut(reason as u32) {
        add(counter, count);
    }
}

/// Counts a loss because a table had no room for something of this process, and notes it in the process's slot.
#[inline(always)]
pub fn count_full(process: *mut ProcessEntry, reason: DropReason) {
    count_drop(reason);
    note_full(process, reason);
}

/// Notes in the process's slot that something of it was lost for this reason.
#[inline(always)]
pub fn note_full(process: *mut ProcessEntry, reason: DropReason) {
    // SAFETY: this points into a map value, which stays valid while the program runs. If two processors set a bit at
    // the same time, one bit may get lost; it is set again at the next loss.
    unsafe {
        let full = core::ptr::read_volatile(&raw const (*process).full);
        core::ptr::write_volatile(&raw mut (*process).full, full | 1 << reason as u32);
    }
}

/// The key of the current thread in the tables.
#[inline(always)]
pub fn thread_of(process: *mut ProcessEntry, tid: u32) -> u64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    memscope_common::thread_key(unsafe { (*process).handle }, tid)
}

/// The slot of a process, whether or not its records are sent.
#[inline(always)]
pub fn known_process(tgid: u32) -> Option<*mut ProcessEntry> {
    let slot = PROCESSES.get_ptr(&tgid)?;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    SLOTS.get_ptr_mut(unsafe { *slot })
}

/// The slot of a process, if its records are sent.
#[inline(always)]
pub fn live_process(tgid: u32) -> Option<*mut ProcessEntry> {
    let process = known_process(tgid)?;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { (*process).flags } & PROCESS_LIVE == 0 {
        return None;
    }
    Some(process)
}

/// Sends one record of type `T`, which begins with a [`RecordHeader`]; `fill` writes everything after the header.
/// If the ring has no room, the lost record is counted for the process and by its cause.
#[inline(always)]
pub fn emit<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    flags: u8,
    stack: u64,
    fill: impl FnOnce(*mut T),
) {
    send(process, tid, kind, flags, stack, 1, false, fill);
}

/// The same as [`emit`] for a record that tells so many events, or none that was not told before.
#[inline(always)]
pub fn emit_events<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    flags: u8,
    stack: u64,
    events: u64,
    fill: impl FnOnce(*mut T),
) {
    send(process, tid, kind, flags, stack, events, false, fill);
}

/// Counts an event as lost that could not be told, for the process and by its cause.
#[inline(always)]
pub fn untold(process: *mut ProcessEntry, reason: DropReason) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    add(unsafe { &raw mut (*process).sequence }, 1);
    lose(process, reason, 1);
}

/// The same as [`emit`]. Returns whether the ring had room.
#[inline(always)]
pub fn emit_sent<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    fill: impl FnOnce(*mut T),
) -> bool {
    send(process, tid, kind, 0, STACK_NONE, 1, false, fill)
}

/// The same as [`emit`], but wakes the daemon at once. For records to which the daemon must react. Returns whether the
/// ring had room.
#[inline(always)]
pub fn emit_urgent<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    fill: impl FnOnce(*mut T),
) -> bool {
    send(process, tid, kind, 0, STACK_NONE, 1, true, fill)
}

/// The same as [`emit_urgent`], also if the process has no share of the ring left: for the one record that ends a memory image, behind
/// which nothing of that image may be taken for the next one's.
#[inline(always)]
pub fn emit_last<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    fill: impl FnOnce(*mut T),
) -> bool {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let before = add(unsafe { &raw mut (*process).sequence }, 1);
    put(process, tid, kind, 0, STACK_NONE, (before, 1), true, fill)
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn send<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    flags: u8,
    stack: u64,
    events: u64,
    urgent: bool,
    fill: impl FnOnce(*mut T),
) -> bool {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let before = add(unsafe { &raw mut (*process).sequence }, events);
    if !has_share(process) {
        return lose(process, DropReason::RingShare, events);
    }
    put(
        process,
        tid,
        kind,
        flags,
        stack,
        (before, events),
        urgent,
        fill,
    )
}

/// Puts a record into the ring if it has room. `told` is the number of events that were tried before it, and that of its own.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn put<T: 'static>(
    process: *mut ProcessEntry,
    tid: u32,
    kind: u16,
    flags: u8,
    stack: u64,
    (before, events): (u64, u64),
    urgent: bool,
    fill: impl FnOnce(*mut T),
) -> bool {
    let Some(mut slot) = RING.reserve::<T>(0) else {
        return lose(process, DropReason::RingFull, events);
    };
    took_ring(process, size_of::<T>() as u64);
    let record = slot.as_mut_ptr();
    // SAFETY: the reservation is as large as T, and T begins with the header.
    unsafe {
        *record.cast::<RecordHeader>() = RecordHeader {
            len: size_of::<T>() as u16,
            kind,
            version: RECORD_VERSION,
            flags,
            reserved: 0,
            process: (*process).handle,
            tid,
            time_ns: bpf_ktime_get_boot_ns(),
            // A record that tells nothing new has no number.
            sequence: if events == 0 { 0 } else { before + 1 },
            lost_before: core::ptr::read_volatile(&raw const (*process).lost),
            stack,
        };
    }
    fill(record);
    slot.submit(if urgent {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        wake_flags(process, before, events)
    });
    true
}

/// Counts the events of a record that is not sent, for the process and by its cause. The result is always `false`.
#[inline(always)]
fn lose(process: *mut ProcessEntry, reason: DropReason, events: u64) -> bool {
    count_drops(reason, events);
    // SAFETY: this points into a map value, which stays valid while the program runs.
    add(unsafe { &raw mut (*process).lost }, events);
    false
}

/// Whether the process may put another record into the ring. The ring is shared, so a process that sends faster than
/// the daemon reads must not take the room of the others ([`RING_SHARE`]).
#[inline(always)]
pub fn has_share(process: *mut ProcessEntry) -> bool {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (taken, read) = unsafe {
        (
            read_volatile(&raw const (*process).ring_taken),
            read_volatile(&raw const (*process).ring_read),
        )
    };
    let unread = taken.saturating_sub(read);
    if unread <= RING_UNLIMITED {
        return true;
    }
    let free = RING
        .query(BPF_RB_RING_SIZE as u64)
        .saturating_sub(RING.query(BPF_RB_AVAIL_DATA as u64));
    unread <= free * RING_SHARE
}

/// Counts the bytes of the ring that a record of this length has taken.
#[inline(always)]
pub fn took_ring(process: *mut ProcessEntry, len: u64) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    add(unsafe { &raw mut (*process).ring_taken }, ring_bytes(len));
}

/// Copies a record of this length into the ring, if the process may take the room. Returns whether it is in the ring.
///
/// # Safety
/// The record has so many bytes.
#[inline(always)]
pub unsafe fn send_copy(process: *mut ProcessEntry, record: *mut c_void, len: u64) -> bool {
    if !has_share(process) {
        return false;
    }
    let ring = &raw const RING as *mut c_void;
    // SAFETY: the record has so many bytes, as the caller promises.
    let sent = unsafe { bpf_ringbuf_output(ring, record, len, BPF_RB_NO_WAKEUP as u64) } == 0;
    if sent {
        took_ring(process, len);
    }
    sent
}

/// Sends how many kernels were launched on devices, if that number has changed. If two threads do this at once, the smaller number may
/// come last: whoever reads the records keeps the largest.
#[inline(always)]
pub fn tell_launches(process: *mut ProcessEntry, tid: u32) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let count = unsafe { core::ptr::read_volatile(&raw const (*process).launches) };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { core::ptr::read_volatile(&raw const (*process).launches_told) } == count {
        return;
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    unsafe { core::ptr::write_volatile(&raw mut (*process).launches_told, count) };
    emit::<LaunchesRecord>(
        process,
        tid,
        KIND_LAUNCHES_SO_FAR,
        0,
        STACK_NONE,
        |record| {
            // SAFETY: the reservation is as large as LaunchesRecord; every field is written.
            unsafe { (*record).count = count };
        },
    );
}

/// Sends a record that belongs to no traced process. One half of the ring is left to those that are traced: the daemon also looks for
/// processes by itself from time to time.
#[inline(always)]
pub fn emit_unowned<T: 'static>(tid: u32, kind: u16, fill: impl FnOnce(*mut T)) {
    if RING.query(BPF_RB_AVAIL_DATA as u64) > RING.query(BPF_RB_RING_SIZE as u64) / 2 {
        count_drop(DropReason::RingShare);
        return;
    }
    let Some(mut slot) = RING.reserve::<T>(0) else {
        count_drop(DropReason::RingFull);
        return;
    };
    let record = slot.as_mut_ptr();
    // SAFETY: for the same reasons as in `send`.
    unsafe {
        *record.cast::<RecordHeader>() = RecordHeader {
            len: size_of::<T>() as u16,
            kind,
            version: RECORD_VERSION,
            flags: 0,
            reserved: 0,
            process: 0,
            tid,
            time_ns: bpf_ktime_get_boot_ns(),
            sequence: 0,
            lost_before: 0,
            stack: STACK_NONE,
        };
    }
    fill(record);
    slot.submit(BPF_RB_FORCE_WAKEUP as u64);
}

/// Decides whether a record wakes the daemon. A wake-up costs the traced program far more than a record, so the daemon
/// reads the ring at intervals, and is woken only if the ring fills faster than that, or if nothing came for so long that it
/// sleeps. The daemon asks to be woken before it looks at the ring for the last time. The record is in the ring before this is
/// read, and the atomic addition of [`took_ring`] between the two keeps that order, so one of both sees the other.
#[inline(always)]
fn wake_flags(process: *mut ProcessEntry, before: u64, events: u64) -> u64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    if unsafe { read_volatile(&raw const (*process).wake) } != 0 {
        return BPF_RB_FORCE_WAKEUP as u64;
    }
    if (before & WAKE_CHECK_MASK) + events <= WAKE_CHECK_MASK {
        return BPF_RB_NO_WAKEUP as u64;
    }
    let threshold = match CONFIG.get(0) {
        Some(config) => config.wake_bytes as u64,
        None => 0,
    };
    if RING.query(BPF_RB_AVAIL_DATA as u64) >= threshold {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        BPF_RB_NO_WAKEUP as u64
    }
}
