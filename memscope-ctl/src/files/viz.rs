//! Reads PyTorch's own snapshots: pickles of `torch.cuda.memory._snapshot()`.

use super::error::FileError;
use super::kept::{
    Births, Block, Image, Segment, SnapshotFile, Stacks, State, line_of, not_judged,
};
use memscope_pickle::{Once, Pickle, Value};
use memscope_proto::v1;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Largest number of coverage notes that are read from a file, and limit for the bytes of one note's texts.
const MOST_NOTES: usize = 1000;
const LONGEST_NOTE: usize = 10_000;

/// Reads a dictionary as `torch.cuda.memory._snapshot()` returns it, or a list of segments as
/// `torch.cuda.memory_snapshot()` does.
pub(super) fn of_pickle(path: &Path, pickle: &Pickle) -> Result<SnapshotFile, FileError> {
    let root = pickle.root();
    let shape = |what: &str| FileError::Shape(what.to_owned());
    let segments = match pickle.list(root) {
        Some(list) => list,
        None => pickle
            .get(root, "segments")
            .and_then(|segments| pickle.list(segments))
            .ok_or_else(|| shape("there is no list \"segments\""))?,
    };
    let mut once = Once::new(pickle);
    let mut stacks = Stacks::default();
    let births = births(pickle, root, &mut once)?;
    let mut kept = SnapshotFile {
        path: path.to_owned(),
        image: None,
        as_of_ns: births.newest_ns,
        segments: Vec::with_capacity(segments.len()),
        stacks: Vec::new(),
        coverage: Vec::new(),
    };
    for (number, segment) in segments.iter().enumerate() {
        let segment = of_segment(pickle, *segment, &births.of, &mut once, &mut stacks)
            .map_err(|what| FileError::Shape(format!("segment {number} {what}")))?;
        kept.segments.push(segment);
    }
    kept.stacks = stacks.all;
    if let Some(origin) = pickle.get(root, "memscope") {
        let number = |key| pickle.get(origin, key).and_then(Value::unsigned);
        kept.as_of_ns = number("as_of_unix_ns").or(kept.as_of_ns);
        let pid = number("pid").and_then(|pid| u32::try_from(pid).ok());
        kept.image = pid
            .zip(number("start_ticks"))
            .zip(number("generation"))
            .map(|((pid, start), generation)| Image {
                pid,
                start,
                generation,
            });
        kept.coverage = notes(pickle, origin);
    }
    Ok(kept)
}

/// The coverage notes that memscope wrote into a file.
pub(super) fn notes(pickle: &Pickle, origin: Value) -> Vec<v1::CoverageNote> {
    let notes = pickle.get(origin, "coverage");
    let notes = notes.and_then(|notes| pickle.list(notes)).unwrap_or(&[]);
    let text = |note, key| pickle.get(note, key).and_then(|text| pickle.text(text));
    let mut kept = Vec::new();
    for note in notes.iter().take(MOST_NOTES) {
        if let (Some(code), Some(said)) = (text(*note, "code"), text(*note, "text"))
            && code.len().max(said.len()) < LONGEST_NOTE
        {
            kept.push(v1::CoverageNote {
                code: code.to_owned(),
                text: said.to_owned(),
                affects: affects(pickle, *note).unwrap_or_else(not_judged),
                lower_bound: pickle.get(*note, "lower_bound") == Some(Value::Bool(true)),
            });
        }
    }
    kept
}

/// Index of a block's stack. `frames` is the list of frames as PyTorch writes it.
fn stack_of(stacks: &mut Stacks, pickle: &Pickle, frames: Option<Value>) -> Option<u32> {
    let frames = frames?;
    let Value::Node(list) = frames else {
        return None;
    };
    if let Some(known) = stacks.by_list.get(&list) {
        return *known;
    }
    let text = |frame, key| {
        let text = pickle.get(frame, key).and_then(|text| pickle.text(text));
        text.unwrap_or_default()
    };
    let line_of = |frame| {
        let line = pickle.get(frame, "line").and_then(Value::unsigned);
        line_of(text(frame, "name"), text(frame, "filename"), line)
    };
    let mut known = std::mem::take(&mut stacks.by_frame);
    let lines = pickle
        .list(frames)
        .unwrap_or(&[])
        .iter()
        .map(|frame| match frame {
            Value::Node(number) => {
                let known = known.entry(*number).or_insert_with(|| line_of(*frame));
                Arc::clone(known)
            }
            _ => line_of(*frame),
        });
    let place = stacks.add(lines);
    stacks.by_frame = known;
    stacks.by_list.insert(list, place);
    place
}

/// Kinds of numbers that a note in a file affects; `None` where the file does not say it.
fn affects(pickle: &Pickle, note: Value) -> Option<Vec<String>> {
    let kinds = pickle.list(pickle.get(note, "affects")?)?;
    let words = kinds
        .iter()
        .take(MOST_NOTES)
        .filter_map(|kind| pickle.text(*kind));
    Some(words.map(str::to_owned).collect())
}

fn of_segment(
    pickle: &Pickle,
    segment: Value,
    births: &HashMap<(i32, u64), u64>,
    once: &mut Once,
    stacks: &mut Stacks,
) -> Result<Segment, String> {
    once.check(segment)?;
    let number = |of: Value, key: &str| pickle.get(of, key).and_then(Value::unsigned);
    let need =
        |of: Value, key: &str| number(of, key).ok_or_else(|| format!("has no number {key:?}"));
    let device = match pickle.get(segment, "device") {
        None => 0,
        Some(device) => device
            .unsigned()
            .and_then(|device| i32::try_from(device).ok())
            .ok_or("has a device that is no number of one")?,
    };
    let blocks = pickle.get(segment, "blocks");
    let list = blocks
        .and_then(|blocks| pickle.list(blocks))
        .ok_or("has no list \"blocks\"")?;
    // Older versions give a block no address: it follows the one before.
    let mut next = need(segment, "address")?;
    let mut blocks = Vec::with_capacity(list.len());
    for (place, block) in list.iter().enumerate() {
        let wrong = |what: &str| format!("block {place} {what}");
        once.check(*block).map_err(wrong)?;
        let address = number(*block, "address").unwrap_or(next);
        let size = need(*block, "size").map_err(|what| wrong(&what))?;
        next = address.saturating_add(size);
        let state = pickle.get(*block, "state");
        let state = state
            .and_then(|state| State::named(pickle.text(state)?))
            .ok_or_else(|| wrong("has a state that is not known"))?;
        blocks.push(Block {
            address,
            size,
            requested: number(*block, "requested_size"),
            state,
            born_ns: births.get(&(device, address)).copied(),
            stack: stack_of(stacks, pickle, pickle.get(*block, "frames")),
        });
    }
    Ok(Segment {
        device,
        stream: number(segment, "stream").unwrap_or(0),
        size: need(segment, "total_size")?,
        blocks,
    })
}

fn births(pickle: &Pickle, root: Value, once: &mut Once) -> Result<Births, FileError> {
    let mut births = Births::default();
    let traces = pickle.get(root, "device_traces");
    let traces = traces.and_then(|traces| pickle.list(traces)).unwrap_or(&[]);
    for (device, trace) in (0i32..).zip(traces) {
        let wrong = |place: usize, what: &str| {
            FileError::Shape(format!(
                "entry {place} of the trace of device {device} {what}"
            ))
        };
        for (place, entry) in pickle.list(*trace).unwrap_or(&[]).iter().enumerate() {
            once.check(*entry).map_err(|what| wrong(place, what))?;
            let number = |key| pickle.get(*entry, key).and_then(Value::unsigned);
            let action = pickle.get(*entry, "action");
            let came = action.and_then(|action| pickle.text(action)) == Some("alloc");
            births.entry(device, came, number("addr"), number("time_us"));
        }
    }
    Ok(births)
}
