//! Reading the dumps that memscope-ctl writes for msMemScope's tools, with Python's own reader.

use std::path::Path;
use std::process::Command;

/// Prints some columns of the rows of all dumps below a folder, in the order of the rows' numbers.
const READ: &str = r#"
import csv, json, pathlib, sys
csv.field_size_limit(1 << 30)
rows = []
for path in pathlib.Path(sys.argv[1]).rglob("memscope_dump*.csv"):
    with open(path, newline="") as lines:
        rows += csv.DictReader(lines)
rows.sort(key=lambda row: int(row["ID"]))
print(json.dumps([[row[name] for name in sys.argv[2:]] for row in rows]))
"#;

/// These columns of the rows of all dumps below a folder, in the order of the rows' numbers.
pub fn dumped<const N: usize>(folder: &Path, columns: [&str; N]) -> Vec<[String; N]> {
    let mut python = Command::new("python3");
    python.args(["-I", "-c", READ]).arg(folder).args(columns);
    let read = python.output().expect("python3 runs");
    assert!(read.status.success(), "{read:?}");
    let rows: Vec<Vec<String>> = serde_json::from_slice(&read.stdout).expect("rows of text");
    let whole = |row: Vec<String>| row.try_into().expect("as many cells as columns");
    rows.into_iter().map(whole).collect()
}
