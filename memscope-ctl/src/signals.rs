//! Signals that end programs.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for one.
pub(crate) async fn interrupted() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without handlers, signals do what they always do.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
