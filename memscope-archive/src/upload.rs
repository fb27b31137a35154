//! Uploads what waits in the spool, the oldest first, for ever.

use crate::closing::{Shared, lock};
use crate::store::Store;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The first pause after a failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(20));

/// Uploads one file. `false`: nothing waits.
///
/// # Errors
/// If the store does not take it, or the spool's disk fails.
pub async fn one(spool: &Shared, store: &Store) -> Result<bool, Box<dyn Error + Send + Sync>> {
    let taken = lock(spool).take();
    let Some((file, path)) = taken else {
        return Ok(false);
    };
    let result = async {
        let content = tokio::fs::read(&path).await?;
        store.put(&file.entry.object, content).await?;
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    }
    .await;
    let mut spool = lock(spool);
    match result {
        Ok(()) => spool.uploaded(&file)?,
        Err(error) => {
            spool.not_uploaded();
            return Err(error);
        }
    }
    Ok(true)
}

/// Uploads whatever comes.
pub async fn for_ever(spool: Arc<Shared>, store: Store, closed: Arc<Notify>) {
    let mut pause = PAUSES.0;
    let mut failed = false;
    loop {
        match one(&spool, &store).await {
            Ok(true) => {
                if failed {
                    tracing::info!(url = store.url, "the store takes files again");
                }
                (failed, pause) = (false, PAUSES.0);
            }
            Ok(false) => closed.notified().await,
            Err(error) => {
                let (files, bytes) = {
                    let spool = lock(&spool);
                    (spool.files(), spool.bytes())
                };
                tracing::warn!(
                    url = store.url,
                    files,
                    bytes,
                    retry_in = ?pause,
                    error = &*error as &dyn Error,
                    "the store does not take a file"
                );
                failed = true;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}
