//! The answer to `fluctuation`: how a device's memory went over time.
//!
//! Owns: the cut into intervals, swing and slope. Refuses: to keep anything; see `series`.

use crate::coverage;
use crate::process::Process;
use crate::report::{
    AsOf, DeviceFluctuation, FluctuationQuery, FluctuationReport, Interval, Source,
};
use crate::slope::{median, slopes};

/// Intervals when none are asked for.
const DEFAULT_INTERVALS: usize = 20;
/// The course is not known any finer, and the slope looks at every pair.
const MOST_INTERVALS: usize = 512;

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf, q: &FluctuationQuery) -> FluctuationReport {
    let now = process.moment(as_of);
    let count = match q.intervals {
        0 => DEFAULT_INTERVALS,
        count => count.min(MOST_INTERVALS),
    };
    let mut devices = Vec::new();
    for row in process.visible_devices() {
        // Where the pool cannot be seen into, what is held from the driver is the next best.
        let source = if process.is_pool_hidden() {
            Source::Driver
        } else {
            process.source_of(row)
        };
        let series = match source {
            Source::Pool => &row.pool.series,
            Source::Driver => &row.driver.series,
        };
        if series.is_empty() {
            continue;
        }
        let from = match q.window_ns {
            0 => series.start_ns(),
            window => now.saturating_sub(window).max(series.start_ns()),
        };
        let intervals = series.cut(from, now.max(from), count);
        let overall = overall(&intervals);
        devices.push(DeviceFluctuation {
            device: row.ordinal,
            source,
            overall,
            swing: swing(&overall),
            floor_slope_bytes_per_s: slope(&intervals),
            intervals,
        });
    }
    FluctuationReport {
        process: process.summary(),
        as_of,
        devices,
        coverage: coverage::notes(process),
    }
}

fn overall(intervals: &[Interval]) -> Interval {
    let mut all = intervals.iter();
    let Some(first) = all.next() else {
        return Interval::default();
    };
    all.fold(*first, |sum, next| Interval {
        from_ns: sum.from_ns,
        to_ns: next.to_ns,
        min_allocated_bytes: sum.min_allocated_bytes.min(next.min_allocated_bytes),
        max_allocated_bytes: sum.max_allocated_bytes.max(next.max_allocated_bytes),
        min_reserved_bytes: sum.min_reserved_bytes.min(next.min_reserved_bytes),
        max_reserved_bytes: sum.max_reserved_bytes.max(next.max_reserved_bytes),
        allocs: sum.allocs + next.allocs,
        frees: sum.frees + next.frees,
    })
}

fn swing(overall: &Interval) -> f64 {
    if overall.max_allocated_bytes == 0 {
        0.0
    } else {
        1.0 - overall.min_allocated_bytes as f64 / overall.max_allocated_bytes as f64
    }
}

/// The median of the slopes between all pairs of minima (Theil–Sen): an interval that is off does
/// not move it.
fn slope(intervals: &[Interval]) -> f64 {
    let points: Vec<(f64, f64)> = intervals
        .iter()
        .map(|i| {
            let middle = i.from_ns as f64 / 2.0 + i.to_ns as f64 / 2.0;
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
                from_ns: i * 1_000_000_000,
                to_ns: (i + 1) * 1_000_000_000,
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
