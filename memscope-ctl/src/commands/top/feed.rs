//! Asks the daemon beside the view, so that nothing on the screen waits for an answer.
//!
//! Owns: the connection, and getting a new one when it breaks. Refuses: deciding what is asked, and when.

use super::ask::{Answer, Ask, Heard, Trouble};
use super::model::course_question;
use crate::client::Client;
use crate::failure::Failure;
use crate::session::Session;
use futures_util::stream::{FuturesUnordered, StreamExt};
use memscope_proto::v1::{self, moment::Moment};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{Receiver, Sender};

/// Time between two attempts to reach a daemon that has gone.
const PAUSE: Duration = Duration::from_secs(1);
/// Lines of a page of leaks, the same as the default of `leaks`.
const LINES: u32 = 20;
/// Lines and stacks of a page of stacks.
const STACKS: u32 = 200;
/// Uses of memory on a page of owners.
const OWNERS: u32 = 200;
/// Steps on a page of steps.
const STEPS: u32 = 200;

/// How questions are asked.
pub(super) struct Asking<'s> {
    pub(super) session: &'s Session,
    pub(super) interval_ms: u64,
    /// A recording is asked: its moments are told as times, those of a live daemon by their age.
    pub(super) is_recording: bool,
}

impl Asking<'_> {
    /// Answers questions until nobody asks any more.
    pub(super) async fn run(
        &self,
        mut client: Client,
        mut questions: Receiver<Ask>,
        heard: Sender<Heard>,
    ) {
        let mut under_way = FuturesUnordered::new();
        loop {
            let what = tokio::select! {
                question = questions.recv() => match question {
                    None => return,
                    Some(ask) => {
                        let client = client.clone();
                        under_way.push(async move {
                            let result = self.ask(&client, &ask).await;
                            (ask, result)
                        });
                        continue;
                    }
                },
                Some(answered) = under_way.next() => answered,
            };
            let (ask, result) = what;
            let (tell, is_lost) = match result {
                Ok(answer) => (Heard::Answer(ask, Box::new(answer)), false),
                Err(failure) if is_lost(&ask, &failure) => {
                    let what = failure.what();
                    (Heard::Lost(ask, Trouble { what }), true)
                }
                Err(failure) => {
                    let answer = Answer::Refused(refusal(&failure));
                    (Heard::Answer(ask, Box::new(answer)), false)
                }
            };
            if heard.send(tell).await.is_err() {
                return;
            }
            if is_lost {
                // Others that are under way on that connection have no answer either.
                under_way.clear();
                client = self.again().await;
                while questions.try_recv().is_ok() {}
                if heard.send(Heard::Reached).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Tries to reach the daemon until that succeeds.
    async fn again(&self) -> Client {
        loop {
            if let Ok(client) = self.session.client().await
                // A socket may be there before anybody answers on it.
                && client.list().await.is_ok()
            {
                return client;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A moment as the daemon is asked about it. A live one is told by its age: the daemon's clock may be another than ours.
    fn moment(&self, at: Option<u64>) -> Option<v1::Moment> {
        let at = at?;
        let moment = match self.is_recording {
            true => Moment::UnixNs(at),
            false => Moment::AgoNs(unix_ns().saturating_sub(at)),
        };
        Some(v1::Moment {
            moment: Some(moment),
        })
    }

    async fn ask(&self, client: &Client, ask: &Ask) -> Result<Answer, Failure> {
        let leaks = |pid, limit, holders| {
            client.leaks(v1::LeaksRequest {
                pid,
                limit,
                holders,
                ..v1::LeaksRequest::default()
            })
        };
        Ok(match ask {
            Ask::List => Answer::List(client.list().await?),
            Ask::Devices => Answer::Devices(
                client
                    .ask(v1::DevicesRequest {}, async |mut rpc, request| {
                        rpc.devices(request).await
                    })
                    .await?,
            ),
            Ask::Stats(pid) => Answer::Stats(client.stats(*pid).await?),
            Ask::Course(pid) => Answer::Course(
                client
                    .ask(
                        course_question(*pid, self.interval_ms),
                        async |mut rpc, request| rpc.fluctuation(request).await,
                    )
                    .await?,
            ),
            Ask::Verdict(pid) => Answer::Leaks(leaks(*pid, 1, false).await?),
            Ask::Leaks(pid) => Answer::Leaks(leaks(*pid, LINES, false).await?),
            Ask::Held(pid) => Answer::Leaks(leaks(*pid, LINES, true).await?),
            Ask::Owners(pid, at) => {
                let question = v1::OwnersRequest {
                    pid: *pid,
                    limit: OWNERS,
                    at: self.moment(*at),
                    ..v1::OwnersRequest::default()
                };
                Answer::Owners(owners(client, question).await?)
            }
            Ask::Why(pid, address, at) => {
                let question = v1::OwnersRequest {
                    pid: *pid,
                    addresses: vec![*address],
                    at: self.moment(*at),
                    ..v1::OwnersRequest::default()
                };
                Answer::Owners(owners(client, question).await?)
            }
            Ask::Lines { pid, any, at } => {
                let by = match any {
                    true => v1::StackGrouping::Line,
                    false => v1::StackGrouping::OwnLine,
                };
                Answer::Stacks(self.stacks(client, *pid, *at, by).await?)
            }
            Ask::Stacks(pid, at) => {
                let by = v1::StackGrouping::Stack;
                Answer::Stacks(self.stacks(client, *pid, *at, by).await?)
            }
            Ask::Steps(pid) => {
                let question = v1::StepsRequest {
                    pid: *pid,
                    limit: STEPS,
                    survivors: 0,
                    every: 1,
                };
                let steps = client.ask(question, async |mut rpc, request| rpc.steps(request).await);
                Answer::Steps(steps.await?)
            }
            Ask::Holders(pid, addresses) => {
                let question = v1::HoldersRequest {
                    pid: *pid,
                    addresses: addresses.clone(),
                    limit: LINES,
                    alike: true,
                };
                let holders = client.ask(question, async |mut rpc, request| {
                    rpc.holders(request).await
                });
                Answer::Holders(holders.await?)
            }
        })
    }

    async fn stacks(
        &self,
        client: &Client,
        pid: u32,
        at: Option<u64>,
        by: v1::StackGrouping,
    ) -> Result<v1::StacksResponse, Failure> {
        let question = v1::StacksRequest {
            pid,
            at: self.moment(at),
            view: Some(v1::StackView {
                metric: v1::StackMetric::Live.into(),
                unit: v1::StackUnit::Bytes.into(),
                device: None,
            }),
            by: by.into(),
            limit: STACKS,
            ..v1::StacksRequest::default()
        };
        let stacks = client.ask(question, async |mut rpc, request| rpc.stacks(request).await);
        stacks.await
    }
}

async fn owners(
    client: &Client,
    question: v1::OwnersRequest,
) -> Result<v1::OwnersResponse, Failure> {
    let owners = client.ask(question, async |mut rpc, request| rpc.owners(request).await);
    owners.await
}

/// Whether the failure of a question says that the daemon is gone. An answer that takes too long, or is too large, says that only where
/// the question is a small one: others are asked while a process's objects are read, which may take long.
fn is_lost(ask: &Ask, failure: &Failure) -> bool {
    let is_of_the_question = matches!(failure, Failure::Timeout { .. } | Failure::TooLarge { .. });
    failure.is_of_the_node() && (*ask == Ask::List || !is_of_the_question)
}

/// What happened and what to do, in a line.
fn refusal(failure: &Failure) -> String {
    match failure.hint() {
        Some(hint) => format!("{} ({hint})", failure.what()),
        None => failure.what(),
    }
}

/// The present, nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::client::Room;
    use clap::{CommandFactory, Parser};
    use memscope_rpc::fake::FakeDaemon;
    use memscope_rpc::{ListenOptions, Listener, ServeOptions, serve};
    use std::sync::Arc;
    use tokio::sync::mpsc;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        global: crate::session::Global,
    }

    /// A daemon that is asked for more than it can tell in time is still there; one that cannot list its processes is not.
    #[tokio::test]
    async fn a_question_that_takes_too_long_does_not_lose_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let listener = Listener::bind(&ListenOptions::private(socket.clone())).unwrap();
        let options = ServeOptions {
            identify: Arc::new(|_| Some(memscope_rpc::Caller::local(0, 0, None))),
            ..ServeOptions::default()
        };
        // It never answers, so that every question takes too long, whatever the time limit is.
        let daemon = Arc::new(FakeDaemon::hanging());
        let served = tokio::spawn(serve(listener, daemon, options, std::future::pending()));
        let words = ["top".as_ref(), "--socket".as_ref(), socket.as_os_str()];
        let session = Session::new(Options::parse_from(words).global, Options::command);
        let patience = Duration::from_secs(60);
        let address = Address::Unix(socket.clone());
        let client = Client::connect(&address, None, Room::ALONE, patience);
        let client = client.await.unwrap();
        let client = client.with_timeout(Duration::from_millis(20));
        let asking = Asking {
            session: &session,
            interval_ms: 1000,
            is_recording: false,
        };
        let (ask, questions) = mpsc::channel(8);
        let (told, mut heard) = mpsc::channel(8);
        let hear = async {
            let owners = Ask::Owners(7, None);
            ask.send(owners.clone()).await.unwrap();
            match heard.recv().await.unwrap() {
                Heard::Answer(of, answer) => {
                    assert_eq!(of, owners);
                    assert!(matches!(*answer, Answer::Refused(_)), "{answer:?}");
                }
                other => panic!("{other:?}"),
            }
            ask.send(Ask::List).await.unwrap();
            let next = heard.recv().await.unwrap();
            assert!(matches!(next, Heard::Lost(Ask::List, _)), "{next:?}");
        };
        tokio::select! {
            () = hear => {}
            () = asking.run(client, questions, told) => panic!("it ended"),
        }
        served.abort();
    }
}
