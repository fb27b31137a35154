//! `read PID [ATTEMPTS [READINGS]]` prints the state of the process's caching allocator as JSON, or with a number of
//! readings the result of each. `MEMSCOPE_LAYOUT=FILE` keeps the layout for the next call.

use std::error::Error;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use memscope_memory::ProcessMemory;
use memscope_structure::{Reader, StructureError, find_layout};
use object::{Object, ObjectSymbol};

const POINTER: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let pid: u32 = arguments.next().ok_or("which process?")?.parse()?;
    let attempts: u32 = arguments.next().map_or(Ok(2000), |some| some.parse())?;
    let readings: u32 = arguments.next().map_or(Ok(1), |some| some.parse())?;
    let pointer = allocator_pointer(pid)?;
    let memory = ProcessMemory::open(pid)?;
    let began = Instant::now();
    let kept = env::var_os("MEMSCOPE_LAYOUT");
    let known = kept.as_ref().and_then(|file| fs::read(file).ok());
    let found = match &known {
        Some(text) => Ok(serde_json::from_slice(text)?),
        None => find_layout(&memory, pointer),
    };
    let layout = match found {
        Ok(layout) => layout,
        Err(error) => {
            println!("{}", serde_json::json!({"error": error.to_string()}));
            return Ok(());
        }
    };
    eprintln!(
        "layout found in {:?}: {}",
        began.elapsed(),
        serde_json::to_string(&layout)?
    );
    if let Some(file) = kept.filter(|_| known.is_none()) {
        fs::write(file, serde_json::to_vec(&layout)?)?;
    }
    let mut reader = Reader::new(layout)?;
    let (mut accepted, mut retried, mut refused) = (0, 0, 0);
    for i in 0..readings {
        if i > 0 {
            // Do not read in step with the process's own rhythm.
            thread::sleep(Duration::from_micros(997 * u64::from(i % 37)));
        }
        match reader.read(&memory, pointer, attempts) {
            Ok(reading) => {
                accepted += 1;
                retried += u32::from(reading.attempts as usize > reading.devices.len());
                if readings == 1 {
                    println!("{}", serde_json::to_string(&reading)?);
                }
                let blocks: usize = reading
                    .devices
                    .iter()
                    .flat_map(|device| &device.segments)
                    .map(|segment| segment.blocks.len())
                    .sum();
                eprintln!(
                    "{blocks} blocks, {} attempts, {} bytes, {:?}",
                    reading.attempts, reading.bytes_read, reading.duration
                );
            }
            Err(error @ StructureError::Raced { .. }) => {
                refused += 1;
                eprintln!("{error}");
                if readings == 1 {
                    println!("{}", serde_json::json!({"error": error.to_string()}));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    eprintln!("{accepted} accepted, of them {retried} after retries; {refused} fell back");
    Ok(())
}

/// The address of the exported pointer, from the symbol table of the mapped library. A product should open the file
/// through `/proc/<pid>/map_files`; this example uses the path.
fn allocator_pointer(pid: u32) -> Result<u64, Box<dyn Error>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps
        .lines()
        .find(|line| line.contains("libc10_cuda"))
        .ok_or("the process has not mapped libc10_cuda")?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let start = u64::from_str_radix(fields[0].split('-').next().unwrap_or_default(), 16)?;
    let bytes = fs::read(format!("/proc/{pid}/root{}", fields[fields.len() - 1]))?;
    let file = object::File::parse(&*bytes)?;
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(POINTER))
        .ok_or("the library exports no allocator")?;
    Ok(start + symbol.address())
}
