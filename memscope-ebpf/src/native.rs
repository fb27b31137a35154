//! Walks stacks of compiled code, which often keeps no frame pointers: for each return address a rule says where
//! its caller's frame is. The daemon makes the rules from the code's unwind tables when an address is seen for the
//! first time. Until then a copied piece of the stack is sent to the daemon, which unwinds it itself.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP};
use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_loop, bpf_probe_read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, PerCpuArray};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    DropReason, KIND_STACK_COPY, MOST_NATIVE, ProcessEntry, RECORD_VERSION, RULE_BP_DEREF,
    RULE_END, RULE_SP, RULES_MOST, RecordHeader, Rule, STACK_COPY_PAGES, STACK_PAGE,
    StackCopyRecord, rule_key,
};

use crate::emit::{CONFIG, RING, count_drop, has_share, took_ring};
use crate::identity::{finish, mix};
use crate::read;
use crate::scratch::WALKS;

#[map]
static RULES: HashMap<u64, Rule> = HashMap::with_max_entries(RULES_MOST, BPF_F_NO_PREALLOC);

/// Buffers of one walk.
#[repr(C)]
pub struct Natives {
    /// A copied piece of the stack. It is large, since the call of a helper costs far more than what it copies. It is
    /// some bytes longer than what is read, so that an offset never points outside.
    window: [u8; WINDOW + BELOW],
    pub walk: Native,
    /// Addresses of the frames, innermost first.
    pub frames: [u64; MOST_NATIVE],
}

/// Argument of the loop's steps, which must lie on the program's stack.
#[repr(C)]
struct Context {
    natives: *mut Natives,
}

/// Most bytes from the beginning of the window to what a step reads in it: a page.
const WINDOW: usize = STACK_PAGE;
/// Number of bytes below a canonical frame address that normally contain the return address and the saved frame
/// pointer.
const BELOW: usize = 64;

#[map]
static NATIVES: PerCpuArray<Natives> = PerCpuArray::with_max_entries(WALKS, 0);

/// Cache of the rules that were used last, indexed by some bits of a hash of their keys: an access to an array costs a
/// tenth of one to a hash table. Another task may interrupt the writing of an entry, so each entry contains its own
/// check: the first word is a hash of the key and the second word, which is the rule.
#[map]
static CACHE: PerCpuArray<[u64; 2]> = PerCpuArray::with_max_entries(CACHED, 0);
const CACHED: u32 = 1 << 13;

/// `Native::end`: the walk has not ended; there were more frames than fit.
const MORE: u64 = 0;
/// `Native::end`: the rule of `pc` is not known yet.
const UNKNOWN: u64 = 1;
/// `Native::end`: the outermost frame was reached.
const WHOLE: u64 = 2;
/// `Native::end`: the stack cannot be unwound further.
const STOPPED: u64 = 3;

/// State of a walk. It lies in a map, of whose contents the verifier knows nothing (see [`crate::scratch::Walk`]).
#[repr(C)]
pub struct Native {
    pc: u64,
    sp: u64,
    bp: u64,
    /// Hash of the frames so far.
    pub hash: u64,
    /// Number of frames in `frames`.
    pub count: u64,
    end: u64,
    /// First address of the window, and the largest distance from it at which the words that a step reads lie in the
    /// window.
    base: u64,
    reach: u64,
    /// The process's `stack_salt`. When it changes, cached rules are no longer used.
    salt: u64,
    handle: u32,
    reserved: u32,
}

/// Registers of the traced thread at the probe.
#[derive(Clone, Copy)]
pub struct Place {
    ip: u64,
    sp: u64,
    bp: u64,
    link: u64,
    entry: bool,
}

/// For an entry probe: the thread is about to execute a function's first instructions.
#[inline(always)]
pub fn at_entry(ctx: &ProbeContext) -> Place {
    let (ip, sp, bp) = read::place_in_code(ctx);
    Place {
        ip,
        sp,
        bp,
        link: read::link(ctx),
        entry: true,
    }
}

/// For a return probe: the thread has just returned from a function.
#[inline(always)]
pub fn at_return(ctx: &ProbeContext) -> Place {
    let (ip, sp, bp) = read::place_in_code(ctx);
    Place {
        ip,
        sp,
        bp,
        link: 0,
        entry: false,
    }
}

/// For a probe on a call: the thread is about to call a function, to which nothing of its stack belongs yet.
#[inline(always)]
pub fn at_call(ctx: &ProbeContext) -> Place {
    let (_, sp, bp) = read::place_in_code(ctx);
    Place {
        ip: read::behind_call(ctx),
        sp,
        bp,
        link: 0,
        entry: false,
    }
}

impl Place {
    /// Whether the first frame is the function that is just entered.
    #[inline(always)]
    pub fn is_entry(self) -> bool {
        self.entry
    }
}

#[inline(always)]
fn keep(natives: *mut Natives, address: u64) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*natives).walk };
    let at = (walk.count & (MOST_NATIVE as u64 - 1)) as usize;
    // SAFETY: this points into a map value, and the index is below the array's length.
    unsafe { write_volatile((&raw mut (*natives).frames as *mut u64).add(at), address) };
    walk.count += 1;
    walk.hash = mix(walk.hash, address);
}

/// The rule of the walk's current address, from the cache or the table.
#[inline(always)]
fn rule_of(walk: &Native) -> Option<Rule> {
    let key = rule_key(walk.handle, walk.pc);
    let proof = mix(key, walk.salt);
    let cached = CACHE.get_ptr_mut((proof >> 20) as u32 & (CACHED - 1))?;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let [first, second] = unsafe {
        [
            read_volatile(&raw const (*cached)[0]),
            read_volatile(&raw const (*cached)[1]),
        ]
    };
    if first == mix(second, proof) {
        return Some(Rule(second));
    }
    let rule = RULES.get_ptr(&key)?;
    // SAFETY: these point into map values, which stay valid while the program runs.
    unsafe {
        let rule = *rule;
        write_volatile(&raw mut (*cached)[0], mix(rule.0, proof));
        write_volatile(&raw mut (*cached)[1], rule.0);
        Some(rule)
    }
}

/// Reads the window again so that it begins at this address and ends where a page ends. Behind the outermost frame there may be
/// pages that the thread has never touched, and reading from one of them is a fault, which costs as much as the rest of
/// the walk. False if the memory cannot be read.
#[inline(always)]
fn refill(natives: *mut Natives, base: u64) -> bool {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let (walk, window) = unsafe {
        (
            &mut (*natives).walk,
            &raw mut (*natives).window as *mut c_void,
        )
    };
    let mut len = STACK_PAGE as u64 - (base & (STACK_PAGE as u64 - 1));
    if len < BELOW as u64 {
        // What a step reads goes on in the next page.
        len += STACK_PAGE as u64;
    }
    walk.base = base;
    walk.reach = len - BELOW as u64;
    // SAFETY: the buffer is longer than a page by what was added to.
    unsafe { bpf_probe_read_user(window, len as u32, base as *const c_void) == 0 }
}

/// One step of the walk: takes one frame, or moves the window. The result 1 ends the loop.
#[inline(never)]
extern "C" fn step_native(_index: u64, context: *mut Context) -> i64 {
    // SAFETY: `bpf_loop` calls this with the structure given to it, which points to a map value.
    let natives = unsafe { (*context).natives };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &mut (*natives).walk };
    if walk.count >= MOST_NATIVE as u64 {
        return 1;
    }
    let Some(rule) = rule_of(walk) else {
        walk.end = UNKNOWN;
        return 1;
    };
    let kind = rule.kind();
    if kind >= RULE_END {
        walk.end = if kind == RULE_END { WHOLE } else { STOPPED };
        return 1;
    }
    let from = if kind == RULE_SP { walk.sp } else { walk.bp };
    let mut frame = from.wrapping_add(rule.offset() as u64);
    if kind == RULE_BP_DEREF {
        frame = read::user::<u64>(frame).unwrap_or(0);
    }
    // The caller's frame must lie above. If it does not, the stack was overwritten, and the walk could go in circles.
    if frame <= walk.sp {
        walk.end = STOPPED;
        return 1;
    }
    if read::RULES_NAME_RECORDS {
        return step_record(natives, walk, rule, frame);
    }
    let below = frame.wrapping_sub(BELOW as u64);
    if below.wrapping_sub(walk.base) > walk.reach {
        if refill(natives, below) {
            return 0;
        }
        walk.end = STOPPED;
        return 1;
    }
    let at = (below.wrapping_sub(walk.base) & (WINDOW as u64 - 1)) as usize;
    // SAFETY: this points into a map value. The window is longer than the mask by the bytes that are read from here on.
    let below = unsafe { (&raw const (*natives).window as *const u8).add(at) };
    let place = rule.bp();
    if place != 0 || rule.bp_from_bp() {
        if !rule.bp_from_bp() && place < 0 && place >= -(BELOW as i64) {
            let at = ((BELOW as i64 + place) as usize) & (BELOW - 8);
            // SAFETY: the address lies within the buffer.
            walk.bp = unsafe { read_volatile(below.add(at) as *const u64) };
        } else {
            let from = if rule.bp_from_bp() { walk.bp } else { frame };
            let Some(bp) = read::user::<u64>(from.wrapping_add(place as u64)) else {
                walk.end = STOPPED;
                return 1;
            };
            walk.bp = bp;
        }
    }
    walk.sp = frame;
    // SAFETY: the address lies within the buffer.
    walk.pc = unsafe { read_volatile(below.add(BELOW - 8) as *const u64) };
    keep(natives, walk.pc);
    0
}

/// The rest of a step where return addresses lie in frame records, whose places the rules give.
#[inline(always)]
fn step_record(natives: *mut Natives, walk: &mut Native, rule: Rule, frame: u64) -> i64 {
    let record = frame.wrapping_add(rule.bp() as u64);
    // If there is no place, the return address is still in its register. The frame of a caller is never like this.
    if rule.bp() >= 0 || record < walk.sp {
        walk.end = STOPPED;
        return 1;
    }
    if record.wrapping_sub(walk.base) > walk.reach {
        if refill(natives, record) {
            return 0;
        }
        walk.end = STOPPED;
        return 1;
    }
    let at = (record.wrapping_sub(walk.base) & (WINDOW as u64 - 1)) as usize;
    // SAFETY: this points into a map value. The window is longer than the mask by more than the two words that are
    // read.
    let [first, second] = unsafe {
        let words = (&raw const (*natives).window as *const u8).add(at) as *const u64;
        [read_volatile(words), read_volatile(words.add(1))]
    };
    walk.sp = frame;
    if rule.return_only() {
        walk.pc = read::plain(first);
    } else {
        walk.bp = first;
        walk.pc = read::plain(second);
    }
    keep(natives, walk.pc);
    0
}

/// The buffers with this index, as claimed from [`crate::scratch`].
#[inline(always)]
pub fn buffers(index: u32) -> Option<*mut Natives> {
    NATIVES.get_ptr_mut(index)
}

/// Most steps of a walk. There are more steps than frames, since some steps only move the window.
const STEPS: u32 = MOST_NATIVE as u32 * 2;

/// Walks the stack of the current thread, beginning with this hash. The results are in the buffers.
#[inline(always)]
pub fn walk(process: *mut ProcessEntry, natives: *mut Natives, place: &Place, hash: u64) {
    // SAFETY: these point into map values, which stay valid while the program runs.
    let walk = unsafe { &mut (*natives).walk };
    walk.pc = place.ip;
    walk.sp = place.sp;
    walk.bp = place.bp;
    walk.hash = hash;
    walk.count = 0;
    walk.end = MORE;
    // Nothing is in the window yet.
    walk.base = place.sp.wrapping_add(1);
    walk.reach = 0;
    // SAFETY: this points into a map value, which stays valid while the program runs.
    (walk.salt, walk.handle) = unsafe { ((*process).stack_salt, (*process).handle) };
    keep(natives, place.ip);
    if place.entry {
        // The function has not built its frame yet. If the return address cannot be read, it is 0, for which there is
        // no rule.
        (walk.pc, walk.sp) = read::entered_from(place.sp, place.link);
        keep(natives, walk.pc);
    }
    let mut context = Context { natives };
    // SAFETY: the callback gets the structure that it expects, which outlives the call.
    unsafe {
        bpf_loop(
            STEPS,
            step_native as *const c_void as *mut c_void,
            &raw mut context as *mut c_void,
            0,
        );
    }
    // SAFETY: this points into a map value, as the loop left it.
    unsafe {
        let end = read_volatile(&raw const (*natives).walk.end);
        let hash = read_volatile(&raw const (*natives).walk.hash);
        write_volatile(&raw mut (*natives).walk.hash, mix(hash, end));
    }
}

/// How the walk ended: whether the outermost frame was not reached, and whether a rule was missing, so that a piece of
/// the stack must be sent.
#[inline(always)]
pub fn ended(natives: *mut Natives) -> (bool, bool) {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let end = unsafe { read_volatile(&raw const (*natives).walk.end) };
    (end != WHOLE, end == UNKNOWN)
}

/// Sends a copy of the stack, beginning where the walk has ended. The result is the stack's provisional identity, or 0
/// if there is no room. A copy is sent only while the ring has plenty of room, since records of allocations matter
/// more.
#[inline(always)]
pub fn send_copy(process: *mut ProcessEntry, tid: u32, natives: *mut Natives) -> u64 {
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let walk = unsafe { &(*natives).walk };
    let full = match CONFIG.get(0) {
        Some(config) => RING.query(BPF_RB_AVAIL_DATA as u64) >= config.wake_bytes as u64 * 2,
        None => true,
    };
    if full || !has_share(process) {
        count_drop(DropReason::StackCopyUnsent);
        return 0;
    }
    let Some(mut slot) = RING.reserve::<StackCopyRecord>(0) else {
        count_drop(DropReason::StackCopyUnsent);
        return 0;
    };
    took_ring(process, size_of::<StackCopyRecord>() as u64);
    let record = slot.as_mut_ptr();
    let base = walk.sp & !(STACK_PAGE as u64 - 1);
    // SAFETY: the helper takes no arguments.
    let time_ns = unsafe { bpf_ktime_get_boot_ns() };
    let id = finish(mix(mix(walk.hash, time_ns), tid as u64));
    // SAFETY: the reservation is as large as the record; the helper sets to zero what it cannot read.
    unsafe {
        (*record).header = RecordHeader {
            len: size_of::<StackCopyRecord>() as u16,
            kind: KIND_STACK_COPY,
            version: RECORD_VERSION,
            flags: 0,
            reserved: 0,
            process: (*process).handle,
            tid,
            time_ns,
            sequence: 0,
            lost_before: read_volatile(&raw const (*process).lost),
            stack: id,
        };
        (*record).pc = walk.pc;
        (*record).sp = walk.sp;
        (*record).bp = walk.bp;
        (*record).base = base;
        // This counts the pages up to the first that could not be read. It has no branches, since the verifier would
        // follow each of them.
        let mut pages = 0;
        let mut whole = 1;
        for page in 0..STACK_COPY_PAGES {
            let at = page * STACK_PAGE;
            let failed = bpf_probe_read_user(
                (&raw mut (*record).bytes as *mut u8).add(at) as *mut c_void,
                STACK_PAGE as u32,
                (base + at as u64) as *const c_void,
            );
            // `failed` is 0 or negative.
            whole &= !(failed as u64 >> 63) & 1;
            pages += whole;
        }
        (*record).len = pages * STACK_PAGE as u64;
    }
    slot.submit(BPF_RB_FORCE_WAKEUP as u64);
    id
}
