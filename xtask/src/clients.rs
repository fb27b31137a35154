//! `cargo xtask clients`: generates what comes from the `.proto` files and is committed, which is Rust code (by the crate
//! `generated`) and a part of the Python package, or compares it with what they give.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::setup::grpc;
use crate::setup::mode::Mode;
use crate::{generated, process};

/// The `protoc` that the committed files are made with, as Debian 12 and 13 and Ubuntu 24.04 have it. The Python code
/// that it generates runs with protobuf from 3.20 on. What `protoc` 26 and later generate refuses every protobuf that
/// is older than itself.
const PROTOC: &str = "libprotoc 3.21.12";
/// Folder of the package's modules.
const SOURCES: &str = "clients/python/src";
/// A name in the calls that newer plugins generate. Such code refuses every grpcio that is older than the plugin.
const REFUSES_OLDER: &str = "GRPC_GENERATED_VERSION";
const AGAIN: &str = "`cargo xtask clients` makes them anew";

/// What to do.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Write nothing; fail if the committed files are not what the .proto files give
    #[arg(long)]
    pub check: bool,
}

/// Files by their names below [`SOURCES`].
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    // Whether the Rust code fits is a test of the crate that makes it.
    if !options.check {
        generated::run("proto", &generated::Options::default())?;
    }
    if !grpc::ensure_python(Mode::Check)? || !grpc::ensure_generators(Mode::Check)? {
        bail!("something is missing; `cargo xtask setup --clients` installs it");
    }
    let here = grpc::protoc_version()?;
    let root = process::root();
    let made = make(&root)?;
    let committed = committed(&root)?;
    if options.check {
        return check(&made, &committed, &here);
    }
    ensure!(
        here == PROTOC,
        "the package is made with {PROTOC}, so that older releases of protobuf can read it; here is {here}"
    );
    for (name, text) in &made {
        let refuses = text
            .windows(REFUSES_OLDER.len())
            .any(|part| part == REFUSES_OLDER.as_bytes());
        // The stub of a module contains the name in any case.
        ensure!(
            !refuses || name.extension().is_some_and(|ending| ending == "pyi"),
            "{} of this machine makes calls that refuse older releases of grpcio",
            grpc::PYTHON_CALLS
        );
    }
    for name in committed.keys().filter(|name| !made.contains_key(*name)) {
        fs::remove_file(root.join(SOURCES).join(name))?;
        eprintln!("{}: removed", name.display());
    }
    for (name, text) in &made {
        if committed.get(name) != Some(text) {
            let path = root.join(SOURCES).join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            eprintln!("{}: {} bytes", name.display(), text.len());
        }
    }
    Ok(())
}

/// Fails unless both are the same. If the `protoc` of this machine is another one, only the files that do not depend
/// on it are compared.
fn check(made: &Files, committed: &Files, here: &str) -> Result<()> {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    ensure!(
        names(made) == names(committed),
        "{SOURCES} has other files than the .proto files give; {AGAIN}"
    );
    let mut compared = 0;
    for (name, text) in made {
        let is_protocs = name.to_string_lossy().contains("_pb2") && !is_stub(name);
        if here != PROTOC && is_protocs {
            continue;
        }
        ensure!(
            committed.get(name) == Some(text),
            "{SOURCES}/{} is not what the .proto files give; {AGAIN}",
            name.display()
        );
        compared += 1;
    }
    eprintln!("{compared} of {} files: the same, byte by byte", made.len());
    if here != PROTOC {
        eprintln!(
            "the others were made by {PROTOC}, and here is {here}: not compared; a test compares their descriptors with the daemon's"
        );
    }
    Ok(())
}

fn is_stub(name: &Path) -> bool {
    name.extension().is_some_and(|ending| ending == "pyi")
}

/// Generates the files from the `.proto` files.
fn make(root: &Path) -> Result<Files> {
    let folder = process::target().join("clients/generated");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("memscope/v1"))?;
    let protos = root.join("proto");
    let mut all = Vec::new();
    let mut services = Vec::new();
    let mut entries: Vec<_> =
        fs::read_dir(protos.join("memscope/v1"))?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = Path::new("memscope/v1").join(entry.file_name());
        let text = fs::read_to_string(entry.path())?;
        if text.lines().any(|line| line.starts_with("service ")) {
            services.push(name.clone());
        }
        all.push(name);
    }
    let python = grpc::python().join("bin");
    let calls = process::find_program(grpc::PYTHON_CALLS)
        .with_context(|| format!("{} is not on PATH", grpc::PYTHON_CALLS))?;
    let out = |option: &str| words(&[option.as_ref(), "=".as_ref(), folder.as_os_str()]);
    let quiet = |option: &str| words(&[option.as_ref(), "=quiet:".as_ref(), folder.as_os_str()]);
    let plugin = |name: &str, program: &Path| {
        words(&[
            "--plugin=".as_ref(),
            name.as_ref(),
            "=".as_ref(),
            program.as_os_str(),
        ])
    };
    process::run(
        protoc(&protos)
            .args([out("--python_out"), quiet("--mypy_out")])
            .arg(plugin("protoc-gen-mypy", &python.join("protoc-gen-mypy")))
            .args(&all),
    )?;
    process::run(
        protoc(&protos)
            .args([out("--grpc_python_out"), quiet("--mypy_grpc_out")])
            .arg(plugin("protoc-gen-grpc_python", &calls))
            .arg(plugin(
                "protoc-gen-mypy_grpc",
                &python.join("protoc-gen-mypy_grpc"),
            ))
            .args(&services),
    )?;
    let descriptors = folder.join("descriptors");
    process::run(
        protoc(&protos)
            .args(["--include_imports", "--include_source_info"])
            .arg(words(&[
                "--descriptor_set_out=".as_ref(),
                descriptors.as_os_str(),
            ]))
            .args(&all),
    )?;
    let mut derive = Command::new(python.join("python"))
        .arg(root.join("clients/python/generate.py"))
        .arg(folder.join("memscope"))
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start Python")?;
    derive
        .stdin
        .take()
        .context("no input")?
        .write_all(&fs::read(&descriptors)?)?;
    ensure!(derive.wait()?.success(), "generate.py failed");
    read(&folder)
}

fn protoc(protos: &Path) -> Command {
    let mut command = process::command("protoc");
    command.arg("-I").arg(protos).current_dir(protos);
    command
}

fn words(parts: &[&std::ffi::OsStr]) -> OsString {
    parts.iter().copied().collect()
}

/// Reads the generated files as they are committed.
fn committed(root: &Path) -> Result<Files> {
    let mut files = read(&root.join(SOURCES))?;
    files.retain(|name, _| name.starts_with("memscope/v1") || name.ends_with("_calls.py"));
    Ok(files)
}

/// Reads the package's files in a folder.
fn read(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    for part in ["memscope", "memscope/v1"] {
        for entry in fs::read_dir(folder.join(part))? {
            let name = Path::new(part).join(entry?.file_name());
            let ending = name.extension().unwrap_or_default();
            if ending == "py" || ending == "pyi" {
                files.insert(name.clone(), fs::read(folder.join(&name))?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn files(texts: &[(&str, &str)]) -> Files {
        let file = |(name, text): &(&str, &str)| (name.into(), text.as_bytes().to_vec());
        texts.iter().map(file).collect()
    }

    #[test]
    fn what_differs_is_named() {
        let made = [
            ("v1/a_pb2.py", "a"),
            ("v1/a_pb2.pyi", "b"),
            ("_calls.py", "c"),
        ];
        let why = |committed: &[(&str, &str)], here: &str| {
            let result = check(&files(&made), &files(committed), here);
            result
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        assert_eq!(why(&made, PROTOC), "");
        for changed in 0..made.len() {
            let mut committed = made;
            committed[changed].1 = "other";
            assert!(why(&committed, PROTOC).contains(made[changed].0));
            // With another protoc, only the file that it generates itself may differ.
            let is_taken = why(&committed, "libprotoc 30.0").is_empty();
            assert_eq!(is_taken, changed == 0, "{}", made[changed].0);
        }
        assert!(why(&made[1..], PROTOC).contains("other files"));
    }
}
