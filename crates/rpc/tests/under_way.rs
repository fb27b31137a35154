//! What goes on after a client has cancelled its requests, and what it may keep from others.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, Server, as_user};
use memscope_proto::v1;
use memscope_rpc::Wanted;
use memscope_rpc::fake::{self, FakeDaemon};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

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
    }
}

#[tokio::test]
async fn cancelled_questions_do_not_make_room_for_others_before_they_end() {
    /// Snapshots that may be made at the same time.
    const TURNS: usize = 4;
    const ROUNDS: usize = 75;
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
