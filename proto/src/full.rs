//! How long a device lasts while memory on it grows.

/// Seconds until a device is full. A framework's pool hands out first what it has and has not handed out (`spare_bytes`); what grows beside it
/// takes what is free on the device at once. `None` where nothing grows. The rates are bytes a second.
#[must_use]
pub fn seconds_to_full(
    free_bytes: u64,
    spare_bytes: u64,
    pool_rate: f64,
    other_rate: f64,
) -> Option<f64> {
    let (free, spare) = (free_bytes as f64, spare_bytes as f64);
    let (pool, other) = (pool_rate.max(0.0), other_rate.max(0.0));
    if pool + other <= 0.0 {
        return None;
    }
    let all = (free + spare) / (pool + other);
    // What is beside the pool may take all that is free before the pool needs any of it.
    Some(match pool * all < spare {
        true => free / other,
        false => all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_hands_out_its_own_first() {
        assert_eq!(seconds_to_full(100, 0, 10.0, 0.0), Some(10.0));
        assert_eq!(seconds_to_full(100, 900, 10.0, 0.0), Some(100.0));
        // Nothing beside the pool can take what the pool has.
        assert_eq!(seconds_to_full(100, 900, 0.0, 10.0), Some(10.0));
        assert_eq!(seconds_to_full(100, 900, 1.0, 10.0), Some(10.0));
        // In 50 s the pool takes 500, of which it had 400, and the other takes 500.
        assert_eq!(seconds_to_full(600, 400, 10.0, 10.0), Some(50.0));
        assert_eq!(seconds_to_full(100, 0, 0.0, 0.0), None);
        assert_eq!(seconds_to_full(100, 0, -1.0, 0.0), None);
    }
}
