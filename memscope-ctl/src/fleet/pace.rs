//! When a slow node is asked a second time: learnt from those that have answered.

use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Answers from which on it is known what is slow.
const LEARNT_FROM: usize = 5;
/// Shortest time after which a node is asked again.
const LEAST: Duration = Duration::from_millis(200);

/// How fast the nodes answer, and how many may still be asked again.
pub(super) struct Pace {
    /// Times of the answers so far, shortest first.
    took: RefCell<Vec<Duration>>,
    /// Second questions that are left.
    left: Cell<usize>,
    news: Notify,
}

impl Pace {
    /// At most a quarter of the nodes is asked again: where all are slow, a second question makes it worse.
    pub(super) fn of(nodes: usize) -> Pace {
        Pace {
            took: RefCell::default(),
            left: Cell::new((nodes / 4).max(2)),
            news: Notify::new(),
        }
    }

    /// A node answered after this time.
    pub(super) fn answered(&self, after: Duration) {
        let mut took = self.took.borrow_mut();
        let place = took.partition_point(|one| *one <= after);
        took.insert(place, after);
        self.news.notify_waiters();
    }

    /// Twice the time within which 95 of 100 answers came.
    fn slow_from(&self) -> Option<Duration> {
        let took = self.took.borrow();
        if took.len() < LEARNT_FROM {
            return None;
        }
        let place = (took.len() * 95).div_ceil(100).saturating_sub(1);
        took.get(place).map(|usual| LEAST.max(*usual * 2))
    }

    /// Waits until a question that began then is slow and may be asked again. It may never be.
    pub(super) async fn is_slow(&self, begin: Instant) {
        loop {
            // Made before the time is computed, so that no answer in between goes unnoticed.
            let news = self.news.notified();
            match self.slow_from() {
                None => news.await,
                Some(after) => tokio::select! {
                    () = tokio::time::sleep_until(begin + after) => break,
                    () = news => {}
                },
            }
        }
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_learnt_from_those_that_answered() {
        let pace = Pace::of(100);
        for millis in 1..=4 {
            pace.answered(Duration::from_millis(millis));
        }
        assert_eq!(pace.slow_from(), None);
        pace.answered(Duration::from_millis(5));
        assert_eq!(pace.slow_from(), Some(LEAST));
        for _ in 0..95 {
            pace.answered(Duration::from_secs(1));
        }
        assert_eq!(pace.slow_from(), Some(Duration::from_secs(2)));
    }

    #[tokio::test]
    async fn only_some_are_asked_again() {
        let pace = Pace::of(8);
        // So long ago that the question is slow at once.
        let begin = Instant::now().checked_sub(LEAST * 2).unwrap();
        for _ in 0..LEARNT_FROM {
            pace.answered(Duration::from_millis(1));
        }
        for _ in 0..2 {
            pace.is_slow(begin).await;
        }
        tokio::select! {
            biased;
            () = pace.is_slow(begin) => panic!("a third one is asked again"),
            () = tokio::task::yield_now() => {}
        }
    }
}
