//! Resolves real processes with libraries that are built for each test.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Fixtures, Waiting, missing, object, resolve, site};
use memscope_memory::ProcessMemory;
use memscope_site::place::Emulation;
use memscope_site::{Level, Resolver, SiteError, Why};
use memscope_vendors::Layer;

const RUNTIME: &str = r#"
#include <stddef.h>
volatile int count;
int cudaMalloc(void **p, size_t n) { count++; *p = (void *)n; return 0; }
int cudaFree(void *p) { count += 2; return p == (void *)&count; }
int cudaMallocManaged(void **p, size_t n, unsigned f) { count += 3; *p = (void *)n; return f; }
"#;

#[test]
fn a_runtime() {
    let fixtures = Fixtures::new();
    let library = fixtures.library("my libs/libcudart.so.13", RUNTIME, &[]);
    let process = fixtures.run(&[&library]);
    let mut resolver = Resolver::new();
    let resolved = resolver.resolve(process.pid(), Level::Segments).unwrap();
    let found = object(&resolved, &library);
    assert!(!found.deleted && resolved.device_library && !resolved.pytorch);
    assert!(found.identity.build_id.is_some());
    for (name, bytes_from_entry) in [("cudaMalloc", 0), ("cudaFree", 0), ("cudaMallocManaged", 0)] {
        let site = site(found, name);
        assert_eq!(site.row.layer, Layer::Runtime);
        assert!(site.entry_offset >= site.function_offset + bytes_from_entry);
        assert_eq!(site.return_offset, Some(site.entry_offset));
        assert_eq!(site.cookie(9).site(), 9);
        // The bytes in memory equal those that the file has at the offset.
        let mut in_memory = [0; 16];
        let memory = ProcessMemory::open(process.pid()).unwrap();
        memscope_memory::Memory::read(&memory, site.address, &mut in_memory).unwrap();
        let file = fs::read(&found.open_path).unwrap();
        let offset = site.function_offset as usize;
        assert_eq!(in_memory, file[offset..offset + 16]);
        assert_eq!(
            site.address - found.base,
            dynamic_symbol(&library, name),
            "{name}"
        );
    }
    // The linker's hook is found, and nothing is reported about it.
    let hook = resolved.loader_hook.as_ref().unwrap();
    assert_eq!(hook.site.symbol, "_dl_debug_state");
    assert_eq!(hook.site.return_offset, None);
    // A second resolve reads no file again.
    let again = resolver.resolve(process.pid(), Level::Segments).unwrap();
    assert_eq!((again.scanned, again.examined), (0, resolved.examined));
    assert!(resolved.read_bytes > 0);
    assert_eq!(again.read_bytes, 0, "files that are known");
    assert_eq!(again.objects, resolved.objects);
}

fn dynamic_symbol(library: &Path, name: &str) -> u64 {
    let bytes = fs::read(library).unwrap();
    let elf = memscope_site::elf::Elf::read(&bytes[..]).unwrap();
    let table = elf.exported_symbols().unwrap().unwrap();
    let symbol = table.defined().find(|s| s.name == name.as_bytes());
    symbol.unwrap().address
}

#[test]
fn a_runtime_linked_statically() {
    let fixtures = Fixtures::new();
    let hidden = RUNTIME.replace("\nint ", "\n__attribute__((visibility(\"hidden\"))) int ");
    let source =
        format!("{hidden}\nint entry(void **p) {{ return cudaMalloc(p, 3) + cudaFree(*p); }}");
    let library = fixtures.library("_C.so", &source, &[]);
    let stripped = fixtures.library("_C_stripped.so", &source, &["-Wl,--strip-all"]);
    let process = fixtures.run(&[&library, &stripped]);
    let resolved = resolve(process.pid(), Level::Segments);
    let found = object(&resolved, &library);
    site(found, "cudaMalloc");
    site(found, "cudaFree");
    assert!(
        !resolved
            .objects
            .iter()
            .any(|o| o.display_path.ends_with("_C_stripped.so"))
    );
}

#[test]
fn a_library_replaced_on_disk() {
    let fixtures = Fixtures::new();
    let library = fixtures.library("libcudart.so.12", RUNTIME, &[]);
    let process = fixtures.run(&[&library]);
    let before = resolve(process.pid(), Level::Segments);
    // This is how an upgrade replaces a file: a new file is renamed over the old one.
    let newer = fixtures.library(
        "newer.so",
        &format!("int pad[999]={{1}};int a(){{return pad[3];}}{RUNTIME}"),
        &[],
    );
    fs::rename(newer, &library).unwrap();
    let mut resolver = Resolver::for_kernel(Emulation::of_kernel(6, 18));
    let after = resolver.resolve(process.pid(), Level::Segments).unwrap();
    let (old, now) = (object(&before, &library), object(&after, &library));
    assert!(now.deleted && !old.deleted);
    assert_eq!((&now.identity, &now.sites), (&old.identity, &old.sites));
    // It is found by its name, too.
    let files = memscope_site::process::mapped_files(process.pid());
    let wanted = ("libcudart.so.12".to_owned(), true);
    assert!(files.contains(&wanted), "{files:?}");
    // A new process has the new file, and the two files have different identities.
    let second = fixtures.run(&[&library]);
    let new = resolver.resolve(second.pid(), Level::Segments).unwrap();
    let new = object(&new, &library);
    assert_ne!(new.identity, now.identity);
    assert_eq!(site(new, "cudaMalloc").row.name, "cudaMalloc");
}

#[test]
fn two_names_of_one_function() {
    let fixtures = Fixtures::new();
    let source = r#"
#include <stddef.h>
volatile int count;
int cuMemAlloc_v2(void **p, size_t n) { count++; *p = (void *)n; return 0; }
int cuMemAlloc(void **p, size_t n) __attribute__((alias("cuMemAlloc_v2")));
int cuMemFree_v2(void *p) { count += 2; return 0; }
int cuMemFree(unsigned p) { count += 3; return 1; }
int cuMemAllocAsync(void **p, size_t n, void *s) { count += 4; return 0; }
int cuMemAllocAsync_ptsz(void **p, size_t n, void *s) __attribute__((alias("cuMemAllocAsync")));
int cuMemRelease(void *p) { count += 5; return 0; }
int cuMemFreeHost(void *p) __attribute__((alias("cuMemRelease")));
"#;
    let library = fixtures.library("libcuda.so.1", source, &[]);
    let process = fixtures.run(&[&library]);
    let resolved = resolve(process.pid(), Level::Segments);
    let found = object(&resolved, &library);
    let alloc = site(found, "cuMemAlloc_v2");
    assert_eq!(alloc.aliases, ["cuMemAlloc"]);
    assert_eq!(
        site(found, "cuMemAllocAsync").aliases,
        ["cuMemAllocAsync_ptsz"]
    );
    assert_eq!(found.sites.len(), 3, "{:?}", found.sites);
    assert_eq!(missing(&resolved, "cuMemFree").why, Why::Narrow);
    assert!(missing(&resolved, "cuMemFree").is_harmless());
    // Two different functions with one body cannot be told apart.
    for (one, other) in [
        ("cuMemRelease", "cuMemFreeHost"),
        ("cuMemFreeHost", "cuMemRelease"),
    ] {
        assert_eq!(missing(&resolved, one).why, Why::Folded(other.to_owned()));
    }
}

#[test]
fn thunks_indirect_functions_and_protected_entries() {
    let fixtures = Fixtures::new();
    let source = r#"
#include <stddef.h>
volatile int count;
static int real(void) { return count; }
static int (*chosen(void))(void) { return real; }
int cudaFree(void *p) __attribute__((ifunc("chosen")));
__asm__(".globl cudaMalloc\n.type cudaMalloc,@function\ncudaMalloc: jmp away\n.size cudaMalloc,.-cudaMalloc\n"
        ".type away,@function\naway: ret\n.size away,.-away\n"
        ".globl cudaFreeHost\n.type cudaFreeHost,@function\n"
        "cudaFreeHost: endbr64\npush %rbx\npop %rbx\nret\n.size cudaFreeHost,.-cudaFreeHost\n"
        ".globl cudaHostAlloc\n.type cudaHostAlloc,@function\n"
        "cudaHostAlloc: sub $8,%rsp\nnop\nadd $8,%rsp\nret\n.size cudaHostAlloc,.-cudaHostAlloc\n"
        ".globl cudaMallocHost\n.type cudaMallocHost,@function\n"
        "cudaMallocHost: int3\nret\n.size cudaMallocHost,.-cudaMallocHost\n");
"#;
    let library = fixtures.library("libcudart.so.13", source, &[]);
    let process = fixtures.run(&[&library]);
    let resolved = resolve(process.pid(), Level::Segments);
    let found = object(&resolved, &library);
    let place = |name: &str| {
        let site = site(found, name);
        (site.entry_offset - site.function_offset, site.emulated)
    };
    assert_eq!(place("cudaMalloc"), (0, true));
    assert_eq!(place("cudaFreeHost"), (4, true));
    // Because of the return probe, the entry probe stays on the first instruction.
    assert_eq!(place("cudaHostAlloc"), (0, false));
    assert_eq!(missing(&resolved, "cudaFree").why, Why::Ifunc);
    assert!(matches!(
        missing(&resolved, "cudaMallocHost").why,
        Why::Place(_)
    ));
}

#[test]
fn a_program_without_a_linker() {
    let fixtures = Fixtures::new();
    let source = r#"
volatile int count;
int cudaMalloc(void **p, unsigned long n) { count++; return 0; }
static long call(long n, long a, const char *b, long c) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}
void _start(void) {
    char byte;
    cudaMalloc(0, 1);
    call(1, 1, "ready\n", 6);
    call(0, 0, &byte, 1);
    call(60, 0, 0, 0);
}
"#;
    let arguments = [
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-stack-protector",
    ];
    let program = fixtures.program("alone", source, &arguments);
    let process = Waiting::start(&mut Command::new(&program));
    let resolved = resolve(process.pid(), Level::Segments);
    let found = object(&resolved, &program);
    let here = site(found, "cudaMalloc");
    assert_eq!((found.base, here.address), (0, here.address));
    assert!(resolved.loader_hook.is_none());
    assert_eq!(missing(&resolved, "_dl_debug_state").why, Why::NotDefined);
}

#[test]
fn a_process_that_has_nothing() {
    let fixtures = Fixtures::new();
    let process = fixtures.run(&[]);
    let resolved = resolve(process.pid(), Level::Trace);
    assert!(resolved.objects.is_empty() && resolved.missing.is_empty());
    assert!(!resolved.device_library && !resolved.pytorch && resolved.loader_hook.is_some());
}

#[test]
fn a_process_that_is_none() {
    let mut resolver = Resolver::new();
    assert!(matches!(
        resolver.resolve(0x7fff_fff0, Level::Trace),
        Err(SiteError::NoSuchProcess { pid: 0x7fff_fff0 })
    ));
    assert!(matches!(
        resolver.resolve(0, Level::Trace),
        Err(SiteError::NoSuchProcess { .. })
    ));
    // Process 2 is the kernel's thread daemon, if it is visible here.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert!(matches!(
            resolver.resolve(2, Level::Trace),
            Err(SiteError::KernelThread { pid: 2 })
        ));
    }
}

#[test]
fn a_process_whose_main_thread_has_ended() {
    let fixtures = Fixtures::new();
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *rest(void *main) {
    pthread_join(*(pthread_t *)main, 0);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
static pthread_t self, other;
int main(void) {
    self = pthread_self();
    pthread_create(&other, 0, rest, &self);
    pthread_exit(0);
}
"#;
    let program = fixtures.program("headless", source, &["-pthread"]);
    let process = Waiting::start(&mut Command::new(program));
    let pid = process.pid();
    // pthread_join returns a moment before the kernel calls the thread a zombie.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !matches!(
        Resolver::new().resolve(pid, Level::Trace),
        Err(SiteError::MainThreadEnded { .. })
    ) {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_damaged_file_is_named_and_does_not_hide_the_others() {
    let fixtures = Fixtures::new();
    let library = fixtures.library("libcudart.so.13", RUNTIME, &[]);
    let broken = fixtures.library("broken.so", "int x(void) { return 1; }", &[]);
    let process = fixtures.run(&[&library, &broken]);
    // The section headers lie at the end of the file, so the part that is loaded stays as it is.
    let file = fs::OpenOptions::new().write(true).open(&broken).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 100).unwrap();
    let resolved = resolve(process.pid(), Level::Segments);
    site(object(&resolved, &library), "cudaMalloc");
    let word = missing(&resolved, "*");
    assert!(word.library.ends_with("broken.so"), "{word}");
    assert!(matches!(word.why, Why::File(_)), "{word}");
}

/// What of a process's libraries cannot be read is there all the same: it has a device's library, or PyTorch.
#[test]
fn a_damaged_file_counts_by_its_name() {
    for (name, device_library, pytorch) in [
        ("libcudart.so.13", true, false),
        ("libc10_cuda.so", false, true),
        ("libtorch_npu.so", false, true),
        ("other.so", false, false),
    ] {
        let fixtures = Fixtures::new();
        let broken = fixtures.library(name, RUNTIME, &[]);
        let process = fixtures.run(&[&broken]);
        let file = fs::OpenOptions::new().write(true).open(&broken).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - 100).unwrap();
        let resolved = resolve(process.pid(), Level::Segments);
        let word = missing(&resolved, "*");
        assert!(matches!(word.why, Why::File(_)), "{word}");
        let found = (resolved.device_library, resolved.pytorch);
        assert_eq!(found, (device_library, pytorch), "{name}");
        assert!(!resolved.undelivered);
    }
}

#[test]
fn the_children_of_all_threads_are_found() {
    let start = || Command::new("sleep").arg("60").spawn().unwrap();
    let (wait, go_on) = std::sync::mpsc::channel::<()>();
    let (told, tell) = std::sync::mpsc::channel::<std::process::Child>();
    // A child belongs to the thread that forked it, as long as that runs.
    let thread = std::thread::spawn(move || {
        told.send(start()).unwrap();
        let _ = go_on.recv();
    });
    let mut children = [start(), tell.recv().unwrap()];
    let found = memscope_site::process::children(std::process::id());
    let all_found = children.iter().all(|child| found.contains(&child.id()));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(wait);
    thread.join().unwrap();
    assert!(all_found, "{found:?}");
    let left = memscope_site::process::children(std::process::id());
    assert!(!children.iter().any(|child| left.contains(&child.id())));
    assert!(memscope_site::process::children(u32::MAX).is_empty());
}
