//! Which callers see which processes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, BOB, Server, as_user, of_ada_and_bob};
use memscope_proto::ERROR_CODE;
use memscope_proto::v1;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Access, Identify, ServeOptions};
use std::sync::Arc;
use tonic::Code;

#[tokio::test]
async fn others_processes_look_untraced() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    let list = client.list(v1::ListRequest {}).await.unwrap().into_inner();
    let pids: Vec<_> = list
        .processes
        .iter()
        .map(|p| p.facts.as_ref().unwrap().pid)
        .collect();
    assert_eq!(pids, [11]);
    assert!(client.stats(v1::StatsRequest { pid: 11 }).await.is_ok());

    let foreign = client
        .stats(v1::StatsRequest { pid: 12 })
        .await
        .unwrap_err();
    let untraced = client
        .stats(v1::StatsRequest { pid: 99 })
        .await
        .unwrap_err();
    assert_eq!(foreign.code(), Code::NotFound);
    assert_eq!(foreign.message().replace("12", "99"), untraced.message());
    assert_eq!(
        foreign.metadata().get(ERROR_CODE),
        untraced.metadata().get(ERROR_CODE)
    );

    let leaks = v1::LeaksRequest {
        pid: 12,
        ..Default::default()
    };
    assert_eq!(
        client.leaks(leaks).await.unwrap_err().code(),
        Code::NotFound
    );
    let fluctuation = v1::FluctuationRequest {
        pid: 12,
        ..Default::default()
    };
    assert_eq!(
        client.fluctuation(fluctuation).await.unwrap_err().code(),
        Code::NotFound
    );
    let snapshot = v1::SnapshotRequest {
        pid: 12,
        ..v1::SnapshotRequest::default()
    };
    assert_eq!(
        client.snapshot(snapshot).await.unwrap_err().code(),
        Code::NotFound
    );
    let stacks = v1::StacksRequest {
        pid: 12,
        ..Default::default()
    };
    assert_eq!(
        client.stacks(stacks).await.unwrap_err().code(),
        Code::NotFound
    );
    for format in v1::ExportFormat::Flamegraph as i32..=v1::ExportFormat::Speedscope as i32 {
        let export = v1::ExportRequest {
            pid: 12,
            format,
            ..Default::default()
        };
        assert_eq!(
            client.export(export).await.unwrap_err().code(),
            Code::NotFound
        );
    }
    let events = v1::EventsRequest {
        pid: Some(12),
        ..Default::default()
    };
    assert_eq!(
        client.events(events).await.unwrap_err().code(),
        Code::NotFound
    );
    let detach = v1::DetachRequest {
        scope: Some(v1::detach_request::Scope::Pid(12)),
    };
    assert_eq!(
        client.detach(detach).await.unwrap_err().code(),
        Code::NotFound
    );
    assert!(server.daemon.processes.lock().unwrap().contains_key(&12));
}

#[tokio::test]
async fn owners_of_a_moment_at_which_the_pid_was_another_users_are_refused() {
    let server = Server::start(FakeDaemon::with([fake::process(11, ADA)]), as_user(ADA));
    let mut client = server.client().await;
    let mut owners = async |at: Option<v1::Moment>| {
        let question = v1::OwnersRequest {
            pid: 11,
            at,
            ..v1::OwnersRequest::default()
        };
        client.owners(question).await
    };
    let ago = v1::Moment {
        moment: Some(v1::moment::Moment::AgoNs(1_000)),
    };
    assert!(owners(Some(ago.clone())).await.is_ok());
    *server.daemon.earlier.lock().unwrap() = Some(fake::process(11, BOB));
    assert_eq!(owners(Some(ago)).await.unwrap_err().code(), Code::NotFound);
    assert!(owners(None).await.is_ok());
}

#[tokio::test]
async fn one_foreign_uid_of_three_hides_a_process() {
    let mut process = fake::process(11, ADA);
    process.process.facts.uids = [ADA, ADA, 0];
    let server = Server::start(FakeDaemon::with([process]), as_user(ADA));
    let error = server
        .client()
        .await
        .stats(v1::StatsRequest { pid: 11 })
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[tokio::test]
async fn root_and_a_private_recording_show_everything() {
    let everyone = ServeOptions {
        access: Access::Everyone,
        ..as_user(ADA)
    };
    for options in [as_user(0), everyone] {
        let server = Server::start(of_ada_and_bob(), options);
        let mut client = server.client().await;
        let list = client.list(v1::ListRequest {}).await.unwrap().into_inner();
        assert_eq!(list.processes.len(), 2);
        assert!(client.stats(v1::StatsRequest { pid: 12 }).await.is_ok());
        let status = client
            .status(v1::StatusRequest {})
            .await
            .unwrap()
            .into_inner();
        assert_eq!(status.libraries.len(), 1);
        assert!(!status.totals_left_out && status.records > 0);
    }
}

#[tokio::test]
async fn the_kernel_says_who_asks() {
    // No caller is injected here: the real one is the user of this test.
    let uid = rustix::process::geteuid().as_raw();
    let daemon = FakeDaemon::with([fake::process(11, uid), fake::process(12, uid + 1)]);
    let server = Server::start(daemon, ServeOptions::default());
    let mut client = server.client().await;
    assert!(client.stats(v1::StatsRequest { pid: 11 }).await.is_ok());
    assert_eq!(
        client.stats(v1::StatsRequest { pid: 12 }).await.is_ok(),
        uid == 0
    );
}

#[tokio::test]
async fn nobody_known_is_nobody() {
    let identify: Identify = Arc::new(|_| None);
    let server = Server::start(
        of_ada_and_bob(),
        ServeOptions {
            identify,
            ..ServeOptions::default()
        },
    );
    let error = server
        .client()
        .await
        .list(v1::ListRequest {})
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn others_see_no_libraries_of_processes_that_they_do_not_see() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let status = server
        .client()
        .await
        .status(v1::StatusRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.libraries, []);
    assert_eq!(status.version, "0.1.0");
    let journal = status.journal.unwrap();
    assert_eq!(journal.state, "writing");
    // Nor totals of all processes, from which those of others would follow.
    assert!(status.totals_left_out);
    assert_eq!((status.records, status.sites, status.drops), (0, 0, vec![]));
    assert_eq!((journal.last_sequence, journal.bytes), (0, 0));
}
