//! What open tabs are told by themselves: numbers that change, events, and whether the daemon is there.
//!
//! Owns: one look at the daemon for all tabs together, and only while there is one; the events, and the findings that stand, which a
//! tab that comes later is told as well.

use super::now::now;
use super::source::Source;
use super::tab::{Tab, message, stream_to};
use crate::failure::Failure;
use crate::output::error_document;
use crate::ui::exact::exact;
use crate::ui::reply::Reply;
use memscope_proto::v1::{self, event::Body};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tonic::codegen::Bytes;

/// The events that a page is told.
const KINDS: [&str; 7] = [
    "finding", "mark", "oom", "attached", "detached", "exited", "replaced",
];
/// Most findings that are kept for tabs that come later. With more, those of the first processes are.
const MOST_STANDING: usize = 1024;
/// Time between two attempts to follow events, and between two looks whether anybody still listens.
const AGAIN: Duration = Duration::from_secs(1);

/// All open tabs, and what they have in common.
pub(super) struct Live<'s> {
    source: &'s Source<'s>,
    tabs: RefCell<Vec<Weak<Tab>>>,
    /// Number of tabs that have come so far.
    came: watch::Sender<u64>,
    /// What is told of the daemon while it is gone.
    gone: RefCell<Option<Bytes>>,
    standing: RefCell<BTreeMap<Finding, Bytes>>,
}

/// A finding: its node, process and number.
type Finding = (Option<String>, u32, u64);

impl<'s> Live<'s> {
    pub(super) fn new(source: &'s Source<'s>) -> Live<'s> {
        Live {
            source,
            tabs: RefCell::default(),
            came: watch::Sender::new(0),
            gone: RefCell::default(),
            standing: RefCell::default(),
        }
    }

    /// Tells a tab from now on.
    pub(super) fn listen(&self, pids: Vec<u32>) -> Reply {
        let tab = Arc::new(Tab::new(pids));
        if let Some(gone) = &*self.gone.borrow() {
            tab.link(gone.clone());
        }
        self.tell_standing(&tab);
        self.tabs.borrow_mut().push(Arc::downgrade(&tab));
        self.came.send_modify(|came| *came += 1);
        stream_to(tab)
    }

    /// Tells a tab, which knows of no finding, those that stand.
    fn tell_standing(&self, tab: &Tab) {
        for finding in self.standing.borrow().values() {
            tab.event(finding.clone());
        }
    }

    /// Follows the daemon for the tabs, for ever.
    pub(super) async fn follow(&self) -> Infallible {
        tokio::select! {
            never = self.look() => never,
            never = self.hear() => never,
        }
    }

    /// The tabs that are open.
    fn tabs(&self) -> Vec<Arc<Tab>> {
        let mut tabs = self.tabs.borrow_mut();
        tabs.retain(|tab| tab.strong_count() > 0);
        tabs.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until a tab is open.
    async fn listened(&self, came: &mut watch::Receiver<u64>) {
        loop {
            came.borrow_and_update();
            if !self.tabs().is_empty() {
                return;
            }
            // The sender lives as long as this.
            let _ = came.changed().await;
        }
    }

    /// Looks at the numbers again and again, and at once when a tab comes.
    async fn look(&self) -> Infallible {
        let mut came = self.came.subscribe();
        loop {
            self.listened(&mut came).await;
            let wanted = self
                .tabs()
                .iter()
                .flat_map(|tab| tab.pids.clone())
                .collect();
            self.look_once(&wanted).await;
            tokio::select! {
                () = tokio::time::sleep(self.source.every()) => {}
                _ = came.changed() => {}
            }
        }
    }

    async fn look_once(&self, wanted: &BTreeSet<u32>) {
        let looked = now(self.source, wanted).await;
        let was_gone = self.gone.borrow().is_some();
        match looked {
            Ok(now) => {
                if self.gone.replace(None).is_some() {
                    self.back();
                }
                for tab in self.tabs() {
                    tab.now(now.timeless(&tab.pids), || exact(&now.json(&tab.pids)));
                }
            }
            Err(failure) if !was_gone => {
                let gone = gone(&failure);
                self.gone.replace(Some(gone.clone()));
                self.tabs().iter().for_each(|tab| tab.link(gone.clone()));
            }
            Err(_) => {}
        }
    }

    /// Says that the daemon is back. A page drops its findings then: those that it was told since the daemon is there, and those of a
    /// stream that has not ended at all, nobody else would tell again.
    fn back(&self) {
        let back = message("back", b"{}");
        for tab in self.tabs() {
            tab.link(back.clone());
            self.tell_standing(&tab);
        }
    }

    /// Passes events on while anybody listens.
    async fn hear(&self) -> Infallible {
        if !self.source.is_live() {
            return std::future::pending().await;
        }
        let question = v1::EventsRequest {
            pid: None,
            kinds: KINDS.map(str::to_owned).to_vec(),
        };
        let mut came = self.came.subscribe();
        loop {
            self.listened(&mut came).await;
            let heard = self.source.events(&question, |event, node| match event {
                Some(event) => self.pass_on(event, node),
                None => self.forget(node),
            });
            let is_deserted = tokio::select! {
                _ = heard => false,
                () = self.deserted() => true,
            };
            self.forget(None);
            // Whether the daemon is there is seen by the look.
            if !is_deserted {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Forgets the findings of a node, or all of them, where the stream of events has ended: those that stand are told at the beginning of
    /// the next one.
    fn forget(&self, node: Option<&str>) {
        let mut standing = self.standing.borrow_mut();
        standing.retain(|(of, ..), _| node.is_some() && of.as_deref() != node);
    }

    /// Waits until no tab is open any more.
    async fn deserted(&self) {
        while !self.tabs().is_empty() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn pass_on(&self, event: &v1::Event, node: Option<&str>) {
        // An event that cannot be written as JSON would be a fault of this program; the others are told.
        let Ok(mut document) = serde_json::to_value(event) else {
            return;
        };
        if let Some(node) = node {
            document["node"] = node.into();
        }
        let message = message("event", &exact(document.to_string().as_bytes()));
        self.remember(event, node, &message);
        for tab in self.tabs() {
            tab.event(message.clone());
        }
    }

    /// Keeps a finding for tabs that come later, until it is withdrawn or its process has ended.
    fn remember(&self, event: &v1::Event, node: Option<&str>, message: &Bytes) {
        let Some(pid) = event.pid else {
            return;
        };
        let node = node.map(str::to_owned);
        let mut standing = self.standing.borrow_mut();
        match &event.body {
            Some(Body::Finding(finding)) if finding.withdrawn => {
                standing.remove(&(node, pid, finding.number));
            }
            Some(Body::Finding(finding)) => {
                standing.insert((node, pid, finding.number), message.clone());
                if standing.len() > MOST_STANDING {
                    standing.pop_last();
                }
            }
            Some(Body::Exited(_) | Body::Replaced(_) | Body::Detached(_)) => {
                standing.retain(|(of, other, _), _| (of, *other) != (&node, pid));
            }
            _ => {}
        }
    }
}

fn gone(failure: &Failure) -> Bytes {
    let document = error_document(failure).unwrap_or(Value::Null);
    message("gone", document.to_string().as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::session::Session;
    use clap::Parser as _;

    fn session() -> Session {
        let arguments = crate::commands::Args::parse_from(["memscope-ctl", "ps"]);
        Session::new(arguments.global, || clap::Command::new("memscope-ctl"))
    }

    fn finding(pid: u32) -> v1::Event {
        v1::Event {
            pid: Some(pid),
            body: Some(Body::Finding(v1::Finding::default())),
            ..v1::Event::default()
        }
    }

    /// The kinds of the messages that wait for a tab.
    fn kinds(tab: &Tab) -> Vec<String> {
        let all = std::iter::from_fn(|| tab.take());
        all.map(|bytes| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let kind = text.lines().next().unwrap().strip_prefix("event: ");
            kind.unwrap().to_owned()
        })
        .collect()
    }

    #[test]
    fn a_tab_that_drops_its_findings_is_told_them_again() {
        let session = session();
        let source = Source::of_one(&session, &[]);
        let live = Live::new(&source);
        let tab = Arc::new(Tab::new(Vec::new()));
        live.tabs.borrow_mut().push(Arc::downgrade(&tab));
        live.pass_on(&finding(4242), None);
        assert_eq!(kinds(&tab), ["event"]);
        live.back();
        assert_eq!(kinds(&tab), ["back", "event"]);
        // Those of a stream that has ended may stand no more.
        live.forget(None);
        live.back();
        assert_eq!(kinds(&tab), ["back"]);
    }

    #[test]
    fn of_a_fleet_the_findings_of_the_other_nodes_stay() {
        let session = session();
        let source = Source::of_one(&session, &[]);
        let live = Live::new(&source);
        live.pass_on(&finding(4242), Some("a"));
        live.pass_on(&finding(4242), Some("b"));
        live.forget(Some("a"));
        let standing = live.standing.borrow();
        let nodes: Vec<_> = standing.keys().map(|(node, ..)| node.as_deref()).collect();
        assert_eq!(nodes, [Some("b")]);
    }
}
