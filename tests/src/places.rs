//! Where things are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The workspace. Cargo and nextest say where the crate is at run time, so a moved checkout works.
pub fn root() -> PathBuf {
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest)
        .parent()
        .expect("a crate in a workspace")
        .to_owned()
}

/// A file of `tests/workloads`.
pub fn workload(name: &str) -> PathBuf {
    let file = root().join("tests/workloads").join(name);
    assert!(file.exists(), "no workload {}", file.display());
    file
}

/// The number of the line of a workload that ends in these words.
pub fn workload_line(name: &str, words: &str) -> u64 {
    let text = std::fs::read_to_string(workload(name)).expect("a workload can be read");
    let at = text.lines().position(|line| line.ends_with(words));
    at.unwrap_or_else(|| panic!("no line of {name} ends in {words}")) as u64 + 1
}

/// A built program of memscope: in `MEMSCOPE_BIN_DIR`, else in the build directory of this test, else in
/// the workspace's.
pub fn tool(name: &str) -> PathBuf {
    let mut folders = Vec::new();
    if let Some(folder) = std::env::var_os("MEMSCOPE_BIN_DIR") {
        folders.push(PathBuf::from(folder));
    } else {
        let own = std::env::current_exe().expect("a path of this test");
        // target/<profile>/deps/<test>
        folders.extend(own.ancestors().nth(2).map(Path::to_owned));
        folders.push(root().join("target/debug"));
        folders.push(root().join("target/release"));
    }
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.exists());
    found.unwrap_or_else(|| {
        panic!("no {name} in {folders:?}; build it first: cargo build --profile test (or set MEMSCOPE_BIN_DIR)")
    })
}

/// For what the tests build; kept between runs.
pub fn build_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = root().join("target/e2e");
        std::fs::create_dir_all(&folder).expect("cannot create target/e2e");
        folder
    })
}

/// A folder of this test's own, gone when it is dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("memscope-e2e-")
        .tempdir()
        .expect("cannot create a temporary folder")
}
