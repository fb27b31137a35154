//! Long work on files, apart from the loop that waits for signals.
//!
//! Owns: the thread in which it is done. Refuses: waiting for it where a signal ends the program meanwhile.

use std::io;
use tokio::sync::oneshot;

/// Works in a thread of its own, so that a signal can end the program meanwhile. The thread is then not waited for.
///
/// # Errors
/// The thread cannot be started, or has ended before its time.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = oneshot::channel();
    let started = std::thread::Builder::new().name("reader".into());
    let _detached = started.spawn(move || {
        // The receiver may be gone.
        let _ = tell.send(work());
    })?;
    let ended = |_| io::Error::other("the thread that read it has ended");
    told.await.map_err(ended)
}
