//! Asks all nodes: so many at a time, each within its time, slow ones twice.

use super::asking::{Allowance, Asking};
use super::nodes::{self, Node};
use super::pace::Pace;
use super::replies::Replies;
use crate::address::Address;
use crate::client::{Client, Room};
use crate::failure::Failure;
use crate::progress::Count;
use crate::recording::Replayer;
use crate::session::Session;
use crate::tls::Tls;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Nodes that are asked at a time, where the limit of open files leaves room for so many. Each may have two connections.
const AT_A_TIME_MOST: usize = 256;
/// Nodes that are asked at a time and have not yet been so for [`YOUNG`]: more answers at the same moment than this program
/// can read would all be late. Those that take longer wait for something else, and others are asked beside them.
const YOUNG_MOST: usize = 64;
/// Time after which a question is not counted among the young ones.
const YOUNG: Duration = Duration::from_secs(1);
/// Files that are open for other reasons.
const OTHER_FILES: u64 = 64;
/// Recordings that are replayed at a time: each takes a memscoped of its own.
const REPLAYS: usize = 4;
/// Largest message of a node, bytes. Those of memscoped are smaller by far for what a fleet is asked.
const MESSAGE_MOST: usize = 1 << 20;
/// Bytes that a node may have under way before they are read.
const WINDOW: u32 = 256 << 10;

/// The room that the connection to a node of a fleet has.
pub(super) const ROOM: Room = Room {
    message: MESSAGE_MOST,
    window: Some(WINDOW),
};

/// The nodes that `--fleet` names.
pub(crate) struct Fleet {
    pub(super) nodes: Vec<Node>,
    tls: Option<Tls>,
    timeout: Duration,
    /// Time that a recording has to be replayed and asked.
    replay_timeout: Duration,
    strict: bool,
    /// Whether a person at the terminal is shown how many nodes have answered.
    shows_progress: bool,
}

impl Fleet {
    /// Reads the list and, where a node is a host, the certificates.
    pub(crate) async fn open(source: &str, session: &Session) -> Result<Fleet, Failure> {
        let nodes = nodes::read(source).await?;
        let host = nodes
            .iter()
            .find(|node| matches!(node.address, Address::Host { .. }));
        let tls = match host {
            None => None,
            Some(node) => match session.global.tls()? {
                None => return Err(Failure::no_certificates(&node.address)),
                some => some,
            },
        };
        Ok(Fleet {
            nodes,
            tls,
            timeout: session.global.timeout_in_a_fleet(),
            replay_timeout: session.global.timeout(),
            strict: session.global.strict,
            shows_progress: true,
        })
    }

    /// The daemon or recording that is asked without `--fleet`, as a fleet of one.
    pub(crate) fn of_one(session: &Session) -> Result<Fleet, Failure> {
        let address = match &session.global.recording {
            Some(path) => Address::Recording(path.clone()),
            None => session.global.address(),
        };
        let tls = match &address {
            Address::Host { .. } => session.global.tls()?,
            Address::Unix(_) | Address::Recording(_) => None,
        };
        Ok(Fleet {
            nodes: vec![Node {
                name: address.to_string(),
                address,
            }],
            tls,
            timeout: session.global.timeout(),
            replay_timeout: session.global.timeout(),
            strict: session.global.strict,
            shows_progress: true,
        })
    }

    /// The same fleet, asked without a word to the person at the terminal.
    pub(crate) fn quiet(&self) -> Fleet {
        Fleet {
            nodes: self.nodes.clone(),
            tls: self.tls.clone(),
            shows_progress: false,
            ..*self
        }
    }

    /// Names of all nodes.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.name.as_str()).collect()
    }

    /// Whether a node has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// Connections that may be open at a time, second ones not counted.
    pub(super) fn at_a_time() -> usize {
        (Fleet::room_for_files() / 2).clamp(1, AT_A_TIME_MOST)
    }

    /// Connections that this process may have open at all.
    pub(super) fn room_for_files() -> usize {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = limit.current.unwrap_or(u64::MAX);
        usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX)
    }

    /// A connection to a node that is no recording.
    pub(super) async fn connect(&self, node: &Node) -> Result<Client, Failure> {
        let tls = self.tls.as_ref();
        let client = Client::connect(&node.address, tls, ROOM, self.timeout).await?;
        Ok(client.strict(self.strict))
    }

    /// Asks one node once more, by the name that the tables show.
    pub(crate) async fn ask_one<A>(
        &self,
        name: &str,
        ask: impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let nodes = self.nodes.iter().filter(|node| node.name == name);
        let one = Fleet {
            nodes: nodes.take(1).cloned().collect(),
            tls: self.tls.clone(),
            ..*self
        };
        one.ask(ask).await.only()
    }

    /// Asks every node the same. The replies are in the order of the list.
    pub(crate) async fn ask<A>(
        &self,
        ask: impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Replies<A> {
        let pace = Pace::of(self.nodes.len());
        let allowance = Allowance::new();
        let replays = Semaphore::new(REPLAYS);
        let count = Count::start(self.nodes.len(), self.shows_progress);
        let all = Asked {
            fleet: self,
            pace: &pace,
            allowance: &allowance,
            replays: &replays,
        };
        let mut waiting = self.nodes.iter().enumerate();
        let young = Young::default();
        let mut under_way = FuturesUnordered::new();
        let mut replies: Vec<Option<Result<A, Failure>>> = Vec::new();
        replies.resize_with(self.nodes.len(), || None);
        let at_a_time = Fleet::at_a_time();
        loop {
            while under_way.len() < at_a_time
                && young.count.get() < YOUNG_MOST
                && let Some((place, node)) = waiting.next()
            {
                let (all, ask, young) = (&all, &ask, &young);
                let reply = async move { (place, all.reply(node, ask).await) };
                under_way.push(young.until_old(reply));
            }
            let reply = tokio::select! {
                reply = under_way.next() => reply,
                // There is room for another one.
                () = young.news.notified() => continue,
            };
            let Some((place, reply)) = reply else {
                break;
            };
            count.one_more(reply.is_err());
            if let Some(slot) = replies.get_mut(place) {
                *slot = Some(reply);
            }
        }
        let replies = replies.into_iter().flatten();
        Replies::of(self.nodes.iter().cloned().zip(replies).collect())
    }
}

/// The questions that have just begun.
#[derive(Default)]
struct Young {
    count: Cell<usize>,
    news: Notify,
}

impl Young {
    /// The question, counted as young from now on, until it has its reply or a second has passed.
    fn until_old<T>(&self, question: impl Future<Output = T>) -> impl Future<Output = T> {
        // It counts before it begins, because it begins only when something waits for it.
        self.count.set(self.count.get() + 1);
        async move {
            let mut question = pin!(question);
            let early = tokio::select! {
                reply = &mut question => Some(reply),
                () = tokio::time::sleep(YOUNG) => None,
            };
            self.count.set(self.count.get().saturating_sub(1));
            self.news.notify_one();
            match early {
                Some(reply) => reply,
                None => question.await,
            }
        }
    }
}

/// What the questions of one fleet have in common.
struct Asked<'a> {
    fleet: &'a Fleet,
    pace: &'a Pace,
    allowance: &'a Allowance,
    replays: &'a Semaphore,
}

impl Asked<'_> {
    /// The reply of one node, within its time.
    async fn reply<A>(
        &self,
        node: &Node,
        ask: &impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        if let Address::Recording(_) = node.address {
            return self.replayed(node, ask).await;
        }
        let begin = Instant::now();
        let after = self.fleet.timeout;
        let reply = tokio::time::timeout(after, self.hedged(node, ask, begin)).await;
        let reply = reply.unwrap_or_else(|_| {
            Err(Failure::Timeout {
                address: node.address.clone(),
                what: "answer",
                after,
            })
        });
        if reply.is_ok() {
            self.pace.answered(begin.elapsed());
        }
        reply
    }

    /// Asks once, and once more on another connection if that takes long. The first answer counts; an error counts only
    /// if the other question has failed, too.
    async fn hedged<A>(
        &self,
        node: &Node,
        ask: &impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
        begin: Instant,
    ) -> Result<A, Failure> {
        let mut first = pin!(self.once(node, ask));
        tokio::select! {
            reply = &mut first => return reply,
            () = self.pace.is_slow(begin) => {}
        }
        let mut second = pin!(self.once(node, ask));
        let (reply, is_first) = tokio::select! {
            reply = &mut first => (reply, true),
            reply = &mut second => (reply, false),
        };
        match (reply, is_first) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), true) => second.await,
            (Err(_), false) => first.await,
        }
    }

    async fn once<A>(
        &self,
        node: &Node,
        ask: &impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let client = self.fleet.connect(node).await?;
        ask(&Asking::new(client, self.allowance)).await
    }

    /// Replays a recording and asks it.
    async fn replayed<A>(
        &self,
        node: &Node,
        ask: &impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let Address::Recording(path) = &node.address else {
            return self.once(node, ask).await;
        };
        let after = self.fleet.replay_timeout;
        // The semaphore is never closed; without a turn it would be replayed at once, which is slower and not wrong.
        let _turn = self.replays.acquire().await.ok();
        let (replayer, client) = Replayer::start(path, None, ROOM, after).await?;
        let asking = Asking::new(client.strict(self.fleet.strict), self.allowance);
        let reply = tokio::time::timeout(after, ask(&asking)).await;
        drop(asking);
        replayer.stop().await;
        reply.unwrap_or_else(|_| {
            Err(Failure::Timeout {
                address: node.address.clone(),
                what: "answer",
                after,
            })
        })
    }
}
