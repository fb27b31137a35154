//! Resolves imitations of PyTorch's libraries that have only what matters here.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use common::{Fixtures, missing, object, resolve, site};
use memscope_common::TorchAbi;
use memscope_ledger::event::Backend;
use memscope_memory::ProcessMemory;
use memscope_site::{Level, Why, backend};
use memscope_vendors::Variant;

const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
const TRACE: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator12record_traceE";
const TRACE_28: &str =
    "NS1_10TraceEntry6ActionEmmP11CUstream_staSt4pairIyyESt10shared_ptrINS_15GatheredContextEE";
const TRACE_21: &str =
    "NS1_10TraceEntry6ActionElmP11CUstream_stSt10shared_ptrINS_15GatheredContextEE";

/// Source of an imitated libc10_cuda.so: a local `record_trace`, the pointer to the allocator, and the allocator's
/// class.
fn c10_cuda(trace: &str, class: &str) -> String {
    format!(
        r#"
volatile int count;
static void trace(void) __asm__("{TRACE}{trace}");
__attribute__((used, noinline)) static void trace(void) {{ count++; }}
static const char name[] = "{class}";
static void *type[2] = {{ 0, (void *)name }};
static void *table[3] = {{ 0, type, 0 }};
static void *object[1] = {{ table + 2 }};
void *allocator __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE") = {};
"#,
        if class.is_empty() { "0" } else { "object" }
    )
}

#[test]
fn pytorch() {
    let fixtures = Fixtures::new();
    let native = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
    let cuda = fixtures.library("libc10_cuda.so", &c10_cuda(TRACE_28, native), &[]);
    let c10 = fixtures.library(
        "libc10.so",
        &format!("int c; void f(void) __asm__(\"{REPORT}\"); void f(void) {{ c++; }}"),
        &[],
    );
    let process = fixtures.run(&[&cuda, &c10]);

    let resolved = resolve(process.pid(), Level::Trace);
    assert!(resolved.pytorch && !resolved.device_library);
    let trace = site(
        object(&resolved, &cuda),
        "DeviceCachingAllocator::record_trace",
    );
    let abi = TorchAbi {
        device: true,
        pool: true,
    };
    assert_eq!(trace.variant, Variant::Trace(abi));
    assert!(trace.cookie(1).torch_pool());
    // There is no return probe, since an exception may pass through the function.
    assert_eq!(trace.return_offset, None);
    let report = site(object(&resolved, &c10), "c10::reportMemoryUsageToProfiler");
    assert_eq!(report.symbol, REPORT);
    assert_eq!(
        missing(&resolved, "c10::reportOutOfMemoryToProfiler").why,
        Why::NotDefined
    );

    let blocks = resolve(process.pid(), Level::Blocks);
    assert_eq!(blocks.objects.len(), 1);
    assert!(resolve(process.pid(), Level::Segments).objects.is_empty());

    let memory = ProcessMemory::open(process.pid()).unwrap();
    let slot = resolved.allocator_address.unwrap();
    assert_eq!(backend::read(&memory, slot).unwrap(), Some(Backend::Native));
}

#[test]
fn pytorch_of_other_kinds() {
    let fixtures = Fixtures::new();
    let first = fixtures.library("a/libc10_cuda.so", &c10_cuda(TRACE_21, ""), &[]);
    let second = fixtures.library("b/libc10_cuda.so", &c10_cuda(TRACE_28, "x"), &["-Wl,-s"]);
    let third = fixtures.library("c/libc10_cuda.so", &c10_cuda("v", "x"), &[]);
    let old = fixtures.library(
        "libc10.so",
        "int c; void f(void) __asm__(\"_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE\"); void f(void) { c++; }",
        &[],
    );

    let process = fixtures.run(&[&first, &old]);
    let resolved = resolve(process.pid(), Level::Trace);
    let trace = site(
        object(&resolved, &first),
        "DeviceCachingAllocator::record_trace",
    );
    let abi = TorchAbi {
        device: false,
        pool: false,
    };
    assert_eq!(trace.variant, Variant::Trace(abi));
    let refused = missing(
        &resolved,
        "_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE",
    );
    assert!(refused.to_string().contains("too old"), "{refused}");
    let memory = ProcessMemory::open(process.pid()).unwrap();
    let slot = resolved.allocator_address.unwrap();
    assert_eq!(backend::read(&memory, slot).unwrap(), None);

    let process = fixtures.run(&[&second]);
    let resolved = resolve(process.pid(), Level::Trace);
    let name = "DeviceCachingAllocator::record_trace";
    assert_eq!(missing(&resolved, name).why, Why::Stripped);

    let process = fixtures.run(&[&third]);
    let resolved = resolve(process.pid(), Level::Trace);
    let name = format!("{TRACE}v");
    assert!(matches!(missing(&resolved, &name).why, Why::Variant(_)));
}
