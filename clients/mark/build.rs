//! Linker flags of the library: they set its name (soname) and keep it small.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Programs that were linked with the library by a path look for it by this name at run time.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,libmemscope_mark.so");
    // The debug information is that of Rust's standard library, of which nothing is used.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--strip-debug");
    // LLVM's linker keeps everything that unwinding tables refer to, and so all of Rust's panic code: 300 KiB of code
    // instead of 2. Without GNU's linker the library is only larger.
    if has_gnu_linker() {
        println!("cargo:rustc-link-arg-cdylib=-fuse-ld=bfd");
    }
}

/// Whether the C compiler that rustc uses for linking finds GNU's linker. Cargo passes the compiler in `RUSTC_LINKER`
/// if one is configured.
fn has_gnu_linker() -> bool {
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    Command::new(compiler)
        .args(["-fuse-ld=bfd", "-Wl,--version"])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"GNU ld"))
}
