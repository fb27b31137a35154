//! Probes at the entries of PyTorch's operators (`at::_ops::NAME::call`) and at each instruction by which they return.
//!
//! The entry tells the memory of the tensors that the operator is given, the end that of the new tensors that it returns. A
//! function's signature says where its tensors are. Only CPUs' memory is left out here; what is a block of a device, the
//! daemon knows.
//!
//! An operator that an exception ends never comes to its end. The thread's next operator notices it: its own stack pointer is not below
//! that of the ended one, or the address to which the ended one would return is no longer on the stack.

use aya_ebpf::helpers::generated::bpf_loop;
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::{Array, HashMap, PerCpuArray};
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xchg};
use core::ptr::{read_volatile, write_volatile};
use memscope_common::{
    DropReason, KIND_OPERATOR, OPERAND_STACK, OPERATOR_BEGIN, OPERATOR_END, OPERATOR_GIVEN,
    OPERATOR_RETURNED, OperandForm, OperatorCall, OperatorRecord, ProcessEntry, RETURNS_NOTHING,
    RETURNS_VECTOR, SIGNATURES as MOST_SIGNATURES, STACK_NONE, STORAGE_TABLES, STORAGES_TOLD,
    Signature, StorageEntry,
};

use super::ids;
use crate::emit::{count_full, emit, live_process, thread_of, untold};
use crate::{own_stack, read};

/// Most threads that are in operators at the same time, of all processes together.
const OPERATOR_CALLS_MOST: u32 = 1 << 15;
/// Most buffers that are in use on one processor at a time: another task may interrupt a program.
const GATHERS_MOST: u32 = 4;
/// Most steps of reading one operator's tensors: arguments and elements of lists. An optimizer's operators get lists of all parameters.
const STEPS_MOST: u32 = 1 << 16;
/// Least value of a word that is a pointer. The counts of references that may stand in its place are smaller.
const LEAST_POINTER: u64 = 4096;
/// `c10::IValue`'s tag of a tensor.
const TAG_TENSOR: u64 = 1;
/// Tags of `c10::IListRef`: an array, and a `c10::List`.
const TAG_UNBOXED: u64 = 0;
const TAG_BOXED: u64 = 1;
/// `c10::DeviceType` of the CPU, and of devices that PyTorch itself does not know (PrivateUse1), such as torch_npu's.
const DEVICE_CPU: u64 = 0;
const DEVICE_PRIVATE: u64 = 20;

#[map]
static SIGNATURES: Array<Signature> = Array::with_max_entries(MOST_SIGNATURES, 0);
#[map]
static STORAGES: HashMap<u32, StorageEntry> = HashMap::with_max_entries(memscope_common::SLOTS, 0);
#[map]
static OPERATOR_CALLS: HashMap<u64, OperatorCall> =
    HashMap::with_max_entries(OPERATOR_CALLS_MOST, 0);
#[map]
static GATHERS: PerCpuArray<Gather> = PerCpuArray::with_max_entries(GATHERS_MOST, 0);

/// How far the tensors of an operator have been read. It lies in a map, whose contents the verifier does not follow.
#[repr(C)]
struct Gather {
    busy: u64,
    /// Number of the operator's function, and what the records before the last one say.
    site: u64,
    more: u64,
    args: [u64; 6],
    /// Address of the first argument on the stack.
    stack: u64,
    tables: [u64; STORAGE_TABLES],
    npu: [u64; 2],
    /// The argument that is read next.
    operand: u64,
    /// Of the list that is being read: the address of the next element, how many are left, bytes of an element, and whether the
    /// operator may write to them.
    next: u64,
    left: u64,
    stride: u64,
    writes: u64,
    /// The part of the record that is filled.
    told: u64,
    told_writes: u64,
    untold: u64,
    storages: [u64; STORAGES_TOLD],
}

#[inline(always)]
fn claim() -> Option<*mut Gather> {
    for index in 0..GATHERS_MOST {
        let gather = GATHERS.get_ptr_mut(index)?;
        // SAFETY: this points into a map value, which stays valid while the program runs.
        let before =
            unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*gather).busy, 1) };
        if before == 0 {
            return Some(gather);
        }
    }
    None
}

/// Reads a field of the buffers, which are in a map.
macro_rules! get {
    ($gather:ident.$field:ident) => {
        // SAFETY: this points into a map value that this program has claimed.
        unsafe { read_volatile(&raw const (*$gather).$field) }
    };
}

/// Sets a field of the buffers.
macro_rules! set {
    ($gather:ident.$field:ident = $value:expr) => {{
        let value = $value;
        // SAFETY: this points into a map value that this program has claimed.
        unsafe { write_volatile(&raw mut (*$gather).$field, value) }
    }};
}

/// The list of `c10::IValue`s of the `c10::ListImpl` at this address. Its counts of references take one word or two.
#[inline(always)]
fn list(at: u64) -> (u64, u64) {
    let Some([first, second, third]) = read::user::<[u64; 3]>(at.wrapping_add(16)) else {
        return (0, 0);
    };
    if first >= LEAST_POINTER {
        (first, second.wrapping_sub(first) / 16)
    } else {
        (second, third.wrapping_sub(second) / 16)
    }
}

/// A word of the arguments: a register, or a word of the stack.
#[inline(always)]
fn word(gather: *mut Gather, place: u32) -> u64 {
    if place >= OPERAND_STACK {
        let at = (place - OPERAND_STACK) as u64 * 8;
        return read::user::<u64>(get!(gather.stack).wrapping_add(at)).unwrap_or(0);
    }
    let mut value = 0;
    for register in 0..OPERAND_STACK {
        if place == register {
            // SAFETY: this points into a map value that this program has claimed; the index is below 6.
            value = unsafe { read_volatile(&raw const (*gather).args[register as usize]) };
        }
    }
    value
}

/// Begins with the next argument. Returns whether there is one.
#[inline(always)]
fn begin_operand(gather: *mut Gather, signature: *const Signature) -> bool {
    let number = get!(gather.operand);
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let count = unsafe { read_volatile(&raw const (*signature).count) } as u64;
    if number >= count || number >= memscope_common::OPERANDS as u64 {
        return false;
    }
    set!(gather.operand = number + 1);
    // SAFETY: this points into a map value; the index is below the array's length.
    let operand = unsafe {
        let first = (&raw const (*signature).operands).cast::<u32>();
        read_volatile(first.add(number as usize & (memscope_common::OPERANDS - 1)))
    };
    let (place, form) = (operand & 0xff, operand >> 8 & 0xff);
    let value = word(gather, place);
    let (mut next, mut left, mut stride) = (value, 1, 8);
    if form == OperandForm::Maybe as u32 {
        left = match read::user::<[u64; 2]>(value) {
            Some([_, there]) => there & 0xff,
            None => 0,
        };
    } else if form == OperandForm::Array as u32 {
        left = word(gather, place + 1);
    } else if form == OperandForm::ListRef as u32 {
        let told = read::user::<[u64; 3]>(value).unwrap_or([0, 0, u64::MAX]);
        let tag = told[2] & 0xffff_ffff;
        (next, left) = (told[0], told[1]);
        if tag == TAG_BOXED {
            (next, left) = list(read::user::<u64>(told[0]).unwrap_or(0));
            stride = 16;
        } else if tag != TAG_UNBOXED {
            left = 0;
            set!(gather.untold = get!(gather.untold) + 1);
        }
    } else if form == OperandForm::List as u32 {
        (next, left) = list(read::user::<u64>(value).unwrap_or(0));
        stride = 16;
    }
    set!(gather.next = next);
    set!(gather.left = left);
    set!(gather.stride = stride);
    set!(gather.writes = (operand >> 16) as u64);
    true
}

/// Notes the memory of the tensor whose `c10::TensorImpl` is at this address, unless it is a CPU's.
#[inline(always)]
fn tell(gather: *mut Gather, tensor: u64) {
    // A tensor's memory follows its counts of references, which take one word or two.
    let Some([first, second]) = read::user::<[u64; 2]>(tensor.wrapping_add(16)) else {
        set!(gather.untold = get!(gather.untold) + 1);
        return;
    };
    let is_first = first >= LEAST_POINTER;
    let storage = if is_first { first } else { second };
    if storage < LEAST_POINTER {
        return;
    }
    let Some(words) = read::user::<[u64; 7]>(storage) else {
        set!(gather.untold = get!(gather.untold) + 1);
        return;
    };
    let (address, device) = if is_first {
        (words[2], words[5] & 0xff)
    } else {
        (words[3], words[6] & 0xff)
    };
    // Some tensors have no memory of this kind; then the word is something else.
    let [from, to] = get!(gather.npu);
    let is_npu = device == DEVICE_PRIVATE && from <= words[0] && words[0] < to;
    let mut is_storage = is_npu;
    for table in get!(gather.tables) {
        is_storage |= words[0] == table;
    }
    if !is_storage || words[0] == 0 || address == 0 || device == DEVICE_CPU {
        return;
    }
    let told = get!(gather.told);
    if told >= STORAGES_TOLD as u64 {
        return;
    }
    // SAFETY: this points into a map value that this program has claimed; the index is below the array's length.
    unsafe {
        let first = (&raw mut (*gather).storages).cast::<u64>();
        write_volatile(first.add(told as usize & (STORAGES_TOLD - 1)), address);
    }
    set!(gather.told_writes = get!(gather.told_writes) | (get!(gather.writes) & 1) << told);
    set!(gather.told = told + 1);
}

/// Sends what was read, and begins with the next record.
#[inline(always)]
fn send(gather: *mut Gather, process: *mut ProcessEntry, tid: u32, what: u16) {
    let site = get!(gather.site) as u32;
    let (told, writes, untold) = (
        get!(gather.told),
        get!(gather.told_writes),
        get!(gather.untold),
    );
    emit::<OperatorRecord>(process, tid, KIND_OPERATOR, 0, STACK_NONE, |record| {
        // SAFETY: the reservation is as large as OperatorRecord; every field is written.
        unsafe {
            (*record).site = site;
            (*record).what = what;
            (*record).count = told as u16;
            (*record).writes = writes as u32;
            (*record).untold = untold as u32;
            (*record).storages = (*gather).storages;
        }
    });
    set!(gather.told = 0);
    set!(gather.told_writes = 0);
    set!(gather.untold = 0);
}

/// What a step of the loop needs. It lies on the stack, where the verifier follows what kinds of pointers these are.
struct Loop {
    gather: *mut Gather,
    signature: *const Signature,
    process: *mut ProcessEntry,
    tid: u32,
}

/// Looks at the next tensor, or begins with the next argument. A record that is full is sent. The result 1 ends the loop.
unsafe extern "C" fn step(_: u32, context: *mut c_void) -> i64 {
    // SAFETY: this is the structure that `gather_all` has on its stack.
    let Loop {
        gather,
        signature,
        process,
        tid,
    } = unsafe { core::ptr::read_volatile(context.cast::<Loop>()) };
    if get!(gather.told) >= STORAGES_TOLD as u64 {
        send(gather, process, tid, get!(gather.more) as u16);
    }
    let left = get!(gather.left);
    if left == 0 {
        return !begin_operand(gather, signature) as i64;
    }
    let (next, stride) = (get!(gather.next), get!(gather.stride));
    set!(gather.left = left - 1);
    set!(gather.next = next.wrapping_add(stride));
    let [tensor, tag] = if stride == 16 {
        read::user::<[u64; 2]>(next).unwrap_or([0, 0])
    } else {
        [read::user::<u64>(next).unwrap_or(0), TAG_TENSOR]
    };
    if tensor >= LEAST_POINTER && tag & 0xffff_ffff == TAG_TENSOR {
        tell(gather, tensor);
    }
    0
}

/// Reads all tensors, and sends them. The records before the last one say `more`, the last one says `last`. It is sent even if it
/// has no address, if `always` is set.
#[inline(always)]
fn gather_all(
    gather: *mut Gather,
    signature: *const Signature,
    process: *mut ProcessEntry,
    tid: u32,
    last: u16,
    always: bool,
) {
    let context = Loop {
        gather,
        signature,
        process,
        tid,
    };
    // SAFETY: the callback reads the structure, which stays on the stack during the call.
    unsafe {
        bpf_loop(
            STEPS_MOST,
            step as *mut c_void,
            (&raw const context).cast_mut().cast(),
            0,
        );
    }
    // What the loop did not come to: elements of a list, and arguments, of each of which it is only known that it is there.
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let operands = unsafe { read_volatile(&raw const (*signature).count) } as u64;
    let left = get!(gather.left) + operands.saturating_sub(get!(gather.operand));
    if left > 0 {
        set!(gather.untold = get!(gather.untold) + left);
    }
    if always || get!(gather.told) > 0 || get!(gather.untold) > 0 {
        send(gather, process, tid, last);
    }
    set!(gather.busy = 0);
}

/// Buffers for the tensors of a call.
#[inline(always)]
fn begin(process: *mut ProcessEntry, site: u32, more: u16) -> Option<*mut Gather> {
    let Some(gather) = claim() else {
        untold(process, DropReason::OperatorUntold);
        return None;
    };
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let entry = unsafe { STORAGES.get(&(*process).handle) };
    set!(gather.tables = entry.map_or([0; STORAGE_TABLES], |entry| entry.tables));
    set!(gather.npu = entry.map_or([0, 0], |entry| entry.npu));
    set!(gather.site = site as u64);
    set!(gather.more = more as u64);
    set!(gather.operand = 0);
    set!(gather.left = 0);
    set!(gather.told = 0);
    set!(gather.told_writes = 0);
    set!(gather.untold = 0);
    Some(gather)
}

/// The process, the thread, and the number and the signature of the operator's function.
#[inline(always)]
fn probed(ctx: &ProbeContext) -> Option<(*mut ProcessEntry, u32, u32, *const Signature)> {
    let (tgid, tid) = ids();
    let process = live_process(tgid)?;
    let cookie = read::cookie(ctx);
    let signature = SIGNATURES.get_ptr(cookie.signature())?;
    Some((process, tid, cookie.site(), signature))
}

/// Entry of an operator. The cookie holds the number of its signature.
#[uprobe]
pub fn operator_entry(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let Some((process, tid, site, signature)) = probed(&ctx) else {
        return 0;
    };
    let sp = read::sp(&ctx);
    let returns_to = read::user::<u64>(sp).unwrap_or(0);
    let thread = thread_of(process, tid);
    // SAFETY: only programs of this thread and the daemon change the entry, and the daemon only when the process is no longer traced.
    let outer = unsafe { OPERATOR_CALLS.get(&thread) };
    let is_called = match outer {
        Some(outer) => {
            sp < outer.sp && read::user::<u64>(outer.sp).unwrap_or(0) == outer.returns_to
        }
        None => false,
    };
    if !is_called {
        let call = OperatorCall { sp, returns_to };
        if OPERATOR_CALLS.insert(&thread, &call, 0).is_err() {
            count_full(process, DropReason::InflightFull);
        }
    }
    let Some(gather) = begin(process, site, OPERATOR_GIVEN) else {
        return 0;
    };
    set!(gather.args = read::args(&ctx));
    set!(gather.stack = sp.wrapping_add(8));
    if !is_called {
        send(gather, process, tid, OPERATOR_BEGIN);
    }
    gather_all(gather, signature, process, tid, OPERATOR_GIVEN, false);
    0
}

/// An instruction by which an operator returns.
#[uprobe]
pub fn operator_end(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let Some((process, tid, site, signature)) = probed(&ctx) else {
        return 0;
    };
    let thread = thread_of(process, tid);
    // SAFETY: for the same reasons as at the entry.
    let is_outermost = match unsafe { OPERATOR_CALLS.get(&thread) } {
        Some(outer) => outer.sp == read::sp(&ctx),
        None => false,
    };
    if is_outermost {
        // The daemon may have removed it in the meantime.
        let _ = OPERATOR_CALLS.remove(&thread);
    }
    // SAFETY: this points into a map value, which stays valid while the program runs.
    let returns = unsafe { read_volatile(&raw const (*signature).returns) };
    if !is_outermost && returns == RETURNS_NOTHING {
        return 0;
    }
    let Some(gather) = begin(process, site, OPERATOR_RETURNED) else {
        return 0;
    };
    // The address of what was returned.
    let at = read::result(&ctx);
    set!(gather.stride = 8);
    set!(gather.writes = 1);
    if returns == RETURNS_VECTOR {
        let [first, behind] = read::user::<[u64; 2]>(at).unwrap_or([0, 0]);
        set!(gather.next = first);
        set!(gather.left = behind.wrapping_sub(first) / 8);
    } else {
        set!(gather.next = at);
        set!(gather.left = returns as u64);
    }
    // No argument is read behind what is returned.
    set!(gather.operand = memscope_common::OPERANDS as u64);
    let what = if is_outermost {
        OPERATOR_END
    } else {
        OPERATOR_RETURNED
    };
    gather_all(gather, signature, process, tid, what, is_outermost);
    0
}

/// Removes the entry of a thread that has ended.
#[inline(always)]
pub fn forget(thread: u64) {
    let _ = OPERATOR_CALLS.remove(&thread);
}
