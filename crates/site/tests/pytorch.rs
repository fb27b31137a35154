//! Resolves imitations of PyTorch's libraries that have only what matters here.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use common::{Fixtures, missing, object, resolve, site};
use memscope_common::TorchAbi;
use memscope_ledger::event::Backend;
use memscope_memory::ProcessMemory;
use memscope_site::{Level, NoCalls, TraceCalls, Why, backend};
use memscope_tests::limits::{Met, constant};
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

/// Source of an imitated libc10_cuda.so whose functions consist of these instructions, before a `ret`.
fn of_functions(functions: &[(&str, &str)]) -> String {
    let mut source = "char name[1];\n__asm__(\".text\\n\"\n".to_owned();
    for (name, body) in functions {
        source.push_str(&format!(
            "\".type {name},@function\\n{name}: {body}\\nret\\n.size {name},.-{name}\\n\"\n"
        ));
    }
    source.push_str(");\n");
    source
}

const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator";

/// Where an imitated allocator with these functions calls `record_trace` and `free_block`, and the file.
fn calls_of(functions: &[(&str, &str)]) -> (Result<TraceCalls, NoCalls>, Vec<u8>) {
    let fixtures = Fixtures::new();
    let named: Vec<(String, String)> = functions
        .iter()
        .map(|(name, body)| {
            let body = body
                .replace("record_trace", &format!("{TRACE}{TRACE_28}"))
                .replace("free_block", &format!("{ALLOCATOR}10free_blockEPv"));
            let name = match *name {
                "record_trace" => format!("{TRACE}{TRACE_28}"),
                "free_block" => format!("{ALLOCATOR}10free_blockEPv"),
                "free" => format!("{ALLOCATOR}4freeEPv"),
                "free_locked" => format!("{ALLOCATOR}11free_lockedEPv"),
                other => other.to_owned(),
            };
            (name, body)
        })
        .collect();
    let named: Vec<(&str, &str)> = named
        .iter()
        .map(|(n, b)| (n.as_str(), b.as_str()))
        .collect();
    let library = fixtures.library("libc10_cuda.so", &of_functions(&named), &[]);
    let process = fixtures.run(&[&library]);
    let resolved = resolve(process.pid(), Level::Trace);
    let trace = site(
        object(&resolved, &library),
        "DeviceCachingAllocator::record_trace",
    );
    (
        trace.calls.clone().unwrap(),
        std::fs::read(&library).unwrap(),
    )
}

/// What every version has: a call of `record_trace` in `free` and in `free_block`, and one of `free_block` in `free`.
const KNOWN: [(&str, &str); 5] = [
    ("record_trace", "push %rbx; pop %rbx"),
    ("free_block", "push %rbx; call record_trace; pop %rbx"),
    (
        "free",
        "push %rbx; call record_trace; call free_block; pop %rbx",
    ),
    ("alloc", "push %rbx; call record_trace; pop %rbx"),
    ("events", "push %rbx; 1: call free_block; jmp 1b; pop %rbx"),
];

#[test]
fn calls_that_tell_of_frees() {
    let (found, file) = calls_of(&KNOWN);
    let found = found.unwrap();
    let numbers = (found.record_trace.len(), found.waited.len());
    assert_eq!(numbers, (2, 1), "{found:?}");
    let all = found.record_trace.iter().chain(&found.waited);
    let mut all: Vec<u64> = all.chain([&found.completed]).copied().collect();
    // The functions in the order of the file: free_block, free, alloc, events.
    let [requested, allocated] = found.record_trace[..] else {
        panic!("{found:?}")
    };
    assert!(found.completed < requested && requested < allocated && allocated < found.waited[0]);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4);
    // Each stands on a near call.
    assert!(all.iter().all(|at| file[*at as usize] == 0xe8));
}

/// Since 2.13 `free` takes the lock, and `free_locked` does what it did before.
#[test]
fn calls_since_frees_are_locked() {
    let mut functions = KNOWN.to_vec();
    functions[2].0 = "free_locked";
    functions.push(("free", "push %rbx; pop %rbx"));
    let found = calls_of(&functions).0.unwrap();
    assert_eq!((found.record_trace.len(), found.waited.len()), (2, 1));
}

#[test]
fn calls_that_are_not_as_known_are_not_used() {
    let with = |function: usize, body: &'static str| {
        let mut functions = KNOWN;
        functions[function].1 = body;
        calls_of(&functions).0
    };
    let times = |function, called, times| {
        Err(NoCalls::Times {
            function,
            called,
            times,
        })
    };
    let inlined = with(
        2,
        "push %rbx; call record_trace; call record_trace; pop %rbx",
    );
    assert_eq!(inlined, times("free", "record_trace", 2));
    let without = with(2, "push %rbx; call record_trace; pop %rbx");
    assert_eq!(without, times("free", "free_block", 0));
    let silent = with(1, "push %rbx; pop %rbx");
    assert_eq!(silent, times("free_block", "record_trace", 0));
    let jump = with(4, "jmp free_block");
    assert_eq!(jump, Err(NoCalls::Jump("free_block")));
    let jump = with(3, "jmp record_trace");
    assert_eq!(jump, Err(NoCalls::Jump("record_trace")));
    // A byte that begins no instruction of 64-bit code.
    let damaged = with(3, ".byte 0x06");
    assert!(
        matches!(damaged, Err(NoCalls::Undecoded { .. })),
        "{damaged:?}"
    );
}

#[test]
fn code_that_is_too_much_is_not_searched_for_calls() {
    let mut functions = KNOWN.to_vec();
    functions.push(("large", ".skip 17 << 20, 0x90"));
    let (found, _) = calls_of(&functions);
    assert!(matches!(found, Err(NoCalls::TooMuch { .. })), "{found:?}");
    Met {
        what: "bytes of code of PyTorch's allocator that are searched for calls",
        most: constant("crates/site/src/calls.rs", "MOST_CODE"),
        beyond: "`record_trace` has its probe at its entry, which costs one trap more for a free",
        told: "the cost in the answer to `attach`, with the reason",
        test: "code_that_is_too_much_is_not_searched_for_calls",
    }
    .is_told();
}
