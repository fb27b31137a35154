//! Turns in which snapshots are made.
//!
//! Each snapshot is a copy of a process's whole state, so few are made at the same time. A turn is held until the
//! snapshot is made. One turn is always left for root, and nobody else can have more than some of the turns: whoever
//! asks for many waits for their own.

use crate::caller::Account;
use crate::{Caller, Refusal};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Snapshots that may be made at the same time: in all, of all users but root, and of one of them.
const IN_ALL: usize = 4;
const OF_OTHERS: usize = 3;
const OF_A_USER: usize = 2;

pub(crate) struct Turns {
    all: Arc<Semaphore>,
    others: Arc<Semaphore>,
    users: Mutex<HashMap<Account, Arc<Semaphore>>>,
}

/// A turn. Dropping it gives it to the next one who waits.
pub(crate) struct Turn {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        Turns {
            all: Arc::new(Semaphore::new(IN_ALL)),
            others: Arc::new(Semaphore::new(OF_OTHERS)),
            users: Mutex::default(),
        }
    }

    /// Waits for a turn.
    pub(crate) async fn wait(&self, caller: &Caller) -> Result<Turn, Refusal> {
        let wanted = match caller.is_admin() {
            true => vec![Arc::clone(&self.all)],
            // The user's own first: whoever waits for that one holds nothing that others need.
            false => vec![
                self.of(caller.account()),
                Arc::clone(&self.others),
                Arc::clone(&self.all),
            ],
        };
        let mut permits = Vec::with_capacity(wanted.len());
        for semaphore in wanted {
            let permit = semaphore.acquire_owned().await;
            permits.push(permit.map_err(|_| Refusal::ShuttingDown)?);
        }
        Ok(Turn { _permits: permits })
    }

    fn of(&self, account: Account) -> Arc<Semaphore> {
        // The map is still usable if another thread panicked while it held the lock.
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        // Users who neither have a turn nor wait for one take no room.
        users.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let own = users
            .entry(account)
            .or_insert_with(|| Arc::new(Semaphore::new(OF_A_USER)));
        Arc::clone(own)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};
    use std::pin::pin;
    use std::task::Poll;

    async fn is_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()))
            .await
    }

    #[tokio::test]
    async fn a_user_who_asks_for_many_waits_for_their_own() {
        let [root, one, two, three] = [0, 1, 2, 3].map(|uid| Caller::local(uid, uid, None));
        let turns = Turns::new();
        let mut own = vec![
            turns.wait(&one).await.unwrap(),
            turns.wait(&one).await.unwrap(),
        ];
        let mut more = pin!(turns.wait(&one));
        assert!(is_pending(&mut more).await);
        // Whoever waits for their own holds up nobody else, and root has a turn when all others have theirs.
        let other = turns.wait(&two).await.unwrap();
        let mut third = pin!(turns.wait(&three));
        assert!(is_pending(&mut third).await);
        let held = turns.wait(&root).await.unwrap();
        // What is given back goes to whoever waited first for what all share.
        drop(own.pop());
        third.await.unwrap();
        more.await.unwrap();
        drop((own, other, held));
        drop(turns.wait(&root).await.unwrap());
        drop(turns.of(Account::Local(7)));
        assert_eq!(turns.users.lock().unwrap().len(), 1);
        Met {
            what: "snapshots and questions about earlier moments at the same time",
            most: format!(
                "{} in all, {} of all users but root, {} of one user",
                constant("crates/rpc/src/turns.rs", "IN_ALL"),
                constant("crates/rpc/src/turns.rs", "OF_OTHERS"),
                constant("crates/rpc/src/turns.rs", "OF_A_USER")
            ),
            beyond: "further ones wait for their turn",
            told: "nothing is refused",
            test: "a_user_who_asks_for_many_waits_for_their_own",
        }
        .is_told();
    }
}
