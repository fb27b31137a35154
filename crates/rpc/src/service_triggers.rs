//! The RPCs for triggers, and for the snapshots that triggers took.

use crate::audit::Target;
use crate::export::{self, ChunkStream};
use crate::service::{Service, to_the_end};
use crate::triggers::{KeptSnapshot, KeptSnapshots, TriggerStatus};
use crate::under_way::UnderWay;
use crate::{Caller, Condition, Refusal};
use memscope_proto::v1;
use memscope_service::triggers_server::Triggers;
use std::sync::Arc;
use tonic::{Request, Response, Status};

fn condition(text: &str) -> Result<Condition, Refusal> {
    text.parse()
        .map_err(|error: crate::ConditionError| Refusal::Invalid {
            what: format!("{text:?}, column {}: {}", error.column, error.what),
            hint: error.hint,
        })
}

#[tonic::async_trait]
impl Triggers for Service {
    async fn add_trigger(
        &self,
        request: Request<v1::AddTriggerRequest>,
    ) -> Result<Response<v1::AddTriggerResponse>, Status> {
        Target::set(&request, || {
            let wanted = request.get_ref();
            let of = wanted
                .pid
                .map_or_else(|| "all".to_owned(), |pid| format!("pid={pid}"));
            format!("{of} when={:?}", wanted.when)
        });
        let caller = match request.get_ref().pid {
            Some(pid) => self.asker(&request, pid).await?,
            None => self.caller(&request)?,
        };
        let request = request.into_inner();
        let condition = condition(&request.when)?;
        let daemon = Arc::clone(&self.daemon);
        let work = async move { daemon.add_trigger(caller, condition, request.pid).await };
        let added = to_the_end("adding the trigger", work).await?;
        Ok(Response::new(v1::AddTriggerResponse {
            trigger: Some(trigger(added, true)),
        }))
    }

    async fn remove_trigger(
        &self,
        request: Request<v1::RemoveTriggerRequest>,
    ) -> Result<Response<v1::RemoveTriggerResponse>, Status> {
        Target::set(&request, || {
            format!("trigger={}", request.get_ref().trigger)
        });
        let caller = self.caller(&request)?;
        let number = request.get_ref().trigger;
        self.daemon.remove_trigger(caller, number).await?;
        Ok(Response::new(v1::RemoveTriggerResponse {}))
    }

    async fn list_triggers(
        &self,
        request: Request<v1::ListTriggersRequest>,
    ) -> Result<Response<v1::ListTriggersResponse>, Status> {
        let caller = self.caller(&request)?;
        let all = self.access().shows_all(&caller);
        let triggers = self.daemon.triggers().await?;
        Ok(Response::new(v1::ListTriggersResponse {
            triggers: triggers
                .into_iter()
                .filter(|status| all || status.is_shown_to(&caller))
                .map(|status| {
                    let whole = all || status.is_of(&caller);
                    trigger(status, whole)
                })
                .collect(),
        }))
    }

    async fn list_kept(
        &self,
        request: Request<v1::ListKeptRequest>,
    ) -> Result<Response<v1::ListKeptResponse>, Status> {
        let caller = self.caller(&request)?;
        let pid = request.get_ref().pid;
        let KeptSnapshots {
            snapshots,
            limit_count,
            limit_bytes,
        } = self.daemon.kept().await?;
        Ok(Response::new(v1::ListKeptResponse {
            snapshots: snapshots
                .into_iter()
                .filter(|kept| self.shows(&caller, kept))
                .filter(|kept| pid.is_none_or(|pid| kept.pid == pid))
                .map(snapshot)
                .collect(),
            limit_count,
            limit_bytes,
        }))
    }

    type GetKeptStream = ChunkStream;

    async fn get_kept(
        &self,
        request: Request<v1::GetKeptRequest>,
    ) -> Result<Response<Self::GetKeptStream>, Status> {
        Target::set(&request, || {
            format!("snapshot={}", request.get_ref().snapshot)
        });
        let caller = self.caller(&request)?;
        let number = request.get_ref().snapshot;
        let open = self.daemon.open_kept(number).await?;
        if !self.shows(&caller, &open.snapshot) {
            return Err(Refusal::NoSuchSnapshot { snapshot: number }.into());
        }
        let stream = export::pass_on(UnderWay::of(&request), open.content);
        Ok(Response::new(stream))
    }
}

impl Service {
    fn shows(&self, caller: &Caller, kept: &KeptSnapshot) -> bool {
        self.access().shows_all(caller) || kept.is_shown_to(caller)
    }
}

/// The trigger's message. Only with `whole` it says what the trigger watches and did, which may concern processes of
/// other users.
fn trigger(status: TriggerStatus, whole: bool) -> v1::Trigger {
    v1::Trigger {
        trigger: status.trigger,
        when: status.condition.to_string(),
        pid: status.process.map(|(pid, _)| pid),
        uid: status.user.wire_uid(),
        from_start: status.from_start,
        watching: whole.then_some(status.watching),
        fired: whole.then_some(status.fired),
        written: whole.then_some(status.written),
        skipped: if whole {
            status
                .skipped
                .into_iter()
                .map(|(cause, count)| v1::Cause { cause, count })
                .collect()
        } else {
            Vec::new()
        },
        last_unix_ns: status.last_unix_ns.filter(|_| whole),
        certificate: status.user.certificate().map(str::to_owned),
    }
}

fn snapshot(kept: KeptSnapshot) -> v1::KeptSnapshot {
    v1::KeptSnapshot {
        snapshot: kept.snapshot,
        time_unix_ns: kept.unix_ns,
        pid: kept.pid,
        comm: kept.comm,
        uid: kept.uids.first().copied().unwrap_or(0),
        when: kept.when,
        reason: kept.reason,
        device: kept.device,
        format: kept.format,
        bytes: kept.bytes,
        path: kept.path.display().to_string(),
        without_baseline: kept.without_baseline,
    }
}
