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
        for finding in self.standing.borrow().values() {
            tab.event(finding.clone());
        }
        self.tabs.borrow_mut().push(Arc::downgrade(&tab));
        self.came.send_modify(|came| *came += 1);
        stream_to(tab)
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
                    let back = message("back", b"{}");
                    self.tabs().iter().for_each(|tab| tab.link(back.clone()));
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
            // All findings that stand are told at the beginning of the stream.
            self.standing.borrow_mut().clear();
            let heard = self
                .source
                .events(&question, |event, node| self.pass_on(event, node));
            tokio::select! {
                // Whether the daemon is there is seen by the look.
                _ = heard => tokio::time::sleep(AGAIN).await,
                () = self.deserted() => {}
            }
        }
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
