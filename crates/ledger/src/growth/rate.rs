//! How fast a floor rises, and how sure that is.
//!
//! Owns: the rate of a row of rises, and its interval of 95 %. The rate is the median of the slopes between all pairs
//! of windows (Theil–Sen), which single outliers do not change. The interval is that of the mean rise, by batch means:
//! the rises of a floor depend on each other (a block every tenth step, a burst, a cache that lifts the floor and lets
//! it fall), so the means of batches are compared with each other (Student's t), for batches of one, two, four, …
//! windows, and the widest interval counts. A rise that never varied may still vary: what was not seen in n windows may
//! happen at a rate of up to 3 / n (the rule of three), so every interval has a minimum width. Refuses: where a growth
//! begins and whether it is one; see `trend`.

use crate::growth::slope;

/// Minimum number of batches that are compared.
const BATCHES: usize = 4;
/// The rule of three: what was not seen in n windows has a rate below 3 / n, with a confidence of 95 %.
const UNSEEN: f64 = 3.0;
/// The 97.5 % quantile of the normal distribution.
const NORMAL: f64 = 1.959_964;

/// Computes the rate per window from the rises from window to window. Returns the lower end of its interval, the rate
/// and the upper end. `usual` is the size of a usual rise, from which the minimum width of the interval follows.
pub(crate) fn of_rises(rises: &[f64], usual: f64) -> [f64; 3] {
    if rises.is_empty() {
        return [0.0; 3];
    }
    let mut sum = 0.0;
    let row = std::iter::once(0.0).chain(rises.iter().map(|rise| {
        sum += rise;
        sum
    }));
    let rate = slope::of_row(row);
    let count = rises.len() as f64;
    let mean = rises.iter().sum::<f64>() / count;
    let mut half = UNSEEN * usual / count;
    let mut length = 1;
    while rises.len() / length >= BATCHES {
        half = half.max(of_batches(rises, length));
        length *= 2;
    }
    let low = (mean - half).min(rate);
    let low = if rate > 0.0 { low.max(0.0) } else { low };
    [low, rate, (mean + half).max(rate)]
}

/// Half the width of the interval of the mean, from batches of `length` windows.
fn of_batches(rises: &[f64], length: usize) -> f64 {
    let means: Vec<f64> = rises
        .rchunks_exact(length)
        .map(|batch| batch.iter().sum::<f64>() / length as f64)
        .collect();
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let squares: f64 = means.iter().map(|one| (one - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    student(count - 1.0) * deviation / count.sqrt()
}

/// The 97.5 % quantile of Student's t, by the expansion of Cornish and Fisher. The error is below 1 % from 3 degrees of
/// freedom on.
fn student(freedom: f64) -> f64 {
    let z = NORMAL;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        for (freedom, quantile) in [(3.0, 3.182), (7.0, 2.365), (15.0, 2.131), (100.0, 1.984)] {
            assert!(
                (student(freedom) / quantile - 1.0).abs() < 0.01,
                "{freedom}"
            );
        }
    }

    #[test]
    fn what_never_varied_is_known_to_three_in_all() {
        let [low, rate, high] = of_rises(&[2.0; 60], 2.0);
        assert_eq!(rate, 2.0);
        assert!(
            (low - 1.9).abs() < 1e-9 && (high - 2.1).abs() < 1e-9,
            "{low} {high}"
        );
        assert_eq!(of_rises(&[], 1.0), [0.0; 3]);
    }

    #[test]
    fn rates_have_intervals() {
        let rises: Vec<f64> = (0..60).map(|i| f64::from(i * 7 % 4) + 1.5).collect();
        let [low, rate, high] = of_rises(&rises, 1.0);
        assert!(
            low < 3.0 && 3.0 < high && (rate - 3.0).abs() < 0.1,
            "{low} {rate} {high}"
        );
        assert!(high - low < 1.0, "{low} {high}");
        // A faster warm-up widens the interval, and changes the rate little.
        let mut warm = vec![40.0; 10];
        warm.extend([3.0; 60]);
        let [low, rate, high] = of_rises(&warm, 3.0);
        assert!(
            low <= 3.0 && 3.0 <= high && rate < 4.0,
            "{low} {rate} {high}"
        );
    }
}
