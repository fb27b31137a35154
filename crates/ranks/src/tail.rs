//! The chance that values are so far away from the others by themselves.
//!
//! The distances between the outermost of many values, each multiplied by its place from the outside, are independent
//! and of one exponential distribution where the tail of the values is exponential (A. Rényi, 1953). So the distance of
//! a value from the next one is compared with the mean of the distances behind it, without knowing the distribution as a
//! whole. A normal distribution has a lighter tail, for which this is cautious. For a tail that is heavier the same holds
//! of logarithms.

/// Distances behind the outermost value that are taken into the mean, where there are so many.
const DEPTH: usize = 20;
/// Smallest mean of logarithms: below it the others would be equal, which is luck and no measure.
const LEAST_LOGARITHM: f64 = 0.1;

/// The chance that the smallest of `count` outermost values is at least at `distance`, given how far the others are away
/// from their centre (`others`, largest first). Distances are shares of the level; those below `least` are not told apart.
pub(crate) fn chance(
    distance: f64,
    count: usize,
    others: &[f64],
    least: f64,
    heavy_from: f64,
) -> f64 {
    let depth = DEPTH.min(others.len().saturating_sub(2));
    let (Some(next), Some(behind)) = (others.first(), others.get(depth)) else {
        return 1.0;
    };
    if depth < 2 {
        return 1.0;
    }
    let outer = others.get(..depth).unwrap_or_default();
    let mean = |of: &dyn Fn(f64) -> f64| outer.iter().copied().map(of).sum::<f64>() / depth as f64;
    let by = |spacing: f64, scale: f64| {
        let ratio = count as f64 * spacing.max(0.0) / scale;
        (1.0 + ratio / depth as f64).powi(-i32::try_from(depth).unwrap_or(i32::MAX))
    };
    // A fifth of what is not told apart is the smallest scale: a few equal values do not make a small distance a large one.
    let linear = by(distance - next, mean(&|one| one - behind).max(least / 5.0));
    let floor = |one: f64| one.max(least / 2.0);
    let logarithms = mean(&|one| (floor(one) / floor(*behind)).ln());
    let squares = mean(&|one| (floor(one) / floor(*behind)).ln().powi(2));
    if index(logarithms, squares) < heavy_from {
        return linear;
    }
    let spacing = (floor(distance) / floor(*next)).ln();
    linear.max(by(spacing, logarithms.max(LEAST_LOGARITHM)))
}

/// The moment estimate of the tail index (Dekkers, Einmahl and de Haan, 1989) from the first two moments of the
/// logarithms: 0 for an exponential tail, above it for a heavier one.
fn index(mean: f64, squares: f64) -> f64 {
    if squares <= 0.0 || mean <= 0.0 {
        return 0.0;
    }
    let ratio = (mean * mean / squares).min(1.0 - 1e-9);
    mean + 1.0 - 0.5 / (1.0 - ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn farther_is_less_likely_and_more_spread_more() {
        let spread = |scale: f64| -> Vec<f64> {
            (1..=100)
                .map(|place| scale * (100.0 / f64::from(place)).ln())
                .collect()
        };
        let (narrow, wide) = (spread(0.01), spread(0.03));
        let mut before = 1.0;
        for distance in [0.05, 0.06, 0.08, 0.12, 0.2, 0.5] {
            let here = chance(distance, 1, &narrow, 0.02, 0.4);
            assert!(here <= before, "{distance}: {here} after {before}");
            assert!(here <= chance(distance, 1, &wide, 0.02, 0.4));
            assert!(here <= chance(distance, 1, &narrow, 0.02, f64::NEG_INFINITY));
            before = here;
        }
        assert!(before < 1e-9);
    }

    #[test]
    fn two_others_are_no_measure() {
        assert_eq!(chance(9.0, 1, &[0.01, 0.0], 0.02, 0.4), 1.0);
        assert_eq!(chance(9.0, 1, &[], 0.02, 0.4), 1.0);
        assert!(chance(9.0, 1, &[0.0; 7], 0.02, 0.4) < 1e-3);
    }
}
