//! Builds the BPF object and puts it where the daemon includes it from.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=../memscope-ebpf/src");
    println!("cargo::rerun-if-changed=../memscope-ebpf/Cargo.toml");
    println!("cargo::rerun-if-changed=../memscope-common/src");
    println!("cargo::rerun-if-env-changed=MEMSCOPE_BPF_OBJECT");
    if let Err(problem) = build() {
        println!("cargo::error={}", problem.replace('\n', " | "));
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let var = |name: &str| std::env::var(name).map_err(|e| format!("{name}: {e}"));
    let out = PathBuf::from(var("OUT_DIR")?).join("memscope.bpf.o");
    let object = match std::env::var_os("MEMSCOPE_BPF_OBJECT") {
        // An object built elsewhere (by `cargo xtask ebpf`), for machines without the BPF toolchain.
        Some(path) => PathBuf::from(path),
        None => {
            let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
            let root = manifest.parent().unwrap_or(Path::new(".")).to_owned();
            memscope_ebpf_build::build(
                &root,
                &var("CARGO_CFG_TARGET_ARCH")?,
                &root.join("target/ebpf"),
            )
            .map_err(|e| e.to_string())?
        }
    };
    std::fs::copy(&object, &out)
        .map_err(|e| format!("{} could not be copied: {e}", object.display()))?;
    Ok(())
}
