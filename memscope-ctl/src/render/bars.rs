//! Levels over time, drawn as bars.

/// Bars from the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws levels as bars over `height` lines, the topmost line first. The lowest level is the lowest bar, and the
/// highest one fills all lines. Levels that are all the same are drawn low.
pub(crate) fn bars(levels: &[u64], height: usize) -> Vec<String> {
    let low = levels.iter().min().copied().unwrap_or_default();
    let high = levels.iter().max().copied().unwrap_or_default();
    let steps = (height * BARS.len()) as f64;
    let eighths: Vec<usize> = levels
        .iter()
        .map(|level| {
            let share = (level - low) as f64 / (high - low).max(1) as f64;
            1 + (share * (steps - 1.0)).round() as usize
        })
        .collect();
    (0..height)
        .rev()
        .map(|line| {
            let below = line * BARS.len();
            let bar = |eighths: &usize| match eighths.saturating_sub(below) {
                0 => ' ',
                full => BARS[full.min(BARS.len()) - 1],
            };
            eighths.iter().map(bar).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_go_from_the_lowest_level_to_the_highest() {
        assert_eq!(bars(&[10, 17, 13], 1), ["▁█▄"]);
        assert_eq!(bars(&[0, 15, 8], 2), [" █▁", "▁██"]);
        assert_eq!(bars(&[7, 7], 2), ["  ", "▁▁"]);
        assert_eq!(bars(&[0, u64::MAX], 1), ["▁█"]);
        assert_eq!(bars(&[], 1), [""]);
    }
}
