//! What goes on after a client has cancelled its requests, and what it may keep from others.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, BOB, Server, as_user};
use hyper_util::rt::TokioIo;
use memscope_proto::v1;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Caller, Identify, Limits, ServeOptions, Wanted};
use memscope_service::memscope_client::MemscopeClient;
use memscope_tests::limits::{Met, constant};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};

/// Folds that go on until they are let go, whether somebody waits for them or not.
#[derive(Default)]
struct Folds {
    now: AtomicUsize,
    most: AtomicUsize,
    unwanted: AtomicUsize,
    free: Mutex<bool>,
    freed: Condvar,
}

impl Folds {
    fn run(&self, wanted: &Wanted) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let free = self.free.lock().unwrap();
        drop(self.freed.wait_while(free, |free| !*free).unwrap());
        self.unwanted
            .fetch_add(usize::from(!wanted.is_wanted()), Ordering::SeqCst);
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn let_go(&self) {
        *self.free.lock().unwrap() = true;
        self.freed.notify_all();
    }
}

/// Lets the folds go at the end of a test, also of one that fails: the runtime waits for its blocking threads.
struct LetGo(Arc<Folds>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// Waits until something has come true.
async fn until(what: &str, is_true: impl Fn() -> bool) {
    let all = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    assert!(in_time.is_ok(), "never: {what}");
}

fn a_minute_ago() -> v1::SnapshotRequest {
    v1::SnapshotRequest {
        pid: 11,
        at: Some(v1::Moment {
            moment: Some(v1::moment::Moment::AgoNs(60_000_000_000)),
        }),
        ..v1::SnapshotRequest::default()
    }
}

#[tokio::test]
async fn cancelled_questions_do_not_make_room_for_others_before_they_end() {
    /// Snapshots of one user that may be made at the same time.
    const TURNS: usize = 2;
    const ROUNDS: usize = 150;
    let folds = Arc::new(Folds::default());
    let _at_the_end = LetGo(Arc::clone(&folds));
    let work = Arc::clone(&folds);
    let daemon = FakeDaemon {
        fold: Some(Arc::new(move |wanted| work.run(wanted))),
        ..FakeDaemon::with([fake::process(11, ADA)])
    };
    let server = Server::start(daemon, as_user(ADA));
    let mut client = server.client().await;
    let mut asked = 0;
    for _ in 0..ROUNDS {
        let requests: Vec<_> = (0..TURNS)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move { client.snapshot(a_minute_ago()).await.map(drop) })
            })
            .collect();
        asked += TURNS;
        until("the questions have come", || {
            server.daemon.who.load(Ordering::Relaxed) >= asked
        })
        .await;
        for request in requests {
            request.abort();
        }
        // The cancellations come before this question on the same connection.
        client.list(v1::ListRequest {}).await.unwrap();
        asked += 1;
    }
    assert!(folds.most.load(Ordering::SeqCst) > 0);
    assert!(folds.most.load(Ordering::SeqCst) <= TURNS);
    folds.let_go();
    until("all folds have ended", || {
        folds.now.load(Ordering::SeqCst) == 0
    })
    .await;
    // The cancelled ones knew that nobody waits, and whoever waits is served again.
    assert!(folds.unwanted.load(Ordering::SeqCst) > 0);
    let mut parts = client.snapshot(a_minute_ago()).await.unwrap().into_inner();
    assert!(parts.message().await.unwrap().is_some());
    assert!(folds.most.load(Ordering::SeqCst) <= TURNS);
}

/// A server whose next connections come from the user that is set.
fn of_several_users(daemon: FakeDaemon, options: ServeOptions) -> (Server, Arc<AtomicU32>) {
    let user = Arc::new(AtomicU32::new(ADA));
    let next = Arc::clone(&user);
    let identify: Identify = Arc::new(move |_| {
        let uid = next.load(Ordering::SeqCst);
        Some(Caller::local(uid, uid, None))
    });
    let options = ServeOptions {
        identify,
        ..options
    };
    (Server::start(daemon, options), user)
}

/// A client that connects with its first request, so that a connection that is closed at once is that request's error.
fn lazily(server: &Server) -> MemscopeClient<Channel> {
    let path = server.folder.path().join("s.sock");
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
    MemscopeClient::new(channel)
}

fn of_each(limits: Limits) -> String {
    format!(
        "`{}` of root, `{}` of one other user, `{}` of all others",
        limits.of_root, limits.of_a_user, limits.of_others
    )
}

const FEW: Limits = Limits {
    of_root: 2,
    of_others: 5,
    of_a_user: 3,
};

#[tokio::test]
async fn a_user_with_too_many_connections_keeps_nobody_else_out() {
    let options = ServeOptions {
        connections: FEW,
        ..ServeOptions::default()
    };
    let processes = [fake::process(11, ADA), fake::process(12, BOB)];
    let (server, user) = of_several_users(FakeDaemon::with(processes), options);
    let mut held = Vec::new();
    let (mut answered, mut refused, mut closed) = (0, 0, 0);
    for _ in 0..20 {
        let mut client = lazily(&server);
        match client.list(v1::ListRequest {}).await {
            Ok(_) => answered += 1,
            Err(error) if error.code() == Code::ResourceExhausted => {
                let what = "user 1000 has 3 connections, and one user may have 3";
                assert!(error.message().contains(what), "{error}");
                refused += 1;
            }
            Err(_) => closed += 1,
        }
        held.push(client);
    }
    assert_eq!(answered, 3);
    assert!(refused > 0 && refused + closed == 17, "{refused} {closed}");
    for uid in [BOB, 0] {
        user.store(uid, Ordering::SeqCst);
        let mut client = server.client().await;
        client.list(v1::ListRequest {}).await.unwrap();
        held.push(client);
    }
    // What is closed makes room.
    drop(held);
    user.store(ADA, Ordering::SeqCst);
    let again = async { while lazily(&server).list(v1::ListRequest {}).await.is_err() {} };
    let in_time = tokio::time::timeout(Duration::from_secs(60), again).await;
    assert!(in_time.is_ok());
    Met {
        what: "connections",
        most: of_each(Limits::CONNECTIONS),
        beyond: "further ones are refused, and what another user has is not touched",
        told: "error `too_many` with the numbers",
        test: "a_user_with_too_many_connections_keeps_nobody_else_out",
    }
    .is_told();
}

#[tokio::test]
async fn a_user_with_too_many_requests_keeps_nobody_else_waiting() {
    let options = ServeOptions {
        requests: FEW,
        ..ServeOptions::default()
    };
    let folds = Arc::new(Folds::default());
    let _at_the_end = LetGo(Arc::clone(&folds));
    let work = Arc::clone(&folds);
    let daemon = FakeDaemon {
        fold: Some(Arc::new(move |wanted| work.run(wanted))),
        ..FakeDaemon::with([fake::process(11, ADA), fake::process(12, BOB)])
    };
    let (server, user) = of_several_users(daemon, options);
    let ada = server.client().await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut client = ada.clone();
            tokio::spawn(async move { client.snapshot(a_minute_ago()).await.map(drop) })
        })
        .collect();
    until("the questions have come", || {
        server.daemon.who.load(Ordering::Relaxed) >= 3
    })
    .await;
    let error = ada.clone().list(v1::ListRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let what = "user 1000 has 3 requests under way, and one user may have 3";
    assert!(error.message().contains(what), "{error}");
    for uid in [BOB, 0] {
        user.store(uid, Ordering::SeqCst);
        let mut client = server.client().await;
        client.list(v1::ListRequest {}).await.unwrap();
    }
    // What was cancelled counts as long as its work goes on: two are in folds, and one waited for its turn.
    for one in waiting {
        one.abort();
    }
    until("one is over", || folds.now.load(Ordering::SeqCst) == 2).await;
    let mut first = ada.clone();
    let again = async { while first.list(v1::ListRequest {}).await.is_err() {} };
    let in_time = tokio::time::timeout(Duration::from_secs(60), again).await;
    assert!(in_time.is_ok());
    folds.let_go();
    until("all are over", || folds.now.load(Ordering::SeqCst) == 0).await;
    Met {
        what: "requests under way",
        most: of_each(Limits::REQUESTS),
        beyond: "further ones are refused, and what another user has is not touched",
        told: "error `too_many` with the numbers",
        test: "a_user_with_too_many_requests_keeps_nobody_else_waiting",
    }
    .is_told();
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let server = Server::start(FakeDaemon::with([fake::process(11, ADA)]), as_user(ADA));
    let request = v1::EventsRequest {
        kinds: vec!["x".repeat(100_000)],
        ..Default::default()
    };
    let error = server.client().await.events(request).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message().contains("64.00 KiB"), "{error}");
    Met {
        what: "bytes of a request",
        most: constant("crates/rpc/src/under_way.rs", "LARGEST_REQUEST"),
        beyond: "it is refused",
        told: "error `too_large` with the numbers",
        test: "a_request_that_is_too_large_is_refused",
    }
    .is_told();
}

#[tokio::test]
async fn a_question_with_too_many_addresses_is_refused() {
    let server = Server::start(FakeDaemon::with([fake::process(11, ADA)]), as_user(ADA));
    let mut client = server.client().await;
    let addresses =
        |count: u64| -> Vec<u64> { (0x7f00_0000_0000..).take(count as usize).collect() };
    let holders = |count| v1::HoldersRequest {
        pid: 11,
        addresses: addresses(count),
        ..Default::default()
    };
    let owners = |count| v1::OwnersRequest {
        pid: 11,
        addresses: addresses(count),
        ..Default::default()
    };
    client.holders(holders(1000)).await.unwrap();
    client.owners(owners(1000)).await.unwrap();
    let refused = [
        client.holders(holders(1001)).await.unwrap_err(),
        client.owners(owners(1001)).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), Code::InvalidArgument);
        let said = "at most 1000 addresses, and this one names 1001";
        assert!(error.message().contains(said), "{error}");
    }
    Met {
        what: "addresses of blocks in a question",
        most: constant("crates/rpc/src/asked.rs", "MOST_ADDRESSES"),
        beyond: "it is refused",
        told: "error `invalid` with the numbers",
        test: "a_question_with_too_many_addresses_is_refused",
    }
    .is_told();
}
