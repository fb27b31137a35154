//! What the page asks: a daemon, a recording, or a fleet.

use super::ask::{self, Question};
use crate::address::Address;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::fleet::{Asking, Came, Fleet};
use crate::session::Session;
use memscope_proto::v1;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two looks at a daemon that is followed.
const EVERY: Duration = Duration::from_secs(1);
/// The same for a fleet, where each look asks every node.
const EVERY_OF_FLEET: Duration = Duration::from_secs(5);
/// Time after which the events of a fleet's node are followed anew where they have ended: it may be back.
const RENEWED: Duration = Duration::from_secs(30);

/// What the page asks.
pub(super) struct Source<'s> {
    session: &'s Session,
    /// Processes that the page begins with; empty: all.
    pids: &'s [u32],
    of: Of<'s>,
}

enum Of<'s> {
    /// A daemon or a recording, and the connection to it while it is good.
    One(Box<RefCell<Option<Client>>>),
    Fleet(&'s Fleet),
}

impl<'s> Source<'s> {
    /// The daemon or recording of the session.
    pub(super) fn of_one(session: &'s Session, pids: &'s [u32]) -> Source<'s> {
        Source {
            session,
            pids,
            of: Of::One(Box::default()),
        }
    }

    /// All nodes of a fleet.
    pub(super) fn of_fleet(session: &'s Session, fleet: &'s Fleet, pids: &'s [u32]) -> Source<'s> {
        Source {
            session,
            pids,
            of: Of::Fleet(fleet),
        }
    }

    /// The fleet, where it is one.
    pub(super) fn fleet(&self) -> Option<&'s Fleet> {
        match self.of {
            Of::One(_) => None,
            Of::Fleet(fleet) => Some(fleet),
        }
    }

    /// Whether there is more to come.
    pub(super) fn is_live(&self) -> bool {
        self.session.global.recording.is_none()
    }

    /// Time between two looks.
    pub(super) fn every(&self) -> Duration {
        match self.of {
            Of::One(_) => EVERY,
            Of::Fleet(_) => EVERY_OF_FLEET,
        }
    }

    /// Fails where it can never be asked: a file that is no recording, or a daemon that this user may not ask. One that is not there may
    /// come later.
    pub(super) async fn try_once(&self) -> Result<(), Failure> {
        let Of::One(_) = &self.of else {
            return Ok(());
        };
        match self.connection().await {
            Err(failure) if self.is_live() && failure.exit() == Exit::Unreachable => Ok(()),
            tried => tried.map(|_| ()),
        }
    }

    /// Asks the daemon or recording. Where the connection has broken since the last question, as when the daemon was started anew, it is
    /// made again.
    pub(super) async fn ask<A>(
        &self,
        ask: impl AsyncFn(&Client) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let is_kept = self.kept().is_some();
        let reply = ask(&self.connection().await?).await;
        match self.judged(reply) {
            Err(Failure::Broken { .. }) if is_kept => {
                let again = ask(&self.connection().await?).await;
                self.judged(again)
            }
            reply => reply,
        }
    }

    /// Gives up the connection if the reply says that it is no longer good.
    fn judged<A>(&self, reply: Result<A, Failure>) -> Result<A, Failure> {
        let is_bad =
            |failure: &Failure| failure.is_of_the_node() || failure.exit() == Exit::Unreachable;
        if let (Of::One(kept), Err(failure)) = (&self.of, &reply)
            && is_bad(failure)
        {
            kept.replace(None);
        }
        reply
    }

    fn kept(&self) -> Option<Client> {
        match &self.of {
            Of::One(kept) => kept.borrow().clone(),
            Of::Fleet(_) => None,
        }
    }

    /// The connection to the daemon or recording.
    async fn connection(&self) -> Result<Client, Failure> {
        if let Some(client) = self.kept() {
            return Ok(client);
        }
        let Of::One(kept) = &self.of else {
            return Err(no_node_named());
        };
        let client = self.session.client().await?;
        kept.replace(Some(client.clone()));
        Ok(client)
    }

    /// Asks a node of the fleet; without a fleet, there are no nodes.
    pub(super) async fn ask_node<A>(
        &self,
        name: &str,
        ask: impl AsyncFn(&Asking<'_>) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let fleet = self.fleet().filter(|fleet| fleet.has(name));
        let Some(fleet) = fleet else {
            return Err(Failure::Usage {
                what: format!("there is no node {name}"),
                hint: "GET /api/about names the nodes".to_owned(),
            });
        };
        fleet.ask_one(name, ask).await
    }

    /// Hands out what happens to `each`, until the stream ends. Of a fleet each event comes with its node, and where one node's stream has
    /// ended, the node is handed out alone: its events are followed anew.
    pub(super) async fn events(
        &self,
        question: &v1::EventsRequest,
        mut each: impl FnMut(Option<&v1::Event>, Option<&str>),
    ) -> Result<(), Failure> {
        if let Of::Fleet(fleet) = self.of {
            let each = |came: Came| {
                match came {
                    Came::Event(node, event) => each(Some(&event), Some(&node)),
                    Came::Ended(node, _) => each(None, Some(&node.name)),
                }
                Ok(true)
            };
            return fleet.events(question, None, Some(RENEWED), each).await;
        }
        let (client, mut stream) = self
            .ask(async |client| {
                let call = async |mut rpc: crate::client::Rpc, request| rpc.events(request).await;
                let stream = client.ask(question.clone(), call).await?;
                Ok((client.clone(), stream))
            })
            .await?;
        while let Some(event) = client.next_within(&mut stream, None).await? {
            each(Some(&event), None);
        }
        Ok(())
    }

    /// A fleet of what is asked, for questions that compare many nodes.
    pub(super) fn as_fleet(&self) -> Result<Fleet, Failure> {
        match self.of {
            Of::Fleet(fleet) => Ok(fleet.quiet()),
            Of::One(_) => Ok(Fleet::of_one(self.session)?.quiet()),
        }
    }

    /// Answers a question in JSON: of the daemon or recording, of one node, or of all nodes of a fleet.
    pub(super) async fn answer(
        &self,
        asked: &Question,
        node: Option<&str>,
    ) -> Result<Vec<u8>, Failure> {
        match (&self.of, node) {
            (_, Some(node)) => {
                self.ask_node(node, async |asking| ask::of_node(asking, asked).await)
                    .await
            }
            (Of::One(_), None) => {
                self.ask(async |client| ask::of_one(client, asked).await)
                    .await
            }
            (Of::Fleet(fleet), None) => {
                let ask = async |asking: &Asking<'_>| ask::of_node(asking, asked).await;
                let replies = fleet.ask(ask).await.any()?;
                let document = replies.document(|json| ask::read(json), Vec::new())?;
                ask::written(&document)
            }
        }
    }

    /// What the page is told of all this.
    pub(super) fn about(&self) -> Value {
        let global = &self.session.global;
        let (kind, name) = match (&global.fleet, &global.recording) {
            (Some(fleet), _) => ("fleet", fleet.clone()),
            (None, Some(path)) => ("recording", path.display().to_string()),
            (None, None) => ("daemon", global.address().to_string()),
        };
        let is_here = kind == "daemon" && matches!(global.address(), Address::Unix(_));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.ok().and_then(|now| u64::try_from(now.as_nanos()).ok());
        let offset = now
            .zip(boot_ns())
            .filter(|_| is_here)
            .map(|(unix, boot)| unix.saturating_sub(boot));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "source": {"kind": kind, "name": name, "live": self.is_live()},
            "pids": (!self.pids.is_empty()).then_some(self.pids),
            "nodes": self.fleet().map(Fleet::names),
            "user": user(),
            "now_unix_ns": now,
            "boot_offset_ns": offset,
        })
    }
}

fn no_node_named() -> Failure {
    Failure::Usage {
        what: "this is asked of one node".to_owned(),
        hint: "name it: ?node=NAME; GET /api/about names the nodes".to_owned(),
    }
}

/// Most bytes that are read of the list of users.
const USERS_MOST: u64 = 1 << 20;

/// Name of the user as whom the daemon is asked, else the number.
fn user() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let users = crate::file::text("/etc/passwd".as_ref(), USERS_MOST).unwrap_or_default();
    name_of(uid, &users).map_or_else(|| uid.to_string(), str::to_owned)
}

fn name_of(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        (id.parse() == Ok(uid)).then_some(name)
    })
}

/// Now, in nanoseconds of boot time.
fn boot_ns() -> Option<u64> {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).ok()?;
    let nanoseconds = u64::try_from(now.tv_nsec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn a_user_is_known_by_the_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of(1000, users), Some("ann"));
        assert_eq!(name_of(0, users), Some("root"));
        assert_eq!(name_of(1, users), None);
    }
}
