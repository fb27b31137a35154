//! Provides the BPF object that the daemon includes, with gzip: the committed one, or one that is built if the sources
//! have changed.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};

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
    let out = PathBuf::from(var("OUT_DIR")?).join("memscope.bpf.o.gz");
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
    let bytes = std::fs::read(&object)
        .map_err(|e| format!("{} could not be read: {e}", object.display()))?;
    // Neither a name nor a time: the same object gives the same file.
    let mut packed = GzBuilder::new().write(Vec::new(), Compression::best());
    let packed = packed.write_all(&bytes).and_then(|()| packed.finish());
    packed
        .and_then(|packed| std::fs::write(&out, packed))
        .map_err(|e| format!("{} could not be written: {e}", out.display()))
}
