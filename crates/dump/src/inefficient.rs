//! Blocks that were allocated too early, freed too late, or idle for long.
//!
//! The rule (msMemScope's `check_inefficient`): time is counted in calls of operators ("apis"), of each process and pool by
//! itself. Between an operator's start and end everything belongs to it; outside of any, each event is an api of its own. A block
//! was allocated early if another was freed between its allocation and the first api that used it; freed late if
//! another was allocated between the last api that used it and its free; idle if more than so many apis lie between two uses.

use crate::error::DumpError;
use crate::leaks::size_of;
use crate::row::{Device, Row};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Name of the entry of `Attr` that a result is written to.
pub const ATTR: &str = "inefficient_type";

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Allocated before another was freed, used after.
    EarlyAllocation,
    /// Freed after another was allocated, used before.
    LateDeallocation,
    /// Not used for long between two uses.
    TemporaryIdleness,
}

impl Kind {
    /// All.
    pub const ALL: [Kind; 3] = [
        Kind::EarlyAllocation,
        Kind::LateDeallocation,
        Kind::TemporaryIdleness,
    ];

    /// msMemScope's word.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::EarlyAllocation => "early_allocation",
            Kind::LateDeallocation => "late_deallocation",
            Kind::TemporaryIdleness => "temporary_idleness",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// Smallest block, bytes.
    pub min_size: u64,
    /// Which kinds.
    pub kinds: Vec<Kind>,
    /// Apis between two uses that are not idle yet.
    pub idle_threshold: u64,
}

impl Default for Question {
    /// msMemScope's defaults: any size, all kinds, 3000 apis.
    fn default() -> Self {
        Question {
            min_size: 0,
            kinds: Kind::ALL.to_vec(),
            idle_threshold: 3000,
        }
    }
}

/// A pool of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// PyTorch's.
    Pta,
    /// ATB's.
    Atb,
}

impl Pool {
    /// msMemScope's word.
    pub const fn word(self) -> &'static str {
        match self {
            Pool::Pta => "PTA",
            Pool::Atb => "ATB",
        }
    }

    fn of(word: &str) -> Option<Pool> {
        match word {
            "PTA" => Some(Pool::Pta),
            "ATB" => Some(Pool::Atb),
            _ => None,
        }
    }
}

/// A block with something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which row it is, from 0 in the order of the file.
    pub row: u64,
    /// ID of its `MALLOC` row.
    pub id: u64,
    /// Whose.
    pub pid: Option<u32>,
    /// Where.
    pub device: Device,
    /// Whose pool.
    pub pool: Pool,
    /// Its address.
    pub ptr: Option<u64>,
    /// Bytes.
    pub size: u64,
    /// What, in the order in which it was found out.
    pub kinds: Vec<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Start,
    End,
    Malloc,
    Free,
    Access,
}

/// What the rule needs of a row.
struct UseRow {
    id: u64,
    what: What,
    allocation: Option<u64>,
    ptr: Option<u64>,
    size: u64,
    device: Device,
    row: u64,
}

fn step(path: &Path, row: &Row, number: u64) -> Result<Option<(Pool, UseRow)>, DumpError> {
    let (pool, what) = match (row.event.as_str(), row.event_type.as_str()) {
        ("OP_LAUNCH", "ATEN_START") => (Some(Pool::Pta), What::Start),
        ("OP_LAUNCH", "ATEN_END") => (Some(Pool::Pta), What::End),
        ("OP_LAUNCH", "ATB_START") => (Some(Pool::Atb), What::Start),
        ("OP_LAUNCH", "ATB_END") => (Some(Pool::Atb), What::End),
        ("MALLOC", pool) => (Pool::of(pool), What::Malloc),
        ("FREE", pool) => (Pool::of(pool), What::Free),
        ("ACCESS", _) => (row.attr.get("type").and_then(Pool::of), What::Access),
        _ => (None, What::Start),
    };
    let Some(pool) = pool else {
        return Ok(None);
    };
    let size = match what {
        What::Malloc => size_of(path, row)?,
        _ => row.size().unwrap_or(0),
    };
    let step = UseRow {
        id: row.id,
        what,
        allocation: row.attr_number("allocation_id"),
        ptr: row.ptr.or_else(|| row.attr_number("addr")),
        size,
        device: row.device,
        row: number,
    };
    Ok(Some((pool, step)))
}

/// A block and what happened to it.
struct Block {
    id: u64,
    row: u64,
    device: Device,
    ptr: Option<u64>,
    size: u64,
    /// Api of its allocation.
    born: u64,
    /// Api of the first access that is not in the api of its allocation.
    first_use: Option<u64>,
    /// Api of the event before, if that was an access.
    last_access: Option<u64>,
    kinds: Vec<Kind>,
}

impl Block {
    fn found(&mut self, kind: Kind) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }
}

/// What names a live block: its number, or where the rows have none, device and address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Number(u64),
    Address(Device, Option<u64>),
}

/// One process and pool.
#[derive(Default)]
struct Fold {
    api: u64,
    last_malloc: Option<u64>,
    last_free: Option<u64>,
    open: bool,
    pending_malloc: bool,
    pending_free: bool,
    live: HashMap<Key, Block>,
    /// Live blocks by device and address, for accesses that name no block.
    places: BTreeMap<(Device, u64), Key>,
    threshold: u64,
    done: Vec<Block>,
}

impl Fold {
    fn apply(&mut self, step: &UseRow) {
        match step.what {
            What::Start => {
                self.open = true;
                self.api += 1;
                return;
            }
            What::End => {
                self.open = false;
                self.classify();
                return;
            }
            _ => {}
        }
        self.pending_malloc |= step.what == What::Malloc;
        self.pending_free |= step.what == What::Free;
        if !self.open {
            self.api += 1;
            self.classify();
        }
        match step.what {
            What::Malloc => self.malloc(step),
            What::Free => self.free(step),
            _ => self.access(step),
        }
    }

    fn classify(&mut self) {
        if std::mem::take(&mut self.pending_malloc) {
            self.last_malloc = Some(self.api);
        }
        if std::mem::take(&mut self.pending_free) {
            self.last_free = Some(self.api);
        }
    }

    fn malloc(&mut self, step: &UseRow) {
        let key = match step.allocation {
            Some(number) => Key::Number(number),
            None => Key::Address(step.device, step.ptr),
        };
        // One that is live still under this name was freed without our seeing it.
        self.end(key);
        if let Some(ptr) = step.ptr {
            self.places.insert((step.device, ptr), key);
        }
        self.live.insert(
            key,
            Block {
                id: step.id,
                row: step.row,
                device: step.device,
                ptr: step.ptr,
                size: step.size,
                born: self.api,
                first_use: None,
                last_access: None,
                kinds: Vec::new(),
            },
        );
    }

    /// The live block that a free or an access means.
    fn key(&self, step: &UseRow) -> Option<Key> {
        if let Some(number) = step.allocation {
            return Some(Key::Number(number)).filter(|key| self.live.contains_key(key));
        }
        let ptr = step.ptr?;
        let (_, key) = self
            .places
            .range((step.device, 0)..=(step.device, ptr))
            .next_back()?;
        let block = self.live.get(key)?;
        let start = block.ptr?;
        // A free names the beginning; an access lies in it.
        let inside = match step.what {
            What::Free => ptr == start,
            _ => ptr.checked_add(step.size)? <= start.saturating_add(block.size),
        };
        inside.then_some(*key)
    }

    fn access(&mut self, step: &UseRow) {
        let Some(block) = self.key(step).and_then(|key| self.live.get_mut(&key)) else {
            return;
        };
        let now = self.api;
        if let Some(before) = block.last_access
            && now - before > self.threshold
        {
            block.found(Kind::TemporaryIdleness);
        }
        if block.first_use.is_none() && now != block.born {
            block.first_use = Some(now);
        }
        if let (Some(free), Some(first)) = (self.last_free, block.first_use)
            && block.born < free
            && free < first
        {
            block.found(Kind::EarlyAllocation);
        }
        block.last_access = Some(now);
    }

    fn free(&mut self, step: &UseRow) {
        let Some(key) = self.key(step) else {
            return;
        };
        if let Some(block) = self.live.get_mut(&key)
            && let (Some(used), Some(malloc)) = (block.last_access, self.last_malloc)
            && used < malloc
            && malloc < self.api
        {
            block.found(Kind::LateDeallocation);
        }
        self.end(key);
    }

    fn end(&mut self, key: Key) {
        let Some(block) = self.live.remove(&key) else {
            return;
        };
        if let Some(ptr) = block.ptr
            && self.places.get(&(block.device, ptr)) == Some(&key)
        {
            self.places.remove(&(block.device, ptr));
        }
        if !block.kinds.is_empty() {
            self.done.push(block);
        }
    }
}

/// Looks for inefficient blocks; findings are ordered by their rows.
///
/// # Errors
/// Those of the rows; an allocation that does not say its size is one of them (`path` is named in it).
pub fn inefficient(
    path: &Path,
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
    question: &Question,
) -> Result<Vec<Finding>, DumpError> {
    let mut pools: BTreeMap<(Option<u32>, Pool), Vec<UseRow>> = BTreeMap::new();
    for (number, row) in (0..).zip(rows) {
        let row = row?;
        if let Some((pool, step)) = step(path, &row, number)? {
            pools.entry((row.pid, pool)).or_default().push(step);
        }
    }
    let mut findings = Vec::new();
    for ((pid, pool), mut steps) in pools {
        steps.sort_by_key(|step| step.id);
        let mut fold = Fold {
            threshold: question.idle_threshold,
            ..Fold::default()
        };
        for step in &steps {
            fold.apply(step);
        }
        let live = std::mem::take(&mut fold.live).into_values();
        for block in fold.done.into_iter().chain(live) {
            let kinds: Vec<Kind> = block
                .kinds
                .into_iter()
                .filter(|kind| question.kinds.contains(kind))
                .collect();
            if kinds.is_empty() || block.size < question.min_size {
                continue;
            }
            findings.push(Finding {
                row: block.row,
                id: block.id,
                pid,
                device: block.device,
                pool,
                ptr: block.ptr,
                size: block.size,
                kinds,
            });
        }
    }
    findings.sort_by_key(|finding| finding.row);
    Ok(findings)
}

/// The words of a finding with commas between them.
pub fn words(kinds: &[Kind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    words.join(",")
}

/// Writes what was found into the rows' `Attr`, as [`ATTR`]. What an earlier run put there is replaced; msMemScope adds to it
/// with each run.
pub fn mark_rows<'a>(
    rows: impl IntoIterator<Item = Result<Row, DumpError>> + 'a,
    findings: &'a [Finding],
) -> impl Iterator<Item = Result<Row, DumpError>> + 'a {
    let mut next = findings.iter().peekable();
    (0..).zip(rows).map(move |(number, row)| {
        let mut row = row?;
        if let Some(finding) = next.next_if(|finding| finding.row == number) {
            row.attr.set(ATTR, words(&finding.kinds));
        }
        Ok(row)
    })
}
