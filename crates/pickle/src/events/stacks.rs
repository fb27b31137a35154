//! The stacks of a snapshot, as the ledger takes stacks.
//!
//! A snapshot has names but no addresses of code, so each different frame gets a made-up address. PyTorch's recorder has frames of
//! compiled code among those of Python and does not say which are which; their names and files tell.

use crate::reader::{Pickle, Value};
use memscope_ledger::event::{
    Body, CodeName, INTERPRETER, NativeFunction, NativeName, StackRef, StackSeen,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Identity of the first stack. Lower identities are reasons for having no stack (`memscope_common::STACK_*`).
const FIRST_IDENTITY: u64 = 0x100;
/// Distance between made-up code addresses.
const APART: u64 = 0x1000;
/// The made-up address of the interpreter where it executes frames of Python.
const EXECUTES: u64 = 1;
/// Bytes of the longest name of a function or a file that is told whole: a million frames may have one name of many MiB.
const LONGEST: usize = 4096;

/// What the ledger must be told about a stack before an event names it.
#[derive(Debug)]
pub(super) struct New {
    pub(super) seen: StackSeen,
    /// Names of Python's code and of compiled code that no stack had before.
    pub(super) names: Vec<Body>,
}

/// A frame: name and file as the pickle's values, and the line.
type Frame = (Option<u32>, Option<u32>, u32);

/// What a frame is, with the made-up address of its code.
#[derive(Clone, Copy, Debug)]
enum Code {
    Python(u64),
    Compiled(u64),
    /// The interpreter's function that executes Python code.
    Interpreter(u64),
}

/// The stacks and frames that have been seen.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    stacks: crate::Stacks<Frame>,
    codes: HashMap<Frame, Code>,
    /// The ledger was told what is at [`EXECUTES`].
    executes: bool,
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
                let (code, name) = named(pickle, next, *frame);
                names.push(name);
                code
            });
            codes.push(code);
        }
        let list = frames.and_then(|frames| pickle.list(frames));
        let seen = StackSeen {
            id,
            truncated: list.is_some_and(|list| list.len() > stack.len()),
            ..in_order(&codes)
        };
        if seen.natives.contains(&EXECUTES) && !std::mem::replace(&mut self.executes, true) {
            names.push(compiled(EXECUTES, INTERPRETER.into(), "".into(), 0));
        }
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

/// The frames of both kinds as the ledger takes them: each run of Python's is where the interpreter stands among the compiled ones.
fn in_order(codes: &[Code]) -> StackSeen {
    let mut seen = StackSeen::default();
    let mut rest = codes
        .iter()
        .filter(|code| matches!(code, Code::Python(_)))
        .count();
    let is_mixed = rest < codes.len();
    let mut executes = false;
    for code in codes {
        match *code {
            Code::Python(code) => {
                rest -= 1;
                if is_mixed && !executes {
                    seen.natives.push(EXECUTES);
                }
                executes = true;
                seen.frames.push((code, 0));
            }
            // The frames of Python that it executes stand for it.
            Code::Interpreter(_) if rest > 0 => {}
            Code::Compiled(code) | Code::Interpreter(code) => {
                if std::mem::take(&mut executes) {
                    seen.entries.push(seen.frames.len() as u32 - 1);
                }
                seen.natives.push(code);
            }
        }
    }
    seen
}

/// What a frame is, and its name for the ledger.
fn named(pickle: &Pickle, code: u64, (name, file, line): Frame) -> (Code, Body) {
    let text = |number: Option<u32>| {
        let text = number.and_then(|number| pickle.text(Value::Text(number)));
        let text = text.unwrap_or_default();
        Arc::from(
            text.get(..text.floor_char_boundary(LONGEST))
                .unwrap_or_default(),
        )
    };
    let (name, file): (Arc<str>, Arc<str>) = (text(name), text(file));
    if memscope_units::is_compiled(&name, &file, line.into()) {
        let kind = match name.starts_with(INTERPRETER) {
            true => Code::Interpreter(code),
            false => Code::Compiled(code),
        };
        return (kind, compiled(code, name, file, line));
    }
    let name = CodeName {
        code,
        name,
        file,
        first_line: line,
        unit: 1,
        lines: vec![(0, line)],
        ..CodeName::default()
    };
    (Code::Python(code), Body::Code(Box::new(name)))
}

fn compiled(address: u64, name: Arc<str>, file: Arc<str>, line: u32) -> Body {
    Body::Native(Box::new(NativeName {
        address,
        functions: vec![NativeFunction { name, file, line }],
        ..NativeName::default()
    }))
}
