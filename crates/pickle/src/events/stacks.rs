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
    stacks: crate::Stacks<Frame>,
    codes: HashMap<Frame, u64>,
}

impl Stacks {
    /// The stack of a list of frames and, if it is new, what the ledger must be told about it first.
    pub(super) fn of(&mut self, pickle: &Pickle, frames: Option<Value>) -> (StackRef, Option<New>) {
        let known = self.stacks.all.len();
        let place = self.stacks.of(pickle, frames, |value| frame(pickle, value));
        let Some(place) = place else {
            return (StackRef::NotTaken, None);
        };
        let id = FIRST_IDENTITY + u64::from(place);
        let Some(stack) = self.stacks.all.get(known) else {
            return (StackRef::Id(id), None);
        };
        let mut names = Vec::new();
        let mut codes = Vec::with_capacity(stack.len());
        for frame in stack.iter() {
            let next = (self.codes.len() as u64 + 1) * APART;
            let code = *self.codes.entry(*frame).or_insert_with(|| {
                names.push(name(pickle, next, *frame));
                next
            });
            codes.push((code, 0));
        }
        let list = frames.and_then(|frames| pickle.list(frames));
        let seen = StackSeen {
            id,
            frames: codes,
            truncated: list.is_some_and(|list| list.len() > stack.len()),
            ..StackSeen::default()
        };
        (StackRef::Id(id), Some(New { seen, names }))
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
