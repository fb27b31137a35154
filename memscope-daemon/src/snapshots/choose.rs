//! Chooses the kept snapshots that are deleted to make room for a new one.
//!
//! The oldest goes first, but fairly. The choice falls on the user who takes the most of the room: the larger of the
//! user's part of the bytes and the user's part of the number of snapshots that may be kept. So nobody pushes out what
//! others have, neither by a few large snapshots nor by many small ones, and not by spreading them over many processes.
//! Of that user's processes it falls on the one that has the most snapshots, and there on the trigger that has the
//! most. So a process that runs out of memory again and again replaces its own snapshots, and the only snapshot of
//! another process of that user stays as long as any of them has two. Where several processes have equally many, the
//! choice falls on the one with the oldest snapshot.

use std::cmp::Reverse;

/// What the choice needs to know of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Number of the snapshot; later ones have larger numbers.
    pub(super) number: u64,
    /// Size of its file in bytes.
    pub(super) bytes: u64,
    /// User of its process.
    pub(super) uid: u32,
    /// Pid and start time of its process.
    pub(super) process: (u32, u64),
    /// Condition of its trigger.
    pub(super) when: String,
}

/// Numbers of the snapshots that must go, so that together with `new` there are at most `most` snapshots of at most
/// `most_bytes` bytes.
pub(super) fn to_remove(
    kept: &[Candidate],
    new: &Candidate,
    most: usize,
    most_bytes: u64,
) -> Vec<u64> {
    let mut left: Vec<&Candidate> = kept.iter().collect();
    let mut gone = Vec::new();
    loop {
        let bytes = left
            .iter()
            .fold(new.bytes, |sum, one| sum.saturating_add(one.bytes));
        if left.len() < most && bytes <= most_bytes {
            return gone;
        }
        let Some(number) = next(&left, new, most, most_bytes) else {
            return gone;
        };
        left.retain(|one| one.number != number);
        gone.push(number);
    }
}

fn next(left: &[&Candidate], new: &Candidate, most: usize, most_bytes: u64) -> Option<u64> {
    let count = |belongs: &dyn Fn(&Candidate) -> bool| {
        left.iter().filter(|one| belongs(one)).count() + usize::from(belongs(new))
    };
    // Both parts of the room, as fractions with the same denominator.
    let taken = |uid: u32| {
        let own = left.iter().copied().chain([new]);
        let (number, bytes) = own
            .filter(|other| other.uid == uid)
            .fold((0u128, 0u128), |(number, bytes), other| {
                (number + 1, bytes + u128::from(other.bytes))
            });
        (number * u128::from(most_bytes)).max(bytes * most as u128)
    };
    let rank = |one: &Candidate| {
        (
            taken(one.uid),
            count(&|other| other.process == one.process),
            Reverse(oldest(left, &|other| other.process == one.process)),
            count(&|other| other.process == one.process && other.when == one.when),
            Reverse(one.number),
        )
    };
    left.iter()
        .max_by_key(|one| rank(one))
        .map(|one| one.number)
}

fn oldest(left: &[&Candidate], belongs: &dyn Fn(&Candidate) -> bool) -> u64 {
    left.iter()
        .filter(|one| belongs(one))
        .map(|one| one.number)
        .min()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn one(number: u64, uid: u32, pid: u32, when: &str, bytes: u64) -> Candidate {
        Candidate {
            number,
            bytes,
            uid,
            process: (pid, 1),
            when: when.into(),
        }
    }

    /// Numbers of the snapshots that are removed. Each snapshot is given as (user, process, trigger) and has ten
    /// bytes.
    fn removed(kept: &[(u32, u32, &str)], new: (u32, u32, &str), most: usize) -> Vec<u64> {
        let mut all: Vec<Candidate> = (1..)
            .zip(kept)
            .map(|(number, (uid, pid, when))| one(number, *uid, *pid, when, 10))
            .collect();
        let newest = one(all.len() as u64 + 1, new.0, new.1, new.2, 10);
        all.reverse(); // the order of the kept snapshots does not matter
        to_remove(&all, &newest, most, 1_000_000)
    }

    #[test]
    fn the_oldest_goes_first_but_fairly() {
        // One process: the oldest.
        assert_eq!(removed(&[(0, 7, "oom"); 3], (0, 7, "oom"), 3), [1]);
        // A loop replaces its own snapshots, although another process has an older one.
        let looping = [(0, 1, "oom"), (0, 7, "oom"), (0, 7, "oom")];
        assert_eq!(removed(&looping, (0, 7, "oom"), 3), [2]);
        // Of its own triggers, the one that fires the most.
        let mixed = [(0, 7, "grew"), (0, 7, "oom"), (0, 7, "oom")];
        assert_eq!(removed(&mixed, (0, 7, "oom"), 3), [2]);
        // All have one: the oldest.
        let each = [(0, 1, "oom"), (0, 2, "oom"), (0, 3, "oom")];
        assert_eq!(removed(&each, (0, 4, "oom"), 3), [1]);
        // All have one: the oldest of the user who has the most.
        let users = [(5, 1, "oom"), (0, 2, "oom"), (0, 3, "oom")];
        assert_eq!(removed(&users, (0, 4, "oom"), 3), [2]);
        // The new snapshot counts for its process.
        let two = [(0, 1, "oom"), (0, 2, "oom")];
        assert_eq!(removed(&two, (0, 2, "oom"), 2), [2]);
        assert_eq!(removed(&two, (0, 9, "oom"), 1), [1, 2]);
        assert_eq!(removed(&two, (0, 9, "oom"), 5), [0; 0]);
    }

    /// A user with large snapshots in several processes has the most of the room, though another one has more
    /// snapshots; and one with many small snapshots has it, though another one has more bytes.
    #[test]
    fn whoever_takes_the_most_of_the_room_gives_way() {
        let kept = [
            one(1, 5, 1, "oom", 10),
            one(2, 5, 1, "oom", 10),
            one(3, 6, 2, "oom", 400),
            one(4, 6, 3, "oom", 400),
        ];
        let new = one(5, 6, 4, "oom", 400);
        assert_eq!(to_remove(&kept, &new, 20, 1000), [3]);
        let kept = [
            one(1, 5, 1, "oom", 300),
            one(2, 6, 2, "oom", 1),
            one(3, 6, 3, "oom", 1),
            one(4, 6, 4, "oom", 1),
        ];
        let new = one(5, 6, 5, "oom", 1);
        assert_eq!(to_remove(&kept, &new, 4, 1000), [2]);
    }

    #[test]
    fn bytes_are_a_bound_of_their_own() {
        let kept = [
            one(1, 0, 1, "oom", 50),
            one(2, 0, 2, "oom", 10),
            one(3, 0, 2, "oom", 30),
        ];
        let new = one(4, 0, 3, "oom", 20);
        assert_eq!(to_remove(&kept, &new, 10, 110), [0; 0]);
        assert_eq!(to_remove(&kept, &new, 10, 100), [2]);
        assert_eq!(to_remove(&kept, &new, 10, 99), [2, 1]);
        assert_eq!(to_remove(&kept, &new, 10, 49), [2, 1, 3]);
    }

    /// How much of the room a user takes.
    fn taken(all: &[&Candidate], uid: u32, most: usize, most_bytes: u64) -> u128 {
        let own: Vec<_> = all.iter().filter(|c| c.uid == uid).collect();
        let bytes: u64 = own.iter().map(|c| c.bytes).sum();
        let number = own.len() as u128 * u128::from(most_bytes);
        number.max(u128::from(bytes) * most as u128)
    }

    /// A second implementation to compare with: it groups and sorts everything anew for each removal.
    fn naive(kept: &[Candidate], new: &Candidate, most: usize, most_bytes: u64) -> Vec<u64> {
        let mut left = kept.to_vec();
        let mut gone = Vec::new();
        while left.len() + 1 > most
            || left.iter().map(|c| c.bytes).sum::<u64>() + new.bytes > most_bytes
        {
            if left.is_empty() {
                break;
            }
            let with_new: Vec<&Candidate> = left.iter().chain([new]).collect();
            let mut by_process: BTreeMap<(u32, u64), Vec<&Candidate>> = BTreeMap::new();
            for one in &with_new {
                by_process.entry(one.process).or_default().push(one);
            }
            let mut processes: Vec<(u128, usize, u64, (u32, u64))> = by_process
                .iter()
                .filter(|(process, _)| left.iter().any(|c| c.process == **process))
                .map(|(process, all)| {
                    let first = all.iter().map(|c| c.number).min().unwrap();
                    let taken = taken(&with_new, all[0].uid, most, most_bytes);
                    (taken, all.len(), u64::MAX - first, *process)
                })
                .collect();
            processes.sort_unstable();
            let process = processes.last().unwrap().3;
            let own = &by_process[&process];
            let mut triggers: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for one in own {
                triggers.entry(&one.when).or_default().push(one.number);
            }
            let mut ranked: Vec<(usize, u64, u64)> = triggers
                .values()
                .filter_map(|numbers| {
                    let candidates = numbers.iter().filter(|n| **n != new.number);
                    let first = *candidates.min()?;
                    Some((numbers.len(), u64::MAX - first, first))
                })
                .collect();
            ranked.sort_unstable();
            let number = ranked.last().unwrap().2;
            left.retain(|c| c.number != number);
            gone.push(number);
        }
        gone
    }

    proptest! {
        #[test]
        fn fair_and_no_more_than_needed(
            drawn in prop::collection::vec((0..3u32, 0..5u32, 0..3u8, 1..100u64), 0..25),
            newest in (0..3u32, 0..5u32, 0..3u8, 1..100u64),
            most in 1..20usize,
            most_bytes in 100..1500u64,
        ) {
            let make = |number: u64, (uid, pid, when, bytes): (u32, u32, u8, u64)| {
                // A process has one user.
                one(number, uid, uid * 10 + pid, &when.to_string(), bytes)
            };
            let kept: Vec<Candidate> = (1..).zip(&drawn).map(|(n, d)| make(n, *d)).collect();
            let new = make(kept.len() as u64 + 1, newest);
            let gone = to_remove(&kept, &new, most, most_bytes);
            prop_assert_eq!(&gone, &naive(&kept, &new, most, most_bytes));

            let fits = |gone: &[u64]| {
                let left: Vec<_> = kept.iter().filter(|c| !gone.contains(&c.number)).collect();
                let bytes: u64 = left.iter().map(|c| c.bytes).sum();
                left.len() < most && bytes + new.bytes <= most_bytes
            };
            prop_assert!(fits(&gone));
            if let Some((_, before)) = gone.split_last() {
                prop_assert!(!fits(before), "one less would have done");
            }
            // Nobody gives way to a user who takes more, and of one user no process loses its only snapshot while
            // another one has two.
            let mut left: BTreeSet<u64> = kept.iter().map(|c| c.number).collect();
            for number in &gone {
                let count = |process| {
                    let all = kept.iter().filter(|c| left.contains(&c.number)).chain([&new]);
                    all.filter(|c| c.process == process).count()
                };
                let victim = &kept[*number as usize - 1];
                let all: Vec<&Candidate> = kept.iter().filter(|c| left.contains(&c.number)).collect();
                let with_new: Vec<&Candidate> = all.iter().copied().chain([&new]).collect();
                let taken = |uid| taken(&with_new, uid, most, most_bytes);
                let most_taken = all.iter().map(|c| taken(c.uid)).max().unwrap();
                prop_assert_eq!(taken(victim.uid), most_taken);
                let own = all.iter().filter(|c| c.uid == victim.uid);
                let largest = own.map(|c| count(c.process)).max().unwrap();
                prop_assert_eq!(count(victim.process), largest);
                left.remove(number);
            }
        }
    }
}
