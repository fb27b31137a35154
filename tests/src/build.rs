//! Compiling the C workloads.

use std::collections::hash_map::DefaultHasher;
use std::fs::{Permissions, set_permissions};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::places::{build_folder, root, workload};
use crate::program::run;
use crate::sim::{acl_flags, sim};

/// What to link with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The simulated runtime and driver.
    Runtime,
    /// The simulated driver.
    Driver,
    /// The simulated HIP: the program calls CUDA's functions by HIP's names.
    Hip,
    /// The simulated AscendCL, runtime, HAL and mstx of an NPU.
    Acl,
    /// Neither.
    None,
}

/// Functions of ours that stand for the runtime's begin with `push`, as the real ones do.
const FLAGS: [&str; 9] = [
    "-std=gnu11",
    "-O1",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-fno-omit-frame-pointer",
    "-fno-shrink-wrap",
];

fn compile(source: &str, output: &str, library: Library, more: &[&str]) -> PathBuf {
    let source = workload(source);
    let mut words: Vec<String> = Vec::new();
    let mut included = Vec::new();
    let needed = match library {
        Library::Runtime => vec![sim().runtime(), sim().driver()],
        Library::Driver => vec![sim().driver()],
        Library::Hip => {
            let names = root().join("tests/simhip/names.h");
            words.extend(["-include".to_owned(), names.display().to_string()]);
            included = std::fs::read(names).unwrap();
            vec![sim().library("libamdhip64.so.")]
        }
        Library::Acl => {
            words.extend(acl_flags().iter().cloned());
            Vec::new()
        }
        Library::None => Vec::new(),
    };
    if !needed.is_empty() {
        words.extend(needed.iter().map(|file| file.display().to_string()));
        words.push(format!("-Wl,-rpath,{}", sim().libraries().display()));
    }
    let mut hasher = DefaultHasher::new();
    (
        std::fs::read(&source).unwrap(),
        std::fs::read(workload("commands.h")).unwrap(),
        included,
        &words,
        library,
        more,
        FLAGS,
    )
        .hash(&mut hasher);
    let folder = build_folder().join(format!("{:016x}", hasher.finish()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(output);
    if file.exists() {
        return file;
    }
    // Built aside and renamed, so that two tests at once do no harm.
    let aside = tempfile::Builder::new()
        .prefix(output)
        .tempfile_in(&folder)
        .unwrap()
        .into_temp_path();
    let mut command = Command::new("cc");
    command
        .args(FLAGS)
        .arg("-o")
        .arg(aside.as_os_str())
        .arg(&source)
        .args(more)
        .args(&words);
    command.args(["-lpthread", "-ldl"]);
    let (status, _, errors) = run(command, Duration::from_secs(60));
    assert!(status.success(), "cc: {errors}");
    aside.persist(&file).unwrap();
    file
}

/// An executable from a C workload.
pub fn executable(source: &str, library: Library) -> PathBuf {
    compile(source, source.trim_end_matches(".c"), library, &[])
}

/// An executable from a C workload, with these flags instead of the simulated CUDA libraries.
pub(crate) fn executable_with(source: &str, flags: &[&str]) -> PathBuf {
    compile(source, source.trim_end_matches(".c"), Library::None, flags)
}

/// A shared library with this file name from a C workload.
pub fn library(source: &str, name: &str, library: Library, more: &[&str]) -> PathBuf {
    compile(source, name, library, &[&["-shared"], more].concat())
}

/// Copies a program to where it can be run at once. Another process copies: if this one had the copy open for writing while
/// another thread starts a program, that program would have it open as well for a moment, and the kernel runs no such file.
pub fn copy_program(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.arg(from).arg(to);
    let (status, _, errors) = run(command, Duration::from_secs(60));
    assert!(status.success(), "cp: {errors}");
}

/// Runs what follows as the user nobody, without groups.
pub const NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// A copy of a program where everyone may run it.
pub fn public(folder: &Path, program: &Path) -> PathBuf {
    set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join(program.file_name().unwrap());
    copy_program(program, &copy);
    set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    copy
}

/// Copies a file and takes the symbols out of the copy.
pub fn strip(file: &Path, into: &Path, options: &[&str]) {
    let mut command = Command::new("strip");
    command.args(options).arg("-o").arg(into).arg(file);
    let (status, _, errors) = run(command, Duration::from_secs(60));
    assert!(status.success(), "strip: {errors}");
}
