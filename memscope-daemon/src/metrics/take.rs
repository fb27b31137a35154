//! What the metrics of one moment are made of.

use crate::otlp::Queues;
use crate::serve::Serving;
use memscope_ledger::event::ProcessHandle;
use memscope_ledger::report::{AsOf, ProcessState};
use memscope_ledger::{FREE_HOLDS_NS, Ledger, Needs};
use memscope_metrics::{Limits, Taken, TakenProcess};
use memscope_proto::v1;
use memscope_rpc::{Daemon, Refusal};
use rustix::time::{ClockId, clock_gettime};

impl Serving {
    /// Takes everything that metrics tell of at this moment. `needs`: how much is looked up for it, beside what events told.
    ///
    /// # Errors
    /// The daemon is busy, or shuts down.
    pub async fn take_metrics(&self, limits: &Limits, needs: Needs) -> Result<Taken, Refusal> {
        let who = self.who(None).await?;
        let live = who.iter().filter(|one| one.is_live);
        let live: Vec<ProcessHandle> = live.map(|one| one.handle).collect();
        self.refresh_for(needs, &live).await;
        let ended_ns = limits.ended_ns;
        let (mut processes, devices) = self
            .ask_keeper(move |ledger, as_of| {
                let of = who.iter().map(|one| one.handle);
                let taken = of
                    .clone()
                    .filter_map(|one| process(ledger, one, as_of, ended_ns));
                let all: Vec<_> = of.clone().collect();
                let devices = ledger.ask(&all, as_of, &v1::DevicesRequest {});
                (taken.collect::<Vec<_>>(), devices.unwrap_or_default())
            })
            .await?;
        for (of, finding) in self.keeper.hub().findings() {
            let found = processes.iter_mut().find(|(process, _)| *process == of);
            if let Some((_, process)) = found {
                process.findings.push((&finding).into());
            }
        }
        Ok(Taken {
            processes: processes.into_iter().map(|(_, process)| process).collect(),
            devices,
            status: self.status().await?,
            cpu_ns: processor_time_ns(),
            free_holds_ns: FREE_HOLDS_NS,
            drops_since: Default::default(),
            pushed: self.pushed.as_ref().map(Queues::counts).unwrap_or_default(),
        })
    }
}

/// What is told of a process; `None` if it ended too long ago, or waits for a device.
fn process(
    ledger: &Ledger,
    of: ProcessHandle,
    as_of: AsOf,
    ended_ns: u64,
) -> Option<(ProcessHandle, TakenProcess)> {
    let summary = ledger.summary(of)?;
    let ended_ago_ns = summary
        .ended_ns
        .map(|ended| as_of.boot_ns.saturating_sub(ended));
    // A process that has loaded no library of a device yet has no numbers, and would take the place of one that has.
    if summary.waits_for_device {
        return None;
    }
    if summary.state != ProcessState::Attached && ended_ago_ns.is_none_or(|ago| ago > ended_ns) {
        return None;
    }
    let pid = summary.facts.pid;
    let taken = TakenProcess {
        stats: ledger.ask(&[of], as_of, &v1::StatsRequest { pid })?,
        steps: ledger.step_summary(of)?,
        findings: Vec::new(),
        ended_ago_ns,
    };
    Some((of, taken))
}

/// Processor time of this program so far, all threads together.
fn processor_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}
