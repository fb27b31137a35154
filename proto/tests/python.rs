//! The Python package has the same formats of snapshots. `MEMSCOPE_WRITE=1` writes its list anew.
#![allow(clippy::unwrap_used)]

use memscope_proto::formats::SNAPSHOTS;
use std::path::Path;

#[test]
fn the_python_package_has_the_same_formats() {
    let mut text = String::from(
        "\"\"\"Formats of snapshots, with how names of their files end. Made from proto/src/formats.rs by its tests; do not edit.\"\"\"\n\nFORMATS = {\n",
    );
    for format in SNAPSHOTS {
        text.push_str(&format!(
            "    \"{}\": \"{}\",\n",
            format.name, format.endings[0]
        ));
    }
    text.push_str("}\n");
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python/src/memscope/_formats.py");
    if std::env::var_os("MEMSCOPE_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&file).unwrap_or_default(),
        text,
        "MEMSCOPE_WRITE=1 cargo test -p memscope-proto writes it anew"
    );
}
