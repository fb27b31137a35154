//! A caller who wants only exact answers gets an exact one, or an error that says what is not exact.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, Server, as_user};
use memscope_proto::v1;
use memscope_rpc::fake::{self, FakeDaemon};
use tonic::{Code, Request, Status};

/// A daemon whose answers about process 11 have coverage notes with these codes.
fn noted(codes: &[&str]) -> FakeDaemon {
    FakeDaemon::with([fake::noted(11, ADA, codes)])
}

fn strict<T>(question: T) -> Request<T> {
    let mut request = Request::new(question);
    let yes = "1".parse().unwrap();
    request.metadata_mut().insert("memscope-strict", yes);
    request
}

fn minute_ago() -> Option<v1::Moment> {
    Some(v1::Moment {
        moment: Some(v1::moment::Moment::AgoNs(60_000_000_000)),
    })
}

/// Which of the questions below are answered, in their order.
async fn answered(codes: &[&str]) -> [bool; 7] {
    let server = Server::start(noted(codes), as_user(ADA));
    let mut client = server.client().await;
    let refused = |status: Result<(), Status>| match status {
        Ok(()) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert_eq!(
                status.metadata().get("memscope-error").unwrap(),
                "not_exact"
            );
            assert!(status.message().contains("it is "), "{status}");
            false
        }
    };
    let stats = client.stats(strict(v1::StatsRequest { pid: 11 })).await;
    let leaks = client
        .leaks(strict(v1::LeaksRequest {
            pid: 11,
            ..v1::LeaksRequest::default()
        }))
        .await;
    let fluctuation = client
        .fluctuation(strict(v1::FluctuationRequest {
            pid: 11,
            ..v1::FluctuationRequest::default()
        }))
        .await;
    let steps = client
        .steps(strict(v1::StepsRequest {
            pid: 11,
            ..v1::StepsRequest::default()
        }))
        .await;
    let snapshot = client
        .snapshot(strict(v1::SnapshotRequest {
            pid: 11,
            ..v1::SnapshotRequest::default()
        }))
        .await;
    let pool = client
        .pool(strict(v1::PoolRequest {
            pid: 11,
            ..v1::PoolRequest::default()
        }))
        .await;
    let diff = client
        .diff(strict(v1::DiffRequest {
            pid: 11,
            from: minute_ago(),
            to: None,
        }))
        .await;
    [
        refused(stats.map(drop)),
        refused(leaks.map(drop)),
        refused(fluctuation.map(drop)),
        refused(steps.map(drop)),
        refused(snapshot.map(drop)),
        refused(pool.map(drop)),
        refused(diff.map(drop)),
    ]
}

#[tokio::test]
async fn each_answer_depends_on_what_it_consists_of() {
    const ALL: [bool; 7] = [true; 7];
    const NONE: [bool; 7] = [false; 7];
    assert_eq!(answered(&[]).await, ALL);
    assert_eq!(answered(&["baseline_read", "forked"]).await, ALL);
    assert_eq!(answered(&["made_up_today"]).await, NONE);
    // Stats, leaks, fluctuation, steps, snapshot, pool, diff.
    assert_eq!(
        answered(&["attached_late"]).await,
        [false, false, true, true, false, false, false]
    );
    assert_eq!(
        answered(&["records_lost"]).await,
        [false, true, false, false, true, true, true]
    );
    assert_eq!(
        answered(&["level_blocks"]).await,
        [true, true, true, true, true, true, false]
    );
    assert_eq!(
        answered(&["stacks_sampled"]).await,
        [true, false, true, true, true, true, true]
    );
}

/// A caller who does not ask for exactness gets the answer, and in each note what it affects.
#[tokio::test]
async fn without_the_wish_the_answer_says_what_is_not_exact() {
    let server = Server::start(noted(&["attached_late", "baseline_read"]), as_user(ADA));
    let mut client = server.client().await;
    let answer = client.stats(v1::StatsRequest { pid: 11 }).await.unwrap();
    let notes = answer.into_inner().coverage;
    assert_eq!(notes[0].affects, ["blocks", "growth"]);
    assert!(notes[0].lower_bound);
    assert!(notes[1].affects.is_empty() && !notes[1].lower_bound);
}
