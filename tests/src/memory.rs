//! The text of a process against the files that it comes from.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// An executable mapping of a file: range, offset, and the path that the kernel tells.
#[derive(Clone, Debug)]
pub struct Text {
    start: u64,
    end: u64,
    offset: u64,
    /// Path, as the kernel tells it.
    pub path: String,
}

/// The executable mappings of files whose names contain one of these words.
pub fn text_of(pid: u32, names: &[&str]) -> Vec<Text> {
    let maps =
        std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process's mappings");
    let mut found = Vec::new();
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let (Some(range), Some(mode), Some(offset)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = fields.nth(2).unwrap_or_default().trim().to_owned();
        let name = path.rsplit('/').next().unwrap_or_default();
        if !mode.contains('x') || !names.iter().any(|wanted| name.contains(wanted)) {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        found.push(Text {
            start: number(start),
            end: number(end),
            offset: number(offset),
            path,
        });
    }
    found
}

/// Addresses at which the process's text differs from its file.
pub fn changed_bytes(pid: u32, texts: &[Text]) -> Vec<u64> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the process's memory");
    let mut changed = Vec::new();
    for text in texts {
        let file = File::open(format!(
            "/proc/{pid}/map_files/{:x}-{:x}",
            text.start, text.end
        ))
        .expect("the mapped file");
        let length = (text.end - text.start) as usize;
        let mut now = vec![0; length];
        memory
            .read_exact_at(&mut now, text.start)
            .expect("the process's text");
        let mut then = vec![0; length];
        let mut filled = 0;
        while let Ok(read @ 1..) = file.read_at(&mut then[filled..], text.offset + filled as u64) {
            filled += read;
        }
        // Behind the file's end the mapping's last page is zeros, and so is `then`.
        changed.extend(
            (0..length)
                .filter(|&at| now[at] != then[at])
                .map(|at| text.start + at as u64),
        );
    }
    changed
}
