//! Numbers of sites: the functions of libraries that have had a probe.

use memscope_common::Cookie;

use crate::probe::ProbeError;

/// The number of a further function, where so many have been met. The programs have a bound for it: a larger number would be
/// that of another function.
pub(super) fn next_site(known: usize) -> Result<u32, ProbeError> {
    let next = u32::try_from(known + 1).ok();
    next.filter(|next| *next <= Cookie::MAX_SITE)
        .ok_or(ProbeError::Full {
            what: "another function of a library",
            most: Cookie::MAX_SITE,
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    #[test]
    fn no_two_functions_have_one_number() {
        let most = Cookie::MAX_SITE;
        assert_eq!(next_site(0).unwrap(), 1);
        let last = next_site(most as usize - 1).unwrap();
        assert_eq!(last, most);
        assert_eq!(Cookie::new(last, 1).site(), last);
        let refused = next_site(most as usize).unwrap_err().to_string();
        assert_eq!(
            refused,
            "there is no room for another function of a library: 1048575 are known already"
        );
        Met {
            what: "functions of libraries that had a probe since memscoped was started",
            most: constant("memscope-common/src/cookie.rs", "MAX_SITE"),
            beyond: "further ones get no probe: an attach is refused, and what is loaded later is not probed",
            told: "the error with the number; `not_probed` in coverage",
            test: "no_two_functions_have_one_number",
        }
        .is_told();
    }
}
