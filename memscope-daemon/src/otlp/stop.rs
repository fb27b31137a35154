//! The word by which tasks are told to end.

use tokio::sync::watch;

/// Whoever has this can tell the tasks that listen to end. If it is dropped, they are told as well.
pub(super) struct Teller(watch::Sender<bool>);

/// Listens for the word.
#[derive(Clone)]
pub(super) struct Stop(watch::Receiver<bool>);

/// A teller and its first listener.
pub(super) fn stop() -> (Teller, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Teller(sender), Stop(receiver))
}

impl Teller {
    /// Tells all to end.
    pub(super) fn tell(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits for the word.
    pub(super) async fn told(&mut self) {
        // An error means that the teller is gone.
        let _ = self.0.wait_for(|told| *told).await;
    }

    /// Whether it has been said.
    pub(super) fn is_told(&self) -> bool {
        *self.0.borrow()
    }
}
