//! The stacks of a process: what the programs identified, the code in them, and what each stack allocated.
//!
//! Owns: stacks by content (the programs' identities change whenever they must, the stack does not), code
//! objects by sighting (an address names another object once the first has died), and sums by device
//! and stack. Refuses: to name anything twice: the first name of a sighting is what its stacks have, and
//! what is told when it dies has the last word.

use crate::event::{Body, CodeName, NativeName, StackRef, StackSeen};
use crate::fast_hash::FastMap;
use crate::report::{Frame, FrameKind, MISSING, Stack, Tally};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A stack's number within the process; those below [`KINDS`] are not stacks but reasons.
pub(crate) type StackIndex = u32;

const KINDS: u32 = MISSING.len() as u32;
pub(crate) const NOT_TAKEN: StackIndex = 0;
const NO_PYTHON: StackIndex = 1;
const UNREADABLE: StackIndex = 2;
const BUSY: StackIndex = 3;
const LOST: StackIndex = 4;
pub(crate) const BEFORE_ATTACH: StackIndex = 5;
const NOT_SAMPLED: StackIndex = 6;

/// An index has the sampling above these bits: a block stands for as much when it goes as when it came.
const INDEX_BITS: u32 = 26;

/// The index without it: the stack, however many blocks this one stands for.
pub(crate) fn place(index: StackIndex) -> StackIndex {
    index & ((1 << INDEX_BITS) - 1)
}

/// What a block of a sampled stack stands for; `None`: others stand for it.
fn weight(index: StackIndex, bytes: u64) -> Option<Tally> {
    if index == NOT_SAMPLED {
        return None;
    }
    let interval = 1u64 << (index >> INDEX_BITS);
    if bytes >= interval || bytes == 0 {
        return Some(Tally { count: 1, bytes });
    }
    // It was taken with the probability of bytes / interval.
    Some(Tally {
        count: (interval + bytes / 2) / bytes,
        bytes: interval,
    })
}

/// Most stacks of a process; further ones are counted as lost.
const MOST: usize = 1 << 18;
/// Most code objects.
const MOST_CODES: usize = 1 << 20;
/// Deaths of code objects for which an identity is still known: an event whose stack was walked before a death may come behind it.
const DEATHS_REMEMBERED: u64 = 64;
/// Identities that are kept in any case before old ones are looked for.
const FEW_IDENTITIES: usize = 1 << 12;
/// Most of them that have died and wait for their names.
const MOST_DEAD: usize = 1 << 16;

/// A code object from its first sight in a stack to its death.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Code {
    name: Option<CodeName>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Held {
    content: Arc<Content>,
    truncated: bool,
    /// Another sight of the same content is this stack: it is found by its content.
    shared: bool,
}

/// What an identity of the programs' stands for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Identity {
    index: StackIndex,
    /// Code objects that had died when it was seen. With each death the programs give all stacks other identities.
    deaths: u64,
}

/// What makes two stacks the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Content {
    /// Sighting and instruction of each frame of Python code, innermost first.
    frames: Vec<(u32, u64)>,
    /// Which of them compiled code called.
    entries: Vec<u32>,
    /// Frames of compiled code, innermost first.
    natives: Vec<u64>,
}

/// What one stack allocated on one device.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) live: Tally,
    pub(crate) allocated: Tally,
    /// `live` at the device's peak, if it has changed since.
    at_peak: Tally,
    /// The peak that `at_peak` is of.
    peak: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Peak {
    bytes: u64,
    number: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stacks {
    codes: Vec<Code>,
    /// The sighting that an address names now.
    current: FastMap<u64, u32>,
    /// Sightings that have died, by the number of that event, until their name is told.
    dead: FastMap<u64, u32>,
    held: Vec<Held>,
    /// Follows from `held`: a checkpoint does not have it.
    #[serde(skip)]
    by_content: HashMap<Arc<Content>, StackIndex>,
    /// Names of compiled code by address.
    natives: FastMap<u64, Arc<NativeName>>,
    by_identity: FastMap<u64, Identity>,
    /// How many identities were left when old ones were last forgotten.
    identities_left: usize,
    sums: FastMap<(Option<i32>, StackIndex), Sums>,
    peaks: FastMap<Option<i32>, Peak>,
    /// Events whose stack never came, or found no room.
    pub(crate) lost: u64,
    /// Code objects that died.
    pub(crate) deaths: u64,
}

impl Stacks {
    /// A stack was seen for the first time, or again under another identity.
    pub(crate) fn seen(&mut self, seen: &StackSeen) {
        if self.completes(seen) {
            return;
        }
        let content = Arc::new(Content {
            frames: seen
                .frames
                .iter()
                .map(|(code, instruction)| (self.sighting(*code), *instruction))
                .collect(),
            entries: seen.entries.clone(),
            natives: seen.natives.clone(),
        });
        let index = match self.by_content.get(&content) {
            // What is to be completed is not yet the same as what looks like it.
            Some(index) if !seen.unfinished => *index,
            _ if self.held.len() >= MOST => return,
            _ => {
                let index = KINDS + self.held.len() as u32;
                self.held.push(Held {
                    content: Arc::clone(&content),
                    truncated: seen.truncated,
                    shared: !seen.unfinished,
                });
                if !seen.unfinished {
                    self.by_content.insert(content, index);
                }
                index
            }
        };
        let deaths = self.deaths;
        self.by_identity.insert(seen.id, Identity { index, deaths });
    }

    /// Finds stacks by their content again after a checkpoint was read.
    pub(crate) fn index_contents(&mut self) {
        self.by_content = (KINDS..)
            .zip(&self.held)
            .filter(|(_, held)| held.shared)
            .map(|(index, held)| (Arc::clone(&held.content), index))
            .collect();
    }

    /// Forgets identities that the programs gave up many deaths ago, once there are twice as many as were left the last time.
    fn forget_identities(&mut self) {
        if self.by_identity.len() < FEW_IDENTITIES.max(self.identities_left * 2) {
            return;
        }
        let deaths = self.deaths;
        self.by_identity
            .retain(|_, identity| deaths - identity.deaths <= DEATHS_REMEMBERED);
        self.identities_left = self.by_identity.len();
    }

    /// How many identities are known.
    pub(crate) fn identities(&self) -> usize {
        self.by_identity.len()
    }

    /// Whether this tells the outer frames of compiled code of a stack that is there. Its Python frames stay: code
    /// objects may have died since.
    fn completes(&mut self, seen: &StackSeen) -> bool {
        if !seen.completes {
            return false;
        }
        let identity = self.by_identity.get(&seen.id);
        if let Some(held) = identity
            .and_then(|identity| identity.index.checked_sub(KINDS))
            .and_then(|place| self.held.get_mut(place as usize))
        {
            held.content = Arc::new(Content {
                natives: seen.natives.clone(),
                ..Content::clone(&held.content)
            });
            held.truncated = seen.truncated;
        }
        true
    }

    /// What is at an address of compiled code. The last word counts: another file may come to lie there.
    pub(crate) fn native(&mut self, name: &NativeName) {
        if self.natives.len() < MOST_CODES || self.natives.contains_key(&name.address) {
            self.natives.insert(name.address, Arc::new(name.clone()));
        }
    }

    fn sighting(&mut self, address: u64) -> u32 {
        if let Some(sighting) = self.current.get(&address) {
            return *sighting;
        }
        if self.codes.len() < MOST_CODES {
            self.codes.push(Code::default());
        }
        let sighting = (self.codes.len() - 1) as u32;
        self.current.insert(address, sighting);
        sighting
    }

    /// The sighting that an address names now.
    pub(crate) fn sighting_at(&self, address: u64) -> Option<u32> {
        self.current.get(&address).copied()
    }

    /// What names a code object: the one that its address names now, unless it says that it has died.
    /// What is told of a death has the last word.
    pub(crate) fn named(&mut self, name: &CodeName) {
        let sighting = match name.died {
            Some(number) => self.dead.remove(&number),
            None => self.current.get(&name.code).copied(),
        };
        if let Some(code) = sighting.and_then(|at| self.codes.get_mut(at as usize))
            && (name.died.is_some() || code.name.is_none())
        {
            code.name = Some(name.clone());
        }
    }

    /// Takes what names stacks that are there, and nothing else of what came after them.
    pub(crate) fn learn(&mut self, body: &Body, number: u64) {
        match body {
            Body::Stack(seen) => {
                self.completes(seen);
            }
            Body::Code(name) => self.named(name),
            Body::Native(name) => {
                // Later another file may come to lie there.
                self.natives
                    .entry(name.address)
                    .or_insert_with(|| Arc::new(NativeName::clone(name)));
            }
            Body::CodeDied { code } => self.died(*code, number),
            _ => {}
        }
    }

    /// Whether there are frames that nobody has named yet.
    pub(crate) fn has_unnamed(&self) -> bool {
        let mut codes = self.codes.iter();
        let mut held = self.held.iter();
        codes.any(|code| code.name.is_none())
            || held.any(|held| {
                let mut natives = held.content.natives.iter();
                natives.any(|address| !self.natives.contains_key(address))
            })
    }

    /// What names the code object that an address names now.
    pub(crate) fn name_at(&self, address: u64) -> Option<&CodeName> {
        let sighting = self.current.get(&address)?;
        self.codes.get(*sighting as usize)?.name.as_ref()
    }

    /// A code object died, by this event: its address may come to name another one.
    pub(crate) fn died(&mut self, address: u64, event: u64) {
        self.deaths += 1;
        self.forget_identities();
        if let Some(sighting) = self.current.remove(&address)
            && self.dead.len() < MOST_DEAD
        {
            self.dead.insert(event, sighting);
        }
    }

    /// The index of an event's stack.
    pub(crate) fn index(&mut self, stack: StackRef, sampling: u8) -> StackIndex {
        let index = match stack {
            StackRef::NotTaken => NOT_TAKEN,
            StackRef::NoPython => NO_PYTHON,
            StackRef::Unreadable => UNREADABLE,
            StackRef::Busy => BUSY,
            StackRef::NotSampled => return NOT_SAMPLED,
            StackRef::Id(id) => match self.by_identity.get(&id) {
                Some(identity) => identity.index,
                None => {
                    self.lost += 1;
                    LOST
                }
            },
        };
        index | StackIndex::from(sampling & 31) << INDEX_BITS
    }

    fn at(&mut self, device: Option<i32>, stack: StackIndex) -> &mut Sums {
        let number = self.peaks.get(&device).map_or(0, |peak| peak.number);
        let sums = self.sums.entry((device, stack)).or_insert_with(|| Sums {
            peak: number,
            ..Sums::default()
        });
        if sums.peak != number {
            sums.peak = number;
            sums.at_peak = sums.live;
        }
        sums
    }

    /// A block came; `new`: it was seen to.
    pub(crate) fn came(&mut self, device: Option<i32>, stack: StackIndex, bytes: u64, new: bool) {
        let Some(weight) = weight(stack, bytes) else {
            return;
        };
        let sums = self.at(device, stack);
        add(&mut sums.live, weight);
        if new {
            add(&mut sums.allocated, weight);
        }
    }

    /// A block went, or turned out not to be one of these (`never`: nor ever was).
    pub(crate) fn went(&mut self, device: Option<i32>, stack: StackIndex, bytes: u64, never: bool) {
        let Some(weight) = weight(stack, bytes) else {
            return;
        };
        let sums = self.at(device, stack);
        take(&mut sums.live, weight);
        if never {
            take(&mut sums.allocated, weight);
        }
    }

    /// The size of a live block is known better now.
    pub(crate) fn resized(&mut self, device: Option<i32>, stack: StackIndex, was: u64, is: u64) {
        if was == is {
            return;
        }
        let (Some(was), Some(is)) = (weight(stack, was), weight(stack, is)) else {
            return;
        };
        let sums = self.at(device, stack);
        for tally in [&mut sums.live, &mut sums.allocated] {
            take(tally, was);
            add(tally, is);
        }
    }

    /// The device's bytes, after an event: perhaps more than ever.
    pub(crate) fn level(&mut self, device: Option<i32>, bytes: u64) {
        let peak = self.peaks.entry(device).or_default();
        if bytes > peak.bytes {
            peak.bytes = bytes;
            peak.number += 1;
        }
    }

    /// All sums: device, stack, live, at the peak, allocated.
    pub(crate) fn sums(
        &self,
    ) -> impl Iterator<Item = (Option<i32>, StackIndex, Tally, Tally, Tally)> {
        self.sums.iter().map(|((device, stack), sums)| {
            let number = self.peaks.get(device).map_or(0, |peak| peak.number);
            let at_peak = if sums.peak == number {
                sums.at_peak
            } else {
                sums.live
            };
            (*device, *stack, sums.live, at_peak, sums.allocated)
        })
    }

    /// A stack with its names.
    pub(crate) fn stack(&self, index: StackIndex) -> Stack {
        let index = place(index);
        let Some(place) = index.checked_sub(KINDS) else {
            return Stack {
                missing: MISSING.get(index as usize).copied(),
                ..Stack::default()
            };
        };
        let Some(held) = self.held.get(place as usize) else {
            return Stack {
                missing: Some("lost"),
                ..Stack::default()
            };
        };
        Stack {
            frames: self.frames(&held.content),
            truncated: held.truncated,
            missing: None,
        }
    }

    /// The frames that an event's stack has now.
    pub(crate) fn frames_by_identity(&self, stack: StackRef) -> Vec<Frame> {
        let StackRef::Id(id) = stack else {
            return Vec::new();
        };
        self.by_identity
            .get(&id)
            .map(|identity| self.frames_of(identity.index))
            .unwrap_or_default()
    }

    /// Whether an index stands for a reason why there is no stack.
    pub(crate) fn is_missing(&self, index: StackIndex) -> bool {
        place(index) < KINDS
    }

    /// Whether an index stands for stacks that were not wanted.
    pub(crate) fn is_left_out(&self, index: StackIndex) -> bool {
        [NOT_TAKEN, NOT_SAMPLED].contains(&index)
    }

    /// The frames of a stack, innermost first; none where there is no stack.
    pub(crate) fn frames_of(&self, index: StackIndex) -> Vec<Frame> {
        self.stack(index).frames
    }

    /// The frames of both kinds in order: where compiled code is the interpreter's, the Python that it executes
    /// stands in its place.
    fn frames(&self, content: &Content) -> Vec<Frame> {
        let python = |range: std::ops::Range<usize>| {
            content
                .frames
                .get(range)
                .into_iter()
                .flatten()
                .filter_map(|(sighting, instruction)| self.frame(*sighting, *instruction))
        };
        let all = content.frames.len();
        let mut frames = Vec::new();
        let mut entries = content.entries.iter();
        let mut from = 0;
        for address in &content.natives {
            let name = self.natives.get(address);
            let executes = name.is_some_and(|name| {
                let mut functions = name.functions.iter();
                functions.any(|function| function.name.starts_with(INTERPRETER))
            });
            if executes && from < all {
                // Up to the frame that this very call of the interpreter began with.
                let to = entries
                    .next()
                    .map_or(all, |entry| (*entry as usize + 1).min(all));
                frames.extend(python(from..to));
                from = to;
            } else {
                native(*address, name, &mut frames);
            }
        }
        // Compiled code was not walked, or not so far.
        frames.extend(python(from..all));
        frames
    }

    /// `None` for a frame that is still being made.
    fn frame(&self, sighting: u32, instruction: u64) -> Option<Frame> {
        let code = self.codes.get(sighting as usize);
        let Some(name) = code.and_then(|code| code.name.as_ref()) else {
            return Some(Frame {
                kind: FrameKind::Python,
                name: Arc::from(""),
                file: Arc::from(""),
                line: 0,
            });
        };
        name.is_entered(instruction).then(|| Frame {
            kind: FrameKind::Python,
            name: Arc::clone(&name.name),
            file: Arc::clone(&name.file),
            line: name.line(instruction),
        })
    }
}

/// How the function is called that executes Python code.
const INTERPRETER: &str = "_PyEval_EvalFrameDefault";

/// Adds the frame of an address of compiled code, and those of functions inlined there.
fn native(address: u64, name: Option<&Arc<NativeName>>, frames: &mut Vec<Frame>) {
    let Some(name) = name else {
        frames.push(Frame {
            kind: FrameKind::Native,
            name: format!("{address:#x}").into(),
            file: Arc::from(""),
            line: 0,
        });
        return;
    };
    for function in &name.functions {
        let known = !function.name.is_empty();
        let file = if function.file.is_empty() {
            &name.module
        } else {
            &function.file
        };
        frames.push(Frame {
            kind: FrameKind::Native,
            name: if known {
                Arc::clone(&function.name)
            } else if name.module.is_empty() {
                format!("{address:#x}").into()
            } else {
                let base = name.module.rsplit('/').next().unwrap_or_default();
                format!("{base}+{:#x}", name.offset).into()
            },
            file: Arc::clone(file),
            line: function.line,
        });
    }
}

fn add(tally: &mut Tally, weight: Tally) {
    tally.count = tally.count.saturating_add(weight.count);
    tally.bytes = tally.bytes.saturating_add(weight.bytes);
}

fn take(tally: &mut Tally, weight: Tally) {
    tally.count = tally.count.saturating_sub(weight.count);
    tally.bytes = tally.bytes.saturating_sub(weight.bytes);
}
