//! Sends what waits in one queue, one request after the other, and each again until the collector accepts or refuses it.

use super::collector::Collector;
use super::queue::{Batch, Queue};
use super::settings::Settings;
use super::stop::Stop;
use crate::messages::{Messages, Severity};
use memscope_otlp::{Answer, Backoff};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// What sends the messages of one signal.
pub(super) struct Lane {
    queue: Arc<Queue>,
    collector: Collector,
    settings: Arc<Settings>,
    messages: Messages,
    /// What was said last of the collector; `None`: nothing, or that all is well.
    trouble: Option<String>,
    backoff: Backoff,
}

/// What to do after a request.
enum Next {
    /// It is done with.
    Go,
    /// It is to be sent again after this time.
    Wait(Duration),
}

impl Lane {
    pub(super) fn new(queue: Arc<Queue>, settings: &Arc<Settings>, messages: Messages) -> Lane {
        Lane {
            collector: Collector::new(Arc::clone(settings)),
            settings: Arc::clone(settings),
            queue,
            messages,
            trouble: None,
            backoff: Backoff::default(),
        }
    }

    /// Sends until it is told to stop; then each request that waits is sent once more, without a pause, until one fails.
    pub(super) async fn run(mut self, mut stop: Stop) {
        loop {
            let batch = tokio::select! {
                batch = self.queue.next() => batch,
                () = stop.told() => match self.queue.take() {
                    Some(batch) => batch,
                    None => return,
                },
            };
            if !self.until_done(&batch, &mut stop).await {
                return;
            }
        }
    }

    /// Sends a batch until it is accepted or refused. False: it is to stop, and the collector takes nothing.
    async fn until_done(&mut self, batch: &Batch, stop: &mut Stop) -> bool {
        loop {
            let answer = self.collector.send(&batch.message).await;
            let Next::Wait(wait) = self.judge(answer) else {
                return true;
            };
            if stop.is_told() {
                return false;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // Sent once more at once: this may be the last chance.
                () = stop.told() => {}
            }
        }
    }

    fn judge(&mut self, answer: Answer) -> Next {
        let signal = self.queue.signal().word();
        let at = &self.settings.endpoint;
        match answer {
            Answer::Accepted { rejected, words } => {
                self.queue.accepted(rejected);
                self.backoff.reset();
                if rejected > 0 || !words.is_empty() {
                    let what = format!(
                        "the OTLP collector at {at} accepted {signal} but for {rejected} of a request: {words}"
                    );
                    self.tell(what);
                } else if self.trouble.take().is_some() {
                    let text = format!("the OTLP collector at {at} accepts {signal} again");
                    self.messages.log(Severity::Info, text);
                }
                Next::Go
            }
            Answer::Again { after, why } => {
                self.queue.again();
                let chance = RandomState::new().hash_one(signal);
                let wait = self.backoff.next(after, chance);
                let what = format!(
                    "the OTLP collector at {at} does not accept {signal} now, which wait: {why}"
                );
                self.tell(what);
                Next::Wait(wait)
            }
            Answer::Refused { why } => {
                self.queue.refused();
                self.backoff.reset();
                let what = format!(
                    "the OTLP collector at {at} refused {signal}, which are dropped: {why}"
                );
                self.tell(what);
                Next::Go
            }
        }
    }

    /// Says what is wrong with the collector, unless it was said last.
    fn tell(&mut self, what: String) {
        let what = self.settings.without_secrets(&what);
        if self.trouble.as_ref() != Some(&what) {
            self.messages.log(Severity::Warning, what.clone());
            self.trouble = Some(what);
        }
    }
}
