//! The course of a device's memory: what it held after each event that changed it, at any zoom.
//!
//! Owns: the samples of one stretch of the log, packed, with sums over them by which any interval is known from a few
//! numbers; and the cut of a window into intervals. Refuses: to know where samples come from, and to keep anything
//! beyond what it was given.
//!
//! Samples are written one behind the other as differences, and are divided into chunks. Each chunk has a sum (smallest
//! and largest level, counts, last level), and each group of sums has one as well, up to the top. An interval is then a part of
//! two chunks, which are unpacked, and the sums of what lies between them.

use crate::report::Source;
use memscope_proto::v1::Interval;

/// Number of samples in a chunk: two chunks are unpacked for an interval at most.
const CHUNK: usize = 512;
/// Number of sums under a sum of the next row.
const FAN_OUT: usize = 16;

/// Bytes handed out, and bytes held from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
}

/// What a device holds at one moment, and how many blocks came and went on it by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLevel {
    /// Ordinal of the device within the process; `None`: the device is not known.
    pub device: Option<i32>,
    /// Where the level comes from.
    pub source: Source,
    /// Whether anything has happened there that an answer shows. Memory of the pool that was counted to an unknown device until it was known
    /// where it is has not happened there.
    pub seen: bool,
    /// The level; `None` where it is not known.
    pub level: Option<Level>,
    /// Number of blocks that came so far.
    pub allocs: u64,
    /// Number of blocks that went so far.
    pub frees: u64,
}

/// The course of one device, in the intervals of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceCourse {
    /// Ordinal of the device within the process; `None`: the device is not known.
    pub device: Option<i32>,
    /// Where the numbers come from.
    pub source: Source,
    /// The intervals, in their order.
    pub intervals: Vec<Interval>,
}

/// What one event changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When it happened, nanoseconds of boot time.
    pub time_ns: u64,
    /// The level after it; `None` where it is not known.
    pub level: Option<Level>,
    /// Number of blocks that came with it.
    pub allocs: u64,
    /// Number of blocks that went with it.
    pub frees: u64,
}

/// What a row of samples has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    first_ns: u64,
    last_ns: u64,
    /// Smallest and largest level, of allocated and of reserved bytes apart; `None` where none is known.
    bounds: Option<(Level, Level)>,
    /// The level after the last of them.
    last: Option<Level>,
    allocs: u64,
    frees: u64,
}

impl Sum {
    fn of(sample: Sample) -> Sum {
        Sum {
            first_ns: sample.time_ns,
            last_ns: sample.time_ns,
            bounds: sample.level.map(|level| (level, level)),
            last: sample.level,
            allocs: sample.allocs,
            frees: sample.frees,
        }
    }

    /// The sum of these and of later ones.
    fn and(self, later: Sum) -> Sum {
        let bounds = match (self.bounds, later.bounds) {
            (Some(one), Some(other)) => Some(joined(one, other)),
            (one, other) => one.or(other),
        };
        Sum {
            first_ns: self.first_ns,
            last_ns: later.last_ns,
            bounds,
            last: later.last,
            allocs: self.allocs.saturating_add(later.allocs),
            frees: self.frees.saturating_add(later.frees),
        }
    }
}

fn joined(one: (Level, Level), other: (Level, Level)) -> (Level, Level) {
    let least = Level {
        allocated: one.0.allocated.min(other.0.allocated),
        reserved: one.0.reserved.min(other.0.reserved),
    };
    let most = Level {
        allocated: one.1.allocated.max(other.1.allocated),
        reserved: one.1.reserved.max(other.1.reserved),
    };
    (least, most)
}

/// Adds a sum of later samples to one that may be empty.
fn add(sum: &mut Option<Sum>, later: Option<Sum>) {
    if let Some(later) = later {
        *sum = Some(sum.map_or(later, |sum| sum.and(later)));
    }
}

/// The samples of one device over one stretch of the log.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// From when on it is known, and the level at that moment.
    begin: Option<(u64, Option<Level>)>,
    packed: Vec<u8>,
    /// Where each chunk begins in `packed`.
    places: Vec<usize>,
    /// Rows of sums: of the chunks, and of each [`FAN_OUT`] sums of the row before.
    rows: Vec<Vec<Sum>>,
    /// The newest samples, which make no chunk yet.
    open: Vec<Sample>,
}

impl Course {
    /// A course that is known from `begin_ns` on, at which moment the level is `level`.
    pub fn new(begin_ns: u64, level: Option<Level>) -> Course {
        Course {
            begin: Some((begin_ns, level)),
            ..Course::default()
        }
    }

    /// Adds the next sample. What the daemon itself wrote may have a later time than records that the kernel sent before
    /// it: such samples are brought forward to the moment of those.
    pub fn push(&mut self, mut sample: Sample) {
        let packed_until = self.sums().last().map_or(0, |sum| sum.last_ns);
        sample.time_ns = sample.time_ns.max(packed_until);
        let later = self
            .open
            .iter_mut()
            .rev()
            .take_while(|one| one.time_ns > sample.time_ns);
        later.for_each(|one| one.time_ns = sample.time_ns);
        self.open.push(sample);
        if self.open.len() >= CHUNK {
            self.close();
        }
    }

    /// Makes a chunk of the newest samples.
    fn close(&mut self) {
        let (mut time_ns, mut level) = self.base(self.places.len());
        let Some(sum) = self.open.iter().copied().map(Sum::of).reduce(Sum::and) else {
            return;
        };
        self.places.push(self.packed.len());
        for sample in self.open.drain(..) {
            write(&mut self.packed, (time_ns, level), sample);
            (time_ns, level) = (sample.time_ns, sample.level.unwrap_or_default());
        }
        let mut sum = sum;
        for row in 0.. {
            if self.rows.len() == row {
                self.rows.push(Vec::new());
            }
            let Some(sums) = self.rows.get_mut(row) else {
                return;
            };
            sums.push(sum);
            let whole = sums.len().is_multiple_of(FAN_OUT);
            let newest = sums.get(sums.len().saturating_sub(FAN_OUT)..);
            match newest.and_then(|all| all.iter().copied().reduce(Sum::and)) {
                Some(all) if whole => sum = all,
                _ => return,
            }
        }
    }

    fn sums(&self) -> &[Sum] {
        self.rows.first().map_or(&[], Vec::as_slice)
    }

    /// Time and level from which the differences of a chunk are counted.
    fn base(&self, chunk: usize) -> (u64, Level) {
        let before = chunk.checked_sub(1).and_then(|one| self.sums().get(one));
        before.map_or((0, Level::default()), |sum| {
            (sum.last_ns, sum.last.unwrap_or_default())
        })
    }

    /// Unpacks a chunk; the one behind the last are the newest samples.
    fn chunk(&self, number: usize, into: &mut Vec<Sample>) {
        into.clear();
        let Some(from) = self.places.get(number) else {
            into.extend_from_slice(&self.open);
            return;
        };
        let to = self.places.get(number + 1).copied();
        let mut bytes = self
            .packed
            .get(*from..to.unwrap_or(self.packed.len()))
            .unwrap_or_default();
        let (mut time_ns, mut level) = self.base(number);
        while let Some(sample) = read(&mut bytes, (time_ns, level)) {
            (time_ns, level) = (sample.time_ns, sample.level.unwrap_or_default());
            into.push(sample);
        }
    }

    /// The sum of the chunks from `from` to before `to`.
    fn over(&self, from: usize, to: usize) -> Option<Sum> {
        let mut sum = None;
        let mut at = from;
        while at < to {
            // The highest row of which a sum begins here and ends by `to`.
            let (mut row, mut width) = (0, 1);
            while at.is_multiple_of(width * FAN_OUT)
                && at + width * FAN_OUT <= to
                && self.rows.get(row + 1).is_some()
            {
                (row, width) = (row + 1, width * FAN_OUT);
            }
            let found = self.rows.get(row).and_then(|row| row.get(at / width));
            add(&mut sum, found.copied());
            at += width;
        }
        sum
    }

    /// When its first sample is; `None` if there is none.
    fn first_ns(&self) -> Option<u64> {
        let packed = self.sums().first().map(|sum| sum.first_ns);
        packed.or_else(|| self.open.first().map(|sample| sample.time_ns))
    }

    /// When its last sample is; `None` if there is none.
    fn last_ns(&self) -> Option<u64> {
        let open = self.open.last().map(|sample| sample.time_ns);
        open.or_else(|| self.sums().last().map(|sum| sum.last_ns))
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        let sums: usize = self.rows.iter().map(Vec::capacity).sum();
        let all = size_of::<Course>()
            + self.packed.capacity()
            + self.places.capacity() * size_of::<usize>()
            + sums * size_of::<Sum>()
            + self.open.capacity() * size_of::<Sample>();
        all as u64
    }

    /// Number of its samples.
    pub fn samples(&self) -> usize {
        self.places.len() * CHUNK + self.open.len()
    }

    /// Gives back room that it took for more samples.
    pub fn shrink(&mut self) {
        self.packed.shrink_to_fit();
        self.places.shrink_to_fit();
        self.open.shrink_to_fit();
        self.rows.iter_mut().for_each(Vec::shrink_to_fit);
    }
}

/// Reads a course interval by interval, in their order.
struct Reader<'a> {
    course: &'a Course,
    /// The chunk that is unpacked.
    number: Option<usize>,
    samples: Vec<Sample>,
}

impl<'a> Reader<'a> {
    fn new(course: &'a Course) -> Reader<'a> {
        Reader {
            course,
            number: None,
            samples: Vec::new(),
        }
    }

    fn unpacked(&mut self, number: usize) -> &[Sample] {
        if self.number != Some(number) {
            self.course.chunk(number, &mut self.samples);
            self.number = Some(number);
        }
        &self.samples
    }

    /// The sum of a chunk's samples from `from_ns` to before `to_ns`.
    fn part(&mut self, number: usize, from_ns: u64, to_ns: u64) -> Option<Sum> {
        let samples = self.unpacked(number);
        let from = samples.partition_point(|sample| sample.time_ns < from_ns);
        let to = samples.partition_point(|sample| sample.time_ns < to_ns);
        let part = samples.get(from..to)?;
        part.iter().copied().map(Sum::of).reduce(Sum::and)
    }

    /// The sum of all samples from `from_ns` to before `to_ns`; `None` if there is none.
    fn sum(&mut self, from_ns: u64, to_ns: u64) -> Option<Sum> {
        let sums = self.course.sums();
        let first = sums.partition_point(|sum| sum.last_ns < from_ns);
        // What begins before `to_ns` and ends behind it is looked at sample by sample.
        let whole_to = sums.partition_point(|sum| sum.last_ns < to_ns);
        let is_whole = |chunk: usize| {
            sums.get(chunk)
                .is_some_and(|sum| sum.first_ns >= from_ns && sum.last_ns < to_ns)
        };
        let mut sum = None;
        let whole_from = first + usize::from(!is_whole(first));
        if whole_from > first {
            add(&mut sum, self.part(first, from_ns, to_ns));
        }
        if whole_to > whole_from {
            add(&mut sum, self.course.over(whole_from, whole_to));
        }
        if whole_to >= whole_from {
            add(&mut sum, self.part(whole_to, from_ns, to_ns));
        }
        sum
    }

    /// The last sample before a moment.
    fn before(&mut self, ns: u64) -> Option<Sample> {
        let whole = self.course.sums().partition_point(|sum| sum.last_ns < ns);
        let samples = self.unpacked(whole);
        let behind = samples.partition_point(|sample| sample.time_ns < ns);
        if let Some(found) = behind.checked_sub(1).and_then(|at| samples.get(at)) {
            return Some(*found);
        }
        let chunk = self.course.sums().get(whole.checked_sub(1)?)?;
        Some(Sample {
            time_ns: chunk.last_ns,
            level: chunk.last,
            ..Sample::default()
        })
    }
}

/// A window and the intervals of equal width into which it is cut. Each begins with its first nanosecond and ends before
/// that of the next; the last one has the window's end in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    /// Nothing before this moment is cut.
    begin_ns: u64,
}

impl Grid {
    /// Cuts the time from `from_ns` to `to_ns` into `count` intervals, or into as many as it has nanoseconds.
    pub fn new(from_ns: u64, to_ns: u64, count: u64) -> Grid {
        let to_ns = to_ns.max(from_ns);
        Grid {
            from_ns,
            to_ns,
            count: count.min(to_ns - from_ns).max(1),
            begin_ns: from_ns,
        }
    }

    /// The same intervals without what lies before a moment, which may be within one of them.
    pub fn begun_at(self, begin_ns: u64) -> Grid {
        Grid {
            begin_ns: self.begin_ns.max(begin_ns),
            ..self
        }
    }

    /// Where the interval with this number begins, from 0.
    fn edge(&self, number: u64) -> u64 {
        let width = u128::from(self.to_ns - self.from_ns);
        let part = width * u128::from(number) / u128::from(self.count);
        (self.from_ns + part as u64).max(self.begin_ns)
    }

    /// The moment before which the interval ends.
    fn end(&self, number: u64) -> u64 {
        match number + 1 == self.count {
            true => self.to_ns.saturating_add(1),
            false => self.edge(number + 1),
        }
    }

    /// Number of the interval in which a moment lies, or of the nearest.
    fn number(&self, ns: u64) -> u64 {
        let within = u128::from(ns.clamp(self.from_ns, self.to_ns) - self.from_ns);
        let width = u128::from(self.to_ns - self.from_ns).max(1);
        let mut number = (within * u128::from(self.count) / width) as u64;
        number = number.min(self.count - 1);
        while number + 1 < self.count && self.edge(number + 1) <= ns {
            number += 1;
        }
        number
    }

    /// Number of intervals that end by this moment.
    pub fn before(&self, ns: u64) -> u64 {
        match ns {
            _ if ns <= self.from_ns => 0,
            _ if ns > self.to_ns => self.count,
            _ => self.number(ns),
        }
    }
}

/// Cuts a window into intervals, from one course after the other.
#[derive(Clone, Debug)]
pub struct Cut {
    grid: Grid,
    cells: Vec<Option<Sum>>,
    /// From when on something is known that no sample tells, and the level then.
    start: Option<(u64, Option<Level>)>,
    has_samples: bool,
}

impl Cut {
    /// Nothing is known yet.
    pub fn new(grid: Grid) -> Cut {
        Cut {
            grid,
            cells: vec![None; usize::try_from(grid.count).unwrap_or(1)],
            start: None,
            has_samples: false,
        }
    }

    /// Takes a course that follows on those before.
    pub fn add(&mut self, course: &Course) {
        let mut reader = Reader::new(course);
        let begin = course.begin.filter(|(ns, _)| *ns <= self.grid.to_ns);
        let is_nothing_known = self.start.is_none() && !self.has_samples;
        match reader.before(self.grid.begin_ns) {
            Some(sample) => self.start = Some((sample.time_ns, sample.level)),
            None if is_nothing_known => self.start = begin,
            None => {}
        }
        let (Some(first_ns), Some(last_ns)) = (course.first_ns(), course.last_ns()) else {
            return;
        };
        if last_ns < self.grid.begin_ns || first_ns > self.grid.to_ns {
            return;
        }
        let mut number = self.grid.number(first_ns);
        let last = self.grid.number(last_ns);
        while number <= last {
            let (from_ns, to_ns) = (self.grid.edge(number), self.grid.end(number));
            let Some(sum) = reader.sum(from_ns, to_ns) else {
                // The next interval with a sample. Intervals may be much shorter than the time between two samples.
                match next_ns(&mut reader, to_ns) {
                    Some(ns) => number = self.grid.number(ns).max(number + 1),
                    None => return,
                }
                continue;
            };
            self.has_samples = true;
            if let Some(cell) = self.cells.get_mut(number as usize) {
                add(cell, Some(sum));
            }
            number += 1;
        }
    }

    /// The intervals. Those are left out of which nothing is known, and what happens behind `until_ns` is not known.
    pub fn finish(self, until_ns: u64) -> Vec<Interval> {
        let mut start = self.start;
        let mut level: Option<Level> = None;
        let mut all = Vec::new();
        for (number, cell) in (0u64..).zip(self.cells) {
            let (from_ns, end_ns) = (self.grid.edge(number), self.grid.end(number));
            if from_ns > until_ns {
                break;
            }
            if end_ns <= from_ns {
                continue;
            }
            if let Some((_, known)) = start.take_if(|(ns, _)| *ns < end_ns) {
                level = known;
            }
            let is_carried = cell.is_none_or(|sum| sum.first_ns > from_ns);
            let carried = level.filter(|_| is_carried).map(|level| (level, level));
            let bounds = match (carried, cell.and_then(|sum| sum.bounds)) {
                (Some(one), Some(other)) => Some(joined(one, other)),
                (one, other) => one.or(other),
            };
            if let Some(sum) = cell {
                level = sum.last;
            }
            let Some((least, most)) = bounds else {
                continue;
            };
            all.push(Interval {
                from_boot_ns: from_ns,
                to_boot_ns: self.grid.edge(number + 1).min(until_ns),
                min_allocated_bytes: least.allocated,
                max_allocated_bytes: most.allocated,
                min_reserved_bytes: least.reserved,
                max_reserved_bytes: most.reserved,
                allocs: cell.map_or(0, |sum| sum.allocs),
                frees: cell.map_or(0, |sum| sum.frees),
                last_allocated_bytes: level.map(|level| level.allocated),
                last_reserved_bytes: level.map(|level| level.reserved),
                detail_ns: Some(0),
            });
        }
        all
    }
}

/// When the first sample from a moment on is.
fn next_ns(reader: &mut Reader<'_>, ns: u64) -> Option<u64> {
    let chunk = reader.course.sums().partition_point(|sum| sum.last_ns < ns);
    let samples = reader.unpacked(chunk);
    let at = samples.partition_point(|sample| sample.time_ns < ns);
    samples.get(at).map(|sample| sample.time_ns)
}

/// In the first byte of a sample: whether the level is known.
const KNOWN: u8 = 1;
/// Whether the reserved bytes differ from those of the sample before.
const RESERVED: u8 = 2;
/// How many blocks came and went: 0, 1, or a number that follows.
const ALLOCS: u8 = 2;
const FREES: u8 = 4;
const MORE: u8 = 2;

fn write(into: &mut Vec<u8>, (time_ns, before): (u64, Level), sample: Sample) {
    let count = |count: u64| u8::try_from(count).map_or(MORE, |few| few.min(MORE));
    let (allocs, frees) = (count(sample.allocs), count(sample.frees));
    let level = sample.level;
    let reserves = level.is_some_and(|level| level.reserved != before.reserved);
    let head = (u8::from(level.is_some()) * KNOWN) | (u8::from(reserves) * RESERVED);
    into.push(head | (allocs << ALLOCS) | (frees << FREES));
    write_number(into, sample.time_ns.wrapping_sub(time_ns));
    if let Some(level) = level {
        write_number(into, zigzag(level.allocated.wrapping_sub(before.allocated)));
        if reserves {
            write_number(into, zigzag(level.reserved.wrapping_sub(before.reserved)));
        }
    }
    for (few, many) in [(allocs, sample.allocs), (frees, sample.frees)] {
        if few == MORE {
            write_number(into, many);
        }
    }
}

/// The next sample; `None` at the end.
fn read(bytes: &mut &[u8], (time_ns, before): (u64, Level)) -> Option<Sample> {
    let (head, rest) = bytes.split_first()?;
    *bytes = rest;
    let time_ns = time_ns.wrapping_add(read_number(bytes)?);
    let mut level = None;
    if head & KNOWN != 0 {
        let allocated = before.allocated.wrapping_add(unzigzag(read_number(bytes)?));
        let reserved = match head & RESERVED != 0 {
            true => before.reserved.wrapping_add(unzigzag(read_number(bytes)?)),
            false => before.reserved,
        };
        level = Some(Level {
            allocated,
            reserved,
        });
    }
    let mut counts = [0; 2];
    for (count, shift) in counts.iter_mut().zip([ALLOCS, FREES]) {
        let few = (head >> shift) & 3;
        *count = match few {
            MORE => read_number(bytes)?,
            few => few.into(),
        };
    }
    let [allocs, frees] = counts;
    Some(Sample {
        time_ns,
        level,
        allocs,
        frees,
    })
}

/// Makes small numbers of small differences, whichever sign they have.
fn zigzag(difference: u64) -> u64 {
    let sign = ((difference as i64) >> 63) as u64;
    (difference << 1) ^ sign
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Seven bits in each byte, the lowest first; the highest bit of a byte says that another one follows.
fn write_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
