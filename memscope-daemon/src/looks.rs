//! Looks at processes that questions ask the tracer for.
//!
//! Owns: how many of them wait for the tracer. A question goes on without its look when that takes too long, so while
//! the tracer is busy each question would leave another order behind. Questions about the same process share their
//! looks, so that the orders are bounded by the processes, whoever asks how often. Refuses: to wait.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use memscope_ledger::event::ProcessHandle;
use tokio::sync::{oneshot, watch};

use crate::tracer::Order;

/// Looks at one process that may be under way. If there are two, the tracer has not begun the second one, since it does
/// one thing after the other: that one is as good as a new one.
const OF_A_PROCESS: usize = 2;

/// The end of a look: the channel is closed then.
pub type End = watch::Receiver<()>;

/// The looks that are under way, by process and whether the allocator is read as well; the oldest first.
#[derive(Default)]
pub struct Looks {
    under_way: Mutex<HashMap<(ProcessHandle, bool), Vec<End>>>,
}

impl Looks {
    /// The end of a look at this process that the tracer has not begun yet, or of a new one. `None` if the tracer has
    /// ended. Must be called inside a tokio runtime.
    pub fn look(&self, tracer: &Sender<Order>, process: ProcessHandle, read: bool) -> Option<End> {
        // What is in the map is right at any time, also if another thread panicked while it held the lock.
        let mut all = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, ends| {
            ends.retain(|end| end.has_changed().is_ok());
            !ends.is_empty()
        });
        let own = all.entry((process, read)).or_default();
        if let Some(last) = own.last()
            && own.len() >= OF_A_PROCESS
        {
            return Some(last.clone());
        }
        let (reply, done) = oneshot::channel();
        let order = Order::Refresh {
            process,
            read,
            reply,
        };
        tracer.send(order).ok()?;
        let (under_way, end) = watch::channel(());
        tokio::spawn(async move {
            // A tracer that has ended reports nothing, which is an end as well.
            let _ = done.await;
            drop(under_way);
        });
        own.push(end.clone());
        Some(end)
    }
}

/// Waits until a look has ended.
pub async fn ended(mut end: End) {
    // Nothing is ever sent: the channel only closes.
    while end.changed().await.is_ok() {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn questions_share_the_looks_of_a_busy_tracer() {
        let (tracer, orders) = std::sync::mpsc::channel();
        let looks = Looks::default();
        let ends: Vec<_> = (0..1000)
            .map(|_| looks.look(&tracer, ProcessHandle(7), false).unwrap())
            .collect();
        let other = looks.look(&tracer, ProcessHandle(8), false).unwrap();
        let read = looks.look(&tracer, ProcessHandle(7), true).unwrap();
        let waiting: Vec<_> = orders.try_iter().collect();
        assert_eq!(waiting.len(), 4);
        for order in waiting {
            let Order::Refresh { reply, .. } = order else {
                panic!("only looks were asked for");
            };
            reply.send(()).unwrap();
        }
        for end in ends.into_iter().chain([other, read]) {
            ended(end).await;
        }
        // Those have ended, so the next question gets a look of its own.
        let _end = looks.look(&tracer, ProcessHandle(7), false).unwrap();
        assert_eq!(orders.try_iter().count(), 1);
    }
}
