//! `cargo xtask chaos`, in its short form: after each end of the daemon the next one knows what PyTorch knows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{need_root, xtask};

#[test]
fn some_ends() {
    need_root();
    let (output, said, errors) =
        xtask(&["chaos", "--kills", "8", "--processes", "2", "--seed", "7"]);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(said.contains("16 comparisons with PyTorch"), "{said}");
}
