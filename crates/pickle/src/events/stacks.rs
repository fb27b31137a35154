//! The stacks of a snapshot, as the ledger takes stacks.
//!
//! A snapshot has names but no addresses of code, so each different frame gets a made-up address. Frames of compiled code are
//! among those of Python, in the order in which PyTorch has them.

use crate::reader::{Pickle, Value};
use memscope_ledger::event::{CodeName, StackRef, StackSeen};
use std::collections::HashMap;
use std::sync::Arc;

/// Identity of the first stack. Lower identities are reasons for having no stack (`memscope_common::STACK_*`).
const FIRST_IDENTITY: u64 = 0x100;
/// Distance between made-up code addresses.
const APART: u64 = 0x1000;
/// Largest number of frames that are read of a stack.
const MOST_FRAMES: usize = 1024;
/// Bytes of the longest name of a function or a file that is told whole: a million frames may have one name of many MiB.
const LONGEST: usize = 4096;

/// What the ledger must be told about a stack before an event names it.
#[derive(Debug)]
pub(super) struct New {
    pub(super) seen: StackSeen,
    pub(super) names: Vec<CodeName>,
}

/// A frame: name and file as the pickle's values, and the line.
type Frame = (Option<u32>, Option<u32>, u32);

/// The stacks and frames that have been seen.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    /// By the number of the list of frames: many blocks refer to one list.
    by_list: HashMap<u32, StackRef>,
    /// By the number of the dictionary: many lists refer to one frame, and a dictionary is searched entry by entry.
    by_frame: HashMap<u32, Frame>,
    stacks: HashMap<Vec<u64>, u64>,
    frames: HashMap<Frame, u64>,
}

impl Stacks {
    /// The stack of a list of frames and, if it is new, what the ledger must be told about it first.
    pub(super) fn of(&mut self, pickle: &Pickle, frames: Option<Value>) -> (StackRef, Option<New>) {
        let Some(list @ Value::Node(number)) = frames else {
            return (StackRef::NotTaken, None);
        };
        if let Some(known) = self.by_list.get(&number) {
            return (*known, None);
        }
        let (stack, new) = self.read(pickle, pickle.list(list).unwrap_or(&[]));
        self.by_list.insert(number, stack);
        (stack, new)
    }

    fn read(&mut self, pickle: &Pickle, list: &[Value]) -> (StackRef, Option<New>) {
        if list.is_empty() {
            return (StackRef::NotTaken, None);
        }
        let mut names = Vec::new();
        let mut codes = Vec::with_capacity(list.len().min(MOST_FRAMES));
        for value in list.iter().take(MOST_FRAMES) {
            let frame = match value {
                Value::Node(number) => *self
                    .by_frame
                    .entry(*number)
                    .or_insert_with(|| frame(pickle, *value)),
                _ => Frame::default(),
            };
            let next = (self.frames.len() as u64 + 1) * APART;
            let code = *self.frames.entry(frame).or_insert_with(|| {
                names.push(name(pickle, next, frame));
                next
            });
            codes.push(code);
        }
        let next = FIRST_IDENTITY + self.stacks.len() as u64;
        let frames: Vec<(u64, u64)> = codes.iter().map(|code| (*code, 0)).collect();
        match self.stacks.get(&codes) {
            Some(id) => (StackRef::Id(*id), None),
            None => {
                self.stacks.insert(codes, next);
                let seen = StackSeen {
                    id: next,
                    frames,
                    truncated: list.len() > MOST_FRAMES,
                    ..StackSeen::default()
                };
                (StackRef::Id(next), Some(New { seen, names }))
            }
        }
    }
}

fn frame(pickle: &Pickle, value: Value) -> Frame {
    let text = |key| match pickle.get(value, key) {
        Some(Value::Text(number)) => Some(number),
        _ => None,
    };
    let line = pickle.get(value, "line").and_then(Value::unsigned);
    let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
    (text("name"), text("filename"), line)
}

fn name(pickle: &Pickle, code: u64, (name, file, line): Frame) -> CodeName {
    let text = |number: Option<u32>| {
        let text = number.and_then(|number| pickle.text(Value::Text(number)));
        let text = text.unwrap_or_default();
        Arc::from(
            text.get(..text.floor_char_boundary(LONGEST))
                .unwrap_or_default(),
        )
    };
    CodeName {
        code,
        name: text(name),
        file: text(file),
        first_line: line,
        unit: 1,
        lines: vec![(0, line)],
        ..CodeName::default()
    }
}
