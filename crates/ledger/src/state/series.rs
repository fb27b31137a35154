//! The levels of a pool over time.
//!
//! Owns: a bounded row of time buckets; when it is full, neighbours are merged and each bucket covers twice the time.
//! Beside it, a row of the last minutes, whose buckets keep their width. Refuses: single events.

use memscope_proto::v1::Interval;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of buckets in a row.
const BUCKETS: usize = 512;
/// Width of a bucket of the whole course before any are merged.
const FIRST_WIDTH_NS: u64 = 1_000_000;
/// Width of a bucket of the last minutes.
const LAST_WIDTH_NS: u64 = 500_000_000;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Bucket {
    min_allocated: u64,
    max_allocated: u64,
    min_reserved: u64,
    max_reserved: u64,
    allocs: u64,
    frees: u64,
}

impl Bucket {
    fn at(allocated: u64, reserved: u64) -> Bucket {
        Bucket {
            min_allocated: allocated,
            max_allocated: allocated,
            min_reserved: reserved,
            max_reserved: reserved,
            allocs: 0,
            frees: 0,
        }
    }

    fn level(&mut self, allocated: u64, reserved: u64) {
        self.min_allocated = self.min_allocated.min(allocated);
        self.max_allocated = self.max_allocated.max(allocated);
        self.min_reserved = self.min_reserved.min(reserved);
        self.max_reserved = self.max_reserved.max(reserved);
    }

    fn merged(self, other: Bucket) -> Bucket {
        Bucket {
            min_allocated: self.min_allocated.min(other.min_allocated),
            max_allocated: self.max_allocated.max(other.max_allocated),
            min_reserved: self.min_reserved.min(other.min_reserved),
            max_reserved: self.max_reserved.max(other.max_reserved),
            allocs: self.allocs + other.allocs,
            frees: self.frees + other.frees,
        }
    }
}

/// A row of buckets of equal width.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Course {
    start_ns: u64,
    width_ns: u64,
    /// The last one is still open.
    buckets: VecDeque<Bucket>,
}

impl Course {
    fn at(time_ns: u64, width_ns: u64, bucket: Bucket) -> Course {
        Course {
            start_ns: time_ns,
            width_ns,
            buckets: VecDeque::from([bucket]),
        }
    }

    /// Number of the bucket that a moment lies in.
    fn place(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.start_ns) / self.width_ns.max(1)
    }

    fn start_of(&self, bucket: usize) -> u64 {
        self.start_ns
            .saturating_add(self.width_ns.saturating_mul(bucket as u64))
    }

    /// Adds buckets up to a moment, all with the same level. If there are too many, neighbours are merged.
    fn advance_all(&mut self, time_ns: u64, level: Bucket) {
        while self.place(time_ns) >= BUCKETS as u64 {
            self.halve();
        }
        let wanted = self.place(time_ns);
        while (self.buckets.len() as u64) <= wanted {
            self.buckets.push_back(level);
        }
    }

    fn halve(&mut self) {
        let buckets = self.buckets.make_contiguous();
        let halved = buckets.chunks(2).map(|pair| match pair {
            [left, right] => left.merged(*right),
            [one] => *one,
            _ => Bucket::default(),
        });
        self.buckets = halved.collect();
        self.width_ns = self.width_ns.saturating_mul(2);
    }

    /// The same, but if there are too many, the oldest are dropped.
    fn advance_last(&mut self, time_ns: u64, level: Bucket) {
        let behind = (self.place(time_ns) + 1).saturating_sub(BUCKETS as u64);
        if behind > 0 {
            let gone = usize::try_from(behind).unwrap_or(usize::MAX);
            self.buckets.drain(..gone.min(self.buckets.len()));
            self.start_ns = self
                .start_ns
                .saturating_add(self.width_ns.saturating_mul(behind));
        }
        let wanted = self.place(time_ns);
        while (self.buckets.len() as u64) <= wanted {
            self.buckets.push_back(level);
        }
    }

    fn cut(&self, from_ns: u64, to_ns: u64, count: usize) -> Vec<Interval> {
        let all = self.buckets.len();
        let first = usize::try_from(self.place(from_ns)).unwrap_or(usize::MAX);
        let first = first.min(all.saturating_sub(1));
        let count = count.clamp(1, (all - first).max(1));
        let edges: Vec<usize> = (0..=count)
            .map(|part| first + (all - first) * part / count)
            .collect();
        edges
            .windows(2)
            .filter_map(|edges| {
                let &[from, to] = edges else { return None };
                let within = self.buckets.range(from..to).copied();
                let merged = within.reduce(Bucket::merged)?;
                let from_boot_ns = self.start_of(from);
                Some(Interval {
                    from_boot_ns,
                    // The last bucket is open.
                    to_boot_ns: self.start_of(to).min(to_ns.max(from_boot_ns)),
                    min_allocated_bytes: merged.min_allocated,
                    max_allocated_bytes: merged.max_allocated,
                    min_reserved_bytes: merged.min_reserved,
                    max_reserved_bytes: merged.max_reserved,
                    allocs: merged.allocs,
                    frees: merged.frees,
                    ..Interval::default()
                })
            })
            .collect()
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "SeriesCheckpoint", into = "SeriesCheckpoint")]
pub(crate) struct Series {
    whole: Course,
    /// The last minutes, in finer buckets than `whole` has after a long time. Empty in checkpoints of an older version.
    last: Course,
    allocated: u64,
    reserved: u64,
}

/// A series as checkpoints have it.
#[derive(Serialize, Deserialize)]
struct SeriesCheckpoint {
    start_ns: u64,
    width_ns: u64,
    buckets: VecDeque<Bucket>,
    allocated: u64,
    reserved: u64,
    #[serde(default)]
    last: Course,
}

impl From<SeriesCheckpoint> for Series {
    fn from(kept: SeriesCheckpoint) -> Series {
        Series {
            whole: Course {
                start_ns: kept.start_ns,
                width_ns: kept.width_ns,
                buckets: kept.buckets,
            },
            last: kept.last,
            allocated: kept.allocated,
            reserved: kept.reserved,
        }
    }
}

impl From<Series> for SeriesCheckpoint {
    fn from(series: Series) -> SeriesCheckpoint {
        SeriesCheckpoint {
            start_ns: series.whole.start_ns,
            width_ns: series.whole.width_ns,
            buckets: series.whole.buckets,
            allocated: series.allocated,
            reserved: series.reserved,
            last: series.last,
        }
    }
}

impl Series {
    /// Bytes of its buckets.
    pub(crate) fn bytes(&self) -> u64 {
        let places = self.whole.buckets.capacity() + self.last.buckets.capacity();
        (places * size_of::<Bucket>()) as u64
    }

    /// Takes the level at `time_ns`, and how many blocks came and went with it.
    pub(crate) fn note(
        &mut self,
        time_ns: u64,
        allocated: u64,
        reserved: u64,
        allocs: u64,
        frees: u64,
    ) {
        if self.whole.buckets.is_empty() {
            let first = Bucket::at(allocated, reserved);
            self.whole = Course::at(time_ns, FIRST_WIDTH_NS, first);
        } else {
            self.advance(time_ns);
        }
        if self.last.buckets.is_empty() {
            self.last = Course::at(time_ns, LAST_WIDTH_NS, Bucket::at(allocated, reserved));
        }
        self.allocated = allocated;
        self.reserved = reserved;
        for course in [&mut self.whole, &mut self.last] {
            if let Some(open) = course.buckets.back_mut() {
                open.level(allocated, reserved);
                open.allocs += allocs;
                open.frees += frees;
            }
        }
    }

    /// Adds buckets up to `time_ns`, with the last level.
    fn advance(&mut self, time_ns: u64) {
        let level = Bucket::at(self.allocated, self.reserved);
        self.whole.advance_all(time_ns, level);
        if !self.last.buckets.is_empty() {
            self.last.advance_last(time_ns, level);
        }
    }

    /// Whether no level has been noted yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.buckets.is_empty()
    }

    /// When the first level was noted.
    pub(crate) fn start_ns(&self) -> u64 {
        self.whole.start_ns
    }

    /// Divides the time from `from_ns` to `to_ns` (the latest moment) into at most `count` intervals. They begin and
    /// end at the edges of buckets, as near as possible to what was asked for, so that the counts and levels of each
    /// interval are exact.
    pub(crate) fn cut(&self, from_ns: u64, to_ns: u64, count: usize) -> Vec<Interval> {
        self.until(from_ns, to_ns).cut(from_ns, to_ns, count)
    }

    /// The same for a window that may end before the latest moment, `now_ns`. The intervals say how wide the buckets are.
    pub(crate) fn coarse(
        &self,
        (from_ns, to_ns): (u64, u64),
        count: usize,
        now_ns: u64,
    ) -> Vec<Interval> {
        let mut course = self.until(from_ns, now_ns.max(to_ns));
        let end = usize::try_from(course.place(to_ns)).unwrap_or(usize::MAX);
        course.buckets.truncate(end.saturating_add(1));
        let mut intervals = course.cut(from_ns, now_ns, count);
        for interval in &mut intervals {
            interval.detail_ns = Some(course.width_ns);
        }
        intervals
    }

    /// The row that has the finest buckets from `from_ns` on, with buckets up to `to_ns`.
    fn until(&self, from_ns: u64, to_ns: u64) -> Course {
        let mut copy = self.clone();
        copy.advance(to_ns);
        let has_last = !copy.last.buckets.is_empty() && copy.last.start_ns <= from_ns;
        match has_last && copy.last.width_ns < copy.whole.width_ns {
            true => copy.last,
            false => copy.whole,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// After a day the last minute is still resolved to half a second, and checkpoints of an older version are read.
    #[test]
    fn the_last_minutes_stay_fine() {
        let mut series = Series::default();
        for i in 0..86_400u64 {
            series.note(i * 1_000_000_000, i, 1, 1, 0);
        }
        assert!(series.last.buckets.len() <= BUCKETS);
        let now = 86_399_500_000_000;
        let cut = series.cut(now - 60_000_000_000, now, 20);
        assert_eq!(cut.len(), 20);
        assert!(cut.iter().all(|i| (2..=4).contains(&i.allocs)), "{cut:#?}");
        assert_eq!(cut.last().unwrap().max_allocated_bytes, 86_399);
        let long = series.cut(0, now, 4);
        assert_eq!(long.iter().map(|i| i.allocs).sum::<u64>(), 86_400);
        // A silence of a day, and of a part of a minute.
        let later = series.cut(now, now + 90_000_000_000_000, 10);
        assert!(
            later
                .iter()
                .skip(1)
                .all(|i| i.min_allocated_bytes == 86_399)
        );
        let mut map = serde_json::to_value(&series).unwrap();
        map.as_object_mut().unwrap().remove("last");
        let old: Series = serde_json::from_value(map).unwrap();
        assert!(old.last.buckets.is_empty());
        assert_eq!(old.cut(0, now, 4), long);
    }

    #[test]
    fn counts_are_told_once_and_levels_repeat() {
        let mut series = Series::default();
        for i in 0..1000u64 {
            series.note(5_000_000_000 + i * 10_000_000, i * 100, 1 << 20, 2, 1);
        }
        assert!(series.whole.buckets.len() <= BUCKETS);
        let end = 5_000_000_000 + 999 * 10_000_000;
        let cut = series.cut(5_000_000_000, end, 20);
        assert_eq!(cut.len(), 20);
        assert_eq!(cut.iter().map(|i| i.allocs).sum::<u64>(), 2000);
        assert_eq!(cut.iter().map(|i| i.frees).sum::<u64>(), 1000);
        assert_eq!(cut[0].min_allocated_bytes, 0);
        assert_eq!(cut[19].max_allocated_bytes, 99_900);
        assert!(cut.windows(2).all(|w| w[0].to_boot_ns == w[1].from_boot_ns));
        // Each interval has what came within it, and nothing else.
        for (window, count) in [(7_777_777_777, 13), (3_000_000_000, 20), (1, 4)] {
            let cut = series.cut(end - window, end, count);
            assert!(cut.len() <= count && !cut.is_empty());
            for interval in cut {
                let came = |i: &u64| {
                    let at = 5_000_000_000 + i * 10_000_000;
                    at >= interval.from_boot_ns
                        && (at < interval.to_boot_ns || interval.to_boot_ns == end)
                };
                let within: Vec<u64> = (0..1000).filter(came).collect();
                assert_eq!(interval.allocs, 2 * within.len() as u64, "{interval:?}");
                assert_eq!(interval.max_allocated_bytes, within.last().unwrap() * 100);
            }
        }
        // A long silence repeats the level.
        let later = series.cut(end + 1_000_000_000_000, end + 2_000_000_000_000, 4);
        assert!(
            later
                .iter()
                .all(|i| i.min_allocated_bytes == 99_900 && i.allocs == 0)
        );
    }
}
