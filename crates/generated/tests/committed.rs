//! The committed code is what the `.proto` files give.

#![allow(clippy::unwrap_used)]

use memscope_generated::{code, root};

#[test]
fn the_committed_code_is_what_the_proto_files_give() {
    let root = root();
    let made = code::generate(&root).unwrap();
    let committed = code::committed(&root).unwrap();
    assert!(made.keys().eq(committed.keys()), "other files");
    for (name, text) in &made {
        assert!(
            committed.get(name) == Some(text),
            "{} is not what the .proto files give; `cargo xtask clients` makes it anew",
            name.display()
        );
    }
}
