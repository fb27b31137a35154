//! The figures of one rank, computed once, so that its picture can go before the next one is read.

use crate::course::{Course, Levels, Walked};
use crate::decided::{Decided, Row, Tally};
use crate::mosaic::{self, Peak};
use crate::picture::{Picture, State};
use crate::rules::RuleSets;
use crate::xprof::{self, Profile};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most allocations that are listed, as torchtitan's analyzer does.
pub const MOST_TOP: usize = 50;
/// Most points of a course that are kept; of each stretch the highest is kept, so that the peak is among them.
pub(crate) const MOST_POINTS: usize = 1000;
/// Most lines of the program that are listed.
const MOST_LINES: usize = 50;
/// Free blocks above this size are counted apart, as torchtitan's analyzer does.
const LARGE: u64 = 100 * 1024 * 1024;

/// One of the largest blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Its size, bytes.
    pub bytes: u64,
    /// Its category by torchtitan's rules.
    pub category: String,
    /// The program's own line that allocated it; empty if it is not known.
    pub line: String,
}

/// Sums over all segments of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Bytes of blocks that are handed out.
    pub allocated: u64,
    /// Bytes of all blocks.
    pub reserved: u64,
    /// Blocks that are handed out.
    pub active: u64,
    /// Blocks that are free.
    pub inactive: u64,
    /// Bytes of blocks that are free.
    pub free: u64,
    /// The largest of them.
    pub largest_free: u64,
    /// The largest of each device, added up: no block reaches over two devices.
    pub largest_free_by_device: u64,
    /// Free blocks of more than 100 MiB.
    pub large: u64,
    /// Sum of the sizes of these large free blocks, bytes.
    pub large_bytes: u64,
}

impl Sums {
    /// What is reserved and not handed out, bytes.
    #[must_use]
    pub const fn cache(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }

    /// Share of the reserved bytes that is handed out, per cent; `None` where nothing is reserved.
    #[must_use]
    pub fn efficiency(&self) -> Option<f64> {
        (self.reserved > 0).then(|| 100.0 * self.allocated as f64 / self.reserved as f64)
    }

    /// What torchtitan's analyzer calls fragmentation: the share of the reserved bytes that is not handed out, per cent.
    #[must_use]
    pub fn cached_share(&self) -> Option<f64> {
        (self.reserved > 0).then(|| 100.0 * self.cache() as f64 / self.reserved as f64)
    }

    /// Share of the free bytes that is not in the largest free block of its device, per cent; `None` where nothing is free.
    #[must_use]
    pub fn scattered(&self) -> Option<f64> {
        (self.free > 0)
            .then(|| 100.0 * (1.0 - self.largest_free_by_device as f64 / self.free as f64))
    }

    pub(crate) fn add(&mut self, other: &Sums) {
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.reserved = self.reserved.saturating_add(other.reserved);
        self.active += other.active;
        self.inactive += other.inactive;
        self.free = self.free.saturating_add(other.free);
        self.largest_free = self.largest_free.max(other.largest_free);
        let by_device = [self.largest_free_by_device, other.largest_free_by_device];
        self.largest_free_by_device = by_device.into_iter().fold(0, u64::saturating_add);
        self.large += other.large;
        self.large_bytes = self.large_bytes.saturating_add(other.large_bytes);
    }
}

/// A moment of a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Number of the entry of the trace, from 1; 0 is before the first.
    pub entry: u64,
    /// Microseconds since 1970, if they are known.
    pub time_us: Option<u64>,
    /// Bytes that are handed out, as they were asked for.
    pub allocated: u64,
    /// Bytes of the segments, if the trace says them.
    pub reserved: Option<u64>,
}

/// The course of one device.
#[derive(Clone, Debug)]
pub struct DeviceCourse {
    /// Ordinal of the device within the process.
    pub device: i32,
    /// Its points.
    pub points: Vec<Point>,
    /// The highest of them.
    pub peak: Point,
    /// What was there at the peak by torchtitan's categories, most bytes first.
    pub categories: Vec<Row>,
    /// The same by the program's own lines, at most fifty.
    pub lines: Vec<Row>,
    /// Bytes at the peak of lines that are not among these.
    pub more_bytes: u64,
}

/// The figures of one rank.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Its number.
    pub rank: u64,
    /// From where they are.
    pub source: String,
    /// Sums over its segments.
    pub sums: Sums,
    /// What is handed out by torchtitan's categories, most bytes first.
    pub categories: Vec<Row>,
    /// The same by the categories of its comparison of two runs.
    pub keywords: Vec<Row>,
    /// The largest blocks.
    pub top: Vec<Top>,
    /// Bytes of the program's own lines: handed out at the end, and at the peak.
    pub lines: BTreeMap<String, (u64, u64)>,
    /// Bytes of blocks by the power of two below their size: handed out, and free.
    pub sizes: BTreeMap<u32, (u64, u64)>,
    /// The courses of the devices that have a trace from which one follows.
    pub courses: Vec<DeviceCourse>,
    /// A device has a trace from which no course follows, so the peak of all is not known.
    pub lacks_a_course: bool,
    /// The peak as mosaic counts it; `None` without a trace, or where no peak follows from it.
    pub peak: Option<Peak>,
    /// XProf's profiles, by device; none of a device of which it is not known what was reserved.
    pub profiles: Vec<(i32, Profile)>,
    /// What limits the figures.
    pub notes: Vec<String>,
}

impl Figures {
    /// Computes the figures of a rank.
    #[must_use]
    pub fn of(rank: u64, source: String, picture: &Picture, rules: &RuleSets) -> Figures {
        let mut notes = picture.notes.clone();
        let mut decided = Decided::new(picture, rules);
        let sums = sums(picture);
        let mut categories = Tally::default();
        let mut keywords = Tally::default();
        let mut lines: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (_, block) in picture.active() {
            let line = lines.entry(decided.line(block.stack)).or_default();
            line.0 = line.0.saturating_add(block.size);
            categories.add(&decided.titan(block.stack), block.size);
            keywords.add(&decided.keyword(block.stack), block.size);
        }
        let mut largest: Vec<_> = picture.active().map(|(_, block)| block).collect();
        largest.sort_by_key(|block| Reverse(block.size));
        largest.truncate(MOST_TOP);
        let top = largest
            .into_iter()
            .map(|block| Top {
                bytes: block.size,
                category: decided.titan(block.stack),
                line: decided.line(block.stack),
            })
            .collect();
        let mut courses = Vec::new();
        let mut profiles = Vec::new();
        for trace in picture.courses() {
            let course = Course::of(picture, trace);
            let mut asked_for = Sampled::new(trace.entries.len(), |levels| levels.requested);
            let mut in_use = Sampled::new(trace.entries.len(), |levels| levels.in_use);
            let walked = course.walk(|_, at, levels| {
                asked_for.take(at, levels);
                in_use.take(at, levels);
            });
            for life in walked.at_peak() {
                let line = lines.entry(decided.line(life.stack)).or_default();
                line.1 = line.1.saturating_add(life.requested);
            }
            courses.push(device_course(&walked, &asked_for, &mut decided));
            if !walked.reserved_is_known {
                notes.push(format!(
                    "What was reserved on device {} before the end is not known: entries of segments are missing in its trace. No line is drawn \
                     for it, and the device is not in the files for XProf, which are about what is reserved.",
                    trace.device
                ));
                continue;
            }
            let profile = xprof::profile(&walked, &in_use.kept, &mut decided);
            profiles.push((trace.device, profile));
        }
        if picture.traced().next().is_none() {
            notes.push(
                "The snapshot has no trace: its history was not recorded. Peak and course are not known.".to_owned(),
            );
        }
        Figures {
            rank,
            source,
            sums,
            categories: categories.rows(),
            keywords: keywords.rows(),
            top,
            lines,
            sizes: sizes(picture),
            lacks_a_course: courses.len() < picture.traced().count(),
            courses,
            peak: mosaic::peak(picture),
            profiles,
            notes,
        }
    }

    /// The highest level of its courses, bytes: of several devices the sum of their peaks.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        let peaks = self.courses.iter().map(|course| course.peak.allocated);
        let is_known = !self.courses.is_empty() && !self.lacks_a_course;
        is_known.then(|| peaks.fold(0, u64::saturating_add))
    }
}

fn sums(picture: &Picture) -> Sums {
    let mut sums = Sums::default();
    let mut largest: BTreeMap<i32, u64> = BTreeMap::new();
    for (device, block) in picture.blocks() {
        sums.reserved = sums.reserved.saturating_add(block.size);
        match block.state {
            State::Active => {
                sums.active += 1;
                sums.allocated = sums.allocated.saturating_add(block.size);
            }
            State::Pending => {}
            State::Inactive => {
                sums.inactive += 1;
                sums.free = sums.free.saturating_add(block.size);
                sums.largest_free = sums.largest_free.max(block.size);
                let largest = largest.entry(device).or_default();
                *largest = block.size.max(*largest);
                if block.size > LARGE {
                    sums.large += 1;
                    sums.large_bytes = sums.large_bytes.saturating_add(block.size);
                }
            }
        }
    }
    sums.largest_free_by_device = largest.into_values().fold(0, u64::saturating_add);
    sums
}

fn sizes(picture: &Picture) -> BTreeMap<u32, (u64, u64)> {
    let mut sizes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (_, block) in picture.blocks().filter(|(_, block)| block.size > 0) {
        let bytes = sizes.entry(block.size.ilog2()).or_default();
        match block.state {
            State::Active => bytes.0 = bytes.0.saturating_add(block.size),
            State::Pending => {}
            State::Inactive => bytes.1 = bytes.1.saturating_add(block.size),
        }
    }
    sizes
}

fn device_course(
    walked: &Walked<'_>,
    sampled: &Sampled,
    decided: &mut Decided<'_>,
) -> DeviceCourse {
    let mut categories = Tally::default();
    let mut lines = Tally::default();
    for life in walked.at_peak() {
        categories.add(&decided.titan(life.stack), life.requested);
        lines.add(&decided.line(life.stack), life.requested);
    }
    let mut lines = lines.rows();
    let more = lines.split_off(lines.len().min(MOST_LINES));
    DeviceCourse {
        device: walked.course.device,
        points: sampled.points(walked.reserved_is_known),
        peak: point(walked.peak_at, &walked.peak, walked.reserved_is_known),
        categories: categories.rows(),
        lines,
        more_bytes: more
            .iter()
            .fold(0, |sum: u64, row| sum.saturating_add(row.bytes)),
    }
}

fn point(at: Option<usize>, levels: &Levels, reserved_is_known: bool) -> Point {
    Point {
        entry: at.map_or(0, |at| at as u64 + 1),
        time_us: levels.time_us,
        allocated: levels.requested,
        reserved: reserved_is_known.then_some(levels.reserved),
    }
}

/// Keeps the highest moment of each stretch of a course.
pub(crate) struct Sampled {
    stretch: usize,
    level: fn(&Levels) -> u64,
    kept: Vec<(Option<usize>, Levels)>,
    in_stretch: usize,
}

impl Sampled {
    pub(crate) fn new(entries: usize, level: fn(&Levels) -> u64) -> Sampled {
        Sampled {
            stretch: (entries + 1).div_ceil(MOST_POINTS),
            level,
            kept: Vec::new(),
            in_stretch: 0,
        }
    }

    pub(crate) fn take(&mut self, at: Option<usize>, levels: &Levels) {
        match self.kept.last_mut() {
            Some(highest) if self.in_stretch > 0 => {
                if (self.level)(levels) > (self.level)(&highest.1) {
                    *highest = (at, *levels);
                }
            }
            _ => self.kept.push((at, *levels)),
        }
        self.in_stretch = (self.in_stretch + 1) % self.stretch;
    }

    fn points(&self, reserved_is_known: bool) -> Vec<Point> {
        let kept = self.kept.iter();
        kept.map(|(at, levels)| point(*at, levels, reserved_is_known))
            .collect()
    }
}
