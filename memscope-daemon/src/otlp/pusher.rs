//! The tasks that send to a collector, and how they end.

use super::lane::Lane;
use super::news::{News, SOON_SECONDS};
use super::queue::{Batch, Message, Queue, Queues};
use super::settings::Settings;
use super::stop::{Stop, Teller, stop};
use crate::clock;
use crate::keeper::KeeperHandle;
use crate::messages::{Messages, Severity};
use crate::metrics::{Moment as Taken, Source};
use crate::tracer::Since;
use memscope_metrics::{Filling, filling};
use memscope_otlp::{Host, Moment, metrics_requests, resource};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, timeout_at};

/// How long the last numbers and records may take at the end.
const FLUSH: Duration = Duration::from_secs(3);
/// What tells this machine from all others.
const MACHINE: &str = "/etc/machine-id";

/// Sends until it is finished.
pub struct Pusher {
    queues: Queues,
    messages: Messages,
    /// Ends those who make messages.
    no_more: Teller,
    makers: Vec<JoinHandle<()>>,
    /// Ends those who send them, which are told after the makers have ended.
    last: Teller,
    lanes: Vec<JoinHandle<()>>,
}

impl Pusher {
    /// Begins to send. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start(
        settings: Settings,
        queues: Queues,
        source: Arc<Source>,
        (keeper, since): (KeeperHandle, Since),
        messages: &Messages,
    ) -> Pusher {
        let (at, protocol) = (&settings.endpoint, settings.protocol);
        tracing::info!(endpoint = %at, ?protocol, "metrics and findings are sent by OTLP");
        if settings.shows_secrets() {
            let text = format!(
                "the headers of --otlp-headers-file go to {at} without encryption: use https://"
            );
            messages.log(Severity::Warning, text);
        }
        let settings = Arc::new(settings);
        let resource = resource(env!("CARGO_PKG_VERSION"), &host());
        let (no_more, no_more_told) = stop();
        let (last, last_told) = stop();
        // One look is enough: the next one says it again.
        let (fills, filling) = mpsc::channel(1);
        let news = News::new(keeper, Arc::clone(&queues.logs), resource.clone());
        let measures = Measures {
            source,
            queue: Arc::clone(&queues.metrics),
            resource,
            interval: settings.interval,
            fills,
            since,
            began_boot_ns: clock::boot_ns(),
            last: None,
        };
        let makers = vec![
            tokio::spawn(news.run(filling, no_more_told.clone())),
            tokio::spawn(measures.run(no_more_told)),
        ];
        let lanes = [&queues.metrics, &queues.logs].map(|queue| {
            let lane = Lane::new(Arc::clone(queue), &settings, messages.clone());
            tokio::spawn(lane.run(last_told.clone()))
        });
        Pusher {
            queues,
            messages: messages.clone(),
            no_more,
            makers,
            last,
            lanes: lanes.into(),
        }
    }

    /// Sends the last numbers and what waits, and ends. It takes at most [`FLUSH`]; what is left then is told in the log.
    pub async fn finish(self) {
        let deadline = Instant::now() + FLUSH;
        self.no_more.tell();
        join(self.makers, deadline).await;
        self.last.tell();
        join(self.lanes, deadline).await;
        let queues = [&self.queues.metrics, &self.queues.logs];
        let left: Vec<String> = queues
            .into_iter()
            .filter_map(|queue| queue.left())
            .collect();
        if !left.is_empty() {
            let text = format!(
                "at the end {} had not reached the OTLP collector, and are lost",
                left.join(" and ")
            );
            self.messages.log(Severity::Warning, text);
        }
    }
}

/// Waits for tasks until a moment, and ends those that have not ended by then.
async fn join(tasks: Vec<JoinHandle<()>>, deadline: Instant) {
    for mut task in tasks {
        if timeout_at(deadline, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// What is known of this machine.
fn host() -> Host {
    let id = std::fs::read_to_string(MACHINE).unwrap_or_default();
    let id = id.trim();
    Host {
        name: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        id: (!id.is_empty()).then(|| id.to_owned()),
    }
}

/// Takes metrics at an interval and makes messages of them.
struct Measures {
    source: Arc<Source>,
    queue: Arc<Queue>,
    resource: Resource,
    interval: Duration,
    fills: mpsc::Sender<Vec<Filling>>,
    since: Since,
    /// When this daemon began. It is read once: a counter must not begin at another moment each time.
    began_boot_ns: u64,
    /// What was sent last.
    last: Option<Arc<Taken>>,
}

impl Measures {
    async fn run(mut self, mut stop: Stop) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                () = stop.told() => true,
            };
            self.measure().await;
            if is_last {
                return;
            }
        }
    }

    async fn measure(&mut self) {
        // Numbers that were taken for somebody else a moment ago are as good, but those that were sent already are not sent again.
        let taken = match self.source.taken_within(self.interval / 2).await {
            Ok(taken) => taken,
            Err(why) => {
                tracing::warn!(%why, "no metrics are sent by OTLP this time");
                return;
            }
        };
        let before = self.last.replace(Arc::clone(&taken));
        if before.is_some_and(|before| Arc::ptr_eq(&before, &taken)) {
            return;
        }
        let moment = Moment {
            taken_unix_ns: taken.unix_ns,
            daemon_since_boot_ns: self.began_boot_ns,
            boot_unix_ns: self.since.boot_unix_ns(),
        };
        let soon = filling(&taken.metrics, SOON_SECONDS);
        if !soon.is_empty() {
            // If the last look is not taken yet, that one says the same.
            let _ = self.fills.try_send(soon);
        }
        for request in metrics_requests(&taken.metrics, &self.resource, &moment) {
            self.queue.push(Batch {
                message: Message::Metrics(request.message),
                items: request.points,
            });
        }
    }
}
