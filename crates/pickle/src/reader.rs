//! Reads pickles, as far as snapshots need them.
//!
//! Owns: a stack machine for the opcodes that `pickle.dump` writes for dictionaries, lists, tuples, numbers and
//! texts. Refuses: everything else. Nothing in a pickle is ever called or looked up, so the worst that a hostile file
//! can achieve is that it is refused.
//!
//! Why not a crate: `serde-pickle` 1.2 reads no snapshot that has stacks. It refuses `[[f, f], [f]]` as a "recursive
//! structure" (a dictionary in two lists), which is what frames are; and lists nested a hundred thousand deep
//! overflow its stack, which ends the program. Before it refuses a file, it takes twice the memory that the whole file
//! takes here, where a value that is referred to many times exists once, as in Python (docs/evidence/export.md).

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

/// Bytes of memory that the values of one pickle may take, counted by the sizes below. An entry of PyTorch's trace
/// counts as 1 KiB and really takes half of it, so the limit is some eight million entries.
const MOST_BYTES: u64 = 8 << 30;
/// Upper bounds, in bytes, for one value, container, memo entry and text, with the spare room of growing tables.
const VALUE: u64 = 2 * size_of::<Value>() as u64;
const NODE: u64 = 2 * size_of::<Node>() as u64 + VALUE;
const REMEMBERED: u64 = 3 * size_of::<(u32, Value)>() as u64;
const TEXT: u64 = 3 * size_of::<(Box<str>, u32)>() as u64 + VALUE;
/// Bytes of the longest text that is accepted.
const LONGEST_TEXT: u64 = 16 << 20;
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

/// Why a file is refused as the pickle of a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The file ends before the pickle does.
    #[error("the pickle ends early, after {at} bytes")]
    EndsEarly {
        /// Bytes that were read.
        at: u64,
    },
    /// The file cannot be read.
    #[error("the pickle cannot be read further than {at} bytes")]
    Read {
        /// Bytes that were read.
        at: u64,
        /// Error of the system call.
        source: io::Error,
    },
    /// Its first bytes are no pickle's.
    #[error("it does not begin as a pickle of protocol 2 to 5 does")]
    Protocol,
    /// It has an opcode that snapshots do not have.
    #[error(
        "at byte {at} is opcode {opcode:#04x}, which no snapshot has (pickles that name code are never run)"
    )]
    Opcode {
        /// Where it is, in bytes.
        at: u64,
        /// The opcode.
        opcode: u8,
    },
    /// It asks for what cannot be.
    #[error("at byte {at} the pickle contradicts itself: {what}")]
    Broken {
        /// Where, in bytes.
        at: u64,
        /// What is wrong, in words.
        what: &'static str,
    },
    /// It would take more memory than it may.
    #[error(
        "at byte {at} the pickle would take more than {limit} bytes of memory, which is the limit"
    )]
    TooLarge {
        /// Where, in bytes.
        at: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

/// A value. Texts and containers are indices into the tables of the [`Pickle`], so that what is referred to twice
/// exists once, and a container that contains itself is no endless tree.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // Python's own words
pub enum Value {
    None,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    /// Number of a text.
    Text(u32),
    /// Number of a list, a tuple or a dictionary.
    Node(u32),
}

#[derive(Debug)]
enum Node {
    /// A list or a tuple.
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

/// The content of a pickle.
#[derive(Debug)]
pub struct Pickle {
    root: Value,
    texts: Vec<Box<str>>,
    nodes: Vec<Node>,
}

impl Pickle {
    /// Reads a pickle that takes at most 8 GiB of memory.
    ///
    /// # Errors
    /// It is no pickle that has only what a snapshot has, or it would take more memory.
    pub fn read(from: impl BufRead) -> Result<Pickle, PickleError> {
        Pickle::read_within(from, MOST_BYTES)
    }

    fn read_within(from: impl BufRead, limit: u64) -> Result<Pickle, PickleError> {
        Machine::new(from, limit).run()
    }

    /// The value that was written.
    pub fn root(&self) -> Value {
        self.root
    }

    /// The elements of a list or tuple.
    pub fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Node(number) => match self.nodes.get(number as usize)? {
                Node::List(list) => Some(list),
                Node::Dict(_) => None,
            },
            _ => None,
        }
    }

    /// The value that a dictionary has under a key; if the key was set several times, the last value.
    pub fn get(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Node(number) = value else {
            return None;
        };
        let Node::Dict(dict) = self.nodes.get(number as usize)? else {
            return None;
        };
        let mut entries = dict.iter().rev();
        let found = entries.find(|(name, _)| self.text(*name) == Some(key))?;
        Some(found.1)
    }

    /// Number of lists, tuples and dictionaries together.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The text that a value refers to, if it is a text.
    pub fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(number) => self.texts.get(number as usize).map(|text| &**text),
            _ => None,
        }
    }
}

impl Value {
    /// The value as a number, if it is one and not negative.
    pub fn unsigned(self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

struct Machine<R> {
    from: R,
    limit: u64,
    at: u64,
    stack: Vec<Value>,
    /// Most values that were on the stack at a time.
    highest: usize,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    known: HashMap<Box<str>, u32>,
    /// Upper bound of the memory taken so far, in bytes.
    taken: u64,
    pickle: Pickle,
}

impl<R: BufRead> Machine<R> {
    fn new(from: R, limit: u64) -> Self {
        Machine {
            from,
            limit,
            at: 0,
            stack: Vec::new(),
            highest: 0,
            marks: Vec::new(),
            memo: HashMap::new(),
            known: HashMap::new(),
            taken: 0,
            pickle: Pickle {
                root: Value::None,
                texts: Vec::new(),
                nodes: Vec::new(),
            },
        }
    }

    fn run(mut self) -> Result<Pickle, PickleError> {
        let [proto, protocol] = self.bytes()?;
        if proto != 0x80 || !PROTOCOLS.contains(&protocol) {
            return Err(PickleError::Protocol);
        }
        loop {
            let at = self.at;
            let [opcode] = self.bytes()?;
            if opcode == b'.' {
                self.pickle.root = self.pop()?;
                return Ok(self.pickle);
            }
            self.step(at, opcode)?;
        }
    }

    fn step(&mut self, at: u64, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            // The length of a frame is skipped: what follows is read as it comes.
            0x95 => self.bytes::<8>().map(drop)?,
            b'(' => {
                self.take(VALUE)?;
                self.marks.push(self.stack.len());
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let bytes = self.bytes()?;
                self.push(Value::Signed(i32::from_le_bytes(bytes).into()))?;
            }
            b'K' => {
                let [byte] = self.bytes()?;
                self.push(Value::Signed(byte.into()))?;
            }
            b'M' => {
                let bytes = self.bytes()?;
                self.push(Value::Signed(u16::from_le_bytes(bytes).into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                let bytes = self.bytes()?;
                self.push(Value::Float(f64::from_be_bytes(bytes)))?;
            }
            0x8c => {
                let [len] = self.bytes()?;
                self.text(len.into())?;
            }
            b'X' => {
                let len = u32::from_le_bytes(self.bytes()?);
                self.text(len.into())?;
            }
            0x8d => {
                let len = u64::from_le_bytes(self.bytes()?);
                self.text(len)?;
            }
            b'}' => self.node(Node::Dict(Vec::new()))?,
            b']' | b')' => self.node(Node::List(Vec::new()))?,
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(opcode - 0x84));
                let from = from.ok_or_else(|| self.broken("a tuple of nothing"))?;
                self.gather(from)?;
            }
            b't' | b'l' => {
                let from = self.mark()?;
                self.gather(from)?;
            }
            b'd' => {
                let from = self.mark()?;
                let entries = self.pairs(from)?;
                self.node(Node::Dict(entries))?;
            }
            b'a' => {
                let value = self.pop()?;
                self.last_list()?.push(value);
            }
            b'e' => {
                let from = self.mark()?;
                let values = self.stack.split_off(from);
                self.last_list()?.extend(values);
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.last_dict()?.push((key, value));
            }
            b'u' => {
                let from = self.mark()?;
                let entries = self.pairs(from)?;
                self.last_dict()?.extend(entries);
            }
            0x94 => {
                let place = u32::try_from(self.memo.len())
                    .map_err(|_| self.broken("a memo without an end"))?;
                self.remember(place)?;
            }
            b'q' => {
                let [place] = self.bytes()?;
                self.remember(place.into())?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.bytes()?);
                self.remember(place)?;
            }
            b'h' => {
                let [place] = self.bytes()?;
                self.recall(place.into())?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.bytes()?);
                self.recall(place)?;
            }
            opcode => return Err(PickleError::Opcode { at, opcode }),
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut bytes = [0; N];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => {
                self.at += N as u64;
                Ok(bytes)
            }
            Err(source) => Err(self.unread(source)),
        }
    }

    fn unread(&self, source: io::Error) -> PickleError {
        let at = self.at;
        match source.kind() {
            io::ErrorKind::UnexpectedEof => PickleError::EndsEarly { at },
            _ => PickleError::Read { at, source },
        }
    }

    fn broken(&self, what: &'static str) -> PickleError {
        PickleError::Broken { at: self.at, what }
    }

    /// Counts memory before it is taken; an error if the limit would be exceeded.
    fn take(&mut self, bytes: u64) -> Result<(), PickleError> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > self.limit {
            return Err(self.too_large());
        }
        Ok(())
    }

    fn too_large(&self) -> PickleError {
        PickleError::TooLarge {
            at: self.at,
            limit: self.limit,
        }
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        self.take(VALUE)?;
        // The room on the stack stays taken when the value goes into a list, where it takes room again.
        if self.stack.len() >= self.highest {
            self.take(VALUE)?;
            self.highest += 1;
        }
        self.stack.push(value);
        Ok(())
    }

    /// The topmost value, which must be above the last mark.
    fn pop(&mut self) -> Result<Value, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.broken("a value is missing"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.broken("a value is missing"))
    }

    fn mark(&mut self) -> Result<usize, PickleError> {
        self.marks
            .pop()
            .filter(|from| *from <= self.stack.len())
            .ok_or_else(|| self.broken("a mark is missing"))
    }

    fn node(&mut self, node: Node) -> Result<(), PickleError> {
        self.take(NODE)?;
        let number = u32::try_from(self.pickle.nodes.len()).map_err(|_| self.too_large())?;
        self.pickle.nodes.push(node);
        self.push(Value::Node(number))
    }

    /// Makes one list of the values on the stack from index `from` on.
    fn gather(&mut self, from: usize) -> Result<(), PickleError> {
        let values = self.stack.split_off(from);
        self.node(Node::List(values))
    }

    fn pairs(&mut self, from: usize) -> Result<Vec<(Value, Value)>, PickleError> {
        let values = self.stack.split_off(from);
        let (pairs, rest) = values.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.broken("a key without a value"));
        }
        Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
    }

    fn last_node(&mut self) -> Option<&mut Node> {
        match self.stack.last()? {
            Value::Node(number) => self.pickle.nodes.get_mut(*number as usize),
            _ => None,
        }
    }

    fn last_list(&mut self) -> Result<&mut Vec<Value>, PickleError> {
        let at = self.at;
        match self.last_node() {
            Some(Node::List(list)) => Ok(list),
            _ => Err(PickleError::Broken {
                at,
                what: "something is appended to what is no list",
            }),
        }
    }

    fn last_dict(&mut self) -> Result<&mut Vec<(Value, Value)>, PickleError> {
        let at = self.at;
        match self.last_node() {
            Some(Node::Dict(dict)) => Ok(dict),
            _ => Err(PickleError::Broken {
                at,
                what: "something is set in what is no dictionary",
            }),
        }
    }

    fn remember(&mut self, place: u32) -> Result<(), PickleError> {
        let last = self.stack.last().copied();
        let last = last.ok_or_else(|| self.broken("nothing is there to be remembered"))?;
        self.take(REMEMBERED)?;
        self.memo.insert(place, last);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<(), PickleError> {
        let known = self.memo.get(&place).copied();
        let known = known.ok_or_else(|| self.broken("what is recalled was never remembered"))?;
        self.push(known)
    }

    /// Reads a whole number: the count of its bytes, then the bytes, the lowest first.
    fn long(&mut self) -> Result<(), PickleError> {
        let [len] = self.bytes()?;
        let mut bytes = [0u8; 16];
        let len = usize::from(len);
        let Some(into) = bytes.get_mut(..len) else {
            return Err(self.broken("a number of more than 128 bits"));
        };
        let read = self.from.read_exact(into);
        read.map_err(|source| self.unread(source))?;
        self.at += len as u64;
        // The sign is extended into the bytes that are not there.
        let negative = len > 0 && bytes.get(len - 1).is_some_and(|last| last & 0x80 != 0);
        if let (true, Some(rest)) = (negative, bytes.get_mut(len..)) {
            rest.fill(0xff);
        }
        let number = i128::from_le_bytes(bytes);
        let value = match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Value::Signed(number),
            (_, Ok(number)) => Value::Unsigned(number),
            _ => return Err(self.broken("a number of more than 64 bits")),
        };
        self.push(value)
    }

    fn text(&mut self, len: u64) -> Result<(), PickleError> {
        if len > LONGEST_TEXT {
            return Err(self.broken("a text of more than 16 MiB"));
        }
        let mut bytes = Vec::new();
        let read = self.from.by_ref().take(len).read_to_end(&mut bytes);
        match read {
            Ok(read) if read as u64 == len => self.at += len,
            Ok(_) => return Err(PickleError::EndsEarly { at: self.at }),
            Err(source) => return Err(self.unread(source)),
        }
        // A file's name need not be UTF-8; Python writes its other bytes as escapes that are no valid UTF-8.
        let text = String::from_utf8_lossy(&bytes)
            .into_owned()
            .into_boxed_str();
        let number = match self.known.get(&text) {
            Some(number) => *number,
            None => {
                // The length counts twice: the text is stored in the list and as a key of `known`.
                self.take(TEXT + 2 * len)?;
                let number =
                    u32::try_from(self.pickle.texts.len()).map_err(|_| self.too_large())?;
                self.pickle.texts.push(text.clone());
                self.known.insert(text, number);
                number
            }
        };
        self.push(Value::Text(number))
    }
}

#[cfg(test)]
mod tests;
