//! The answer to `fluctuation`: how a device's memory changed over time.
//!
//! Owns: the cut into intervals, and the numbers for swing and slope. Refuses: to keep anything; see `state::series`.

use super::affects::Answer;
use super::question::{OfOne, One, Senseless, answer};
use crate::Ledger;
use crate::course::{DeviceCourse, DeviceLevel, Level};
use crate::event::{CoverageNote, ProcessHandle};
use crate::growth::slope::{median, slopes};
use crate::report::{AsOf, Source};
use crate::state::device::Device;
use crate::state::process::Process;
use crate::state::series::Series;
use memscope_proto::v1;
use memscope_proto::v1::Interval;

/// Number of intervals when the question does not give one.
const DEFAULT_INTERVALS: usize = 20;
/// Most intervals that the course which the ledger keeps is cut into, which is not any finer; and most of which the slope is computed,
/// from every pair.
const MOST_INTERVALS: usize = 512;
/// Most intervals that a question may ask for.
const TOO_MANY: u32 = 10_000;

impl OfOne for v1::FluctuationRequest {
    type Reply = v1::FluctuationResponse;
    const KIND: Option<Answer> = Some(Answer::Fluctuation);

    fn pid(&self) -> u32 {
        self.pid
    }

    fn check(&self) -> Result<(), Senseless> {
        if self
            .from_boot_ns
            .zip(self.to_boot_ns)
            .is_some_and(|(from, to)| from > to)
        {
            return Err(Senseless {
                what: "the window ends before it begins".to_owned(),
                hint: "give the earlier moment first".to_owned(),
            });
        }
        if self.intervals > TOO_MANY {
            return Err(Senseless {
                what: format!("{} intervals are too many", self.intervals),
                hint: format!("ask for at most {TOO_MANY}"),
            });
        }
        Ok(())
    }

    fn answer(&self, one: &One<'_>) -> v1::FluctuationResponse {
        answer!(FluctuationResponse of one, { devices: devices(self, one) })
    }
}

fn devices(asked: &v1::FluctuationRequest, one: &One<'_>) -> Vec<v1::DeviceFluctuation> {
    let process = one.process;
    let now = process.moment(one.as_of);
    let count = count(asked.intervals).min(MOST_INTERVALS);
    let mut devices = Vec::new();
    for row in process.visible_devices() {
        let (source, series) = series(process, row);
        if series.is_empty() {
            continue;
        }
        let from = match asked.window_ns {
            0 => series.start_ns(),
            window => now.saturating_sub(window).max(series.start_ns()),
        };
        devices.push(device(DeviceCourse {
            device: row.ordinal,
            source,
            intervals: series.cut(from, now.max(from), count),
        }));
    }
    devices
}

/// Number of intervals that are asked for.
fn count(asked: u32) -> usize {
    match asked as usize {
        0 => DEFAULT_INTERVALS,
        count => count,
    }
}

fn series<'a>(process: &Process, row: &'a Device) -> (Source, &'a Series) {
    match source(process, row) {
        Source::Pool => (Source::Pool, &row.pool.series),
        Source::Driver => (Source::Driver, &row.driver.series),
    }
}

fn source(process: &Process, row: &Device) -> Source {
    // Where the blocks of the pool cannot be seen, the bytes held from the driver are the best substitute.
    if process.is_pool_hidden() {
        Source::Driver
    } else {
        process.source_of(row)
    }
}

fn device(course: DeviceCourse) -> v1::DeviceFluctuation {
    let overall = overall(&course.intervals);
    v1::DeviceFluctuation {
        device: course.device,
        source: v1::Source::from(course.source).into(),
        overall: Some(overall),
        swing: swing(&overall),
        floor_slope_bytes_per_s: slope(&course.intervals),
        intervals: course.intervals,
    }
}

impl Ledger {
    /// What each device of a process holds now, as `fluctuation` tells it.
    pub fn levels(&self, p: ProcessHandle) -> impl Iterator<Item = DeviceLevel> {
        let process = self.process(p);
        process.into_iter().flat_map(|process| {
            let rows = process.devices.iter();
            rows.map(|row| level(process, row))
        })
    }

    /// The coarse course of a process's devices, from the buckets that are kept: at most `count` intervals, which begin and end
    /// where buckets do. `now_ns` is the moment of this ledger.
    pub fn coarse(
        &self,
        p: ProcessHandle,
        (from_ns, to_ns): (u64, u64),
        count: usize,
        now_ns: u64,
    ) -> Vec<DeviceCourse> {
        let mut courses = Vec::new();
        let Some(process) = self.process(p) else {
            return courses;
        };
        for row in process.visible_devices() {
            let (source, series) = series(process, row);
            if series.is_empty() || series.start_ns() > to_ns {
                continue;
            }
            courses.push(DeviceCourse {
                device: row.ordinal,
                source,
                intervals: series.coarse((from_ns, to_ns), count.min(MOST_INTERVALS), now_ns),
            });
        }
        courses
    }

    /// The moment up to which something can be known of a process: now, or its end.
    pub fn known_until(&self, p: ProcessHandle, as_of: AsOf) -> Option<u64> {
        Some(self.process(p)?.moment(as_of))
    }

    /// The answer about a window, from the courses of the devices in it. `notes` say what limits them beside what limits all answers
    /// about the process.
    pub fn fluctuation(
        &self,
        p: ProcessHandle,
        as_of: AsOf,
        courses: Vec<DeviceCourse>,
        notes: Vec<CoverageNote>,
    ) -> Option<v1::FluctuationResponse> {
        let one = &One {
            process: self.process(p)?,
            as_of,
            clock: self.clock(),
        };
        // All that was ever counted there turned out to be elsewhere.
        let was_moved = |course: &DeviceCourse| {
            let mut rows = one.process.devices.iter();
            rows.any(|row| row.ordinal == course.device && !row.is_seen())
        };
        let courses = courses.into_iter();
        let courses = courses.filter(|course| !course.intervals.is_empty() && !was_moved(course));
        let mut answer =
            answer!(FluctuationResponse of one, { devices: courses.map(device).collect() });
        answer
            .coverage
            .extend(notes.into_iter().map(v1::CoverageNote::from));
        Some(answer)
    }
}

fn level(process: &Process, row: &Device) -> DeviceLevel {
    let source = source(process, row);
    let (level, allocs, frees) = match source {
        Source::Driver => {
            let held = row.driver.held().bytes;
            let level = Level {
                allocated: held,
                reserved: held,
            };
            let driver = &row.driver;
            (Some(level), driver.alloc_count, driver.free_count)
        }
        Source::Pool => {
            let known = process
                .allocated_bytes(row)
                .zip(process.reserved_bytes(row));
            let level = known.map(|(allocated, reserved)| Level {
                allocated,
                reserved,
            });
            (level, row.pool.alloc_count, row.pool.free_count)
        }
    };
    DeviceLevel {
        device: row.ordinal,
        source,
        seen: row.is_seen(),
        level,
        allocs,
        frees,
    }
}

fn overall(intervals: &[Interval]) -> Interval {
    let mut all = intervals.iter();
    let Some(first) = all.next() else {
        return Interval::default();
    };
    all.fold(*first, |sum, next| Interval {
        from_boot_ns: sum.from_boot_ns,
        to_boot_ns: next.to_boot_ns,
        min_allocated_bytes: sum.min_allocated_bytes.min(next.min_allocated_bytes),
        max_allocated_bytes: sum.max_allocated_bytes.max(next.max_allocated_bytes),
        min_reserved_bytes: sum.min_reserved_bytes.min(next.min_reserved_bytes),
        max_reserved_bytes: sum.max_reserved_bytes.max(next.max_reserved_bytes),
        allocs: sum.allocs + next.allocs,
        frees: sum.frees + next.frees,
        last_allocated_bytes: next.last_allocated_bytes,
        last_reserved_bytes: next.last_reserved_bytes,
        detail_ns: sum.detail_ns.max(next.detail_ns),
    })
}

fn swing(overall: &Interval) -> f64 {
    if overall.max_allocated_bytes == 0 {
        0.0
    } else {
        1.0 - overall.min_allocated_bytes as f64 / overall.max_allocated_bytes as f64
    }
}

/// The median of the slopes between all pairs of minima (Theil–Sen), in bytes per second: a single outlier does not
/// change it.
fn slope(intervals: &[Interval]) -> f64 {
    let each = intervals.len().div_ceil(MOST_INTERVALS).max(1);
    let points: Vec<(f64, f64)> = intervals
        .chunks(each)
        .map(|part| {
            let i = overall(part);
            let middle = i.from_boot_ns as f64 / 2.0 + i.to_boot_ns as f64 / 2.0;
            (middle / 1e9, i.min_allocated_bytes as f64)
        })
        .collect();
    median(&slopes(&points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_ignores_outliers() {
        let mut intervals: Vec<Interval> = (0..20u64)
            .map(|i| Interval {
                from_boot_ns: i * 1_000_000_000,
                to_boot_ns: (i + 1) * 1_000_000_000,
                min_allocated_bytes: 1000 + 50 * i,
                ..Interval::default()
            })
            .collect();
        assert!((slope(&intervals) - 50.0).abs() < 1e-6);
        intervals[7].min_allocated_bytes = 9_000_000;
        assert!((slope(&intervals) - 50.0).abs() < 5.0);
        assert_eq!(slope(&[]), 0.0);
        assert_eq!(slope(&intervals[..1]), 0.0);
    }
}
