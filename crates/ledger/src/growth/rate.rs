//! How fast a floor rises, and how sure that is.
//!
//! Owns: the rate of a row of rises, and its interval of 95 %. The rate is the median of the slopes between all pairs of windows
//! (Theil–Sen), which single windows that are off do not move. The interval is that of the mean rise, by batch means: the rises of a floor
//! depend on each other (a block every tenth step, a burst, a cache that lifts the floor and lets it fall), so the means of
//! batches are compared with each other (Student's t), for batches of one, two, four, … windows, and the widest
//! interval counts. What never varied may still vary: of what was not seen in n steps, three in n may be expected (the rule of
//! three), so that no interval is without width. Refuses: where a growth begins and whether it is one; see `trend`.

use crate::growth::slope;

/// Fewest batches that are compared.
const BATCHES: usize = 4;
/// What may have been missed, in rises: with none seen in n, fewer than 3 / n at 95 %.
const UNSEEN: f64 = 3.0;
/// The normal distribution's quantile of 97.5 %.
const NORMAL: f64 = 1.959_964;

/// Lower end, rate and upper end, per window, of the rises from window to window. `usual` is what one rise is at least.
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

/// Half of the interval of the mean, by batches of so many windows.
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

/// The quantile of 97.5 % of Student's t, by the expansion of Cornish and Fisher: from 3 degrees of freedom on to 1 %.
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
        // A warm-up that was faster widens it, and moves the rate little.
        let mut warm = vec![40.0; 10];
        warm.extend([3.0; 60]);
        let [low, rate, high] = of_rises(&warm, 3.0);
        assert!(
            low <= 3.0 && 3.0 <= high && rate < 4.0,
            "{low} {rate} {high}"
        );
    }
}
