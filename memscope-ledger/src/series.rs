//! The course of a pool over time.
//!
//! Owns: a bounded row of time buckets; when it is full, neighbours are merged and each bucket
//! covers twice the time. Refuses: single events.

use crate::report::Interval;
use serde::{Deserialize, Serialize};

/// Buckets kept.
const BUCKETS: usize = 512;
/// Width of the first buckets.
const FIRST_WIDTH_NS: u64 = 1_000_000;

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

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Series {
    start_ns: u64,
    width_ns: u64,
    /// The last one is still open.
    buckets: Vec<Bucket>,
    allocated: u64,
    reserved: u64,
}

impl Series {
    /// The level at `time_ns`, and how many blocks came and went with it.
    pub(crate) fn note(
        &mut self,
        time_ns: u64,
        allocated: u64,
        reserved: u64,
        allocs: u64,
        frees: u64,
    ) {
        if self.buckets.is_empty() {
            self.start_ns = time_ns;
            self.width_ns = FIRST_WIDTH_NS;
            self.buckets.push(Bucket::at(allocated, reserved));
        } else {
            self.advance(time_ns);
        }
        self.allocated = allocated;
        self.reserved = reserved;
        if let Some(last) = self.buckets.last_mut() {
            last.level(allocated, reserved);
            last.allocs += allocs;
            last.frees += frees;
        }
    }

    /// Opens buckets up to `time_ns`; the time between repeats the level.
    fn advance(&mut self, time_ns: u64) {
        let open_end = self
            .start_ns
            .saturating_add(self.width_ns.saturating_mul(self.buckets.len() as u64));
        if time_ns < open_end {
            return;
        }
        let mut wanted = time_ns.saturating_sub(self.start_ns) / self.width_ns;
        while wanted >= BUCKETS as u64 {
            self.halve();
            wanted = time_ns.saturating_sub(self.start_ns) / self.width_ns;
        }
        let repeat = Bucket::at(self.allocated, self.reserved);
        while (self.buckets.len() as u64) <= wanted {
            self.buckets.push(repeat);
        }
    }

    fn halve(&mut self) {
        self.buckets = self
            .buckets
            .chunks(2)
            .map(|pair| match pair {
                [left, right] => left.merged(*right),
                [one] => *one,
                _ => Bucket::default(),
            })
            .collect();
        self.width_ns = self.width_ns.saturating_mul(2);
    }

    /// Whether anything was noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// When the first level was noted.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// The time from `from_ns` to `to_ns` in `count` intervals. Counts go to the interval in which
    /// their bucket starts, so that none is told twice; levels to all that the bucket touches.
    pub(crate) fn cut(&self, from_ns: u64, to_ns: u64, count: usize) -> Vec<Interval> {
        let mut copy = self.clone();
        copy.advance(to_ns);
        let count = count.max(1) as u64;
        let span = to_ns.saturating_sub(from_ns).max(1);
        let edge = |i: u64| {
            let part = u128::from(span) * u128::from(i) / u128::from(count);
            from_ns.saturating_add(part as u64)
        };
        (0..count)
            .map(|i| copy.interval(edge(i), edge(i + 1), i + 1 == count))
            .collect()
    }

    fn interval(&self, from_ns: u64, to_ns: u64, last: bool) -> Interval {
        let width = self.width_ns.max(1);
        let first = from_ns.saturating_sub(self.start_ns) / width;
        let end = to_ns.saturating_sub(self.start_ns).div_ceil(width);
        let end = if last {
            end.max(first + 1) + 1
        } else {
            end.max(first + 1)
        };
        let mut seen: Option<Bucket> = None;
        let (mut allocs, mut frees) = (0, 0);
        for index in first..end.min(self.buckets.len() as u64) {
            let Some(bucket) = self.buckets.get(index as usize) else {
                break;
            };
            let starts = self.start_ns.saturating_add(index.saturating_mul(width));
            if starts > to_ns {
                break;
            }
            seen = Some(seen.map_or(*bucket, |seen| seen.merged(*bucket)));
            let belongs = starts >= from_ns && (starts < to_ns || last);
            if belongs {
                allocs += bucket.allocs;
                frees += bucket.frees;
            }
        }
        let level = seen.unwrap_or(Bucket::at(self.allocated, self.reserved));
        Interval {
            from_ns,
            to_ns,
            min_allocated_bytes: level.min_allocated,
            max_allocated_bytes: level.max_allocated,
            min_reserved_bytes: level.min_reserved,
            max_reserved_bytes: level.max_reserved,
            allocs,
            frees,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_once_and_levels_repeat() {
        let mut series = Series::default();
        for i in 0..1000u64 {
            series.note(5_000_000_000 + i * 10_000_000, i * 100, 1 << 20, 2, 1);
        }
        assert!(series.buckets.len() <= BUCKETS);
        let end = 5_000_000_000 + 999 * 10_000_000;
        let cut = series.cut(5_000_000_000, end, 20);
        assert_eq!(cut.len(), 20);
        assert_eq!(cut.iter().map(|i| i.allocs).sum::<u64>(), 2000);
        assert_eq!(cut.iter().map(|i| i.frees).sum::<u64>(), 1000);
        assert_eq!(cut[0].min_allocated_bytes, 0);
        assert_eq!(cut[19].max_allocated_bytes, 99_900);
        assert!(cut.windows(2).all(|w| w[0].to_ns == w[1].from_ns));
        // A long silence repeats the level.
        let later = series.cut(end + 1_000_000_000_000, end + 2_000_000_000_000, 4);
        assert!(
            later
                .iter()
                .all(|i| i.min_allocated_bytes == 99_900 && i.allocs == 0)
        );
    }
}
