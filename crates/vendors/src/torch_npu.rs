//! torch_npu's functions. They are found by their symbols in builds that have kept their local symbols. The published
//! wheels have not; there `memscope-site`'s `stripped` finds the functions. Like PyTorch's own they may be left by an
//! exception, so none has a return probe.

use memscope_common::TorchAbi;

use crate::reading::Reading;
use crate::{Layer, Purpose, Row, Variant, Vendor};

/// Symbol of `c10_npu::NPUCachingAllocator::allocator`, the pointer to the allocator in use.
pub const ALLOCATOR: &str = "_ZN7c10_npu19NPUCachingAllocator9allocatorE";

const REPORT_SYMBOL: &str = "_ZN9torch_npu8profiler29reportMemoryDataToNpuProfilerE";
const TRACE_SYMBOL: &str =
    "_ZN7c10_npu19NPUCachingAllocator22DeviceCachingAllocator12record_traceE";

/// Name of the row of the function by which blocks and totals are reported.
pub const REPORT: &str = "torch_npu::profiler::reportMemoryDataToNpuProfiler";
/// Name of the row of the calls by which other allocators call the reporting function.
pub const WORKSPACE: &str = "torch_npu::profiler::reportMemoryDataToNpuProfiler, called";
/// Name of the row of `record_trace`.
pub const TRACE: &str = "NPUCachingAllocator::DeviceCachingAllocator::record_trace";

/// Variant of `record_trace` that torch_npu has. Its arguments in registers are: this, action, address, size, stream,
/// device; then comes the context, by reference.
pub const TRACE_ABI: TorchAbi = TorchAbi {
    device: true,
    pool: false,
};

const fn pool(name: &'static str, purpose: Purpose, symbol: &'static str) -> Row {
    Row::new(
        name,
        Some(Vendor::Ascend),
        Layer::Pool,
        "libtorch_npu.so",
        purpose,
    )
    .mangled(symbol)
}

pub(crate) const ROWS: &[Row] = &[
    pool(REPORT, Purpose::Report, REPORT_SYMBOL).essential(),
    pool(TRACE, Purpose::Trace, TRACE_SYMBOL).essential(),
    pool(WORKSPACE, Purpose::Workspace, "").calls(REPORT),
];

/// Reads the parameters of a function of torch_npu; `None` if the symbol belongs to none of the rows here.
pub(crate) fn read(symbol: &str, parameters: &str) -> Option<Reading> {
    match symbol {
        REPORT_SYMBOL => Some(match parameters {
            "RKNS0_11MemoryUsageE" => Reading::Is(Variant::Usage { component: true }),
            _ => Reading::Refused(format!(
                "its parameters ({parameters}) are not those of a torch_npu that we know"
            )),
        }),
        TRACE_SYMBOL => Some(match is_trace(parameters) {
            true => Reading::Is(Variant::Trace(TRACE_ABI)),
            false => Reading::Refused(format!(
                "its parameters ({parameters}) are not those of a torch_npu that we know"
            )),
        }),
        _ => None,
    }
}

/// Whether the parameters are `(Action, addr, size, stream, device, context)`. The stream is a `void *`, the device an
/// `int` or a `signed char`.
fn is_trace(parameters: &str) -> bool {
    const ACTION: &str = "10TraceEntry6ActionE";
    let Some(at) = parameters.find(ACTION) else {
        return false;
    };
    let rest = &parameters[at + ACTION.len()..];
    let device = ["lmPvi", "lmPva", "mmPvi", "mmPva"];
    device.iter().any(|words| {
        rest.strip_prefix(words)
            .is_some_and(|rest| rest.starts_with("St10shared_ptrIN"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let usage = "RKNS0_11MemoryUsageE";
        assert_eq!(
            read(REPORT_SYMBOL, usage),
            Some(Reading::Is(Variant::Usage { component: true }))
        );
        assert!(matches!(
            read(REPORT_SYMBOL, "v"),
            Some(Reading::Refused(_))
        ));
        let context = "St10shared_ptrIN3c1015GatheredContextEE";
        for device in ["lmPvi", "mmPva"] {
            let text = format!("NS0_10TraceEntry6ActionE{device}{context}");
            assert_eq!(
                read(TRACE_SYMBOL, &text),
                Some(Reading::Is(Variant::Trace(TRACE_ABI)))
            );
        }
        for wrong in ["v", "NS0_10TraceEntry6ActionElmPv", "lmPviSt10shared_ptrIN"] {
            assert!(matches!(
                read(TRACE_SYMBOL, wrong),
                Some(Reading::Refused(_))
            ));
        }
        assert_eq!(read("_ZN1aE", ""), None);
    }
}
