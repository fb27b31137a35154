//! `cargo xtask chaos`, in its short form: after each end of the daemon the next one knows what PyTorch knows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{need_root, xtask};

#[test]
fn each_event_once() {
    need_root();
    let (output, said, errors) =
        xtask(&["chaos", "--kills", "9", "--processes", "2", "--seed", "7"]);
    assert!(output.status.success(), "{said}\n{errors}");
    for event in [
        "the disk was full",
        "the disk failed",
        "the disk was slow",
        "the disk was full at the start",
        "the disk failed at the start",
        "what was pinned has vanished",
        "readers hung",
    ] {
        assert!(said.contains(&format!("| {event} | 1 |")), "{said}");
    }
}
