//! Probes on functions that make marks: moments with a name, ranges, steps, backward passes.

use aya_ebpf::helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use core::ffi::c_void;
use memscope_common::{KIND_MARK, MARK_NAME, MarkForm, MarkRecord, MarkSource, STACK_NONE};

use super::ids;
use crate::emit::{emit, live_process, tell_launches};
use crate::{native, own_stack, read, stack};

/// What is known of a mark, with the place of its name.
struct Said {
    range: u64,
    kind: u16,
    source: u16,
    form: u8,
    /// Address of the name, and its length, if that is known.
    name: u64,
    len: u64,
}

/// Entry of a function that makes a mark. The cookie holds its [`MarkForm`].
#[uprobe]
pub fn mark(ctx: ProbeContext) -> u32 {
    own_stack::keep();
    let (tgid, tid) = ids();
    let Some(process) = live_process(tgid) else {
        return 0;
    };
    let cookie = read::cookie(&ctx);
    // These marks need a stack, since steps are distinguished by the line of the program that makes them.
    let told = cookie.mark_source() == MarkSource::RecordFunction as u16
        || cookie.mark_source() == MarkSource::Backward as u16;
    let stack = if told {
        stack::stack(process, tid, native::at_entry(&ctx), u64::MAX)
    } else {
        STACK_NONE
    };
    // The cookie is read again: a value that is known before the walk of the stack makes the verifier follow the walk
    // with it.
    let cookie = read::cookie(&ctx);
    let args = read::args(&ctx);
    let arg = match cookie.mark_arg() {
        0 => args[0],
        1 => args[1],
        2 => args[2],
        _ => 0,
    };
    let mut said = Said {
        range: 0,
        kind: cookie.mark_kind(),
        source: cookie.mark_source(),
        form: cookie.mark_form(),
        name: 0,
        len: MARK_NAME as u64,
    };
    if said.form == MarkForm::Library as u8 {
        said.kind = args[0] as u32 as u16;
        said.range = args[1];
        said.name = args[2];
        said.len = args[3];
    } else if said.form == MarkForm::Range as u8 {
        said.range = arg;
    } else if said.form == MarkForm::Text as u8 {
        said.name = arg;
    } else if said.form == MarkForm::String as u8 {
        if let Some([text, len]) = read::user::<[u64; 2]>(arg) {
            said.name = text;
            said.len = len;
        }
    } else if said.form == MarkForm::OldString as u8
        && let Some(text) = read::user::<u64>(arg)
        && let Some(len) = read::user::<u64>(text.wrapping_sub(24))
    {
        said.name = text;
        said.len = len;
    }
    tell_launches(process, tid);
    emit::<MarkRecord>(process, tid, KIND_MARK, 0, stack, |record| {
        // SAFETY: the reservation is as large as MarkRecord; every field is written.
        unsafe {
            (*record).range = said.range;
            (*record).kind = said.kind;
            (*record).source = said.source;
            (*record).name = [0; MARK_NAME];
            let to = (&raw mut (*record).name).cast::<c_void>();
            let mut len = 0u64;
            if said.name != 0 && said.form == MarkForm::Text as u8 {
                let read =
                    bpf_probe_read_user_str(to, MARK_NAME as u32, said.name as *const c_void);
                // The result counts the NUL; it is negative if the text cannot be read.
                if read > 0 {
                    len = read as u64 - 1;
                }
            } else if said.name != 0 {
                let kept = if said.len > MARK_NAME as u64 {
                    MARK_NAME as u32
                } else {
                    said.len as u32
                };
                if kept != 0 && bpf_probe_read_user(to, kept, said.name as *const c_void) == 0 {
                    len = said.len;
                }
            }
            (*record).name_len = if len > u32::MAX as u64 {
                u32::MAX
            } else {
                len as u32
            };
        }
    });
    0
}
