//! Turns stacks that are text into stacks of code objects.
//!
//! A dump has names but no addresses of code, so each different line gets a made-up address.

use memscope_ledger::event::{CodeName, StackRef, StackSeen};
use std::collections::HashMap;
use std::sync::Arc;

/// Identity of the first stack. Lower identities are reasons for having no stack (`memscope_common::STACK_*`).
const FIRST_IDENTITY: u64 = 0x100;
/// Distance between made-up code addresses.
const APART: u64 = 0x1000;

/// What the ledger must be told about a stack before an event names it.
#[derive(Debug)]
pub(super) struct New {
    pub(super) seen: StackSeen,
    pub(super) names: Vec<CodeName>,
}

/// Identities of the stacks and addresses of the lines that have been seen.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    stacks: HashMap<String, u64>,
    lines: HashMap<String, u64>,
}

impl Stacks {
    /// The stack in a cell and, if it is new, what the ledger must be told about it first.
    pub(super) fn of(&mut self, text: &str) -> (StackRef, Option<New>) {
        let text = text.trim();
        // msMemScope writes this for threads that run no Python.
        if text == "NA" {
            return (StackRef::NoPython, None);
        }
        if text.is_empty() || text == crate::row::NOTHING {
            return (StackRef::NotTaken, None);
        }
        if let Some(&id) = self.stacks.get(text) {
            return (StackRef::Id(id), None);
        }
        let id = FIRST_IDENTITY + self.stacks.len() as u64;
        self.stacks.insert(text.to_owned(), id);
        let mut names = Vec::new();
        let mut frames = Vec::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            let next = (self.lines.len() as u64 + 1) * APART;
            let code = *self.lines.entry(line.to_owned()).or_insert_with(|| {
                names.push(name(next, line));
                next
            });
            frames.push((code, 0));
        }
        let seen = StackSeen {
            id,
            frames,
            ..StackSeen::default()
        };
        (StackRef::Id(id), Some(New { seen, names }))
    }
}

/// Reads `file(line): function`. Text of another form is taken for the function's name.
fn name(code: u64, text: &str) -> CodeName {
    let (file, line, function) = split(text).unwrap_or(("", 0, text));
    CodeName {
        code,
        name: Arc::from(function),
        file: Arc::from(file),
        first_line: line,
        unit: 1,
        lines: vec![(0, line)],
        ..CodeName::default()
    }
}

fn split(text: &str) -> Option<(&str, u32, &str)> {
    let (place, function) = text.split_once("): ")?;
    let (file, line) = place.rsplit_once('(')?;
    Some((file, line.parse().ok()?, function))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_once() {
        let mut stacks = Stacks::default();
        let (first, new) = stacks.of("a (1).py(3): f\nmain.py(9): <module>\n");
        let new = new.unwrap();
        assert_eq!(first, StackRef::Id(new.seen.id));
        let [f, module] = &new.names[..] else {
            panic!("{new:?}");
        };
        assert_eq!((&*f.file, f.line(0), &*f.name), ("a (1).py", 3, "f"));
        assert_eq!((&*module.file, module.line(0)), ("main.py", 9));
        let (second, new) = stacks.of("other\nmain.py(9): <module>");
        let new = new.unwrap();
        assert_ne!(first, second);
        assert_eq!(new.names.len(), 1, "the other line is known");
        assert_eq!((&*new.names[0].name, new.names[0].line(0)), ("other", 0));
        assert_eq!(new.seen.frames[1].0, module.code);
        let (again, new) = stacks.of("a (1).py(3): f\nmain.py(9): <module>\n");
        assert!(again == first && new.is_none());
        assert_eq!(stacks.of("").0, StackRef::NotTaken);
        assert_eq!(stacks.of("NA").0, StackRef::NoPython);
    }
}
