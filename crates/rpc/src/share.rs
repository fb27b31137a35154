//! How much of something each user may have at the same time.
//!
//! Owns: the counting. Root has a share of its own, so that others can never keep root from being served, and of the
//! others nobody can take the share of all. Holders of certificates, who come from elsewhere, take nothing of what local
//! users may have. Refuses: to know what is counted.

use crate::Refusal;
use crate::caller::Account;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many of something there may be at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of root.
    pub of_root: usize,
    /// Of all other users together, and as much again of all certificates together.
    pub of_others: usize,
    /// Of one user who is not root, and of one certificate.
    pub of_a_user: usize,
}

impl Limits {
    /// Connections.
    pub const CONNECTIONS: Limits = Limits {
        of_root: 64,
        of_others: 256,
        of_a_user: 32,
    };
    /// Requests under way, over all connections.
    pub const REQUESTS: Limits = Limits {
        of_root: 64,
        of_others: 256,
        of_a_user: 32,
    };

    /// The most that all users and all certificates together may have.
    #[must_use]
    pub const fn in_all(self) -> usize {
        self.of_root + 2 * self.of_others
    }
}

/// Counts what each user has.
#[derive(Debug)]
pub(crate) struct Shares {
    limits: Limits,
    /// What is counted, in the plural: the word for messages.
    what: &'static str,
    taken: Mutex<HashMap<Account, usize>>,
}

impl Shares {
    pub(crate) fn new(what: &'static str, limits: Limits) -> Arc<Shares> {
        Arc::new(Shares {
            limits,
            what,
            taken: Mutex::default(),
        })
    }

    /// Takes one for this account, which has it until the place is dropped.
    pub(crate) fn take(self: &Arc<Self>, account: Account) -> Result<Place, Refusal> {
        let mut taken = self.lock();
        let own = taken.get(&account).copied().unwrap_or(0);
        let is_beside =
            |other: &Account| !other.is_root() && is_remote(other) == is_remote(&account);
        let of_others = taken.iter().filter(|(other, _)| is_beside(other));
        let others = of_others.map(|(_, count)| count).sum::<usize>();
        let what = self.what;
        let Limits {
            of_root,
            of_others,
            of_a_user,
        } = self.limits;
        let (one, all) = match is_remote(&account) {
            true => ("one certificate", "all certificates"),
            false => ("one user", "all users but root"),
        };
        let refused = match account.is_root() {
            true if own >= of_root => {
                Some(format!("root has {own} {what}, and may have {of_root}"))
            }
            true => None,
            _ if own >= of_a_user => Some(format!(
                "{account} has {own} {what}, and {one} may have {of_a_user}"
            )),
            _ if others >= of_others => Some(format!(
                "{all} have {others} {what}, and may have {of_others} together"
            )),
            _ => None,
        };
        if let Some(what) = refused {
            return Err(Refusal::TooMany { what });
        }
        taken.insert(account.clone(), own + 1);
        Ok(Place {
            shares: Arc::clone(self),
            account,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Account, usize>> {
        // Nothing panics between a change and its end, so the counts are right.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it is an account of elsewhere.
fn is_remote(account: &Account) -> bool {
    matches!(account, Account::Certificate(_))
}

/// One of what is counted.
#[derive(Debug)]
pub(crate) struct Place {
    shares: Arc<Shares>,
    account: Account,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        match taken.get_mut(&self.account) {
            Some(own) if *own > 1 => *own -= 1,
            // Users who have nothing take no room.
            _ => drop(taken.remove(&self.account)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_share_of_others() {
        let limits = Limits {
            of_root: 2,
            of_others: 5,
            of_a_user: 3,
        };
        let shares = Shares::new("things", limits);
        let take = |uid| shares.take(Account::Local(uid));
        let mut held: Vec<_> = (0..3).map(|_| take(1).unwrap()).collect();
        let refused = take(1).unwrap_err().to_string();
        assert_eq!(
            refused,
            "too many: user 1 has 3 things, and one user may have 3"
        );
        held.extend((0..2).map(|_| take(2).unwrap()));
        let refused = take(3).unwrap_err().to_string();
        assert_eq!(
            refused,
            "too many: all users but root have 5 things, and may have 5 together"
        );
        assert!(shares.take(Account::Unknown).is_err());
        // Certificates are counted beside the users, and by their names.
        let remote = |name: &str| shares.take(Account::Certificate(name.into()));
        let mut remotes: Vec<_> = (0..3).map(|_| remote("a").unwrap()).collect();
        assert_eq!(
            remote("a").unwrap_err().to_string(),
            "too many: certificate \"a\" has 3 things, and one certificate may have 3"
        );
        remotes.extend((0..2).map(|_| remote("b").unwrap()));
        assert_eq!(
            remote("c").unwrap_err().to_string(),
            "too many: all certificates have 5 things, and may have 5 together"
        );
        drop(remotes);
        let root: Vec<_> = (0..2).map(|_| take(0).unwrap()).collect();
        assert!(take(0).is_err());
        drop(held.pop());
        assert!(take(3).is_ok(), "what is given back is there for others");
        drop((held, root));
        assert!(shares.lock().is_empty());
    }
}
