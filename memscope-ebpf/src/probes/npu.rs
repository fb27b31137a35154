//! torch_npu's reports: one structure says what a block is, whose, and the allocator's totals.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memscope_common::{KIND_REPORT, KIND_WORKSPACE, ProcessEntry, ReportRecord, STACK_NONE};

use super::ids;
use crate::emit::{emit, live_process, tell_launches};
use crate::{native, read, stack};

/// `MemoryDataType::MEMORY_BLOCK_FREE`: a block that was freed before is now out of use.
const BLOCK_FREE: u8 = 2;
/// `MemoryComponentType::WORKSPACE_ALLOCATOR`.
const WORKSPACE: u8 = 1;

/// torch_npu's `MemoryUsage`: five bytes (four in older versions, without the component) and six words.
type Usage = [u64; 7];

/// What the first bytes say: device type, device, component, type of the data.
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

/// `torch_npu::profiler::reportMemoryDataToNpuProfiler(const MemoryUsage &)`, entered.
#[uprobe]
pub fn npu_report(ctx: ProbeContext) -> u32 {
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let with_component = read::cookie(&ctx).usage_component();
    let Some(usage) = read::user::<Usage>(read::args(&ctx)[0]) else {
        return 0;
    };
    let head = head(usage[0], with_component);
    // Of workspaces the other program tells.
    if head.component == WORKSPACE || head.data == BLOCK_FREE {
        return 0;
    }
    let comes = usage[2] as i64 > 0;
    let stack = if comes {
        stack::stack(process, tid, native::at_entry(&ctx), usage[2])
    } else {
        STACK_NONE
    };
    if comes {
        tell_launches(process, tid);
    }
    send(process, tid, KIND_REPORT, stack, &usage, &head);
    0
}

/// A call of it that is no caching allocator's.
#[uprobe]
pub fn npu_workspace(ctx: ProbeContext) -> u32 {
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let with_component = read::cookie(&ctx).usage_component();
    let Some(usage) = read::user::<Usage>(read::args(&ctx)[0]) else {
        return 0;
    };
    let head = head(usage[0], with_component);
    if with_component && head.component != WORKSPACE || head.data == BLOCK_FREE {
        return 0;
    }
    send(process, tid, KIND_WORKSPACE, STACK_NONE, &usage, &head);
    0
}

#[inline(always)]
fn send(process: *mut ProcessEntry, tid: u32, kind: u16, stack: u64, usage: &Usage, head: &Head) {
    emit::<ReportRecord>(process, tid, kind, 0, stack, |record| {
        // SAFETY: the reservation is as large as ReportRecord; every field is written.
        unsafe {
            (*record).ptr = usage[1];
            (*record).size = usage[2] as i64;
            (*record).total_allocated = usage[3];
            (*record).total_reserved = usage[4];
            (*record).device_type = head.device_type;
            (*record).device = head.device;
        }
    });
}
