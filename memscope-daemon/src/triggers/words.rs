//! Numbers for people.

/// `1.23 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64 / 1024.0;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

/// `45.1%`, of hundredths of a percent.
pub(crate) fn share(hundredths: u64) -> String {
    format!("{}.{}%", hundredths / 100, hundredths / 10 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_well() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024 * 1024 - 1), "1.00 MiB");
        assert_eq!(bytes(u64::MAX), "16.00 EiB");
        assert_eq!(share(4519), "45.1%");
        assert_eq!(share(9999), "99.9%");
    }
}
