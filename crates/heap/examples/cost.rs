//! What a reading of a process's objects costs: `cost PID [TIMES]` prints, for each reading, how many objects were looked
//! at, and the processor time of it in milliseconds.

use std::io;

use memscope_heap::{Wanted, read};
use memscope_memory::ProcessMemory;

/// Processor time of this thread, nanoseconds.
fn spent() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split_whitespace().next();
    first
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::other("schedstat says no time"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let pid = words.next().ok_or("which process?")?.parse()?;
    let times: u32 = words.next().map_or(Ok(5), |word| word.parse())?;
    let interpreter = memscope_python::find(pid)?;
    let memory = ProcessMemory::open(pid)?;
    let wanted = Wanted {
        layout: interpreter.layout,
        code_type: interpreter.code_type,
        runtime: interpreter.runtime,
        blocks: Vec::new(),
        objects: Vec::new(),
        modules: false,
    };
    for _ in 0..times {
        let before = spent()?;
        let reading = read(&memory, &wanted)?;
        let after = spent()?;
        println!(
            "{} objects, {:.1} ms, {} MiB read",
            reading.objects,
            (after - before) as f64 / 1e6,
            reading.bytes >> 20
        );
    }
    Ok(())
}
