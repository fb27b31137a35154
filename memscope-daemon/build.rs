//! Provides the BPF object that the daemon includes: the committed one, or one that is built if the sources have
//! changed.

use std::path::{Path, PathBuf};

use memscope_ebpf_build::{Built, FOLDER};

fn main() {
    for path in [
        FOLDER,
        "memscope-ebpf/src",
        "memscope-ebpf/Cargo.toml",
        "memscope-ebpf/Cargo.lock",
        "memscope-common",
    ] {
        println!("cargo::rerun-if-changed=../{path}");
    }
    if let Err(problem) = build() {
        println!("cargo::error={}", problem.replace('\n', " | "));
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let var = |name: &str| std::env::var(name).map_err(|e| format!("{name}: {e}"));
    let out = PathBuf::from(var("OUT_DIR")?).join("memscope.bpf.o");
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let root = manifest.parent().unwrap_or(Path::new("."));
    let arch = var("CARGO_CFG_TARGET_ARCH")?;
    let built = Built::read(root)
        .object(root, &arch)
        .map_err(|e| e.to_string())?;
    let object = match built {
        Some(object) => object,
        None => {
            println!(
                "cargo::warning=the BPF programs are not those of {FOLDER}: they are built from their sources"
            );
            memscope_ebpf_build::build(root, &arch, &root.join("target/ebpf"))
                .map_err(|e| e.to_string())?
        }
    };
    std::fs::copy(&object, &out)
        .map_err(|e| format!("{} could not be copied: {e}", object.display()))?;
    Ok(())
}
