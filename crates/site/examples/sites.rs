//! Prints the sites of a process: `cargo run -p memscope-site --example sites -- PID [segments|blocks]`.

use std::error::Error;
use std::time::Instant;

use memscope_memory::ProcessMemory;
use memscope_site::{Level, Resolver, backend, process};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let pid: u32 = arguments.next().ok_or("which pid?")?.parse()?;
    let level = match arguments.next().as_deref() {
        Some("segments") => Level::Segments,
        Some("blocks") => Level::Blocks,
        _ => Level::Trace,
    };
    println!("{:?}", process::facts(pid)?);
    let mut resolver = Resolver::new();
    for _ in 0..2 {
        let start = Instant::now();
        let resolved = resolver.resolve(pid, level)?;
        println!(
            "{:?}: {} objects examined, {} scanned",
            start.elapsed(),
            resolved.examined,
            resolved.scanned
        );
    }
    let resolved = resolver.resolve(pid, level)?;
    for object in &resolved.objects {
        println!(
            "{} {:?} base {:#x} build id {}",
            object.display_path,
            object.opened_by,
            object.base,
            object.identity.build_id_hex()
        );
        for site in &object.sites {
            println!(
                "  {} at {:#x} (+{:#x}) {:?} {}",
                site.symbol, site.address, site.entry_offset, site.variant, site.reason
            );
        }
    }
    for missing in &resolved.missing {
        println!("missing: {missing}");
    }
    if let Some(hook) = &resolved.loader_hook {
        println!("hook: {} in {}", hook.site.reason, hook.display_path);
    }
    if let Some(address) = resolved.allocator_address {
        let memory = ProcessMemory::open(pid)?;
        println!("backend: {:?}", backend::read(&memory, address));
    }
    Ok(())
}
