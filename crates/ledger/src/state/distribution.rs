//! Histograms of sizes and lifetimes.
//!
//! Owns: bounded counting of values. Refuses: to keep the values.

use hdrhistogram::Histogram;
use memscope_proto::v1::{Bucket, Distribution};
use serde::{Deserialize, Serialize};

/// Values above 2^50 (a pebibyte, 13 days in nanoseconds) are counted as 2^50 for the quantiles.
const HIGHEST: u64 = 1 << 50;

/// Counts values: exact minimum, maximum, mean and powers of two, quantiles within 1 %.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recorder {
    inner: Option<Box<Inner>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
struct Inner {
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
    /// `powers[k]`: values in (2^(k-1), 2^k]; 0 and 1 in the first.
    powers: [u64; 65],
    /// `None` only if the library refuses the bounds, which are constants.
    quantiles: Option<Histogram<u64>>,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
            powers: [0; 65],
            quantiles: Histogram::new_with_bounds(1, HIGHEST, 2).ok(),
        }
    }
}

/// An [`Inner`] as a checkpoint has it: the histogram as its values and their counts.
#[derive(Serialize, Deserialize)]
struct Stored {
    count: u64,
    /// The upper and the lower half of the sum.
    sum: (u64, u64),
    min: u64,
    max: u64,
    powers: Vec<u64>,
    quantiles: Vec<(u64, u64)>,
}

impl From<Inner> for Stored {
    fn from(inner: Inner) -> Stored {
        let quantiles = inner.quantiles.iter().flat_map(Histogram::iter_recorded);
        Stored {
            count: inner.count,
            sum: ((inner.sum >> 64) as u64, inner.sum as u64),
            min: inner.min,
            max: inner.max,
            powers: inner.powers.to_vec(),
            quantiles: quantiles
                .map(|seen| (seen.value_iterated_to(), seen.count_at_value()))
                .collect(),
        }
    }
}

impl From<Stored> for Inner {
    fn from(stored: Stored) -> Inner {
        let mut inner = Inner {
            count: stored.count,
            sum: u128::from(stored.sum.0) << 64 | u128::from(stored.sum.1),
            min: stored.min,
            max: stored.max,
            ..Inner::default()
        };
        for (slot, count) in inner.powers.iter_mut().zip(stored.powers) {
            *slot = count;
        }
        if let Some(histogram) = &mut inner.quantiles {
            for (value, count) in stored.quantiles {
                histogram.saturating_record_n(value.clamp(1, HIGHEST), count);
            }
        }
        inner
    }
}

/// Smallest `k` with `value <= 2^k`.
pub(crate) fn power_class(value: u64) -> u32 {
    if value <= 1 {
        0
    } else {
        64 - (value - 1).leading_zeros()
    }
}

/// Inclusive upper bound of a class of [`power_class`].
pub(crate) fn class_bound(class: u32) -> u64 {
    1u64.checked_shl(class).unwrap_or(u64::MAX)
}

impl Recorder {
    /// Counts one value.
    pub(crate) fn record(&mut self, value: u64) {
        let inner = self.inner.get_or_insert_with(Box::default);
        inner.count += 1;
        inner.sum += u128::from(value);
        inner.min = inner.min.min(value);
        inner.max = inner.max.max(value);
        if let Some(slot) = inner.powers.get_mut(power_class(value) as usize) {
            *slot += 1;
        }
        if let Some(histogram) = &mut inner.quantiles {
            histogram.saturating_record(value.clamp(1, HIGHEST));
        }
    }

    /// The distribution of the values that were counted.
    pub(crate) fn distribution(&self) -> Distribution {
        let Some(inner) = &self.inner else {
            return Distribution::default();
        };
        let quantile = |q: f64| {
            // The library answers with the upper end of a bucket, which may lie past the maximum.
            inner
                .quantiles
                .as_ref()
                .map_or(0, |h| h.value_at_quantile(q))
                .clamp(inner.min, inner.max)
        };
        Distribution {
            count: inner.count,
            min: inner.min,
            mean: inner.sum as f64 / inner.count as f64,
            max: inner.max,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            buckets: (0u32..)
                .zip(inner.powers)
                .filter(|(_, count)| *count > 0)
                .map(|(class, count)| Bucket {
                    up_to: class_bound(class),
                    count,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        assert_eq!(power_class(0), 0);
        assert_eq!(power_class(1), 0);
        assert_eq!(power_class(2), 1);
        assert_eq!(power_class(512), 9);
        assert_eq!(power_class(513), 10);
        assert_eq!(power_class(u64::MAX), 64);
        assert_eq!(class_bound(64), u64::MAX);
        assert_eq!(class_bound(9), 512);
    }

    #[test]
    fn values_are_clamped_not_lost() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.distribution().count, 0);
        for value in [0, 512, 512, u64::MAX] {
            recorder.record(value);
        }
        let seen = recorder.distribution();
        assert_eq!((seen.count, seen.min, seen.max), (4, 0, u64::MAX));
        let buckets: Vec<(u64, u64)> = seen.buckets.iter().map(|b| (b.up_to, b.count)).collect();
        assert_eq!(buckets, [(1, 1), (512, 2), (u64::MAX, 1)]);
        assert!(seen.p50 >= 505 && seen.p50 <= 520, "{}", seen.p50);
    }
}
