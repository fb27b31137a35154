//! Probes on torch_npu's reports. A report passes one structure with the block, its device and allocator, and the
//! allocator's totals.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memscope_common::{KIND_REPORT, KIND_WORKSPACE, ProcessEntry, ReportRecord, STACK_NONE};

use super::ids;
use crate::emit::{emit, live_process, tell_launches};
use crate::{native, own_stack, read, stack};

/// `MemoryDataType::MEMORY_BLOCK_FREE`: a block that was freed earlier is now really out of use.
const BLOCK_FREE: u8 = 2;
/// `MemoryComponentType::WORKSPACE_ALLOCATOR`.
const WORKSPACE: u8 = 1;

/// torch_npu's `MemoryUsage`: five bytes (four in older versions, which have no component), padded to a word, and six
/// words.
type Usage = [u64; 7];

/// The fields in the first bytes of the structure.
struct Head {
    device_type: i32,
    device: i32,
    component: u8,
    data: u8,
}

#[inline(always)]
fn head(word: u64, with_component: bool) -> Head {
    let third = (word >> 16) as u8;
    let (component, data) = if with_component {
        (third, (word >> 24) as u8)
    } else {
        (0, third)
    };
    Head {
        device_type: word as i8 as i32,
        device: (word >> 8) as i8 as i32,
        component,
        data,
    }
}

/// A call of the reporting function.
struct ReportCall {
    process: *mut ProcessEntry,
    tid: u32,
    usage: Usage,
    head: Head,
    with_component: bool,
}

/// Reads a report of a traced process. `None` if the process is not traced, if the structure cannot be read, or if the
/// report only says that a block is out of use: that was reported when the block was freed.
#[inline(always)]
fn told(ctx: &ProbeContext) -> Option<ReportCall> {
    let (tgid, tid) = ids();
    let process = live_process(tgid)?;
    let with_component = read::cookie(ctx).usage_component();
    let usage = read::user::<Usage>(read::args(ctx)[0])?;
    let head = head(usage[0], with_component);
    (head.data != BLOCK_FREE).then_some(ReportCall {
        process,
        tid,
        usage,
        head,
        with_component,
    })
}

/// Entry of `torch_npu::profiler::reportMemoryDataToNpuProfiler(const MemoryUsage &)`.
#[uprobe]
pub fn npu_report(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let Some(told) = told(&ctx) else {
        return 0;
    };
    // `npu_workspace` sends the records of workspaces.
    if told.head.component == WORKSPACE {
        return 0;
    }
    let size = told.usage[2];
    let stack = if size as i64 > 0 {
        let stack = stack::stack(told.process, told.tid, native::at_entry(&ctx), size);
        tell_launches(told.process, told.tid);
        stack
    } else {
        STACK_NONE
    };
    send(&told, KIND_REPORT, stack);
    0
}

/// An instruction, outside the caching allocator, that calls the reporting function.
#[uprobe]
pub fn npu_workspace(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let Some(told) = told(&ctx) else {
        return 0;
    };
    if told.with_component && told.head.component != WORKSPACE {
        return 0;
    }
    send(&told, KIND_WORKSPACE, STACK_NONE);
    0
}

#[inline(always)]
fn send(told: &ReportCall, kind: u16, stack: u64) {
    emit::<ReportRecord>(told.process, told.tid, kind, 0, stack, |record| {
        // SAFETY: the reservation is as large as ReportRecord; every field is written.
        unsafe {
            (*record).ptr = told.usage[1];
            (*record).size = told.usage[2] as i64;
            (*record).total_allocated = told.usage[3];
            (*record).total_reserved = told.usage[4];
            (*record).device_type = told.head.device_type;
            (*record).device = told.head.device;
        }
    });
}
