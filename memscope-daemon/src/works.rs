//! What reader processes do with the memory of traced processes beside reading it: works for which a question for each place would cost the
//! keeper too much time.
//!
//! Owns: both sides of each work, and what passes between them (MessagePack). Refuses: to believe an answer because it came: what a reader
//! says comes from a process's memory, and is bounded as that is.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use memscope_ledger::event::{CodeName, HeldPart};
use memscope_memory::{AskBack, Memory, Patience, ProcessMemory, Work};
use memscope_python::layout::{INSTRUCTION_ADDRESS, INSTRUCTION_UNITS};
use memscope_python::{Code, Codes, MAX_LINES, MAX_TEXT};
use memscope_structure::Change;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::structures::{self, Outcome, Outside, Wanted};

/// The works that a reader process can be asked for.
pub const ALL: [Work; 4] = [NAMES, PLACES, STRUCTURES, HEAP];

const NAMES: Work = Work {
    number: 1,
    run: read_names,
};
const PLACES: Work = Work {
    number: 2,
    run: read_places,
};

const STRUCTURES: Work = Work {
    number: 3,
    run: read_structures,
};

const HEAP: Work = Work {
    number: 4,
    run: read_heap,
};

/// How long the keeper waits for a reader, and how long it asks for nothing of that process after it waited in vain. So a process that
/// withholds its memory takes about one part in a thousand of the keeper's time, and one that delivers it slowly at most one in thirty.
const PATIENCE: Patience = Patience {
    still: Duration::from_millis(50),
    whole: Duration::from_secs(2),
};
const REST: Duration = Duration::from_secs(60);
/// How long a page is waited for where nobody else waits for the reading: a busy disk may take that long.
const UNHURRIED: Duration = Duration::from_secs(2);
/// How long a reading of structures is waited for, with all its attempts.
const OF_STRUCTURES: Patience = Patience {
    still: UNHURRIED,
    whole: Duration::from_secs(300),
};
/// How long a reading of Python's objects is waited for.
const OF_HEAP: Patience = Patience {
    still: UNHURRIED,
    whole: Duration::from_secs(60),
};
/// Most bytes of names in one answer: what does not fit has none, and is asked for when it is seen again.
const MOST_OF_NAMES: usize = 8 << 20;

#[derive(Serialize, Deserialize)]
struct NamesTold {
    codes: Codes,
    addresses: Vec<u64>,
}

/// The memory of a process for the keeper, which never waits for it for long.
#[derive(Debug)]
pub struct Hurried {
    memory: ProcessMemory,
    /// Until when the process is left alone.
    rests: Cell<Option<Instant>>,
}

impl Hurried {
    /// Opens the memory of a process.
    pub fn open(pid: u32) -> io::Result<Hurried> {
        Ok(Hurried {
            memory: ProcessMemory::open(pid)?,
            rests: Cell::default(),
        })
    }

    /// Reads the names of the code objects at these addresses; none for those that cannot be read.
    pub fn names(&self, codes: Codes, addresses: &[u64]) -> io::Result<Vec<Option<CodeName>>> {
        let told = NamesTold {
            codes,
            addresses: addresses.to_vec(),
        };
        let names: Vec<Option<CodeName>> = unpacked(&self.work(&NAMES, &told)?)?;
        // A text has at most four bytes for each character.
        let is_sound = |(name, address): (&Option<CodeName>, &u64)| match name {
            Some(name) => {
                name.code == *address
                    && name.died.is_none()
                    && name.name.len().max(name.file.len()) <= 4 * MAX_TEXT
                    && name.lines.len() <= MAX_LINES
            }
            None => true,
        };
        let is_sound = names.len() == addresses.len() && names.iter().zip(addresses).all(is_sound);
        is_sound.then_some(names).ok_or_else(malformed)
    }

    /// Reads `length` bytes at each of these addresses; none where not all of them can be read.
    pub fn places(&self, addresses: &[u64], length: usize) -> io::Result<Vec<Option<Vec<u8>>>> {
        let told = PlacesTold {
            addresses: addresses.to_vec(),
            length,
        };
        let answer = self.work(&PLACES, &told)?;
        // For each place a byte that says whether it could be read, and its bytes.
        if answer.len() != addresses.len() * (1 + length) {
            return Err(malformed());
        }
        let place = |answer: &[u8]| match answer {
            [1, bytes @ ..] => Some(bytes.to_vec()),
            _ => None,
        };
        Ok(answer.chunks_exact(1 + length).map(place).collect())
    }

    fn work(&self, work: &Work, told: &impl Serialize) -> io::Result<Vec<u8>> {
        let now = Instant::now();
        if self.rests.get().is_some_and(|until| now < until) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let nothing = &mut |_: &[u8]| Err(malformed());
        let done = self.memory.work(work, &packed(told)?, PATIENCE, nothing);
        if done
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            self.rests.set(Some(now + REST));
        }
        done
    }
}

fn read_names(memory: &ProcessMemory, told: &[u8], _: &mut AskBack<'_>) -> io::Result<Vec<u8>> {
    let told: NamesTold = unpacked(told)?;
    let mut left = MOST_OF_NAMES;
    let read = |address: &u64| {
        let code = told.codes.read(memory, *address).ok()?;
        let name = name(&code, None);
        let bytes = name.name.len() + name.file.len() + name.lines.len() * 10 + 64;
        left = left.checked_sub(bytes)?;
        Some(name)
    };
    let names: Vec<Option<CodeName>> = told.addresses.iter().map(read).collect();
    packed(&names)
}

/// The name that a code object gives.
pub(crate) fn name(code: &Code, died: Option<u64>) -> CodeName {
    let mut lines: Vec<(u32, u32)> = Vec::new();
    for range in code.line_ranges() {
        let Ok(start) = u32::try_from(range.start) else {
            break;
        };
        let line = range.line.unwrap_or(0);
        if lines.last().is_none_or(|(_, before)| *before != line) {
            lines.push((start, line));
        }
    }
    CodeName {
        code: code.address,
        died,
        name: code.name.text.as_str().into(),
        file: code.file_name.text.as_str().into(),
        first_line: u32::try_from(code.first_line).unwrap_or(0),
        origin: match code.instruction_is {
            INSTRUCTION_ADDRESS => code.first_instruction,
            _ => 0,
        },
        unit: match code.instruction_is {
            INSTRUCTION_UNITS => 2,
            _ => 1,
        },
        entered_at: u32::try_from(code.first_traceable).unwrap_or(0),
        lines,
        lines_cut: code.lines_truncated,
    }
}

/// Places of the same length.
#[derive(Serialize, Deserialize)]
struct PlacesTold {
    addresses: Vec<u64>,
    length: usize,
}

fn read_places(memory: &ProcessMemory, told: &[u8], _: &mut AskBack<'_>) -> io::Result<Vec<u8>> {
    let told: PlacesTold = unpacked(told)?;
    let whole = told.addresses.len().saturating_mul(1 + told.length);
    if whole > MOST_OF_NAMES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut answer = vec![0; whole];
    for (address, place) in told
        .addresses
        .iter()
        .zip(answer.chunks_exact_mut(1 + told.length))
    {
        if let [there, bytes @ ..] = place {
            *there = u8::from(memory.read(*address, bytes).is_ok());
        }
    }
    Ok(answer)
}

/// What a reading of structures asks back.
#[derive(Serialize, Deserialize)]
enum Asks {
    Changes {
        device: i32,
        object: u64,
        since_ns: u64,
    },
    Hold(HeldPart),
    IsTaken,
}

/// Reads the structures of a process's allocator.
pub fn structures(
    memory: &ProcessMemory,
    wanted: Wanted,
    outside: &mut dyn Outside,
) -> io::Result<Outcome> {
    let mut reply = |asks: &[u8]| match unpacked(asks)? {
        Asks::Changes {
            device,
            object,
            since_ns,
        } => packed(&outside.changes(device, object, since_ns)?),
        Asks::Hold(part) => packed(&outside.hold(part)?),
        Asks::IsTaken => packed(&outside.is_taken()?),
    };
    let told = packed(&wanted)?;
    unpacked(&memory.work(&STRUCTURES, &told, OF_STRUCTURES, &mut reply)?)
}

/// The other side, as a reader sees it.
struct Asking<'a, 'b>(&'a mut AskBack<'b>);

impl Asking<'_, '_> {
    fn ask<T: DeserializeOwned>(&mut self, asks: &Asks) -> io::Result<T> {
        unpacked(&(self.0)(&packed(asks)?)?)
    }
}

impl Outside for Asking<'_, '_> {
    fn changes(
        &mut self,
        device: i32,
        object: u64,
        since_ns: u64,
    ) -> io::Result<Option<Vec<Change>>> {
        self.ask(&Asks::Changes {
            device,
            object,
            since_ns,
        })
    }

    fn hold(&mut self, part: HeldPart) -> io::Result<()> {
        self.ask(&Asks::Hold(part))
    }

    fn is_taken(&mut self) -> io::Result<bool> {
        self.ask(&Asks::IsTaken)
    }
}

fn read_structures(
    memory: &ProcessMemory,
    told: &[u8],
    ask: &mut AskBack<'_>,
) -> io::Result<Vec<u8>> {
    packed(&structures::read(memory, unpacked(told)?, &mut Asking(ask)))
}

/// Reads which Python objects keep the blocks of a process alive. The inner error says why there is no reading.
pub fn heap(
    memory: &ProcessMemory,
    wanted: &memscope_heap::Wanted,
) -> io::Result<Result<memscope_heap::Reading, String>> {
    let nothing = &mut |_: &[u8]| Err(malformed());
    unpacked(&memory.work(&HEAP, &packed(wanted)?, OF_HEAP, nothing)?)
}

fn read_heap(memory: &ProcessMemory, told: &[u8], _: &mut AskBack<'_>) -> io::Result<Vec<u8>> {
    let read = memscope_heap::read(memory, &unpacked(told)?);
    let read = read.map_err(|error| crate::error_chain(&error));
    // Without the names of fields, as there may be many holders.
    rmp_serde::to_vec(&read).map_err(io::Error::other)
}

fn packed(what: &impl Serialize) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(what).map_err(io::Error::other)
}

fn unpacked<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    memscope_messagepack::from_slice(bytes).map_err(io::Error::other)
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
