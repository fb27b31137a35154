//! The answer to `fluctuation`: how a device's memory changed over time.
//!
//! Owns: the cut into intervals, and the numbers for swing and slope. Refuses: to keep anything; see `state::series`.

use super::affects::Answer;
use super::question::{OfOne, One, Senseless, answer};
use crate::growth::slope::{median, slopes};
use crate::report::Source;
use memscope_proto::v1;
use memscope_proto::v1::Interval;

/// Number of intervals when the question does not give one.
const DEFAULT_INTERVALS: usize = 20;
/// Most intervals in an answer. The course over time is not kept any finer, and the slope is computed from every pair.
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
    let count = match asked.intervals as usize {
        0 => DEFAULT_INTERVALS,
        count => count.min(MOST_INTERVALS),
    };
    let mut devices = Vec::new();
    for row in process.visible_devices() {
        // Where the blocks of the pool cannot be seen, the bytes held from the driver are the best substitute.
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
        let from = match asked.window_ns {
            0 => series.start_ns(),
            window => now.saturating_sub(window).max(series.start_ns()),
        };
        let intervals = series.cut(from, now.max(from), count);
        let overall = overall(&intervals);
        devices.push(v1::DeviceFluctuation {
            device: row.ordinal,
            source: v1::Source::from(source).into(),
            overall: Some(overall),
            swing: swing(&overall),
            floor_slope_bytes_per_s: slope(&intervals),
            intervals,
        });
    }
    devices
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
    let points: Vec<(f64, f64)> = intervals
        .iter()
        .map(|i| {
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
