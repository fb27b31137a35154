//! Answers that wait for readings. An attach waits for the baseline. A question waits for the present state if events
//! alone cannot answer it (at level `read`, that is every question). Neither waits for ever.

use std::time::{Duration, Instant};

use memscope_ledger::event::Level;
use memscope_proto::v1::AttachResponse;
use memscope_rpc::Refusal;
use tokio::sync::oneshot;

use super::Tracer;
use super::waits::{Attaching, Refreshing};

/// How long an attach waits for its first readings, which have to be tried again if the process allocates without a
/// pause.
const ATTACH: Duration = Duration::from_secs(5);
/// How long a question waits for a new reading.
pub const QUESTION: Duration = Duration::from_secs(2);

impl Tracer {
    fn is_reading(&self, pid: u32) -> bool {
        self.traced.get(&pid).is_some_and(|traced| traced.reading)
    }

    /// Answers an attach once its first readings have ended.
    pub(super) fn answer_attach(
        &mut self,
        outcome: AttachResponse,
        reply: oneshot::Sender<Result<AttachResponse, Refusal>>,
    ) {
        self.attaching.push(Attaching {
            deadline: Instant::now() + ATTACH,
            outcome,
            reply,
        });
        self.answer_waiting();
    }

    /// Checks a process's allocator for a question, and sends a message when that is done.
    pub(super) fn refresh(&mut self, pid: u32, read: bool, reply: oneshot::Sender<()>) {
        self.read_backend(pid);
        if read && self.start_reading(pid) {
            self.refreshing.push(Refreshing {
                deadline: Instant::now() + QUESTION,
                pid,
                reply,
            });
        } else {
            // The asker may be gone.
            let _ = reply.send(());
        }
    }

    /// Says that a question is answered without the reading that it waited for. At other levels events go on, and tell what there is.
    fn note_late_reading(&mut self, pid: u32) {
        let Some(traced) = self.traced.get(&pid) else {
            return;
        };
        // Where the one before has failed, its reason is said already, and that an earlier one is shown.
        let is_told = traced
            .notes
            .get("reading_failed")
            .is_some_and(|said| !said.is_empty());
        if traced.level != Level::Read || is_told {
            return;
        }
        let shown = match traced.baseline {
            Some(_) => "an earlier one is shown",
            None => "nothing is shown",
        };
        let text = format!(
            "the last reading has not ended within the {} s that a question waits for it, so that {shown}",
            QUESTION.as_secs()
        );
        self.note(pid, "reading_failed", &text);
    }

    /// Answers all requests whose readings have ended or whose time is up.
    pub(super) fn answer_waiting(&mut self) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.refreshing) {
            let is_reading = self.is_reading(waiting.pid);
            if is_reading && now < waiting.deadline {
                self.refreshing.push(waiting);
                continue;
            }
            if is_reading {
                self.note_late_reading(waiting.pid);
            }
            let _ = waiting.reply.send(());
        }
        for mut waiting in std::mem::take(&mut self.attaching) {
            let mut processes = waiting.outcome.processes.iter();
            if processes.any(|process| self.is_reading(process.pid)) && now < waiting.deadline {
                self.attaching.push(waiting);
                continue;
            }
            for process in &mut waiting.outcome.processes {
                if let Some(traced) = self.traced.get(&process.pid) {
                    process.baseline = traced.baseline;
                    process.baseline_pending = traced.reading && traced.baseline.is_none();
                    process.coverage = traced.coverage().into_iter().map(Into::into).collect();
                    process.cost = traced.cost();
                }
            }
            // The attach stays, even if the client is gone.
            let _ = waiting.reply.send(Ok(waiting.outcome));
        }
    }
}
