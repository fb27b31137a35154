//! What is wrong on the command line is said at once, with the way out, and without a secret.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memscope-archive"));
    command.args(arguments).env_remove("MEMSCOPE_ARCHIVE_TO");
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn what_is_wrong_is_refused_with_the_way_out() {
    for (arguments, words) in [
        (&[][..], "--to"),
        (&["--to", "/srv/archive"], "write file:///DIRECTORY"),
        (&["--to", "ftp://x/y"], "write file:///DIRECTORY"),
        (&["--to", "file:///x", "--every", "0"], "1..=3600"),
        (&["--to", "file:///x", "--events", "some"], "none, all"),
        (&["--to", "file:///no/such/directory"], "/no/such/directory"),
    ] {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            said(&output).contains(words),
            "{arguments:?}: {}",
            said(&output)
        );
    }
}

#[test]
fn a_secret_is_refused_and_not_repeated() {
    let output = run(&["--to", "s3://key:a-secret-word@bucket/x"]);
    let said = said(&output);
    assert!(!output.status.success());
    assert!(
        said.contains("by the environment") && !said.contains("a-secret-word"),
        "{said}"
    );
}

#[test]
fn a_check_without_a_daemon_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let to = format!("file://{}", folder.path().display());
    let socket = folder.path().join("none.sock");
    let output = run(&["--to", &to, "--check", "--socket", socket.to_str().unwrap()]);
    let said = said(&output);
    assert!(!output.status.success());
    assert!(
        said.contains("no memscoped answers at") && said.contains("none.sock"),
        "{said}"
    );
}
