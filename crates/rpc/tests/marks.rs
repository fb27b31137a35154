//! Marks are listed, and a mark's name can be given wherever a moment is asked for.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, BOB, Server, as_user, of_ada_and_bob};
use memscope_proto::v1::moment::Moment as Wire;
use memscope_proto::{split_message, v1};
use memscope_rpc::Moment;
use tonic::Code;

fn mark(name: &str) -> Option<v1::Moment> {
    Some(v1::Moment {
        moment: Some(Wire::Mark(name.to_owned())),
    })
}

fn asked(server: &Server) -> Vec<Option<Moment>> {
    std::mem::take(&mut *server.daemon.asked.lock().unwrap())
}

#[tokio::test]
async fn every_question_that_takes_a_moment_takes_a_name() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    let (first, last) = (Some(Moment::Event(17)), Some(Moment::Event(40)));

    let request = v1::SnapshotRequest {
        pid: 11,
        at: mark("new data set"),
        ..v1::SnapshotRequest::default()
    };
    client.snapshot(request).await.unwrap();
    assert_eq!(asked(&server), [last]);

    let request = v1::DiffRequest {
        pid: 11,
        from: mark("new data set#1"),
        to: mark("new data set#2"),
    };
    client.diff(request).await.unwrap();
    assert_eq!(asked(&server), [last, first]);

    let request = v1::PoolRequest {
        pid: 11,
        at: None,
        from: mark("evaluation"),
    };
    client.pool(request).await.unwrap();
    assert_eq!(asked(&server), [None, Some(Moment::Event(20))]);

    let request = v1::StacksRequest {
        pid: 11,
        at: mark("new data set"),
        ..v1::StacksRequest::default()
    };
    client.stacks(request).await.unwrap();
    assert_eq!(asked(&server), [last]);

    for format in [v1::ExportFormat::Flamegraph, v1::ExportFormat::Folded] {
        let request = v1::ExportRequest {
            pid: 11,
            format: format.into(),
            at: mark("new data set"),
            ..v1::ExportRequest::default()
        };
        client.export(request).await.unwrap();
        assert_eq!(asked(&server), [last], "{format:?}");
    }
}

#[tokio::test]
async fn a_name_that_is_no_mark_is_refused() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    for (name, said) in [
        ("nothing", "no mark"),
        ("new data set#3", "#1 to #2"),
        ("", "no mark"),
    ] {
        let request = v1::SnapshotRequest {
            pid: 11,
            at: mark(name),
            ..v1::SnapshotRequest::default()
        };
        let error = client.snapshot(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(said), "{error}");
        assert!(
            split_message(error.message())
                .1
                .unwrap()
                .contains("memscope-ctl marks")
        );
    }
    assert_eq!(asked(&server), []);
}

#[tokio::test]
async fn pytorchs_own_marks_are_told_on_demand() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    let request = v1::MarksRequest {
        pid: 11,
        ..v1::MarksRequest::default()
    };
    let answer = client.marks(request).await.unwrap().into_inner();
    let names: Vec<&str> = answer.marks.iter().map(|mark| mark.name.as_str()).collect();
    assert_eq!(names, ["new data set", "evaluation", "new data set"]);
    let last = &answer.marks[2];
    assert_eq!(
        (last.nth, last.tid, last.step),
        (Some(2), None, Some(3)),
        "{last:?}"
    );
    assert_eq!(last.kind(), v1::MarkKind::Instant);
    assert_eq!(last.origin(), v1::MarkOrigin::People);
    assert_eq!(last.event.unwrap().sequence, 40);
    assert_eq!(answer.marks[1].tid, Some(77));
    let counts: Vec<(u64, u64)> = answer.counts.iter().map(|c| (c.count, c.kept)).collect();
    assert_eq!(counts, [(2, 2), (300, 1), (4711, 1)]);

    let request = v1::MarksRequest {
        include_framework: true,
        limit: 2,
        ..request
    };
    let answer = client.marks(request).await.unwrap().into_inner();
    let names: Vec<&str> = answer.marks.iter().map(|mark| mark.name.as_str()).collect();
    assert_eq!(names, ["Optimizer.step#Adam.step", "new data set"]);
}

#[tokio::test]
async fn others_marks_are_not_told() {
    let server = Server::start(of_ada_and_bob(), as_user(BOB));
    let mut client = server.client().await;
    let request = v1::MarksRequest {
        pid: 11,
        ..v1::MarksRequest::default()
    };
    assert_eq!(
        client.marks(request).await.unwrap_err().code(),
        Code::NotFound
    );
    let request = v1::SnapshotRequest {
        pid: 11,
        at: mark("new data set"),
        ..v1::SnapshotRequest::default()
    };
    assert_eq!(
        client.snapshot(request).await.unwrap_err().code(),
        Code::NotFound
    );
}

/// Ada's process ends right after the check whose it is, and a process of Bob's gets its pid.
#[tokio::test]
async fn a_mark_does_not_reach_the_next_process_with_the_pid() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut next = memscope_rpc::fake::process(11, BOB);
    next.process.handle = memscope_ledger::event::ProcessHandle(99);
    *server.daemon.next.lock().unwrap() = Some(next);
    let request = v1::MarkRequest {
        pid: 11,
        name: "mine".to_owned(),
        ..v1::MarkRequest::default()
    };
    let refused = server.client().await.mark(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert_eq!(*server.daemon.marked.lock().unwrap(), []);
}
