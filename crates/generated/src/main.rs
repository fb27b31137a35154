//! `memscope-generated proto` and `memscope-generated ebpf` write what is committed. With `--check` they write nothing, and fail where it
//! is not what its sources give.

use anyhow::{Result, bail};
use memscope_generated::{code, objects, root};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (what, check) = match words.as_slice() {
        [what] => (*what, false),
        [what, "--check"] => (*what, true),
        _ => ("", false),
    };
    match what {
        "proto" => code::run(&root(), check),
        "ebpf" => objects::run(&root(), check),
        _ => bail!("usage: memscope-generated proto|ebpf [--check]"),
    }
}
