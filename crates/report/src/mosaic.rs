//! The peak as mosaic counts it, and the difference of two peaks.
//!
//! Dynamic is the highest sum over the trace of the first traced device, which begins at 0: what is handed out is added, and what is
//! given back is taken off if its coming was seen. Static are the blocks that the trace never names. Both together are the peak.

use crate::picture::{Action, Entry, Frame, Known, Picture};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What one call stack holds at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of blocks.
    pub calls: u64,
    /// Sum of the sizes of these blocks, bytes.
    pub bytes: u64,
}

/// The peak of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Highest sum over the trace, bytes.
    pub dynamic: u64,
    /// Bytes of the blocks that the trace never names.
    pub fixed: u64,
    /// What each call stack holds at the peak, innermost frame first.
    pub stacks: BTreeMap<Vec<Frame>, Held>,
}

/// Counts the peak; `None` without a trace, or where no peak follows from it.
pub(crate) fn peak(picture: &Picture) -> Option<Peak> {
    let trace = picture.traced().next()?;
    if trace.known == Known::Nothing {
        return None;
    }
    let (dynamic, at) = highest(&trace.entries);
    let mut peak = Peak {
        dynamic,
        ..Peak::default()
    };
    let mut held: HashMap<Option<u32>, Held> = HashMap::new();
    let mut add = |stack: Option<u32>, bytes: u64| {
        let one = held.entry(stack).or_default();
        one.calls += 1;
        one.bytes = one.bytes.saturating_add(bytes);
    };
    for entry in alive(trace.entries.get(..at).unwrap_or_default()).into_values() {
        add(entry.stack, entry.size);
    }
    let is_named = |entry: &&Entry| matches!(entry.action, Action::Alloc | Action::Free);
    let named: HashSet<u64> = trace
        .entries
        .iter()
        .filter(is_named)
        .map(|entry| entry.address)
        .collect();
    for (device, block) in picture.active() {
        if device == trace.device && !named.contains(&block.address) {
            peak.fixed = peak.fixed.saturating_add(block.size);
            add(block.stack, block.size);
        }
    }
    for (stack, held) in held {
        let sum = peak
            .stacks
            .entry(picture.frames(stack).to_vec())
            .or_default();
        sum.calls += held.calls;
        sum.bytes = sum.bytes.saturating_add(held.bytes);
    }
    Some(peak)
}

/// The highest running sum, and after how many entries it is reached first.
fn highest(entries: &[Entry]) -> (u64, usize) {
    let mut there: HashMap<u64, u64> = HashMap::new();
    let (mut sum, mut peak) = (0u64, (0, 0));
    for (at, entry) in entries.iter().enumerate() {
        match entry.action {
            Action::Alloc => {
                let before = there.insert(entry.address, entry.size).unwrap_or(0);
                sum = sum.saturating_sub(before).saturating_add(entry.size);
            }
            Action::Free => sum = sum.saturating_sub(there.remove(&entry.address).unwrap_or(0)),
            _ => {}
        }
        if sum > peak.0 {
            peak = (sum, at + 1);
        }
    }
    peak
}

/// What these entries leave handed out, by address.
fn alive(entries: &[Entry]) -> HashMap<u64, Entry> {
    let mut there = HashMap::new();
    for entry in entries {
        match entry.action {
            Action::Alloc => drop(there.insert(entry.address, *entry)),
            Action::Free => drop(there.remove(&entry.address)),
            _ => {}
        }
    }
    there
}

/// `peak.json`.
#[derive(Serialize)]
struct PeakFile {
    total_memory: u64,
    dynamic_memory: u64,
    static_memory: u64,
    num_of_unique_call_stacks: usize,
    call_stacks: Vec<StackRow>,
}

#[derive(Serialize)]
struct StackRow {
    num_of_calls: u64,
    memory_usage: u64,
    memory_usage_per_call: f64,
    memory_usage_percentage: f64,
    call_stack: Vec<String>,
}

fn rows<'s>(stacks: impl Iterator<Item = (&'s Vec<Frame>, &'s Held)>, total: u64) -> Vec<StackRow> {
    let mut rows: Vec<StackRow> = stacks
        .map(|(frames, held)| StackRow {
            num_of_calls: held.calls,
            memory_usage: held.bytes,
            memory_usage_per_call: held.bytes as f64 / held.calls.max(1) as f64,
            memory_usage_percentage: 100.0 * held.bytes as f64 / total.max(1) as f64,
            call_stack: frames.iter().map(Frame::text).collect(),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.memory_usage));
    rows
}

/// Writes the peaks of all ranks as `peak.json`: of one rank an object, of several a list.
///
/// # Errors
/// Where it cannot be written as JSON.
pub(crate) fn peak_json(peaks: &[&Peak]) -> serde_json::Result<Vec<u8>> {
    let file = |peak: &&Peak| {
        let total = peak.dynamic.saturating_add(peak.fixed);
        PeakFile {
            total_memory: total,
            dynamic_memory: peak.dynamic,
            static_memory: peak.fixed,
            num_of_unique_call_stacks: peak.stacks.len(),
            call_stacks: rows(peak.stacks.iter(), total),
        }
    };
    let files: Vec<PeakFile> = peaks.iter().map(file).collect();
    match &files[..] {
        [one] => serde_json::to_vec_pretty(one),
        several => serde_json::to_vec_pretty(several),
    }
}

/// `diff.json`.
#[derive(Serialize)]
struct DiffFile {
    base_total_memory: u64,
    total_memory: u64,
    added_memory: u64,
    removed_memory: u64,
    net_memory: i64,
    added_call_stacks: Vec<StackRow>,
    removed_call_stacks: Vec<StackRow>,
}

/// Writes which call stacks are there at the peak of one and not of the other, by file and line of all frames.
///
/// # Errors
/// Where it cannot be written as JSON.
pub(crate) fn diff_json(base: &Peak, peak: &Peak) -> serde_json::Result<Vec<u8>> {
    type Key<'p> = Vec<(&'p str, u64)>;
    fn key(frames: &[Frame]) -> Key<'_> {
        let parts = frames.iter().map(|frame| (&*frame.file, frame.line));
        parts.collect()
    }
    let only = |of: &Peak, other: &Peak| -> (u64, Vec<StackRow>) {
        let known: HashSet<Key<'_>> = other.stacks.keys().map(|frames| key(frames)).collect();
        let is_new = |(frames, _): &(&Vec<Frame>, &Held)| !known.contains(&key(frames));
        let found = of.stacks.iter().filter(is_new);
        let bytes = found.clone().map(|(_, held)| held.bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        (bytes, rows(found, of.dynamic.saturating_add(of.fixed)))
    };
    let (added, added_rows) = only(peak, base);
    let (removed, removed_rows) = only(base, peak);
    serde_json::to_vec_pretty(&DiffFile {
        base_total_memory: base.dynamic.saturating_add(base.fixed),
        total_memory: peak.dynamic.saturating_add(peak.fixed),
        added_memory: added,
        removed_memory: removed,
        net_memory: i64::try_from(i128::from(added) - i128::from(removed)).unwrap_or(i64::MAX),
        added_call_stacks: added_rows,
        removed_call_stacks: removed_rows,
    })
}
