//! What the memory of a process is for: from its blocks, a reading of its objects and rules to an answer.
//!
//! Owns: what belongs into one row, and the sums of a device. Refuses: to know what objects look like, and to decide by anything but what
//! objects say and rules that are data.

use std::collections::{BTreeMap, HashMap, HashSet};

use memscope_heap::{Held, Link, Origin, Reading, Used, Ways};
use memscope_ledger::report::{
    BesidePool, BlockState, Frame, FrameKind, SnapshotBlock, SnapshotReport, Stack,
};
use memscope_ledger::{Affects, FREE_HOLDS_NS, effect};
use memscope_owners::{
    AllocatedBy, Decision, Facts, FreedBy, RULES_OF_MEMSCOPE, Reason, Rules, Use,
};
use memscope_proto::v1;
use memscope_rpc::Refusal;

use crate::addresses::Addresses;
use crate::holders::{Way, add, cut, kind};
use crate::threads::Threads;

/// Most bytes of a set of rules in a question.
const MOST_BYTES_OF_RULES: usize = 256 << 10;
/// Most addresses of blocks in an answer: with the rows, they fit into one.
const MOST_ADDRESSES: usize = 300_000;
/// Most other names in a row.
const MOST_OTHER_NAMES: usize = 64;
/// The category of memory from the driver that no rule names.
const BESIDE_POOL: &str = "beside_pool";
/// The category of blocks that came while the objects were read.
const CAME_MEANWHILE: &str = "came_meanwhile";
/// The category of blocks of an earlier moment that no rule names, and that have been freed since.
const FREED_SINCE: &str = "freed_since";
/// The category of blocks that no rule names where the objects were not read.
const UNKNOWN: &str = "unknown";

/// The rules of a question.
#[derive(Debug)]
pub(crate) struct Rulebook {
    first: Option<Rules>,
    set: Rules,
    name: String,
}

impl Rulebook {
    pub(crate) fn new(asked: &v1::OwnersRequest) -> Result<Rulebook, Refusal> {
        let refused = |what: String| Refusal::Invalid {
            what,
            hint: "docs/questions/owners.md says what rules look like".to_owned(),
        };
        if asked.rules.len() > MOST_BYTES_OF_RULES {
            return Err(refused(format!(
                "the rules have {} bytes, and at most {MOST_BYTES_OF_RULES} are read",
                asked.rules.len()
            )));
        }
        let name = match asked.rule_set.as_str() {
            "" => RULES_OF_MEMSCOPE,
            name => name,
        };
        let first = match asked.rules.as_str() {
            "" => None,
            text => Some(Rules::parse(text).map_err(|why| refused(why.to_string()))?),
        };
        Ok(Rulebook {
            first,
            set: Rules::named(name).map_err(|why| refused(why.to_string()))?,
            name: name.to_owned(),
        })
    }

    /// Whether Python's objects have to be read for these rules.
    pub(crate) fn needs_objects(&self) -> bool {
        self.set.needs_objects(self.first.as_ref())
    }

    fn decide(&self, known: Option<Use>, facts: &Facts<'_>) -> Decision {
        self.set.decide(self.first.as_ref(), known, facts)
    }
}

/// What an answer is made of.
pub(crate) struct Picture<'p> {
    /// Python's objects, as far as they were read.
    pub(crate) reading: Option<&'p Reading>,
    /// The blocks that were there before they were read and, where the answer is about an earlier moment, also after it.
    pub(crate) known: &'p HashSet<Identity>,
    /// The process at the moment of the answer, which is after the reading or long before it.
    pub(crate) after: &'p SnapshotReport,
    /// What it has from the driver beside its pool.
    pub(crate) beside: &'p [BesidePool],
    /// What is known of its devices.
    pub(crate) devices: &'p [v1::DeviceStats],
    /// The devices of which it is not known how much is free since what the process holds changed.
    pub(crate) free_is_old: &'p [Option<i32>],
    /// Which threads allocated and freed its blocks.
    pub(crate) threads: &'p Threads,
    /// Whether the process runs no Python, so that no object can hold anything.
    pub(crate) has_no_python: bool,
    /// Whether `after` is of a moment before the reading, instead of after it.
    pub(crate) is_earlier: bool,
}

/// Uses of memory that are one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    category: String,
    device: Option<i32>,
    owner: String,
    kind: String,
    name: String,
    key: String,
    place: String,
    labels: Vec<String>,
    model: String,
    module: String,
}

#[derive(Default)]
struct Sum {
    blocks: v1::Amount,
    unsure: v1::Amount,
    also: Vec<String>,
    largest: u64,
    address: u64,
    /// The addresses of all blocks, if they are asked for.
    addresses: Vec<u64>,
    evidence: v1::OwnerEvidence,
}

/// A block, as the answer puts it.
struct Put {
    key: Key,
    also: Vec<String>,
    is_sure: bool,
    evidence: v1::OwnerEvidence,
    decision: Option<Decision>,
}

/// The answer to what is asked.
pub(crate) fn answer(
    picture: &Picture<'_>,
    rules: &Rulebook,
    asked: &v1::OwnersRequest,
) -> v1::OwnersResponse {
    let mut sorter = Sorter::new(picture, rules);
    let mut rows: HashMap<Key, Sum> = HashMap::new();
    let explain = Addresses::new(&asked.addresses);
    let mut explained = Vec::new();
    for segment in &picture.after.segments {
        for block in &segment.blocks {
            if block.state != BlockState::Active {
                continue;
            }
            let put = sorter.put(block, segment.device, segment.pool != (0, 0));
            if explain.lie_in(block.addr, block.size) {
                explained.push(sorter.explain(block, &put));
            }
            let row = rows.entry(put.key).or_default();
            add(&mut row.blocks, block.size);
            if !put.is_sure {
                add(&mut row.unsure, block.size);
            }
            row.evidence = put.evidence;
            for name in put.also {
                if row.also.len() < MOST_OTHER_NAMES && !row.also.contains(&name) {
                    row.also.push(name);
                }
            }
            if row.largest < block.size {
                (row.largest, row.address) = (block.size, block.addr);
            }
            if asked.blocks {
                row.addresses.push(block.addr);
            }
        }
    }
    for beside in picture.beside {
        let key = sorter.put_beside(beside);
        let row = rows.entry(key).or_default();
        row.blocks.count += beside.live.count;
        row.blocks.bytes += beside.live.bytes;
        row.evidence = v1::OwnerEvidence::Allocator;
    }
    let devices = devices(picture, &rows);
    let mut owners: Vec<v1::Owner> = rows
        .into_iter()
        .map(|(key, sum)| told(key, sum))
        .filter(|owner| {
            let names = [&owner.name, &owner.module];
            asked.below.is_empty() || names.iter().any(|name| is_below(name, &asked.below))
        })
        .collect();
    let bytes = |owner: &v1::Owner| owner.blocks.unwrap_or_default().bytes;
    owners.sort_by(|a, b| {
        let names = |owner: &v1::Owner| {
            (
                owner.category.clone(),
                owner.owner.clone(),
                owner.name.clone(),
                owner.key.clone(),
                owner.place.clone(),
                owner.module.clone(),
            )
        };
        bytes(b)
            .cmp(&bytes(a))
            .then_with(|| names(a).cmp(&names(b)))
    });
    keep_addresses(&mut owners);
    let rest = cut(&mut owners, asked.limit);
    v1::OwnersResponse {
        devices,
        owners,
        more: rest.len() as u64,
        more_bytes: rest.iter().map(bytes).sum(),
        explained,
        rule_set: rules.name.clone(),
        objects: picture.reading.map_or(0, |reading| reading.objects),
        ..v1::OwnersResponse::default()
    }
}

/// Keeps as many addresses of blocks as an answer has room for; those of the uses with most bytes come first.
fn keep_addresses(owners: &mut [v1::Owner]) {
    let mut room = MOST_ADDRESSES;
    for owner in owners {
        owner.addresses.truncate(room);
        room -= owner.addresses.len();
    }
}

fn told(key: Key, sum: Sum) -> v1::Owner {
    v1::Owner {
        category: key.category,
        device: key.device,
        owner: key.owner,
        kind: key.kind,
        name: key.name,
        key: key.key,
        also: sum.also,
        blocks: Some(sum.blocks),
        unsure: Some(sum.unsure),
        place: key.place,
        address: sum.address,
        evidence: sum.evidence.into(),
        labels: key.labels,
        model: key.model,
        module: key.module,
        addresses: sum.addresses,
    }
}

/// Whether a name is this one, or that of a part of it.
fn is_below(name: &str, above: &str) -> bool {
    let rest = name.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The sums of each device.
fn devices(picture: &Picture<'_>, rows: &HashMap<Key, Sum>) -> Vec<v1::OwnedDevice> {
    let mut all: BTreeMap<Option<i32>, BTreeMap<&str, (v1::Amount, v1::Amount)>> = BTreeMap::new();
    // Where the device is not known there may be nothing but counts, such as of frees of what was never seen.
    let holds = |one: &&v1::DeviceStats| one.driver.is_some_and(|driver| driver.bytes > 0);
    let shown = |one: &&v1::DeviceStats| one.device.is_some() || holds(one);
    for device in picture.devices.iter().filter(shown) {
        all.entry(device.device).or_default();
    }
    for (key, sum) in rows {
        let of_device = all.entry(key.device).or_default();
        let (blocks, unsure) = of_device.entry(&key.category).or_default();
        for (to, from) in [(blocks, &sum.blocks), (unsure, &sum.unsure)] {
            to.count += from.count;
            to.bytes += from.bytes;
        }
    }
    let mut labels: BTreeMap<(Option<i32>, &str), (v1::Amount, v1::Amount)> = BTreeMap::new();
    for (key, sum) in rows {
        for label in &key.labels {
            let (blocks, unsure) = labels.entry((key.device, label)).or_default();
            for (to, from) in [(blocks, &sum.blocks), (unsure, &sum.unsure)] {
                to.count += from.count;
                to.bytes += from.bytes;
            }
        }
    }
    let one = |(device, of_device): (Option<i32>, BTreeMap<&str, (v1::Amount, v1::Amount)>)| {
        let category = |(category, (blocks, unsure)): (&str, _)| v1::OwnerCategory {
            category: category.to_owned(),
            blocks: Some(blocks),
            unsure: Some(unsure),
        };
        let mut categories: Vec<v1::OwnerCategory> = of_device.into_iter().map(category).collect();
        let bytes = |one: &v1::OwnerCategory| one.blocks.unwrap_or_default().bytes;
        categories.sort_by_key(|one| std::cmp::Reverse(bytes(one)));
        let own = labels.iter().filter(|((of, _), _)| *of == device);
        let mut labels: Vec<v1::OwnerCategory> = own
            .map(|((_, label), sums)| category((label, *sums)))
            .collect();
        labels.sort_by_key(|one| std::cmp::Reverse(bytes(one)));
        let mut blocks = v1::Amount::default();
        for one in &categories {
            let of = one.blocks.unwrap_or_default();
            blocks.count += of.count;
            blocks.bytes += of.bytes;
        }
        v1::OwnedDevice {
            labels,
            ..sums(picture, device, categories, blocks)
        }
    };
    all.into_iter().map(one).collect()
}

fn sums(
    picture: &Picture<'_>,
    device: Option<i32>,
    categories: Vec<v1::OwnerCategory>,
    blocks: v1::Amount,
) -> v1::OwnedDevice {
    let of_segments = picture.after.segments.iter();
    let mut in_pool = 0;
    let mut pending = 0;
    for segment in of_segments.filter(|segment| Some(segment.device) == device) {
        for block in &segment.blocks {
            match block.state {
                BlockState::Active => in_pool += block.size,
                BlockState::PendingFree => pending += block.size,
                BlockState::Inactive => {}
            }
        }
    }
    let stats = picture.devices.iter().find(|one| one.device == device);
    let reserved = stats.and_then(|stats| stats.reserved_bytes);
    let cached = free_in_pool(reserved, in_pool + pending, &picture.after.coverage);
    // What was free some time before or after says nothing of this moment.
    let as_of = picture.after.as_of.boot_ns;
    let is_fresh = |stats: &&v1::DeviceStats| {
        let seen = stats.free_bytes_boot_ns.unwrap_or(0);
        as_of.saturating_sub(seen) <= FREE_HOLDS_NS
    };
    let now = stats.filter(is_fresh);
    let used = now.and_then(|stats| stats.total_bytes?.checked_sub(stats.free_bytes?));
    // An allocator of a private pool may have more from the driver than it gives to the pool as segments.
    let pooled = stats.and_then(|stats| {
        let (driver, direct) = (stats.driver?.bytes, stats.direct?.bytes);
        driver.checked_sub(direct)
    });
    let beyond = pooled.unwrap_or(0).saturating_sub(reserved.unwrap_or(0));
    let known = cached.map(|cached| blocks.bytes + pending + cached + beyond);
    let context = stats.and_then(|stats| stats.context_bytes);
    let reserved = stats.and_then(|stats| stats.driver_reserved_bytes);
    let beside = context.unwrap_or(0) + reserved.unwrap_or(0);
    let unexplained = used
        .zip(known)
        .map(|(used, known)| used.checked_sub(known + beside))
        .map(|bytes| bytes.filter(|_| !picture.free_is_old.contains(&device)));
    v1::OwnedDevice {
        device,
        categories,
        blocks: Some(blocks),
        pending_free_bytes: pending,
        cached_bytes: cached,
        device_used_bytes: used,
        context_bytes: context,
        driver_reserved_bytes: reserved,
        unexplained_bytes: unexplained.flatten(),
        device_used_is_old: unexplained == Some(None),
        labels: Vec::new(),
    }
}

/// What a pool of this size has free beside what is known to be held in it. Blocks that were not seen would count as free, so where some are
/// missing it is not known.
fn free_in_pool(reserved: Option<u64>, held: u64, notes: &[v1::CoverageNote]) -> Option<u64> {
    let misses = |note: &v1::CoverageNote| effect(&note.code).affects.contains(&Affects::Blocks);
    // Where the driver hands out everything there is no pool that could keep something.
    reserved?
        .checked_sub(held)
        .filter(|_| !notes.iter().any(misses))
}

/// What a way says to rules.
struct Told<'r> {
    way: Way<'r>,
    types: Vec<&'r str>,
    origin: memscope_owners::Origin,
}

impl<'r> Told<'r> {
    fn new(reading: &'r Reading, ways: &Ways<'r>, held: &Held) -> Told<'r> {
        let way = Way::new(ways, held.holder);
        let name = |number: u32| {
            reading
                .kinds
                .get(number as usize)
                .map_or("", String::as_str)
        };
        let types = way.steps.iter().map(|step| name(step.kind)).collect();
        let begins = way.steps.first().map(|step| &step.link);
        let origin = match (held.origin, begins) {
            (Origin::Garbage, _) => memscope_owners::Origin::Garbage,
            (Origin::Outside, _) => memscope_owners::Origin::Outside,
            (Origin::Named, Some(Link::Local { .. })) => memscope_owners::Origin::Local,
            (Origin::Named, _) => memscope_owners::Origin::Module,
        };
        Told { way, types, origin }
    }

    /// The type of the container, or of the object that has the tensor.
    fn kind(&self, reading: &Reading) -> String {
        let steps = self.way.steps.iter().zip(&self.way.parts).rev();
        let mut named = steps.filter(|(_, part)| !part.is_empty());
        let at = self.way.container.map(|at| self.way.steps[at]);
        // The last is the tensor itself.
        let step = at.or_else(|| named.nth(1).map(|(step, _)| *step));
        step.map_or_else(String::new, |step| kind(reading, step.kind))
    }
}

/// Sorts blocks into rows.
struct Sorter<'p> {
    picture: &'p Picture<'p>,
    rules: &'p Rulebook,
    uses: HashMap<u64, Vec<&'p Used>>,
    held: HashMap<u64, &'p Held>,
    ways: Option<Ways<'p>>,
    /// The ways of owners, by their places in the reading.
    owners: HashMap<u32, String>,
    places: HashMap<u32, String>,
}

impl<'p> Sorter<'p> {
    fn new(picture: &'p Picture<'p>, rules: &'p Rulebook) -> Sorter<'p> {
        let mut uses: HashMap<u64, Vec<&Used>> = HashMap::new();
        let mut held = HashMap::new();
        let mut owners = HashMap::new();
        let ways = picture.reading.map(Ways::new);
        if let Some((reading, ways)) = picture.reading.zip(ways.as_ref()) {
            for used in &reading.uses {
                uses.entry(used.block).or_default().push(used);
                if let Some(owner) = used.owner {
                    owners.entry(owner).or_insert_with(|| ways.path(owner));
                }
            }
            for module in &reading.modules {
                let model = owners.entry(module.model);
                model.or_insert_with(|| ways.path(module.model));
            }
            held.extend(reading.held.iter().map(|held| (held.block, held)));
        }
        Sorter {
            picture,
            rules,
            uses,
            held,
            ways,
            owners,
            places: HashMap::new(),
        }
    }

    fn stack(&self, number: u32) -> Option<&'p Stack> {
        self.picture
            .after
            .stacks
            .get(number as usize)
            .map(AsRef::as_ref)
    }

    fn place(&mut self, number: u32) -> String {
        let stack = self.stack(number);
        let place = || stack.map_or_else(String::new, place);
        self.places.entry(number).or_insert_with(place).clone()
    }

    fn put(&mut self, block: &SnapshotBlock, device: i32, is_in_private_pool: bool) -> Put {
        let place = self.place(block.stack);
        let labels = self.labels(block);
        let key = |category: String| Key {
            category,
            device: Some(device),
            owner: String::new(),
            kind: String::new(),
            name: String::new(),
            key: String::new(),
            place: String::new(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            model: String::new(),
            module: String::new(),
        };
        let is_known = self.picture.known.contains(&identity(block));
        if self.picture.reading.is_some() && !is_known && !self.picture.is_earlier {
            return Put {
                key: Key {
                    place,
                    ..key(CAME_MEANWHILE.to_owned())
                },
                also: Vec::new(),
                is_sure: true,
                evidence: v1::OwnerEvidence::Allocator,
                decision: None,
            };
        }
        // What is at its address now is another block.
        let reading = self.picture.reading.filter(|_| is_known);
        let uses = match reading {
            Some(_) => self.uses.get(&block.addr).map_or(&[][..], Vec::as_slice),
            None => &[],
        };
        // Of several uses the first in this order counts: a gradient that is a view of a parameter is the parameter's memory.
        let used = uses.iter().copied().min_by_key(|used| used.what);
        let told = reading
            .zip(self.held.get(&block.addr))
            .zip(self.ways.as_ref())
            .map(|((reading, held), ways)| Told::new(reading, ways, held));
        let frames = self.frames(block.stack);
        let facts = Facts {
            frames: &frames,
            holder: told.as_ref().map_or("", |told| &told.way.pattern),
            types: told.as_ref().map_or(&[], |told| &told.types),
            via: told.as_ref().and_then(|told| via(told.way.via)),
            origin: match (&told, reading) {
                (Some(told), _) => told.origin,
                (None, Some(_)) => memscope_owners::Origin::None,
                (None, None) if self.picture.has_no_python => memscope_owners::Origin::None,
                (None, None) => memscope_owners::Origin::Unknown,
            },
            labels: &labels,
            is_in_private_pool,
            allocated_by: self
                .picture
                .threads
                .allocated_by(block, self.stack(block.stack)),
            freed_by: self.picture.threads.freed_by(block),
            component: "",
        };
        let decision = self
            .rules
            .decide(used.map(|used| use_of(used.what)), &facts);
        let evidence = evidence(&decision.reason);
        let is_open =
            decision.reason == Reason::NoRule && facts.origin == memscope_owners::Origin::Unknown;
        let category = match (self.rules.needs_objects() && is_open, self.picture.reading) {
            (true, Some(_)) => FREED_SINCE.to_owned(),
            (true, None) => UNKNOWN.to_owned(),
            (false, _) => decision.category.clone(),
        };
        if let (Reason::Object, Some(used), Some(reading)) = (&decision.reason, used, reading) {
            let also = uses
                .iter()
                .filter(|other| other.what == used.what && other.name != used.name);
            return Put {
                key: Key {
                    owner: used
                        .owner
                        .and_then(|owner| self.owners.get(&owner).cloned())
                        .unwrap_or_default(),
                    kind: kind(reading, used.class),
                    name: used.name.clone(),
                    key: used.key.clone(),
                    ..key(category)
                },
                also: also.map(|other| other.name.clone()).collect(),
                is_sure: used.is_sure,
                evidence,
                decision: Some(decision),
            };
        }
        let is_sure = told.as_ref().is_none_or(|told| told.way.is_sure);
        let graph = facts.via == Some(memscope_owners::Via::Graph);
        let key = match (&told, reading) {
            // Of what the graph has saved, the line that made it says more than the tensor from which the graph hangs.
            (Some(told), Some(reading)) if !graph => Key {
                owner: told.way.pattern.clone(),
                kind: told.kind(reading),
                ..key(category)
            },
            (Some(told), _) => {
                let (model, module) = self.made_in(block).unwrap_or_default();
                Key {
                    owner: told.way.pattern.clone(),
                    kind: told.node(),
                    place,
                    model,
                    module,
                    ..key(category)
                }
            }
            _ => Key {
                place,
                ..key(category)
            },
        };
        Put {
            key,
            also: Vec::new(),
            is_sure,
            evidence,
            decision: Some(decision),
        }
    }

    fn put_beside(&mut self, beside: &BesidePool) -> Key {
        let frames = frames(&beside.stack);
        let facts = Facts {
            frames: &frames,
            holder: "",
            types: &[],
            via: None,
            origin: memscope_owners::Origin::None,
            labels: &[],
            is_in_private_pool: false,
            allocated_by: None,
            freed_by: None,
            component: beside.component.unwrap_or_default(),
        };
        let decision = self.rules.decide(None, &facts);
        let category = match decision.reason {
            Reason::NoRule => BESIDE_POOL.to_owned(),
            _ => decision.category,
        };
        Key {
            category,
            device: beside.device,
            owner: beside.component.unwrap_or_default().to_owned(),
            kind: String::new(),
            name: String::new(),
            key: String::new(),
            place: place(&beside.stack),
            labels: Vec::new(),
            model: String::new(),
            module: String::new(),
        }
    }

    /// The model, and the module below it, in whose forward pass the graph has saved a block.
    fn made_in(&self, block: &SnapshotBlock) -> Option<(String, String)> {
        let reading = self.picture.reading?;
        let number = self.held.get(&block.addr)?.module?;
        let module = reading.modules.get(number as usize)?;
        let model = self.owners.get(&module.model)?;
        Some((model.clone(), module.name.clone()))
    }

    fn labels(&self, block: &SnapshotBlock) -> Vec<&'p str> {
        let labels = self.picture.after.labels.get(usize::from(block.labels));
        labels.map_or_else(Vec::new, |labels| {
            labels.iter().map(AsRef::as_ref).collect()
        })
    }

    fn frames(&self, stack: u32) -> Vec<memscope_owners::Frame<'p>> {
        self.stack(stack).map_or_else(Vec::new, frames)
    }

    /// Who allocated and freed a block that has been freed since, in words.
    fn threads(&self, block: &SnapshotBlock) -> Option<String> {
        let threads = self.picture.threads;
        let freed = match threads.freed_by(block)? {
            FreedBy::Program => "the program",
            FreedBy::Backward => "the backward pass",
        };
        let allocated = threads.allocated_by(block, self.stack(block.stack));
        let allocated = match allocated {
            Some(AllocatedBy::Program) => "the program",
            Some(AllocatedBy::Backward) => "the backward pass",
            Some(AllocatedBy::Recompute) => "a checkpoint that was computed again",
            Some(AllocatedBy::Hook) => "Python code that the backward pass called",
            None => return Some(format!("{freed} freed it")),
        };
        Some(format!("{allocated} allocated it, and {freed} freed it"))
    }

    /// Why a block is in its row.
    fn explain(&self, block: &SnapshotBlock, put: &Put) -> v1::OwnerExplained {
        let mut why = Vec::new();
        let frames = self.frames(block.stack);
        match &put.decision {
            None => why.push(
                "it was allocated while Python's objects were read, so nothing is known of what holds it; ask again".to_owned(),
            ),
            Some(Decision { reason: Reason::Object, .. }) => {
                let uses = self.uses.get(&block.addr).map_or(&[][..], Vec::as_slice);
                for used in uses {
                    let owner = used.owner.and_then(|owner| self.owners.get(&owner));
                    let owner = owner.map_or("something that has no name", String::as_str);
                    why.push(format!("it is {} of {owner}", words(used)));
                }
            }
            Some(Decision { category, reason: Reason::Rule { set, number, frame } }) => {
                let at = match frame.and_then(|at| frames.get(at)) {
                    Some(frame) => format!(", for the frame {} ({})", frame.function, frame.file),
                    None => String::new(),
                };
                why.push(format!("rule {number} of the set {set} ({category}) is true{at}"));
            }
            Some(Decision { reason: Reason::NoRule, .. }) if put.key.category == FREED_SINCE => why.push(
                "it has been freed since, so no object says what it was for, and no rule is true for its stack and its threads".to_owned(),
            ),
            Some(Decision { reason: Reason::NoRule, .. }) if put.key.category == UNKNOWN => why.push(
                "Python's objects were not read, and no rule is true for its stack".to_owned(),
            ),
            Some(Decision { category, reason: Reason::NoRule }) => why.push(format!(
                "no rule of the set {} is true for it, and the set calls such blocks {category}",
                self.rules.name
            )),
        }
        why.extend(self.threads(block));
        let labels = self.labels(block);
        if !labels.is_empty() {
            why.push(format!("the program labels it {}", labels.join(", ")));
        }
        let is_known = self.picture.known.contains(&identity(block));
        let reading = self.picture.reading.filter(|_| is_known);
        let ways = self.ways.as_ref().filter(|_| reading.is_some());
        match (ways, self.held.get(&block.addr)) {
            (Some(ways), Some(held)) => {
                let way = Way::new(ways, held.holder);
                why.push(format!("it is held by {}", way.pattern));
                if !put.key.model.is_empty() {
                    why.push(made_in(&put.key));
                }
                if held.others > 0 {
                    why.push(format!("its tensors have {} more references", held.others));
                }
            }
            (Some(_), None) => why.push("no Python object was found that holds it".to_owned()),
            (None, _) => {}
        }
        match self
            .stack(block.stack)
            .map_or_else(String::new, place)
            .as_str()
        {
            "" => why.push("no stack of its allocation is known".to_owned()),
            place => why.push(format!("it was allocated at {place}")),
        }
        let mut sum = Sum {
            address: block.addr,
            also: put.also.clone(),
            evidence: put.evidence,
            ..Sum::default()
        };
        add(&mut sum.blocks, block.size);
        if !put.is_sure {
            add(&mut sum.unsure, block.size);
        }
        v1::OwnerExplained {
            address: block.addr,
            size_bytes: block.size,
            owner: Some(told(put.key.clone(), sum)),
            why,
        }
    }
}

impl Told<'_> {
    /// The name of the node of the graph that has saved it.
    fn node(&self) -> String {
        let parts = self.way.parts.iter().rev();
        let saved = parts.filter_map(|part| part.strip_prefix('<')?.split_once('>'));
        saved
            .map(|(node, _)| node.to_owned())
            .next()
            .unwrap_or_default()
    }
}

/// What makes a block the same one at two moments: its address, its size, and the boot time of its allocation.
pub(crate) type Identity = (u64, u64, u64);

pub(crate) const fn identity(block: &SnapshotBlock) -> Identity {
    (block.addr, block.size, block.since_ns)
}

/// Where the graph has saved a block, in words.
fn made_in(key: &Key) -> String {
    match key.module.as_str() {
        "" => format!("the graph has saved it in or near {}", key.model),
        module => format!("the graph has saved it in {}.{module}", key.model),
    }
}

fn words(used: &Used) -> String {
    let name = &used.name;
    match used.what {
        memscope_heap::Use::Parameter => format!("the parameter {name}"),
        memscope_heap::Use::Buffer => format!("the buffer {name}"),
        memscope_heap::Use::Gradient => format!("the gradient of {name}"),
        memscope_heap::Use::OptimizerState => format!("state {} for {name}", used.key),
    }
}

const fn use_of(what: memscope_heap::Use) -> Use {
    match what {
        memscope_heap::Use::Parameter => Use::Weights,
        memscope_heap::Use::Buffer => Use::Buffers,
        memscope_heap::Use::OptimizerState => Use::OptimizerState,
        memscope_heap::Use::Gradient => Use::Gradients,
    }
}

const fn via(via: v1::HolderVia) -> Option<memscope_owners::Via> {
    Some(match via {
        v1::HolderVia::Tensor => memscope_owners::Via::Tensor,
        v1::HolderVia::Gradient => memscope_owners::Via::Gradient,
        v1::HolderVia::Graph => memscope_owners::Via::Graph,
        v1::HolderVia::Unspecified => return None,
    })
}

const fn evidence(reason: &Reason) -> v1::OwnerEvidence {
    match reason {
        Reason::Object => v1::OwnerEvidence::Object,
        Reason::Rule { .. } => v1::OwnerEvidence::Rule,
        Reason::NoRule => v1::OwnerEvidence::None,
    }
}

fn frames(stack: &Stack) -> Vec<memscope_owners::Frame<'_>> {
    fn told(frame: &Frame) -> memscope_owners::Frame<'_> {
        memscope_owners::Frame {
            function: &frame.name,
            file: &frame.file,
        }
    }
    stack.frames.iter().map(told).collect()
}

/// The innermost line of the program itself; else the innermost line of Python, else the innermost function.
fn place(stack: &Stack) -> String {
    let find = |what: &dyn Fn(&&Frame) -> bool| stack.frames.iter().find(what);
    let frame = find(&|frame| frame.is_own())
        .or_else(|| find(&|frame| frame.kind == FrameKind::Python))
        .or_else(|| stack.frames.first());
    match frame {
        Some(frame) if frame.line > 0 => format!("{}:{} in {}", frame.file, frame.line, frame.name),
        Some(frame) if frame.name.is_empty() => frame.file.to_string(),
        Some(frame) => format!("{} in {}", frame.name, frame.file),
        None => String::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_ledger::event::{
        Body, Event, EventId, Level, PoolReport, ProcessFacts, ProcessHandle, StackRef,
    };
    use memscope_ledger::report::AsOf;
    use memscope_ledger::{Ledger, LedgerConfig};
    use memscope_tests::limits::{Met, constant};
    use prost::Message as _;

    #[test]
    fn addresses_of_the_largest_uses_are_told() {
        let row = |count: usize| v1::Owner {
            addresses: vec![0x7fff_ffff_fe00; count],
            ..v1::Owner::default()
        };
        let mut rows = vec![row(MOST_ADDRESSES - 7), row(10), row(1)];
        keep_addresses(&mut rows);
        let told: Vec<usize> = rows.iter().map(|row| row.addresses.len()).collect();
        assert_eq!(told, [MOST_ADDRESSES - 7, 7, 0]);
        let bytes: usize = rows.iter().map(|row| row.encoded_len()).sum();
        assert!(bytes < 5 << 19, "{bytes} bytes leave room for the rows");
        Met {
            what: "addresses of blocks in an answer about owners",
            most: constant("memscope-daemon/src/owners.rs", "MOST_ADDRESSES"),
            beyond: "those of the uses with most bytes are told",
            told: "`blocks` of each use has the number of all",
            test: "addresses_of_the_largest_uses_are_told",
        }
        .is_told();
    }

    /// What lies at the address of a block that was freed while the journal and the objects were read is another block.
    #[test]
    fn a_block_that_went_before_the_reading_has_no_owner_from_it() {
        let process = ProcessHandle(1);
        let event = |body| Event {
            id: EventId {
                epoch: 1,
                sequence: 0,
            },
            time_ns: 5,
            process,
            tid: 1,
            lost_before: 0,
            stack: StackRef::NotTaken,
            sampling: 0,
            body,
        };
        let mut ledger = Ledger::new(LedgerConfig::default());
        let facts = ProcessFacts {
            level: Some(Level::Blocks),
            from_start: true,
            ..ProcessFacts::default()
        };
        ledger.apply(&event(Body::Attached(Box::new(facts))));
        ledger.apply(&event(Body::Report(PoolReport {
            device: 0,
            ptr: 0x1000,
            size: 512,
            total_allocated: 512,
            total_reserved: 2 << 20,
        })));
        let after = ledger.snapshot(process, AsOf::default()).unwrap();
        let reading = Reading {
            kinds: vec!["Linear".to_owned()],
            uses: vec![Used {
                block: 0x1000,
                what: memscope_heap::Use::Parameter,
                owner: None,
                name: "weight".to_owned(),
                key: String::new(),
                class: 0,
                is_sure: true,
            }],
            ..Reading::default()
        };
        let asked = v1::OwnersRequest::default();
        let rules = Rulebook::new(&asked).unwrap();
        let threads = Threads::new(&after, HashSet::new(), HashMap::new());
        let of = |known: HashSet<Identity>| {
            let picture = Picture {
                reading: Some(&reading),
                known: &known,
                after: &after,
                beside: &[],
                devices: &[],
                free_is_old: &[],
                threads: &threads,
                has_no_python: false,
                is_earlier: true,
            };
            let owner = answer(&picture, &rules, &asked).owners.remove(0);
            (owner.category, owner.name)
        };
        let block = &after.segments[0].blocks[0];
        let stayed = of(HashSet::from([identity(block)]));
        assert_eq!(stayed, ("weights".to_owned(), "weight".to_owned()));
        let went = of(HashSet::new());
        assert_eq!(went, (FREED_SINCE.to_owned(), String::new()));
    }

    #[test]
    fn what_was_not_seen_is_not_free() {
        let notes = |codes: &[&str]| -> Vec<v1::CoverageNote> {
            let note = |code: &&str| v1::CoverageNote {
                code: (*code).to_owned(),
                ..v1::CoverageNote::default()
            };
            codes.iter().map(note).collect()
        };
        assert_eq!(free_in_pool(Some(100), 30, &[]), Some(70));
        assert_eq!(
            free_in_pool(Some(100), 30, &notes(&["baseline_read"])),
            Some(70)
        );
        // Between the attach and the reading of what was there before.
        let missing = notes(&["baseline_read", "attached_late"]);
        assert_eq!(free_in_pool(Some(100), 30, &missing), None);
        assert_eq!(free_in_pool(Some(0), 30, &[]), None);
        assert_eq!(free_in_pool(None, 30, &[]), None);
    }
}
