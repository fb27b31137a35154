//! Numbers for people.

/// `45.1%`, of hundredths of a percent.
pub(crate) fn share(hundredths: u64) -> String {
    format!("{}.{}%", hundredths / 100, hundredths / 10 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_well() {
        assert_eq!(share(4519), "45.1%");
        assert_eq!(share(9999), "99.9%");
    }
}
