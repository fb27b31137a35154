//! The stacks of a process: the stacks that the BPF programs found, the code in them, and what each stack allocated.
//!
//! Owns: stacks by content (the BPF programs may give a stack a new identity, but its content stays the same), code
//! objects by *sighting* (a code object from its first sight to its death; afterwards its address may name another
//! object), and sums by device and stack. Refuses: to rename a sighting: its first name stays, and only the name that
//! is sent when the object dies replaces it.

use crate::config::table_bytes;
use crate::event::{Body, CodeName, INTERPRETER, NativeName, StackRef, StackSeen};
use crate::fast_hash::FastMap;
use crate::report::{Frame, FrameKind, MISSING, Stack, Tally};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A stack's number within the process. Numbers below [`KINDS`] are no stacks, but reasons why there is none.
pub(crate) type StackIndex = u32;

const KINDS: u32 = MISSING.len() as u32;
pub(crate) const NOT_TAKEN: StackIndex = 0;
const NO_PYTHON: StackIndex = 1;
const UNREADABLE: StackIndex = 2;
const BUSY: StackIndex = 3;
const LOST: StackIndex = 4;
pub(crate) const BEFORE_ATTACH: StackIndex = 5;
const NOT_SAMPLED: StackIndex = 6;

/// Bits of the stack's number in an index. The bits above them have the sampling exponent, so that a block has the same
/// weight when it is freed as when it came.
const INDEX_BITS: u32 = 26;

/// The index without the sampling exponent: the number of the stack alone.
pub(crate) fn place(index: StackIndex) -> StackIndex {
    index & ((1 << INDEX_BITS) - 1)
}

/// The count and bytes that a block of a sampled stack stands for; `None` if the block was not sampled, because other
/// blocks stand for it.
fn weight(index: StackIndex, bytes: u64) -> Option<Tally> {
    if index == NOT_SAMPLED {
        return None;
    }
    let interval = 1u64 << (index >> INDEX_BITS);
    if bytes >= interval || bytes == 0 {
        return Some(Tally { count: 1, bytes });
    }
    // Its stack was taken with the probability of bytes / interval.
    Some(Tally {
        count: (interval + bytes / 2) / bytes,
        bytes: interval,
    })
}

/// Maximum number of stacks of a process; events with further ones count as lost.
const MOST: usize = 1 << 18;
/// Maximum number of code objects of a process, and of names of compiled code.
const MOST_CODES: usize = 1 << 20;
/// The sighting of code objects for which there was no room.
const NAMELESS: u32 = u32::MAX;
/// Maximum number of identities of stacks. Beyond it, the half that was seen longest ago is forgotten. None of these is in use: the
/// programs give a stack one identity at a time, and half of the identities are more than all stacks.
const MOST_IDENTITIES: usize = 1 << 20;
/// Number of deaths of code objects for which an identity is kept: an event whose stack was walked before a death may
/// come after it.
const DEATHS_REMEMBERED: u64 = 64;
/// Number of identities below which no old ones are searched for.
const FEW_IDENTITIES: usize = 1 << 12;
/// Maximum number of dead code objects that wait for their names.
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
    /// Stacks that are seen later with the same content are this one: it is in `by_content`.
    shared: bool,
}

/// What an identity that the BPF programs gave stands for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Identity {
    index: StackIndex,
    /// Number of code objects that had died when the identity was seen. With each death the BPF programs give all
    /// stacks other identities.
    deaths: u64,
    /// How many identities had been seen before.
    #[serde(default)]
    place: u64,
}

/// What two stacks must have in common to be the same stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Content {
    /// Sighting and instruction of each frame of Python code, innermost first.
    frames: Vec<(u32, u64)>,
    /// Places in `frames` of those that compiled code called, ascending.
    entries: Vec<u32>,
    /// Frames of compiled code, innermost first.
    natives: Vec<u64>,
}

/// What the C library's allocator takes beside each allocation, in bytes.
const BESIDE: u64 = 16;

impl Content {
    /// Bytes that it takes, with its counts of references.
    fn bytes(&self) -> u64 {
        let lists = self.frames.len() * 16 + self.entries.len() * 4 + self.natives.len() * 8;
        (size_of::<Content>() + lists) as u64 + 4 * BESIDE
    }
}

/// Bytes of the texts and lines of a name, without the name itself.
fn code_bytes(name: &CodeName) -> u64 {
    (name.name.len() + name.file.len() + name.lines.len() * 8) as u64 + 5 * BESIDE
}

/// Bytes of a name of compiled code.
fn native_bytes(name: &NativeName) -> u64 {
    let functions = name.functions.iter();
    let texts = functions.map(|one| one.name.len() + one.file.len() + 4 * BESIDE as usize);
    let texts: usize = texts.sum();
    let own = size_of::<NativeName>() + name.module.len() + name.build_id.len();
    let list = name.functions.len() * size_of::<crate::event::NativeFunction>();
    (own + list + texts) as u64 + 5 * BESIDE
}

/// What one stack allocated on one device.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) live: Tally,
    pub(crate) allocated: Tally,
    /// `live` at the device's peak with the number `peak`. If the device has had a later peak, nothing has changed
    /// since, and `live` is the value at that one.
    at_peak: Tally,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Peak {
    bytes: u64,
    number: u64,
    /// Whether these are the bytes of driver allocations, as long as there is no pool.
    #[serde(default)]
    of_driver: bool,
    /// The part of `bytes` that is in no stack's `at_peak`: blocks from before the attach that no reading has shown yet.
    #[serde(default)]
    unknown: u64,
    /// [`Level::orphans`] at the peak.
    #[serde(default)]
    orphans: u64,
}

/// What a device holds after an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    /// Bytes of the pool's blocks or, without a pool, of the driver's allocations.
    pub(crate) bytes: u64,
    pub(crate) of_driver: bool,
    /// The part of `bytes` whose blocks are not known.
    pub(crate) unknown: u64,
    /// Number of blocks that were not known and have gone so far.
    pub(crate) orphans: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stacks {
    codes: Vec<Code>,
    /// Sighting that an address names now.
    current: FastMap<u64, u32>,
    /// Sightings that have died, by the number of the event of their death, until their names come.
    dead: FastMap<u64, u32>,
    held: Vec<Held>,
    /// Follows from `held`, so a checkpoint does not contain it.
    #[serde(skip)]
    by_content: HashMap<Arc<Content>, StackIndex>,
    /// Names of compiled code by address.
    natives: FastMap<u64, Arc<NativeName>>,
    by_identity: FastMap<u64, Identity>,
    /// Number of identities that were left when old ones were last forgotten.
    identities_left: usize,
    /// Number of identities that were seen, with those that were seen again.
    #[serde(default)]
    identities_seen: u64,
    sums: FastMap<(Option<i32>, StackIndex), Sums>,
    peaks: FastMap<Option<i32>, Peak>,
    /// Number of events whose stack never came, or found no room.
    pub(crate) lost: u64,
    /// Number of code objects that have died.
    pub(crate) deaths: u64,
    /// Number of stacks that were given up because memory was short; the first stack in `held` has the number behind
    /// them.
    #[serde(default)]
    gone: u32,
    /// Number of times code came for whose name there was no room, so that its frames have no name.
    #[serde(default)]
    pub(crate) nameless: u64,
    /// Bytes of what stacks and names consist of. Follows from the rest, so a checkpoint does not contain it.
    #[serde(skip)]
    content_bytes: u64,
}

impl Stacks {
    /// Takes a stack that was seen for the first time, or again under another identity.
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
            // A stack that is still to be completed may turn out different from one that looks like it now.
            Some(index) if !seen.unfinished => *index,
            _ if self.held.len() >= MOST || self.end() >= 1 << INDEX_BITS => return,
            _ => {
                let index = self.end();
                self.content_bytes += content.bytes();
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
        if self.by_identity.len() >= MOST_IDENTITIES && !self.by_identity.contains_key(&seen.id) {
            self.forget_older_half();
        }
        let identity = Identity {
            index,
            deaths: self.deaths,
            place: self.identities_seen,
        };
        self.identities_seen += 1;
        self.by_identity.insert(seen.id, identity);
    }

    /// Forgets the half of the identities that was seen longest ago. With each change of a process's code all stacks with frames of
    /// compiled code get other identities, and no event tells of the change.
    fn forget_older_half(&mut self) {
        let mut places: Vec<u64> = self.by_identity.values().map(|one| one.place).collect();
        let half = places.len() / 2;
        let (_, middle, _) = places.select_nth_unstable(half);
        let middle = *middle;
        self.by_identity.retain(|_, one| one.place > middle);
    }

    /// Fills `by_content` again after a checkpoint was read.
    pub(crate) fn index_contents(&mut self) {
        self.by_content = (KINDS + self.gone..)
            .zip(&self.held)
            .filter(|(_, held)| held.shared)
            .map(|(index, held)| (Arc::clone(&held.content), index))
            .collect();
        let contents = self.held.iter().map(|held| held.content.bytes());
        let codes = self.codes.iter().filter_map(|code| code.name.as_ref());
        let natives = self.natives.values().map(|name| native_bytes(name));
        self.content_bytes = contents.chain(codes.map(code_bytes)).chain(natives).sum();
    }

    /// Forgets identities that the BPF programs have not used for many deaths, once there are twice as many as were
    /// left the last time.
    fn forget_identities(&mut self) {
        if self.by_identity.len() < FEW_IDENTITIES.max(self.identities_left * 2) {
            return;
        }
        let deaths = self.deaths;
        self.by_identity
            .retain(|_, identity| deaths - identity.deaths <= DEATHS_REMEMBERED);
        self.identities_left = self.by_identity.len();
    }

    /// The number of the next stack.
    fn end(&self) -> StackIndex {
        KINDS + self.gone + self.held.len() as u32
    }

    /// The index under which sums are kept: the stacks that were given up are one that is missing.
    fn shown(&self, index: StackIndex) -> StackIndex {
        let is_gone = (KINDS..KINDS + self.gone).contains(&place(index));
        let exponent = index & !((1 << INDEX_BITS) - 1);
        if is_gone { LOST | exponent } else { index }
    }

    /// Gives up all stacks and names, because memory is short. What they allocated counts to a stack that is missing.
    pub(crate) fn give_up(&mut self) {
        self.gone = self.end() - KINDS;
        self.codes = Vec::new();
        self.current = FastMap::default();
        self.dead = FastMap::default();
        self.held = Vec::new();
        self.by_content = HashMap::new();
        self.natives = FastMap::default();
        self.by_identity = FastMap::default();
        self.identities_left = 0;
        self.content_bytes = 0;
        let sums = std::mem::take(&mut self.sums);
        for ((device, stack), sums) in sums {
            let number = self.peaks(device);
            let at_peak = if sums.peak == number {
                sums.at_peak
            } else {
                sums.live
            };
            let all = self.at(device, stack);
            add(&mut all.live, sums.live);
            add(&mut all.allocated, sums.allocated);
            add(&mut all.at_peak, at_peak);
        }
    }

    /// Estimate of the bytes that stacks, names and sums take.
    pub(crate) fn bytes(&self) -> u64 {
        self.content_bytes
            + (self.held.capacity() * size_of::<Held>()) as u64
            + (self.codes.capacity() * size_of::<Code>()) as u64
            + table_bytes::<(Arc<Content>, StackIndex)>(self.by_content.capacity())
            + table_bytes::<(u64, u32)>(self.current.capacity() + self.dead.capacity())
            + table_bytes::<(u64, Arc<NativeName>)>(self.natives.capacity())
            + table_bytes::<(u64, Identity)>(self.by_identity.capacity())
            + table_bytes::<((Option<i32>, StackIndex), Sums)>(self.sums.capacity())
    }

    /// Number of identities that are known.
    pub(crate) fn identities(&self) -> usize {
        self.by_identity.len()
    }

    /// Completes a known stack with its outer frames of compiled code, if `seen` has these; returns whether it has. The
    /// stack's Python frames stay, because code objects may have died since.
    fn completes(&mut self, seen: &StackSeen) -> bool {
        if !seen.completes {
            return false;
        }
        let identity = self.by_identity.get(&seen.id);
        if let Some(held) = identity
            .and_then(|identity| identity.index.checked_sub(KINDS + self.gone))
            .and_then(|place| self.held.get_mut(place as usize))
        {
            self.content_bytes += (seen.natives.len() * 8) as u64;
            held.content = Arc::new(Content {
                natives: seen.natives.clone(),
                ..Content::clone(&held.content)
            });
            held.truncated = seen.truncated;
        }
        true
    }

    /// Takes what is at an address of compiled code. It replaces what was there before, because another file may have
    /// been mapped to the address.
    pub(crate) fn native(&mut self, name: &NativeName) {
        if self.natives.len() < MOST_CODES || self.natives.contains_key(&name.address) {
            self.content_bytes += native_bytes(name);
            let before = self.natives.get(&name.address);
            self.content_bytes -= before.map_or(0, |before| native_bytes(before));
            self.natives.insert(name.address, Arc::new(name.clone()));
        } else {
            self.nameless += 1;
        }
    }

    fn sighting(&mut self, address: u64) -> u32 {
        if let Some(sighting) = self.current.get(&address) {
            return *sighting;
        }
        if self.codes.len() >= MOST_CODES {
            self.nameless += 1;
            return NAMELESS;
        }
        self.codes.push(Code::default());
        let sighting = (self.codes.len() - 1) as u32;
        self.current.insert(address, sighting);
        sighting
    }

    /// The sighting that an address names now, if there is one.
    pub(crate) fn sighting_at(&self, address: u64) -> Option<u32> {
        self.current.get(&address).copied()
    }

    /// Takes the name of a code object: of the one that its address names now, or of a dead one if the name was sent
    /// for its death. A name that is sent for a death replaces an earlier one, unless not all of its lines could be copied.
    pub(crate) fn named(&mut self, name: &CodeName) {
        let sighting = match name.died {
            Some(number) => self.dead.remove(&number),
            None => self.current.get(&name.code).copied(),
        };
        if let Some(code) = sighting.and_then(|at| self.codes.get_mut(at as usize))
            && (code.name.is_none() || name.died.is_some() && !name.lines_cut)
        {
            self.content_bytes += code_bytes(name);
            self.content_bytes -= code.name.as_ref().map_or(0, code_bytes);
            code.name = Some(name.clone());
        }
    }

    /// Takes from an event that came later only what completes or names stacks that are already known.
    pub(crate) fn learn(&mut self, body: &Body, number: u64) {
        match body {
            Body::Stack(seen) => {
                self.completes(seen);
            }
            Body::Code(name) => self.named(name),
            // A later name may be of another file at the same address, so the first one stays.
            Body::Native(name) if !self.natives.contains_key(&name.address) => self.native(name),
            Body::CodeDied { code } => self.died(*code, number),
            _ => {}
        }
    }

    /// Whether there are frames that have no name yet.
    pub(crate) fn has_unnamed(&self) -> bool {
        let mut codes = self.codes.iter();
        let mut held = self.held.iter();
        codes.any(|code| code.name.is_none())
            || held.any(|held| {
                let mut natives = held.content.natives.iter();
                natives.any(|address| !self.natives.contains_key(address))
            })
    }

    /// Whether a stack has frames that have no name yet.
    pub(crate) fn is_unnamed(&self, index: StackIndex) -> bool {
        let Some(held) = self.held(index) else {
            return false;
        };
        let unnamed = |sighting: u32| {
            let code = self.codes.get(sighting as usize);
            code.is_none_or(|code| code.name.is_none())
        };
        let mut natives = held.content.natives.iter();
        held.content
            .frames
            .iter()
            .any(|(sighting, _)| unnamed(*sighting))
            || natives.any(|address| !self.natives.contains_key(address))
    }

    /// Name of the code object that an address names now.
    pub(crate) fn name_at(&self, address: u64) -> Option<&CodeName> {
        let sighting = self.current.get(&address)?;
        self.codes.get(*sighting as usize)?.name.as_ref()
    }

    /// A code object died, reported by the event with the number `event`. Its address may come to name another object.
    pub(crate) fn died(&mut self, address: u64, event: u64) {
        self.deaths += 1;
        self.forget_identities();
        let Some(sighting) = self.current.remove(&address) else {
            return;
        };
        if self.dead.len() < MOST_DEAD {
            self.dead.insert(event, sighting);
        } else {
            // The name that is sent for its death will find nobody.
            self.nameless += 1;
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
        let stack = self.shown(stack);
        let number = self.peaks(device);
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

    /// Adds a live block. `new` says that it was seen to come, so that it counts as allocated as well.
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

    /// Adds a live block from before the attach, which a first reading shows. It was there at the peak as well, unless
    /// all that was there is known already.
    pub(crate) fn was_there(&mut self, device: Option<i32>, stack: StackIndex, bytes: u64) {
        let Some(weight) = weight(stack, bytes) else {
            return;
        };
        let peak = self.peaks.entry(device).or_default();
        let rest = peak.unknown.checked_sub(bytes);
        peak.unknown = rest.unwrap_or(peak.unknown);
        let sums = self.at(device, stack);
        add(&mut sums.live, weight);
        if rest.is_some() {
            add(&mut sums.at_peak, weight);
        }
    }

    /// All live blocks that were not seen to come are known now. What was there at the peak beside them has gone since, or is
    /// of no known stack: it counts to `stack`, which stands for a reason. `orphans` as in [`Level`], now.
    pub(crate) fn all_were_told(&mut self, device: Option<i32>, stack: StackIndex, orphans: u64) {
        let peak = self.peaks.entry(device).or_default();
        let bytes = std::mem::take(&mut peak.unknown);
        if bytes > 0 {
            let count = orphans.saturating_sub(peak.orphans).max(1);
            let sums = self.at(device, stack);
            add(&mut sums.at_peak, Tally { count, bytes });
        }
    }

    /// Takes out a block that is not live any more.
    pub(crate) fn went(&mut self, device: Option<i32>, stack: StackIndex, bytes: u64) {
        if let Some(weight) = weight(stack, bytes) {
            take(&mut self.at(device, stack).live, weight);
        }
    }

    /// Takes out a live allocation that should not have been counted here at all. It came when the device had had `peaks`
    /// peaks. Returns whether a peak of the driver's allocations became lower by it.
    pub(crate) fn never_was(
        &mut self,
        device: Option<i32>,
        stack: StackIndex,
        bytes: u64,
        peaks: u64,
    ) -> bool {
        let peak = self.peaks.entry(device).or_default();
        let at_peak = peak.number > peaks;
        let lowers = at_peak && peak.of_driver;
        if lowers {
            peak.bytes = peak.bytes.saturating_sub(bytes);
        }
        if let Some(weight) = weight(stack, bytes) {
            let sums = self.at(device, stack);
            take(&mut sums.live, weight);
            take(&mut sums.allocated, weight);
            if at_peak {
                take(&mut sums.at_peak, weight);
            }
        }
        lowers
    }

    /// How many peaks a device has had.
    pub(crate) fn peaks(&self, device: Option<i32>) -> u64 {
        self.peaks.get(&device).map_or(0, |peak| peak.number)
    }

    /// The size of a live block turned out to be `is` instead of `was`.
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

    /// Takes what the device holds after an event. If it is more than ever before, a new peak begins.
    pub(crate) fn level(&mut self, device: Option<i32>, level: Level) {
        let peak = self.peaks.entry(device).or_default();
        // Once a pool has come, what it holds is not compared with what was held before there was one.
        if level.bytes > peak.bytes || level.of_driver != peak.of_driver {
            *peak = Peak {
                bytes: level.bytes,
                number: peak.number + 1,
                of_driver: level.of_driver,
                unknown: level.unknown,
                orphans: level.orphans,
            };
        }
    }

    /// All sums: device, stack, live, at the peak, allocated.
    pub(crate) fn sums(
        &self,
    ) -> impl Iterator<Item = (Option<i32>, StackIndex, Tally, Tally, Tally)> {
        self.sums.iter().map(|((device, stack), sums)| {
            let number = self.peaks(*device);
            let at_peak = if sums.peak == number {
                sums.at_peak
            } else {
                sums.live
            };
            (*device, *stack, sums.live, at_peak, sums.allocated)
        })
    }

    /// A stack with the names of its frames.
    pub(crate) fn stack(&self, index: StackIndex) -> Stack {
        let index = place(index);
        let Some(place) = index.checked_sub(KINDS) else {
            return Stack {
                missing: MISSING.get(index as usize).copied(),
                ..Stack::default()
            };
        };
        let place = place.checked_sub(self.gone);
        let Some(held) = place.and_then(|place| self.held.get(place as usize)) else {
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

    /// The frames of an event's stack, as far as they are known now.
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

    /// Whether an index stands for a stack that was not to be taken: no stacks were wanted, or this one was not
    /// sampled.
    pub(crate) fn is_left_out(&self, index: StackIndex) -> bool {
        [NOT_TAKEN, NOT_SAMPLED].contains(&index)
    }

    /// The frames of a stack, innermost first; none where there is no stack.
    pub(crate) fn frames_of(&self, index: StackIndex) -> Vec<Frame> {
        self.stack(index).frames
    }

    /// The frames of a stack that are of Python code, innermost first.
    pub(crate) fn python_frames_of(&self, index: StackIndex) -> Vec<Frame> {
        let frames = self.python(index).iter();
        frames
            .filter_map(|(sighting, instruction)| self.frame(*sighting, *instruction))
            .collect()
    }

    /// Whether a stack has frames of Python code.
    pub(crate) fn has_python(&self, index: StackIndex) -> bool {
        !self.python(index).is_empty()
    }

    /// Whether two stacks are in the same Python code, whatever compiled code is between. False if there is none.
    pub(crate) fn is_same_python(&self, one: StackIndex, other: StackIndex) -> bool {
        self.has_python(one) && self.python(one) == self.python(other)
    }

    /// Sighting and instruction of a stack's frames of Python code, innermost first.
    fn python(&self, index: StackIndex) -> &[(u32, u64)] {
        self.held(index).map_or(&[], |held| &held.content.frames)
    }

    /// What is held of a stack; `None` where there is none, and where it was given up.
    fn held(&self, index: StackIndex) -> Option<&Held> {
        let place = place(index).checked_sub(KINDS + self.gone)?;
        self.held.get(place as usize)
    }

    /// The frames of both kinds in order, innermost first. A frame of the interpreter's own function is replaced by the
    /// Python frames that it executes.
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
                // Up to the frame with which this call of the interpreter began.
                let to = entries
                    .next()
                    .map_or(all, |entry| (*entry as usize + 1).min(all));
                frames.extend(python(from..to));
                from = to;
            } else {
                native(*address, name, &mut frames);
            }
        }
        // Python frames remain if compiled code was not walked, or not as far as these.
        frames.extend(python(from..all));
        frames
    }

    /// A frame with its name; `None` for a frame that Python is still making.
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
