//! How the library is linked: small, and with a name of its own.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Programs that were linked with it by a path look for the name.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,libmemscope_mark.so");
    // What there is to debug is Rust's own library, of which nothing is used.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--strip-debug");
    // LLVM's linker keeps what unwinding tables name, and with it all of Rust's machinery of panics:
    // 300 KiB of code instead of 2. Where GNU's linker is missing, the library is only larger.
    if has_gnu_linker() {
        println!("cargo:rustc-link-arg-cdylib=-fuse-ld=bfd");
    }
}

/// Whether the C compiler that rustc links with finds GNU's linker. Cargo names it where it is configured.
fn has_gnu_linker() -> bool {
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    Command::new(compiler)
        .args(["-fuse-ld=bfd", "-Wl,--version"])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"GNU ld"))
}
