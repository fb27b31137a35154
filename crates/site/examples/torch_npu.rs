//! Prints for libraries of torch_npu whether the functions of their allocator are found, and where.
//!
//! ```text
//! cargo run --release -p memscope-site --example torch_npu -- FILE…
//! ```

use std::fs::File;
use std::io::{Write, stdout};
use std::time::Instant;

use memscope_site::elf::{Elf, FileBytes};
use memscope_site::stripped;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut out = stdout().lock();
    for file in std::env::args().skip(1) {
        let bytes = FileBytes::new(File::open(&file)?)?;
        let elf = Elf::read(&bytes)?;
        let began = Instant::now();
        let found = stripped::find(&elf)?;
        let took = began.elapsed().as_millis();
        match found {
            Ok(found) => writeln!(
                out,
                "{file}: report {:#x}, record_trace {:#x}, {} other calls of the report ({took} ms)",
                found.report,
                found.trace,
                found.others.len()
            )?,
            Err(why) => writeln!(out, "{file}: {why} ({took} ms)")?,
        }
    }
    Ok(())
}
