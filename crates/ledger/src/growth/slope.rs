//! The slope of points by Theil–Sen, which single outliers do not change.
//!
//! Owns: the slopes between all pairs of points, and their median. Refuses: to know what the points mean.

/// The slopes between all pairs of points (x, y), ascending. Slopes that are not finite are left out.
pub(crate) fn slopes(points: &[(f64, f64)]) -> Vec<f64> {
    let mut slopes: Vec<f64> = points
        .iter()
        .enumerate()
        .flat_map(|(i, a)| {
            let rest = points.get(i + 1..).unwrap_or_default();
            rest.iter().map(move |b| (b.1 - a.1) / (b.0 - a.0))
        })
        .filter(|slope| slope.is_finite())
        .collect();
    slopes.sort_by(f64::total_cmp);
    slopes
}

/// The middle of ascending values; 0 where there are none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => at(middle),
        _ => (at(middle - 1) + at(middle)) / 2.0,
    }
}

/// The median slope of values at equal distances.
pub(crate) fn of_row(values: impl IntoIterator<Item = f64>) -> f64 {
    let points: Vec<(f64, f64)> = values
        .into_iter()
        .enumerate()
        .map(|(place, value)| (place as f64, value))
        .collect();
    median(&slopes(&points))
}
