//! Blocks that were allocated too early, freed too late, or idle for long.
//!
//! The rule (msMemScope's `check_inefficient`): time is counted in calls of operators ("apis"), for each process and
//! pool separately. All events between an operator's start and end belong to one api; outside of operators, each event
//! is an api of its own. A block
//!
//! * was allocated early if another block was freed between its allocation and the first api that used it;
//! * was freed late if another block was allocated between the last api that used it and its free;
//! * was idle if more than [`Question::idle_threshold`] apis lie between two uses.

use crate::error::DumpError;
use crate::leaks::size_of;
use crate::row::{Device, Row};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Name of the attribute that [`mark_rows`] writes the result to.
pub const ATTR: &str = "inefficient_type";

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Another block was freed between its allocation and its first use.
    EarlyAllocation,
    /// Another block was allocated between its last use and its free.
    LateDeallocation,
    /// A long time passed between two of its uses.
    TemporaryIdleness,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [
        Kind::EarlyAllocation,
        Kind::LateDeallocation,
        Kind::TemporaryIdleness,
    ];

    /// msMemScope's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::EarlyAllocation => "early_allocation",
            Kind::LateDeallocation => "late_deallocation",
            Kind::TemporaryIdleness => "temporary_idleness",
        }
    }
}

/// Which blocks are asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// Smallest block that is reported, in bytes.
    pub min_size: u64,
    /// Kinds that are reported.
    pub kinds: Vec<Kind>,
    /// Largest number of apis between two uses that does not yet count as idle.
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
    /// PyTorch's pool.
    Pta,
    /// ATB's pool.
    Atb,
}

impl Pool {
    /// msMemScope's word for it.
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

/// A block with something wrong, as the result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Index of its `MALLOC` row in the order of the file, from 0.
    pub row: u64,
    /// ID of its `MALLOC` row.
    pub id: u64,
    /// Process that the block belongs to.
    pub pid: Option<u32>,
    /// Device that the block is on.
    pub device: Device,
    /// Pool that the block is from.
    pub pool: Pool,
    /// Address of the block.
    pub ptr: Option<u64>,
    /// Size in bytes.
    pub size: u64,
    /// What is wrong with it, in the order in which it was found.
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
    /// Api of the last access.
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

/// Identity of a live block: its number or, where the rows have none, device and address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Number(u64),
    Address(Device, Option<u64>),
}

/// State of the rule for one process and pool.
#[derive(Default)]
struct Fold {
    api: u64,
    last_malloc: Option<u64>,
    last_free: Option<u64>,
    open: bool,
    pending_malloc: bool,
    pending_free: bool,
    live: HashMap<Key, Block>,
    /// Live blocks by device and address, for frees and accesses that have no number of a block.
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
        // If a block with this key is still live, its free is missing among the rows.
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

    /// The live block that a free or an access refers to.
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
        // A free names the block's first address; an access must lie inside the block.
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

/// Looks for inefficient blocks. The findings are ordered by [`Finding::row`].
///
/// # Errors
/// The errors of the rows. An allocation without a size is an error, too; it names `path`.
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

/// The words of some kinds with commas between them.
pub fn words(kinds: &[Kind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    words.join(",")
}

/// Writes the findings into the rows' `Attr`, as [`ATTR`]. `rows` must be the same rows in the same order as for
/// [`inefficient`]. The result of an earlier run is replaced; msMemScope adds to it with each run.
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
