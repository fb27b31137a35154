//! One tab that listens: what waits to be sent to it. A tab that reads slowly never makes that grow.

use crate::ui::reply::{Reply, reply};
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tonic::codegen::{Bytes, http};

/// Most events that wait for a tab. With more, the oldest are left out, and the tab is told how many.
const MOST_WAITING: usize = 2_048;
/// Time without a word after which something is sent, so that both sides notice where the other is gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// One tab.
pub(super) struct Tab {
    /// Processes that it wants the numbers of.
    pub(super) pids: Vec<u32>,
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Whether the daemon is gone or back, if that is news.
    link: Option<Bytes>,
    events: VecDeque<Bytes>,
    /// Events that were left out since the last one that was sent.
    missed: u64,
    /// The newest numbers.
    now: Option<Bytes>,
    /// What the last numbers said, without the moments of which they are.
    last: Vec<u8>,
}

impl Tab {
    pub(super) fn new(pids: Vec<u32>) -> Tab {
        Tab {
            pids,
            waiting: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the numbers unless they are those that were sent last. Of several that wait, only the newest are sent.
    pub(super) fn now(&self, timeless: Vec<u8>, json: impl FnOnce() -> Vec<u8>) {
        let mut waiting = self.waiting();
        if waiting.last != timeless {
            waiting.now = Some(message("now", &json()));
            waiting.last = timeless;
            self.news.notify_one();
        }
    }

    /// Says that the daemon is gone or back. The numbers are told anew after that.
    pub(super) fn link(&self, message: Bytes) {
        let mut waiting = self.waiting();
        waiting.link = Some(message);
        waiting.now = None;
        waiting.last.clear();
        self.news.notify_one();
    }

    /// Sends an event.
    pub(super) fn event(&self, message: Bytes) {
        let mut waiting = self.waiting();
        if waiting.events.len() >= MOST_WAITING {
            waiting.events.pop_front();
            waiting.missed += 1;
        }
        waiting.events.push_back(message);
        self.news.notify_one();
    }

    /// What is sent next.
    pub(super) fn take(&self) -> Option<Bytes> {
        let mut waiting = self.waiting();
        if let Some(link) = waiting.link.take() {
            return Some(link);
        }
        if waiting.missed > 0 {
            let events = std::mem::take(&mut waiting.missed);
            let missed = serde_json::json!({ "events": events });
            return Some(message("missed", missed.to_string().as_bytes()));
        }
        waiting.events.pop_front().or_else(|| waiting.now.take())
    }

    /// Waits for what is sent next; a comment if there is nothing for long.
    async fn next(&self) -> Bytes {
        let news = async {
            loop {
                if let Some(message) = self.take() {
                    return message;
                }
                self.news.notified().await;
            }
        };
        let next = tokio::time::timeout(HEARTBEAT, news).await;
        next.unwrap_or_else(|_| Bytes::from_static(b": still here\n\n"))
    }
}

/// The answer in which all that comes is sent to the tab. It never ends.
pub(super) fn stream_to(tab: Arc<Tab>) -> Reply {
    let messages = stream::unfold(tab, async |tab| {
        let frame = Frame::data(tab.next().await);
        Some((Ok::<_, Infallible>(frame), tab))
    });
    let never = |never: Infallible| match never {};
    let content = StreamBody::new(messages).map_err(never).boxed_unsync();
    reply(StatusCode::OK, "text/event-stream", content)
}

/// A message of server-sent events. JSON on one line has no line breaks in it.
pub(super) fn message(kind: &str, json: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(json.len() + kind.len() + 16);
    message.extend_from_slice(b"event: ");
    message.extend_from_slice(kind.as_bytes());
    message.extend_from_slice(b"\ndata: ");
    message.extend_from_slice(json);
    message.extend_from_slice(b"\n\n");
    message.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    fn texts(tab: &Tab) -> Vec<String> {
        let all = std::iter::from_fn(|| tab.take());
        all.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn of_numbers_only_the_newest_wait() {
        let tab = Tab::new(Vec::new());
        for number in 0..1000 {
            let json = format!("{number}").into_bytes();
            tab.now(json.clone(), || json);
        }
        assert_eq!(texts(&tab), ["event: now\ndata: 999\n\n"]);
        tab.now(b"999".to_vec(), || unreachable!());
        assert!(texts(&tab).is_empty());
        tab.link(message("back", b"{}"));
        tab.now(b"999".to_vec(), || b"999".to_vec());
        let both = ["event: back\ndata: {}\n\n", "event: now\ndata: 999\n\n"];
        assert_eq!(texts(&tab), both);
    }

    #[test]
    fn a_slow_tab_is_told_how_many_events_it_missed() {
        let tab = Tab::new(Vec::new());
        for number in 0..MOST_WAITING + 7 {
            tab.event(message("event", number.to_string().as_bytes()));
        }
        let texts = texts(&tab);
        assert_eq!(texts.len(), MOST_WAITING + 1);
        assert_eq!(texts[0], "event: missed\ndata: {\"events\":7}\n\n");
        assert_eq!(texts[1], "event: event\ndata: 7\n\n");
        Met {
            what: "events that wait for one tab of the page",
            most: constant("memscope-ctl/src/commands/ui/tab.rs", "MOST_WAITING"),
            beyond: "the oldest are left out",
            told: "the message `missed` with their number",
            test: "a_slow_tab_is_told_how_many_events_it_missed",
        }
        .is_told();
    }
}
