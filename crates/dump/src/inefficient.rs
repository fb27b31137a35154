//! Blocks that were allocated too early, freed too late, or idle for long.
//!
//! The rule (msMemScope's `check_inefficient`): time is counted in calls of operators ("apis"), for each process and
//! pool separately. All events between an operator's start and end belong to one api; outside of operators, each event
//! is an api of its own. A block
//!
//! * was allocated early if another block was freed between its allocation and the first api that used it;
//! * was freed late if another block was allocated between the last api that used it and its free;
//! * was idle if more than [`Question::idle_threshold`] apis lie between two uses.
//!
//! Beside what msMemScope tells, a finding says for how long the block was held and not used because of that, where it was
//! allocated, and which operators used it first and last. And for each pool of a device: the most that its blocks took at a
//! time, and what that would have been if the blocks had come with their first use, and gone after their last one.

use crate::error::DumpError;
use crate::leaks::size_of;
use crate::row::{Device, Row};
use crate::texts::Texts;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

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
    /// Only what was collected since the last beginning counts (`SYSTEM`, `START_TRACE`), and a block that was there before it
    /// (`shadow:true`) is not allocated early, because its first use is not known. msMemScope's own rule knows neither.
    pub since_start: bool,
}

impl Default for Question {
    /// msMemScope's defaults: any size, all kinds, 3000 apis.
    fn default() -> Self {
        Question {
            min_size: 0,
            kinds: Kind::ALL.to_vec(),
            idle_threshold: 3000,
            since_start: false,
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
    /// What is wrong with it, of what was asked for, in the order in which it was found.
    pub kinds: Vec<Kind>,
    /// How long the block was held and not used because of these kinds, in nanoseconds: before its first use, between two
    /// uses, after its last one.
    pub unused_ns: u64,
    /// Call stack of its allocation, the innermost frame first; empty if the row has none.
    pub stack: Arc<str>,
    /// The operator that used it first after the one that allocated it, and the one that used it last.
    pub used_by: [Option<Arc<str>>; 2],
}

/// The most that the blocks of one pool took at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Process that the blocks belong to.
    pub pid: Option<u32>,
    /// Device that they are on.
    pub device: Device,
    /// Pool that they are from.
    pub pool: Pool,
    /// The most bytes that the blocks among the rows took at a time.
    pub bytes: u64,
    /// What that would have been, in bytes, if each block that was allocated early had come with its first use, and each that
    /// was freed late had gone after its last one. Blocks that lay idle between two uses count as they are.
    pub without_bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The blocks, ordered by [`Finding::row`].
    pub findings: Vec<Finding>,
    /// Of each pool of each device with blocks, by process.
    pub peaks: Vec<Peak>,
    /// Number of rows of accesses.
    pub accesses: u64,
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
    /// First as the file has it, then in nanoseconds.
    time_ns: u64,
    /// The block was there before the collection began.
    shadow: bool,
    /// The name of an access, the call stack of an allocation.
    text: Option<Arc<str>>,
}

fn step(
    path: &Path,
    row: &Row,
    number: u64,
    texts: &mut Texts,
) -> Result<Option<(Pool, UseRow)>, DumpError> {
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
        time_ns: row.timestamp,
        shadow: row.attr.get("shadow") == Some("true"),
        text: match what {
            What::Access => row.name.as_deref().map(|name| texts.kept(name)),
            What::Malloc => Some(texts.kept(&row.python_stack)),
            _ => None,
        },
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
    stack: Arc<str>,
    /// When it was first used may be unknown.
    shadow: bool,
    /// When it was allocated.
    born: Moment,
    /// The first access that is not in the api of its allocation, and what made it.
    first_use: Option<(Moment, Option<Arc<str>>)>,
    /// The last access, and what made it.
    last_access: Option<(Moment, Option<Arc<str>>)>,
    /// What is wrong with it, and for how many nanoseconds it was not used because of that.
    found: Vec<(Kind, u64)>,
}

fn moment(used: &Option<(Moment, Option<Arc<str>>)>) -> Option<Moment> {
    used.as_ref().map(|(moment, _)| *moment)
}

/// When something happened.
#[derive(Clone, Copy)]
struct Moment {
    api: u64,
    /// Place among the rows.
    place: usize,
    time_ns: u64,
}

impl Block {
    /// Notes what is wrong with it, and for how long it was not used because of that.
    fn found(&mut self, kind: Kind, from: Moment, to: Moment) {
        let unused_ns = to.time_ns.saturating_sub(from.time_ns);
        match self.found.iter_mut().find(|(found, _)| *found == kind) {
            None => self.found.push((kind, unused_ns)),
            // Between uses it may be idle several times, the others happen once.
            Some((Kind::TemporaryIdleness, sum)) => *sum += unused_ns,
            Some(_) => {}
        }
    }

    fn has(&self, kind: Kind) -> bool {
        self.found.iter().any(|(found, _)| *found == kind)
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
    since_start: bool,
    done: Vec<Block>,
    /// How the bytes of each device change: at which place among the rows, and by how much.
    changes: BTreeMap<Device, Vec<(usize, i128)>>,
    /// The same, if no block came early or went late.
    without: BTreeMap<Device, Vec<(usize, i128)>>,
}

impl Fold {
    fn apply(&mut self, step: &UseRow, place: usize) {
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
        let now = Moment {
            api: self.api,
            place,
            time_ns: step.time_ns,
        };
        match step.what {
            What::Malloc => self.malloc(step, now),
            What::Free => self.free(step, now),
            _ => self.access(step, now),
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

    fn malloc(&mut self, step: &UseRow, now: Moment) {
        let key = match step.allocation {
            Some(number) => Key::Number(number),
            None => Key::Address(step.device, step.ptr),
        };
        // If a block with this key is still live, its free is missing among the rows.
        self.end(key, now.place);
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
                stack: step.text.clone().unwrap_or_default(),
                shadow: step.shadow,
                born: now,
                first_use: None,
                last_access: None,
                found: Vec::new(),
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

    fn access(&mut self, step: &UseRow, now: Moment) {
        let Some(block) = self.key(step).and_then(|key| self.live.get_mut(&key)) else {
            return;
        };
        if let Some(before) = moment(&block.last_access)
            && now.api - before.api > self.threshold
        {
            block.found(Kind::TemporaryIdleness, before, now);
        }
        if block.first_use.is_none() && now.api != block.born.api {
            block.first_use = Some((now, step.text.clone()));
        }
        if let (Some(free), Some(first)) = (self.last_free, moment(&block.first_use))
            && !(self.since_start && block.shadow)
            && block.born.api < free
            && free < first.api
        {
            block.found(Kind::EarlyAllocation, block.born, first);
        }
        block.last_access = Some((now, step.text.clone()));
    }

    fn free(&mut self, step: &UseRow, now: Moment) {
        let Some(key) = self.key(step) else {
            return;
        };
        if let Some(block) = self.live.get_mut(&key)
            && let (Some(used), Some(malloc)) = (moment(&block.last_access), self.last_malloc)
            && used.api < malloc
            && malloc < now.api
        {
            block.found(Kind::LateDeallocation, used, now);
        }
        self.end(key, now.place);
    }

    fn end(&mut self, key: Key, place: usize) {
        let Some(block) = self.live.remove(&key) else {
            return;
        };
        if let Some(ptr) = block.ptr
            && self.places.get(&(block.device, ptr)) == Some(&key)
        {
            self.places.remove(&(block.device, ptr));
        }
        self.counts(&block, place);
        if !block.found.is_empty() {
            self.done.push(block);
        }
    }

    /// Counts what a block took, from its coming until this place.
    fn counts(&mut self, block: &Block, end: usize) {
        let size = i128::from(block.size);
        let changes = self.changes.entry(block.device).or_default();
        changes.extend([(block.born.place, size), (end, -size)]);
        let from = match &block.first_use {
            Some((first, _)) if block.has(Kind::EarlyAllocation) => first.place,
            _ => block.born.place,
        };
        let to = match &block.last_access {
            // It is there until the use is over.
            Some((last, _)) if block.has(Kind::LateDeallocation) => last.place + 1,
            _ => end,
        };
        let without = self.without.entry(block.device).or_default();
        without.extend([(from, size), (to.max(from), -size)]);
    }
}

/// The highest sum of the changes, in their order.
fn highest(changes: &mut [(usize, i128)]) -> u64 {
    // Where something goes and something comes at the same place, the one goes first.
    changes.sort_unstable();
    let mut sum = 0;
    let sums = changes.iter().map(|(_, change)| {
        sum += change;
        sum
    });
    u64::try_from(sums.max().unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Looks for inefficient blocks.
///
/// # Errors
/// The errors of the rows. An allocation without a size is an error, too; it names `path`.
pub fn inefficient(
    path: &Path,
    rows: impl IntoIterator<Item = Result<Row, DumpError>>,
    question: &Question,
) -> Result<Report, DumpError> {
    let mut texts = Texts::default();
    let mut report = Report::default();
    let mut pools: BTreeMap<(Option<u32>, Pool), Vec<UseRow>> = BTreeMap::new();
    let mut started: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    let mut is_older = false;
    for (number, row) in (0..).zip(rows) {
        let row = row?;
        is_older |= row.is_older();
        if row.begins_collection() {
            let last = started.entry(row.pid).or_default();
            *last = row.id.max(*last);
        }
        if let Some((pool, step)) = step(path, &row, number, &mut texts)? {
            pools.entry((row.pid, pool)).or_default().push(step);
        }
    }
    for ((pid, pool), mut steps) in pools {
        if let Some(start) = started.get(&pid).filter(|_| question.since_start) {
            steps.retain(|step| step.id >= *start);
        }
        steps.sort_by_key(|step| step.id);
        for step in &mut steps {
            step.time_ns = step.time_ns.saturating_mul(Row::tick_ns(is_older));
        }
        let accesses = steps.iter().filter(|step| step.what == What::Access);
        report.accesses += accesses.count() as u64;
        let mut fold = Fold {
            threshold: question.idle_threshold,
            since_start: question.since_start,
            ..Fold::default()
        };
        for (place, step) in steps.iter().enumerate() {
            fold.apply(step, place);
        }
        let live: Vec<Block> = std::mem::take(&mut fold.live).into_values().collect();
        for block in &live {
            fold.counts(block, steps.len());
        }
        for (device, changes) in &mut fold.changes {
            let without = fold.without.get_mut(device);
            report.peaks.push(Peak {
                pid,
                device: *device,
                pool,
                bytes: highest(changes),
                without_bytes: without.map_or(0, |changes| highest(changes)),
            });
        }
        for block in fold.done.into_iter().chain(live) {
            let found = block.found.iter();
            let (kinds, unused): (Vec<Kind>, Vec<u64>) = found
                .filter(|(kind, _)| question.kinds.contains(kind))
                .copied()
                .unzip();
            if kinds.is_empty() || block.size < question.min_size {
                continue;
            }
            report.findings.push(Finding {
                row: block.row,
                id: block.id,
                pid,
                device: block.device,
                pool,
                ptr: block.ptr,
                size: block.size,
                kinds,
                unused_ns: unused.iter().sum(),
                stack: block.stack,
                used_by: [block.first_use, block.last_access]
                    .map(|used| used.and_then(|(_, name)| name)),
            });
        }
    }
    report.findings.sort_by_key(|finding| finding.row);
    Ok(report)
}

/// The words of some kinds with commas between them.
pub fn words(kinds: &[Kind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
    words.join(",")
}

/// Writes the findings into the rows' `Attr`, as [`ATTR`]. `rows` must be the same rows in the same order as for
/// [`inefficient`]. The result of an earlier run is replaced, also at rows of which nothing is found now; msMemScope adds to
/// it with each run.
pub fn mark_rows<'a>(
    rows: impl IntoIterator<Item = Result<Row, DumpError>> + 'a,
    findings: &'a [Finding],
) -> impl Iterator<Item = Result<Row, DumpError>> + 'a {
    let mut next = findings.iter().peekable();
    (0..).zip(rows).map(move |(number, row)| {
        let mut row = row?;
        match next.next_if(|finding| finding.row == number) {
            Some(finding) => row.attr.set(ATTR, words(&finding.kinds)),
            None => row.attr.remove(ATTR),
        }
        Ok(row)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::attr::Attr;

    /// Rows of accesses do not show their generation, so those of the other rows decide for them as well.
    #[test]
    fn times_are_of_one_unit_in_the_whole_dump() {
        let row = |id: u64, event: &str, kind: &str, ptr: u64, time: u64| Row {
            id,
            event: event.to_owned(),
            event_type: kind.to_owned(),
            timestamp: time,
            pid: Some(7),
            device: Device::Number(0),
            ptr: Some(ptr),
            attr: Attr::new()
                .with("allocation_id", ptr)
                .with("size", 0x100)
                .with("type", "PTA"),
            ..Row::default()
        };
        let mut rows = vec![
            row(1, "MALLOC", "PTA", 0x1000, 10),
            row(2, "MALLOC", "PTA", 0x2000, 20),
            row(3, "FREE", "PTA", 0x2000, 30),
            row(4, "ACCESS", "READ", 0x1000, 50),
        ];
        let unused = |rows: &[Row]| {
            let rows = rows.iter().cloned().map(Ok);
            let report = inefficient(Path::new("d"), rows, &Question::default()).unwrap();
            let kinds = &report.findings[0].kinds;
            assert_eq!(*kinds, [Kind::EarlyAllocation]);
            report.findings[0].unused_ns
        };
        assert_eq!(unused(&rows), 40);
        rows.push(row(5, "SYSTEM", "acl init", 0, 60));
        assert_eq!(unused(&rows), 40_000);
        // A row of a block shows it as well.
        rows.pop();
        rows[0].attr.set("MID", "3".to_owned());
        assert_eq!(unused(&rows), 40_000);
    }

    /// A block that came early, lay idle and went late is told with the time of the kinds that were asked for.
    #[test]
    fn the_time_is_that_of_the_kinds_that_are_asked_for() {
        let row = |id: u64, event: &str, kind: &str, ptr: u64| Row {
            id,
            event: event.to_owned(),
            event_type: kind.to_owned(),
            timestamp: 10 * id * id,
            pid: Some(7),
            device: Device::Number(0),
            ptr: Some(ptr),
            attr: Attr::new()
                .with("allocation_id", ptr)
                .with("size", 0x100)
                .with("type", "PTA")
                .with("MID", 3),
            ..Row::default()
        };
        let rows = [
            row(1, "MALLOC", "PTA", 0x1000),
            row(2, "MALLOC", "PTA", 0x2000),
            row(3, "FREE", "PTA", 0x2000),
            row(4, "ACCESS", "READ", 0x1000),
            row(5, "MALLOC", "PTA", 0x3000),
            row(6, "ACCESS", "READ", 0x1000),
            row(7, "MALLOC", "PTA", 0x4000),
            row(8, "FREE", "PTA", 0x1000),
        ];
        let tick = Row::tick_ns(rows.iter().any(Row::is_older));
        let unused = |kinds: &[Kind]| {
            let question = Question {
                kinds: kinds.to_vec(),
                idle_threshold: 1,
                ..Question::default()
            };
            let rows = rows.iter().cloned().map(Ok);
            let report = inefficient(Path::new("d"), rows, &question).unwrap();
            assert_eq!(report.findings.len(), 1);
            report.findings[0].unused_ns / tick
        };
        let [early, late, idle] = Kind::ALL;
        assert_eq!(unused(&[early]), 160 - 10);
        assert_eq!(unused(&[idle]), 360 - 160);
        assert_eq!(unused(&[late]), 640 - 360);
        assert_eq!(unused(&[late, early]), 280 + 150);
        assert_eq!(unused(&Kind::ALL), 640 - 10);
    }
}
