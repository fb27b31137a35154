//! Where metrics come from, for all who want them: they are taken at most once a second, however often they are asked for.

use crate::clock;
use crate::serve::Serving;
use crate::tracer::Since;
use memscope_common::DropReason;
use memscope_ledger::Needs;
use memscope_metrics::{Limits, Metric, fold};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long metrics stay as they were taken.
const FRESH: Duration = Duration::from_secs(1);
/// How often each device is asked what is free, and each process which allocator it uses: what was free holds for 15 s, and with hundreds
/// of processes asking takes the tracer a noticeable part of a second.
const LOOKED_UP_EVERY: Duration = Duration::from_secs(10);
/// How long taking them may last.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// Metrics of one moment.
#[derive(Debug)]
pub struct Moment {
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// When they were taken, in nanoseconds since 1970.
    pub unix_ns: u64,
}

/// Where metrics come from, with those that were taken last.
pub struct Source {
    serving: Arc<Serving>,
    since: Since,
    last: Mutex<Last>,
}

/// What was taken last, and when devices and processes were looked at last.
#[derive(Default)]
struct Last {
    taken: Option<(Instant, Arc<Moment>)>,
    looked_up: Option<Instant>,
}

impl Source {
    /// The metrics of this daemon.
    #[must_use]
    pub fn new(serving: Arc<Serving>, since: Since) -> Source {
        Source {
            serving,
            since,
            last: Mutex::default(),
        }
    }

    /// The metrics, at most a second old. Whoever asks while they are being taken waits for the same ones.
    ///
    /// # Errors
    /// The daemon is too busy, or it ends; in words.
    pub async fn taken(&self) -> Result<Arc<Moment>, String> {
        self.taken_within(FRESH).await
    }

    /// The metrics, at most so old, and never older than a second.
    ///
    /// # Errors
    /// The daemon is too busy, or it ends; in words.
    pub async fn taken_within(&self, age: Duration) -> Result<Arc<Moment>, String> {
        let mut last = self.last.lock().await;
        if let Some((taken, moment)) = &last.taken
            && taken.elapsed() < age.min(FRESH)
        {
            return Ok(Arc::clone(moment));
        }
        let is_known = |at: Instant| at.elapsed() < LOOKED_UP_EVERY;
        let needs = match last.looked_up.is_some_and(is_known) {
            true => Needs::Reading,
            false => Needs::Totals,
        };
        if needs == Needs::Totals {
            last.looked_up = Some(Instant::now());
        }
        let limits = Limits::default();
        let take = self.serving.take_metrics(&limits, needs);
        let taken = tokio::time::timeout(TAKEN_WITHIN, take).await;
        let taken = taken
            .map_err(|_| "memscoped is too busy to take metrics — try again soon".to_owned())?;
        let mut taken = taken.map_err(|refusal| refusal.to_string())?;
        let of_kernel = DropReason::ALL.iter().map(|reason| reason.name());
        taken.drops_since = of_kernel
            .map(|cause| (cause, self.since.kernel_boot_ns))
            .collect();
        let (_, unix_ns) = clock::pair();
        let moment = Arc::new(Moment {
            metrics: fold(&taken, &limits),
            unix_ns,
        });
        last.taken = Some((Instant::now(), Arc::clone(&moment)));
        Ok(moment)
    }
}
