//! Formats numbers for people.

/// A share as people read it, such as `45.1%`, from hundredths of a percent.
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
