//! The signals that end programs: SIGTERM and SIGINT.

use tokio::signal::unix::{SignalKind, signal};

/// Waits until SIGTERM or SIGINT arrives.
pub(crate) async fn interrupted() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without handlers, the signals end the program as they do by default.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
