//! Numbers of sites: the functions of libraries that have had a probe.
//!
//! Owns: which number a function has, and how many numbers the processes of one user may take. Refuses: to give a number
//! back: records of the journal name functions by it.

use std::collections::HashMap;

use memscope_common::Cookie;
use memscope_site::FileIdentity;

use crate::probe::ProbeError;

/// Most functions that are numbered because of the processes of one user who is not root. A user can write any number of
/// libraries with functions of the allocators' names, and there are numbers for a million in all. PyTorch with its libraries
/// takes about a hundred.
const MOST_OF_USER: u32 = 1 << 15;

/// The file, the offset of the function in it, and its name.
pub(super) type Function = (FileIdentity, u64, String);

/// The numbers of the functions.
#[derive(Debug, Default)]
pub(super) struct Sites {
    numbers: HashMap<Function, u32>,
    by_user: HashMap<u32, u32>,
    /// The largest number that was given.
    last: u32,
}

impl Sites {
    /// The numbers that an earlier daemon gave. They count as nobody's.
    pub(super) fn of_earlier(all: Vec<(FileIdentity, u64, String, u32)>) -> Sites {
        let last = all.iter().map(|(_, _, _, number)| *number).max();
        let numbers = all.into_iter();
        Sites {
            last: last.unwrap_or_default(),
            numbers: numbers
                .map(|(file, offset, name, number)| ((file, offset, name), number))
                .collect(),
            by_user: HashMap::new(),
        }
    }

    /// All numbers, in their order, so that the same content gives the same bytes.
    pub(super) fn all(&self) -> Vec<(FileIdentity, u64, String, u32)> {
        let numbers = self.numbers.iter();
        let mut all: Vec<_> = numbers
            .map(|((file, offset, name), number)| (file.clone(), *offset, name.clone(), *number))
            .collect();
        all.sort_by_key(|(_, _, _, number)| *number);
        all
    }

    /// The number of a function that a process of the user has mapped, and whether it is new.
    ///
    /// # Errors
    /// If it is new, and there is no number left, in all or for this user.
    pub(super) fn number(
        &mut self,
        function: Function,
        uid: u32,
    ) -> Result<(u32, bool), ProbeError> {
        if let Some(number) = self.numbers.get(&function) {
            return Ok((*number, false));
        }
        let taken = self.by_user.entry(uid).or_default();
        if uid != 0 && *taken >= MOST_OF_USER {
            return Err(ProbeError::Full {
                what: "another function of a library mapped by this user's processes",
                most: MOST_OF_USER,
            });
        }
        let number = next_site(self.last as usize)?;
        *taken += 1;
        self.last = number;
        self.numbers.insert(function, number);
        Ok((number, true))
    }
}

/// The number of a further function, where so many have been met. The programs have a bound for it: a larger number would be
/// that of another function.
fn next_site(known: usize) -> Result<u32, ProbeError> {
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

    fn function(number: u32) -> Function {
        let file = FileIdentity {
            device: 1,
            inode: 2,
            size: 3,
            modified_ns: 4,
            build_id: None,
        };
        (file, u64::from(number), "cudaMalloc".to_owned())
    }

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

    #[test]
    fn one_user_does_not_take_the_numbers_of_others() {
        let mut sites = Sites::default();
        for one in 0..MOST_OF_USER {
            assert_eq!(sites.number(function(one), 7).unwrap(), (one + 1, true));
        }
        let refused = sites.number(function(MOST_OF_USER), 7).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "there is no room for another function of a library mapped by this user's processes: 32768 are known already"
        );
        // What has a number keeps it, and neither another user nor root is refused.
        assert_eq!(sites.number(function(3), 7).unwrap(), (4, false));
        assert!(sites.number(function(MOST_OF_USER), 8).unwrap().1);
        assert!(!sites.number(function(MOST_OF_USER), 7).unwrap().1);
        for one in 1..=MOST_OF_USER + 1 {
            assert!(sites.number(function(MOST_OF_USER + one), 0).unwrap().1);
        }
        let all = sites.all();
        assert!(all.iter().zip(1..).all(|(one, number)| one.3 == number));
        let again = Sites::of_earlier(all.clone()).all();
        assert!(again == all);
        // Of what an earlier daemon gave, some numbers may be known to nobody. Those of others are not given again.
        let mut known = Sites::of_earlier(all[5..].to_vec());
        let (number, is_new) = known.number(function(0), 0).unwrap();
        assert!(is_new && all.iter().all(|one| one.3 < number));
        Met {
            what: "functions of libraries that had a probe because of one user's processes, root's apart",
            most: constant("memscope-daemon/src/tracer/sites.rs", "MOST_OF_USER"),
            beyond: "further ones get no probe: an attach to this user's processes is refused, and what they load later is not probed",
            told: "the error with the number; `not_probed` in coverage",
            test: "one_user_does_not_take_the_numbers_of_others",
        }
        .is_told();
    }
}
