//! Triggers and kept snapshots, for the gRPC server.

use memscope_rpc::{
    Caller, Condition, KeptSnapshots, OpenKept, Refusal, TriggerStatus, Triggers, async_trait,
};

use crate::keeper::Taking;
use crate::serve::{RefusalOf, Serving};

impl Serving {
    async fn taking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Taking) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        if self.replay.is_some() {
            return Err(Refusal::Replaying);
        }
        self.keeper
            .triggers(work)
            .await
            .map_err(|gone| RefusalOf::from(gone).0)?
            .ok_or(Refusal::NoTriggers {
                why: "it was started with --snapshots-keep 0",
            })
    }
}

#[async_trait]
impl Triggers for Serving {
    async fn add_trigger(
        &self,
        caller: Caller,
        condition: Condition,
        pid: Option<u32>,
    ) -> Result<TriggerStatus, Refusal> {
        self.taking(move |taking| taking.add(caller, condition, pid))
            .await?
    }

    async fn remove_trigger(&self, caller: Caller, trigger: u64) -> Result<(), Refusal> {
        self.taking(move |taking| taking.remove(caller, trigger))
            .await?
    }

    async fn triggers(&self) -> Result<Vec<TriggerStatus>, Refusal> {
        self.taking(|taking| taking.list()).await
    }

    async fn kept(&self) -> Result<KeptSnapshots, Refusal> {
        let Some(shelf) = &self.shelf else {
            return Ok(KeptSnapshots::default());
        };
        let mut store = shelf.store();
        let limits = store.limits();
        Ok(KeptSnapshots {
            snapshots: store.list(),
            limit_count: limits.count as u64,
            limit_bytes: limits.bytes,
        })
    }

    async fn open_kept(&self, snapshot: u64) -> Result<OpenKept, Refusal> {
        let found = match &self.shelf {
            Some(shelf) => shelf.store().read(snapshot),
            None => Ok(None),
        };
        let (snapshot, file) = found
            .map_err(|source| Refusal::Internal {
                what: format!("snapshot {snapshot} cannot be read"),
                source: Box::new(source),
            })?
            .ok_or(Refusal::NoSuchSnapshot { snapshot })?;
        Ok(OpenKept {
            snapshot,
            content: Box::new(file),
        })
    }
}
