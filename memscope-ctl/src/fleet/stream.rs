//! The streams of all nodes as one, for events.

use super::ask::Fleet;
use super::nodes::Node;
use crate::address::Address;
use crate::failure::Failure;
use futures_util::stream::{FuturesUnordered, StreamExt};
use memscope_proto::v1;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Events that wait to be printed. A node whose events find no room waits, and its daemon counts what it misses.
const WAITING: usize = 256;

/// What comes from the streams of a fleet.
pub(crate) enum Came {
    /// An event of a node.
    Event(String, Box<v1::Event>),
    /// The stream of a node has ended, with the reason if it is an error.
    Ended(Node, Option<Failure>),
}

impl Fleet {
    /// Follows the events of all nodes, and hands out what comes to `each` until that returns false, or until all streams
    /// have ended. A node may be silent for ever; `patience` limits the wait for an event of any. With `anew`, a node of which
    /// the stream has ended is followed anew after that time, again and again, and those of the others go on.
    pub(crate) async fn events(
        &self,
        question: &v1::EventsRequest,
        patience: Option<Duration>,
        anew: Option<Duration>,
        mut each: impl FnMut(Came) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let room = Fleet::room_for_files();
        if self.nodes.len() > room {
            return Err(Failure::Usage {
                what: format!(
                    "{} streams of events need more open files than are allowed: {room} are possible",
                    self.nodes.len()
                ),
                hint: "allow more (ulimit -n), or follow fewer nodes".into(),
            });
        }
        let (send, mut receive) = mpsc::channel(WAITING);
        let mut streams = FuturesUnordered::new();
        for node in &self.nodes {
            let send = send.clone();
            streams.push(async move {
                loop {
                    let ended = self.follow(node, question, &send).await.err();
                    let told = send.send(Came::Ended(node.clone(), ended)).await;
                    // Nobody receives any more once `each` has had enough.
                    let Some(anew) = anew.filter(|_| told.is_ok()) else {
                        break;
                    };
                    tokio::time::sleep(anew).await;
                }
            });
        }
        drop(send);
        let mut last = Instant::now();
        loop {
            let late = async {
                match patience {
                    Some(after) => tokio::time::sleep_until(last + after).await,
                    None => std::future::pending().await,
                }
            };
            let came = tokio::select! {
                came = receive.recv() => came,
                Some(()) = streams.next() => continue,
                () = late => return Err(Failure::NoEvent { after: patience.unwrap_or_default() }),
            };
            let Some(came) = came else {
                return Ok(());
            };
            if let Came::Event(..) = came {
                last = Instant::now();
            }
            if !each(came)? {
                return Ok(());
            }
        }
    }

    async fn follow(
        &self,
        node: &Node,
        question: &v1::EventsRequest,
        send: &mpsc::Sender<Came>,
    ) -> Result<(), Failure> {
        if let Address::Recording(_) = node.address {
            return Err(Failure::Usage {
                what: "a recording has no events to come".into(),
                hint: "leave it out".into(),
            });
        }
        let client = self.connect(node).await?;
        let question = question.clone();
        let mut stream = client
            .ask(question, async |mut rpc, request| rpc.events(request).await)
            .await?;
        while let Some(event) = client.next_within(&mut stream, None).await? {
            let came = Came::Event(node.name.clone(), Box::new(event));
            if send.send(came).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::session::Session;
    use clap::Parser as _;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn only_the_node_whose_stream_has_ended_is_followed_anew() {
        let folder = tempfile::tempdir().unwrap();
        // It takes the connection and is silent: its stream has not ended.
        let (silent, dead) = (folder.path().join("silent"), folder.path().join("dead"));
        let listener = UnixListener::bind(&silent).unwrap();
        let list = folder.path().join("nodes");
        let lines = format!("unix:{}\nunix:{}\n", silent.display(), dead.display());
        std::fs::write(&list, lines).unwrap();
        let arguments = crate::commands::Args::parse_from(["memscope-ctl", "ps"]);
        let session = Session::new(arguments.global, || clap::Command::new("memscope-ctl"));
        let fleet = Fleet::open(list.to_str().unwrap(), &session).await.unwrap();
        let mut ended = Vec::new();
        let anew = Some(Duration::from_millis(20));
        let each = |came: Came| {
            if let Came::Ended(node, _) = came {
                ended.push(node.address);
            }
            Ok(ended.len() < 3)
        };
        let question = v1::EventsRequest::default();
        fleet.events(&question, None, anew, each).await.unwrap();
        assert_eq!(ended, vec![Address::Unix(dead); 3]);
        listener.set_nonblocking(true).unwrap();
        listener.accept().unwrap();
        listener.accept().unwrap_err();
    }
}
