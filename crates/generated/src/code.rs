//! The Rust code of the `.proto` files, generated without `protoc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Generated files by their paths below the repository's folder.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The files of `memscope.v1`, as they are imported.
const FILES: [&str; 2] = ["memscope/v1/memscope.proto", "memscope/v1/trigger.proto"];
/// Folders that have nothing but generated files.
const FOLDERS: [&str; 3] = [
    "proto/src/generated",
    "crates/service/src/generated",
    "crates/report/src/generated",
];

/// Writes the files that are not as they should be; with `check`, fails if there are any.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let made = generate(root)?;
    let committed = committed(root)?;
    let unlike: Vec<String> = made
        .keys()
        .chain(committed.keys().filter(|name| !made.contains_key(*name)))
        .filter(|name| made.get(*name) != committed.get(*name))
        .map(|name| name.display().to_string())
        .collect();
    if check {
        if !unlike.is_empty() {
            bail!(
                "not what the .proto files give; `cargo xtask clients` makes them anew: {}",
                unlike.join(", ")
            );
        }
        eprintln!("{} files of Rust: the same, byte by byte", made.len());
        return Ok(());
    }
    for name in unlike {
        let path = root.join(&name);
        match made.get(Path::new(&name)) {
            Some(text) => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)?;
                }
                fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
                eprintln!("{name}: {} bytes", text.len());
            }
            None => {
                fs::remove_file(&path).with_context(|| format!("cannot remove {name}"))?;
                eprintln!("{name}: removed");
            }
        }
    }
    Ok(())
}

/// Generates all files from the `.proto` files of the repository in `root`.
pub fn generate(root: &Path) -> Result<Files> {
    let scratch = tempfile::tempdir().context("no folder for temporary files")?;
    let mut files = Files::new();
    for (number, folder) in FOLDERS.into_iter().enumerate() {
        let made = scratch.path().join(number.to_string());
        fs::create_dir(&made)?;
        match number {
            0 => crate::messages::generate(protox::compile(FILES, [root.join("proto")])?, &made)?,
            1 => services(root, &made)?,
            _ => pictures(root, &made)?,
        }
        files.extend(read(&made, Path::new(folder))?);
    }
    Ok(files)
}

/// The generated files that the repository in `root` has.
pub fn committed(root: &Path) -> Result<Files> {
    let mut files = Files::new();
    for folder in FOLDERS {
        files.extend(read(&root.join(folder), Path::new(folder))?);
    }
    Ok(files)
}

/// The services. For their messages they refer to the crate `memscope-proto`.
fn services(root: &Path, folder: &Path) -> Result<()> {
    let descriptors = protox::compile(FILES, [root.join("proto")])?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .extern_path(".memscope.v1", "::memscope_proto::v1")
        .compile_fds(descriptors)?;
    Ok(())
}

/// XProf's formats, of which the report makes files.
fn pictures(root: &Path, folder: &Path) -> Result<()> {
    let here = root.join("crates/report/proto");
    let descriptors = protox::compile(["memory_profile.proto", "xplane.proto"], [here])?;
    prost_build::Config::new()
        .out_dir(folder)
        .disable_comments(["."])
        // Files of the same picture are the same bytes.
        .btree_map(["."])
        .compile_fds(descriptors)?;
    Ok(())
}

/// The files of a folder; each is named as if it was in the folder `name`.
fn read(folder: &Path, name: &Path) -> Result<Files> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Files::new()),
        entries => entries.with_context(|| format!("cannot list {}", folder.display()))?,
    };
    let mut files = Files::new();
    for entry in entries {
        let entry = entry?;
        files.insert(name.join(entry.file_name()), fs::read(entry.path())?);
    }
    Ok(files)
}
