//! Stacks of compiled code, which keeps no frame pointers: each return address has a rule that says where
//! its caller's frame is. The daemon makes the rules from the code's own tables, when an address is seen for the
//! first time; until then it gets a piece of the stack and unwinds that itself.

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

use crate::emit::{CONFIG, RING, count_drop};
use crate::read;
use crate::stack::{WALKS, mix};

#[map]
static RULES: HashMap<u64, Rule> = HashMap::with_max_entries(RULES_MOST, BPF_F_NO_PREALLOC);

/// Buffers of one walk.
#[repr(C)]
pub struct Natives {
    /// What lies below a canonical frame address.
    below: [u64; BELOW],
    /// Innermost first.
    pub frames: [u64; MOST_NATIVE],
}

/// So many words are read at once: where compilers keep the return address and the frame pointer.
const BELOW: usize = 8;

#[map]
static NATIVES: PerCpuArray<Natives> = PerCpuArray::with_max_entries(WALKS, 0);

/// `Native::end`, which begins as 0 and stays that where there were more frames than steps: the rule of `pc` is not known yet.
const UNKNOWN: u64 = 1;
/// The outermost frame was reached.
const WHOLE: u64 = 2;
/// Not to be unwound further.
const STOPPED: u64 = 3;

/// Where a walk stands.
#[repr(C)]
struct Native {
    pc: u64,
    sp: u64,
    bp: u64,
    hash: u64,
    count: u64,
    end: u64,
    handle: u32,
    reserved: u32,
    natives: *mut Natives,
}

/// What came of a walk.
#[derive(Clone, Copy)]
pub struct Walked {
    /// Identifies the frames.
    pub hash: u64,
    /// How many are in `frames`.
    pub count: u64,
    /// There are more.
    pub cut: bool,
    /// A piece of the stack was sent under this identity: the daemon finds the other frames.
    pub copied: u64,
}

/// Where the traced thread is.
#[derive(Clone, Copy)]
pub struct Place {
    ip: u64,
    sp: u64,
    bp: u64,
    entry: bool,
}

/// The thread is about to execute a function's first instruction.
#[inline(always)]
pub fn at_entry(ctx: &ProbeContext) -> Place {
    let (ip, sp, bp) = read::place_in_code(ctx);
    Place {
        ip,
        sp,
        bp,
        entry: true,
    }
}

/// The thread has just returned.
#[inline(always)]
pub fn at_return(ctx: &ProbeContext) -> Place {
    let (ip, sp, bp) = read::place_in_code(ctx);
    Place {
        ip,
        sp,
        bp,
        entry: false,
    }
}

impl Place {
    /// Whether the first frame is the function that is entered.
    #[inline(always)]
    pub fn is_entry(self) -> bool {
        self.entry
    }
}

#[inline(always)]
fn keep(walk: &mut Native, address: u64) {
    // SAFETY: a map value; the index is below the array's length.
    unsafe {
        let at = (walk.count & (MOST_NATIVE as u64 - 1)) as usize;
        write_volatile(
            (&raw mut (*walk.natives).frames as *mut u64).add(at),
            address,
        );
    }
    walk.count += 1;
    walk.hash = mix(walk.hash, address);
}

/// One frame. 1 ends the walk.
#[inline(never)]
extern "C" fn step_native(_index: u64, walk: *mut Native) -> i64 {
    // SAFETY: the callback of `bpf_loop` with the structure given to it.
    let walk = unsafe { &mut *walk };
    let key = rule_key(walk.handle, walk.pc);
    let Some(rule) = RULES.get_ptr(&key) else {
        walk.end = UNKNOWN;
        return 1;
    };
    // SAFETY: a map value.
    let rule = unsafe { *rule };
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
    // Outwards is upwards: whatever is not, has been overwritten, and could go in circles.
    if frame <= walk.sp {
        walk.end = STOPPED;
        return 1;
    }
    // SAFETY: a map value.
    let below = unsafe { &raw mut (*walk.natives).below } as *mut u64;
    let bytes = (BELOW * 8) as u64;
    // SAFETY: the buffer has that length.
    let failed = unsafe {
        bpf_probe_read_user(
            below as *mut c_void,
            bytes as u32,
            frame.wrapping_sub(bytes) as *const c_void,
        ) != 0
    };
    if failed {
        walk.end = STOPPED;
        return 1;
    }
    let place = rule.bp();
    if place != 0 || rule.bp_from_bp() {
        if !rule.bp_from_bp() && place < 0 && place >= -(bytes as i64) {
            let at = ((BELOW as i64 + place / 8) as usize) & (BELOW - 1);
            // SAFETY: within the buffer.
            walk.bp = unsafe { read_volatile(below.add(at)) };
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
    // SAFETY: within the buffer.
    walk.pc = unsafe { read_volatile(below.add(BELOW - 1)) };
    keep(walk, walk.pc);
    0
}

/// The buffers of a walk.
#[inline(always)]
pub fn buffers(index: u32) -> Option<*mut Natives> {
    NATIVES.get_ptr_mut(index)
}

/// Walks the stack of the current thread; `index` is that of the claimed buffers.
#[inline(never)]
pub fn walk(process: *mut ProcessEntry, tid: u32, index: u32, place: &Place, out: &mut Walked) {
    let Some(natives) = buffers(index) else {
        return;
    };
    let mut walk = Native {
        pc: place.ip,
        sp: place.sp,
        bp: place.bp,
        hash: out.hash,
        // Zeros that the verifier does not know, as in the walk of Python's frames.
        count: out.count,
        end: out.copied,
        // SAFETY: a map value.
        handle: unsafe { (*process).handle },
        reserved: 0,
        natives,
    };
    keep(&mut walk, place.ip);
    if place.entry {
        // Nothing is on the stack yet but where to return to.
        let Some(pc) = read::user::<u64>(place.sp) else {
            out.cut = true;
            return;
        };
        walk.pc = pc;
        walk.sp = place.sp + 8;
        keep(&mut walk, pc);
    }
    // SAFETY: the callback and its structure, which outlives the call.
    unsafe {
        bpf_loop(
            MOST_NATIVE as u32 - 2,
            step_native as *const c_void as *mut c_void,
            &raw mut walk as *mut c_void,
            0,
        );
    }
    // SAFETY: written through the pointer given to the loop.
    let walk = unsafe { read_volatile(&raw const walk) };
    out.count = walk.count;
    out.hash = mix(walk.hash, walk.end);
    out.cut = walk.end != WHOLE;
    if walk.end == UNKNOWN {
        out.copied = send_copy(process, tid, &walk);
    }
}

/// Sends a piece of the stack from where the walk stands; gives its identity, 0 if there is no room. Records
/// of allocations come first: a piece is only sent while the ring is rather empty.
#[inline(always)]
fn send_copy(process: *mut ProcessEntry, tid: u32, walk: &Native) -> u64 {
    let full = match CONFIG.get(0) {
        Some(config) => RING.query(BPF_RB_AVAIL_DATA as u64) >= config.wake_bytes as u64 * 2,
        None => true,
    };
    if full {
        count_drop(DropReason::StackCopyUnsent);
        return 0;
    }
    let Some(mut slot) = RING.reserve::<StackCopyRecord>(0) else {
        count_drop(DropReason::StackCopyUnsent);
        return 0;
    };
    let record = slot.as_mut_ptr();
    let base = walk.sp & !(STACK_PAGE as u64 - 1);
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_boot_ns() };
    let id = crate::stack::finish(mix(mix(walk.hash, time_ns), tid as u64));
    // SAFETY: the reservation is as large as the record; what is not read is zeroed by the helper.
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
        // Without branches, which the verifier would follow one by one: what lies behind a page that could not be read
        // does not count.
        let mut pages = 0;
        let mut whole = 1;
        for page in 0..STACK_COPY_PAGES {
            let at = page * STACK_PAGE;
            let failed = bpf_probe_read_user(
                (&raw mut (*record).bytes as *mut u8).add(at) as *mut c_void,
                STACK_PAGE as u32,
                (base + at as u64) as *const c_void,
            );
            // 0 or negative.
            whole &= !(failed as u64 >> 63) & 1;
            pages += whole;
        }
        (*record).len = pages * STACK_PAGE as u64;
    }
    slot.submit(BPF_RB_FORCE_WAKEUP as u64);
    id
}
