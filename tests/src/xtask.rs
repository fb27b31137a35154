//! Tasks of `cargo xtask`, with the programs that the tests use.

use std::path::Path;
use std::process::{Command, Output};

use crate::places::tool;

/// Runs a task with these words; gives what it said on standard output and standard error as text, too.
pub fn xtask(words: &[&str]) -> (Output, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let programs = tool("memscoped");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root)
        .arg("xtask")
        .args(words)
        .env("MEMSCOPE_BIN_DIR", programs.parent().unwrap());
    // Those of this test's own build would make cargo build again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG") || text.starts_with("CARGO_MANIFEST") {
            command.env_remove(&name);
        }
    }
    let output = command.output().expect("cargo starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    (output, said, errors)
}
