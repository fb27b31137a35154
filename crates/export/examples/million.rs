//! Exports a snapshot with a million trace entries (or as many as the first argument says) in each
//! format and prints seconds, bytes and peak memory. Each format runs in a process of its own, so that the peak of one
//! does not count for another. With MILLION_KEEP=FOLDER in the environment, the files are kept in that folder.

use memscope_export::ExportError;
use memscope_ledger::report::SnapshotReport;
use std::error::Error;
use std::io::{self, Write};
use std::time::Instant;

#[path = "../tests/common/mod.rs"]
mod common;

type Format = (
    &'static str,
    fn(&SnapshotReport, &mut dyn Write) -> Result<(), ExportError>,
);

const FORMATS: [Format; 4] = [
    ("memory_viz", memscope_export::memory_viz),
    ("json", memscope_export::json),
    ("perfetto", memscope_export::perfetto),
    ("html", memscope_export::html),
];

/// Counts the bytes that are written to it.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let entries: usize = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let Some(wanted) = arguments.next() else {
        println!("{entries} trace entries");
        println!("format         seconds   output MiB   report MiB   export adds MiB");
        for (name, _) in FORMATS {
            std::process::Command::new(std::env::current_exe()?)
                .args([entries.to_string().as_str(), name])
                .status()?;
        }
        return Ok(());
    };
    let report = common::course::busy(entries);
    let before = peak_kib()?;
    for (name, write) in FORMATS.iter().filter(|(name, _)| *name == wanted) {
        let mut out = Count(0);
        let started = Instant::now();
        write(&report, &mut out)?;
        let took = started.elapsed();
        if let Some(folder) = std::env::var_os("MILLION_KEEP") {
            let path = std::path::Path::new(&folder).join(name);
            write(&report, &mut std::fs::File::create(path)?)?;
        }
        println!(
            "{name:<12} {:>9.3} {:>12.1} {:>12.1} {:>17.1}",
            took.as_secs_f64(),
            out.0 as f64 / f64::from(1 << 20),
            before as f64 / 1024.0,
            (peak_kib()? - before) as f64 / 1024.0,
        );
    }
    Ok(())
}

/// The most memory that this process ever had resident.
fn peak_kib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
