//! Finds the functions in an imitation of torch_npu's library without its symbol table.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use common::{Fixtures, missing, object, resolve, site};
use memscope_common::TorchAbi;
use memscope_ledger::event::Backend;
use memscope_memory::ProcessMemory;
use memscope_site::{Level, NotFound, Why, backend};
use memscope_vendors::Variant;
use memscope_vendors::torch_npu::{REPORT, TRACE, WORKSPACE};

const CLASS: &str = "N7c10_npu19NPUCachingAllocator19NpuCachingAllocatorE";

/// Source of the imitation: an allocator whose table has this many functions, which trace and report as torch_npu's do
/// with this type of device, and a second allocator that reports.
fn library(class: &str, device_type: u32, functions: u32) -> String {
    format!(
        r#"
typedef struct {{
    signed char type, device;
    unsigned char component, data, allocator;
    long long ptr, size, allocated, reserved, active, stream;
}} usage;
volatile long long seen;
#define ALONE __attribute__((noinline, noclone, used))
ALONE static void report(const usage *it) {{ seen += it->size + it->device; }}
ALONE static void record(void *self, int action, long address, unsigned long size, void *stream, int device, void *context) {{
    seen += action + address + (long)size + device + (long)stream + (long)context + (long)self;
}}
ALONE static void other(void *self, int number) {{ seen += number + (long)self; }}
#define USAGE(kind, sign) {{ usage it = {{ {device_type}, (signed char)device, 0, kind, (unsigned char)flag, \
    address, sign size, seen, seen + 1, seen + 2, (long long)stream }}; report(&it); }}
ALONE static void segment(void *self, long address, unsigned long size, void *stream, int device) {{
    record(self, 3, address, size, stream, device, &size);
}}
ALONE static void *allocate(void *self, long address, long size, void *stream, int device, int flag) {{
    segment(self, address, size, stream, device);
    record(self, 0, address, size, stream, device, &size);
    USAGE(0, )
    return self;
}}
ALONE static void *release(void *self, long address, long size, void *stream, int device, int flag) {{
    record(self, 1, address, size, stream, device, &size);
    other(self, 900);
    USAGE(1, -)
    record(self, 4, address, size, stream, device, &size);
    return self;
}}
ALONE static void *nothing(void *self) {{ other(self, 0); return self; }}
/* The workspaces' allocator, which the table does not lead to. */
void *workspace(long address, long size, void *stream, int device, int flag) {{
    USAGE(0, )
    return stream;
}}
static const char name[] = "{class}";
static void *type[2] = {{ 0, (void *)name }};
static void *table[2 + {functions}] = {{ 0, type, (void *)allocate, (void *)release, [4 ... 1 + {functions}] = (void *)nothing }};
static void *instance[1] = {{ table + 2 }};
void *allocator __asm__("_ZN7c10_npu19NPUCachingAllocator9allocatorE") = instance;
"#
    )
}

#[test]
fn found_by_what_they_are() {
    let fixtures = Fixtures::new();
    let stripped = fixtures.library("libtorch_npu.so", &library(CLASS, 20, 10), &["-Wl,-s"]);
    let process = fixtures.run(&[&stripped]);
    let resolved = resolve(process.pid(), Level::Trace);
    assert!(
        resolved.pytorch
            && resolved
                .missing
                .iter()
                .all(|m| m.library != "libtorch_npu.so")
    );
    let here = object(&resolved, &stripped);
    let report = site(here, REPORT);
    assert_eq!(report.variant, Variant::Usage { component: true });
    assert!(report.cookie(1).usage_component());
    assert_eq!(report.return_offset, None);
    let trace = site(here, TRACE);
    let abi = TorchAbi {
        device: true,
        pool: false,
    };
    assert_eq!(trace.variant, Variant::Trace(abi));
    assert!(!trace.cookie(1).torch_pool());

    // They are the same functions that the symbols name in the same library with its symbol table.
    let whole = fixtures.library("whole/libtorch_npu.so", &library(CLASS, 20, 10), &[]);
    let symbols = std::process::Command::new("nm")
        .arg(&whole)
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let address = |name: &str| {
        let line = symbols
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap()
    };
    assert_eq!(report.address - here.base, address("report"));
    assert_eq!(trace.address - here.base, address("record"));
    // The only call outside the caching allocator lies in `workspace`, and the probe stands right on the call.
    let calls: Vec<u64> = here
        .sites
        .iter()
        .filter(|site| site.row.name == WORKSPACE)
        .map(|site| site.address - here.base)
        .collect();
    assert_eq!(calls.len(), 1, "{calls:x?}");
    let start = address("workspace");
    assert!((start..start + 200).contains(&calls[0]), "{calls:x?}");
    let file = std::fs::read(&stripped).unwrap();
    let at = here
        .sites
        .iter()
        .find(|site| site.row.name == WORKSPACE)
        .unwrap();
    assert_eq!(file[at.entry_offset as usize], 0xe8);

    let memory = ProcessMemory::open(process.pid()).unwrap();
    let slot = resolved.allocator_address.unwrap();
    assert_eq!(backend::read(&memory, slot).unwrap(), Some(Backend::Native));
    // Level segments has no functions of pools, but those of workspaces, which are taken from the runtime.
    let segments = resolve(process.pid(), Level::Segments);
    let names: Vec<&str> = object(&segments, &stripped)
        .sites
        .iter()
        .map(|site| site.row.name)
        .collect();
    assert_eq!(names, [WORKSPACE]);
}

#[test]
fn what_is_not_known_says_why() {
    let fixtures = Fixtures::new();
    let why = |name: &str, source: &str| {
        let library = fixtures.library(&format!("{name}/libtorch_npu.so"), source, &["-Wl,-s"]);
        let process = fixtures.run(&[&library]);
        let resolved = resolve(process.pid(), Level::Trace);
        assert!(resolved.objects.is_empty(), "{:?}", resolved.objects);
        assert!(resolved.pytorch);
        let report = missing(&resolved, REPORT);
        assert_eq!(report.why, missing(&resolved, TRACE).why);
        (report.why.clone(), report.to_string())
    };
    let (other, text) = why("class", &library("N7c10_npu5OtherE", 20, 10));
    assert!(matches!(other, Why::NotFound(NotFound::Class(_))), "{text}");
    assert!(
        text.contains("c10_npu::NPUCachingAllocator::NpuCachingAllocator"),
        "{text}"
    );
    let (few, text) = why("table", &library(CLASS, 20, 4));
    assert!(matches!(few, Why::NotFound(NotFound::Table(_))), "{text}");
    let (type_, text) = why("type", &library(CLASS, 21, 10));
    assert!(
        matches!(type_, Why::NotFound(NotFound::Report { found: 0, .. })),
        "{text}"
    );
    assert!(text.contains("this torch_npu is not known"), "{text}");
    let source = library(CLASS, 20, 10).replace("record(self, 4,", "record(self, 77,");
    let (action, text) = why("action", &source);
    assert!(
        matches!(action, Why::NotFound(NotFound::Trace { found: 0, .. })),
        "{text}"
    );
}
