//! The handle through which other threads reach the keeper.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use memscope_ledger::Ledger;
use memscope_ledger::report::AsOf;
use memscope_rpc::{EventHub, Limits};
use tokio::sync::Semaphore;

use super::command::Command;
use super::status::KeeperStatus;
use super::taking::Taking;

/// Most commands that may wait.
pub(super) const QUEUE: usize = 1024;
/// Most questions that may wait for a place among the commands: readings and names of stacks can fill all places for
/// some time. Each request has one question at a time, and the server limits the requests of each user, so a user who
/// asks too much is refused there, and nobody is refused here because of others.
const WAITING: usize = Limits::REQUESTS.in_all();

/// Why the keeper did not take a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// Its queue is full, and too many others wait for a place in it.
    #[error("{WAITING} questions are waiting already")]
    Busy,
    /// The keeper has ended.
    #[error("the daemon is ending")]
    Ended,
}

/// Sends commands to the keeper.
#[derive(Clone)]
pub struct KeeperHandle {
    sender: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    hub: Arc<EventHub>,
    waiting: Arc<Semaphore>,
}

impl KeeperHandle {
    pub(super) fn new(
        sender: SyncSender<Command>,
        wake: Arc<OwnedFd>,
        hub: Arc<EventHub>,
    ) -> KeeperHandle {
        KeeperHandle {
            sender,
            wake,
            hub,
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }

    /// Passes events to their readers.
    pub fn hub(&self) -> &Arc<EventHub> {
        &self.hub
    }

    /// Wakes the keeper, so that it goes round once. Does not block.
    pub fn wake(&self) {
        // If the counter is full, the keeper is woken all the same.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Sends a command, and blocks until there is room. Must not be called from async code.
    pub fn send(&self, command: Command) -> Result<(), Gone> {
        let sent = self.sender.send(command).map_err(|_| Gone::Ended);
        self.wake();
        sent
    }

    /// Sends a command from async code. Waits for room, unless too many others wait already.
    pub async fn submit(&self, command: Command) -> Result<(), Gone> {
        let command = match self.sender.try_send(command) {
            Ok(()) => {
                self.wake();
                return Ok(());
            }
            Err(TrySendError::Disconnected(_)) => return Err(Gone::Ended),
            Err(TrySendError::Full(command)) => command,
        };
        let waiting = Arc::clone(&self.waiting);
        let place = waiting.try_acquire_owned().map_err(|_| Gone::Busy)?;
        let own = self.clone();
        let sending = tokio::task::spawn_blocking(move || {
            let sent = own.send(command);
            drop(place);
            sent
        });
        sending.await.unwrap_or(Err(Gone::Ended))
    }

    /// Asks the ledger a question. Every record that was submitted before is applied first.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Ledger, AsOf) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        self.submit(Command::Ask(Box::new(move |ledger, as_of| {
            // The asker may be gone.
            let _ = sender.send(question(ledger, as_of));
        })))
        .await?;
        answer.await.map_err(|_| Gone::Ended)
    }

    /// Asks a question from outside of async code; `None` if the keeper has ended.
    pub fn ask_blocking<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Ledger, AsOf) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = std::sync::mpsc::channel();
        self.send(Command::Ask(Box::new(move |ledger, as_of| {
            let _ = sender.send(question(ledger, as_of));
        })))
        .ok()?;
        answer.recv().ok()
    }

    /// Changes or lists the triggers; `None` if no snapshots are taken.
    pub async fn triggers<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Taking) -> T + Send + 'static,
    ) -> Result<Option<T>, Gone> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        self.submit(Command::Triggers(Box::new(move |taking| {
            // The asker may be gone.
            let _ = sender.send(taking.map(work));
        })))
        .await?;
        answer.await.map_err(|_| Gone::Ended)
    }

    /// Status of the keeper.
    pub async fn status(&self) -> Result<KeeperStatus, Gone> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        self.submit(Command::Status(sender)).await?;
        answer.await.map_err(|_| Gone::Ended)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::keeper::Keeper;
    use memscope_ledger::LedgerConfig;
    use memscope_tests::limits::{Met, constant};
    use std::sync::mpsc::channel;

    /// A busy keeper with a full queue of commands. It goes on when a message is sent to the second value.
    fn full() -> (KeeperHandle, std::sync::mpsc::Sender<()>) {
        let ledger = Ledger::new(LedgerConfig::default());
        let hub = Arc::new(EventHub::default());
        let (handle, _) = Keeper::for_replay(ledger, 1, hub).unwrap();
        let (free, wait) = channel();
        let (began, begins) = channel();
        let busy = Command::Ask(Box::new(move |_, _| {
            began.send(()).unwrap();
            wait.recv().unwrap();
        }));
        handle.send(busy).unwrap();
        begins.recv().unwrap();
        for _ in 0..QUEUE {
            handle.send(Command::Ask(Box::new(|_, _| {}))).unwrap();
        }
        (handle, free)
    }

    #[tokio::test]
    async fn a_question_waits_for_a_place_among_the_commands() {
        let (handle, free) = full();
        let asking = handle.ask(|ledger, _| ledger.processes().len());
        tokio::pin!(asking);
        // It has found the queue full, and waits.
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(asking.as_mut().poll(context).is_pending())
        });
        assert!(polled.await);
        free.send(()).unwrap();
        assert_eq!(asking.await, Ok(0));
        handle.send(Command::Stop).unwrap();
    }

    #[tokio::test]
    async fn more_than_so_many_are_refused() {
        let (handle, free) = full();
        let mut waiting: Vec<_> = (0..WAITING)
            .map(|_| Box::pin(handle.ask(|_, _| ())))
            .collect();
        let polled = std::future::poll_fn(|context| {
            let all = waiting.iter_mut().map(|one| one.as_mut().poll(context));
            std::task::Poll::Ready(all.filter(|polled| polled.is_pending()).count())
        });
        assert_eq!(polled.await, WAITING);
        assert_eq!(handle.ask(|_, _| ()).await, Err(Gone::Busy));
        free.send(()).unwrap();
        for one in waiting {
            assert_eq!(one.await, Ok(()));
        }
        handle.send(Command::Stop).unwrap();
        Met {
            what: "questions that wait for the keeper",
            most: constant("memscope-daemon/src/keeper/handle.rs", "WAITING"),
            beyond: "further ones are refused",
            told: "error `busy`",
            test: "more_than_so_many_are_refused",
        }
        .is_told();
    }

    /// All users but root with all the requests that they may have do not keep root from asking.
    #[tokio::test]
    async fn whoever_has_requests_left_is_not_refused() {
        let (handle, free) = full();
        let theirs = Limits::REQUESTS.of_others + 1;
        let mut waiting: Vec<_> = (0..theirs)
            .map(|_| Box::pin(handle.ask(|_, _| ())))
            .collect();
        let polled = std::future::poll_fn(|context| {
            let all = waiting.iter_mut().map(|one| one.as_mut().poll(context));
            std::task::Poll::Ready(all.filter(|polled| polled.is_pending()).count())
        });
        assert_eq!(polled.await, theirs);
        free.send(()).unwrap();
        for one in waiting {
            assert_eq!(one.await, Ok(()));
        }
        handle.send(Command::Stop).unwrap();
    }

    #[test]
    fn nothing_of_a_recording_is_forgotten() {
        use memscope_ledger::event::{Body, Event, EventId, ProcessHandle, StackRef};
        let mut ledger = Ledger::new(LedgerConfig::default());
        for (sequence, body) in [Body::Attached(Box::default()), Body::Exited]
            .into_iter()
            .enumerate()
        {
            ledger.apply(&Event {
                id: EventId {
                    epoch: 1,
                    sequence: sequence as u64 + 1,
                },
                // Long ago by the clock of now, which may even be that of another boot.
                time_ns: 1,
                process: ProcessHandle(1),
                tid: 0,
                lost_before: 0,
                stack: StackRef::NotTaken,
                sampling: 0,
                body,
            });
        }
        let (handle, _) = Keeper::for_replay(ledger, 1, Arc::new(EventHub::default())).unwrap();
        for _ in 0..3 {
            let known = handle.ask_blocking(|ledger, _| ledger.processes().len());
            assert_eq!(known, Some(1));
        }
        handle.send(Command::Stop).unwrap();
    }
}
