//! Answers that are streamed: snapshots, exports and events.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, BOB, Server, as_user, of_ada_and_bob};
use memscope_ledger::event::Body;
use memscope_proto::v1::{self, snapshot_part::Part};
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Exporter, Limits, ServeOptions};
use memscope_tests::limits::{Met, constant};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

#[tokio::test]
async fn a_large_snapshot_comes_in_parts() {
    let mut process = fake::process(11, ADA);
    process.snapshot = (3, 50_000, 200_000);
    let server = Server::start(FakeDaemon::with([process]), as_user(ADA));
    let mut client = server.client().await;
    let mut parts = client
        .snapshot(v1::SnapshotRequest {
            pid: 11,
            ..v1::SnapshotRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    let (mut blocks, mut entries, mut count, mut ended) = (0, Vec::new(), 0, false);
    while let Some(part) = parts.message().await.unwrap() {
        count += 1;
        assert!(!ended);
        match part.part.unwrap() {
            Part::Header(header) => {
                assert_eq!(count, 1);
                assert_eq!((header.segments, header.blocks), (3, 150_000));
                assert_eq!(header.trace_entries, 200_000);
            }
            Part::Segments(chunk) => {
                blocks += chunk.segments.iter().map(|s| s.blocks.len()).sum::<usize>()
            }
            Part::Trace(chunk) => entries.extend(chunk.entries.iter().map(|e| e.time_boot_ns)),
            Part::Stacks(_) => panic!("nobody asked for stacks"),
            Part::End(_) => ended = true,
        }
    }
    assert!(ended && count > 80);
    assert_eq!(blocks, 150_000);
    assert!(entries.into_iter().eq(0..200_000));
}

#[tokio::test]
async fn an_export_is_whole_or_says_that_it_is_not() {
    let exporter = |fails: bool| -> Exporter {
        Arc::new(move |report, out: &mut dyn Write, tell| {
            for (done, entry) in (1..).zip(&report.trace) {
                tell(done, 20_000);
                writeln!(out, "{:>99}", entry.time_ns)?;
            }
            if fails {
                return Err(std::io::Error::other("no more words"));
            }
            Ok(())
        })
    };
    for fails in [false, true] {
        let mut process = fake::process(11, ADA);
        process.snapshot = (0, 0, 20_000);
        let options = ServeOptions {
            exporter: Some(exporter(fails)),
            ..as_user(ADA)
        };
        let server = Server::start(FakeDaemon::with([process]), options);
        let request = v1::ExportRequest {
            pid: 11,
            format: v1::ExportFormat::MemoryViz.into(),
            ..Default::default()
        };
        let mut chunks = server
            .client()
            .await
            .export(request)
            .await
            .unwrap()
            .into_inner();
        let (mut bytes, mut whole, mut done) = (0, false, 0);
        let end = loop {
            match chunks.message().await {
                Ok(Some(chunk)) => {
                    whole = chunk.content.is_empty();
                    // Each chunk says how far the writer had come when the chunk was full.
                    if !whole {
                        assert!(chunk.of == 20_000 && chunk.done >= done, "{done}");
                        done = chunk.done;
                        assert_eq!(done, (bytes + chunk.content.len()).div_ceil(100) as u64);
                    }
                    bytes += chunk.content.len();
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if fails {
            assert!(!whole);
            assert!(end.unwrap().message().contains("no more words"));
        } else {
            assert_eq!((bytes, whole), (2_000_000, true));
            assert!(end.is_none());
        }
    }
}

#[tokio::test]
async fn an_export_that_nobody_reads_on_ends() {
    let (report_end, ended) = std::sync::mpsc::channel();
    let report_end = std::sync::Mutex::new(report_end);
    let exporter: Exporter = Arc::new(move |_, out, _| {
        let error = loop {
            if let Err(error) = out.write_all(&[0; 4096]) {
                break error;
            }
        };
        report_end.lock().unwrap().send(error.kind()).unwrap();
        Err(error)
    });
    let options = ServeOptions {
        exporter: Some(exporter),
        ..as_user(ADA)
    };
    let server = Server::start(of_ada_and_bob(), options);
    let request = v1::ExportRequest {
        pid: 11,
        format: v1::ExportFormat::MemoryViz.into(),
        ..Default::default()
    };
    let mut chunks = server
        .client()
        .await
        .export(request)
        .await
        .unwrap()
        .into_inner();
    assert!(chunks.message().await.unwrap().is_some());
    drop(chunks);
    let kind = tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(10)))
        .await
        .unwrap();
    assert_eq!(kind, Ok(std::io::ErrorKind::BrokenPipe));
}

/// A client that stays connected but takes nothing: what its answer holds is given back, and it is told when it reads
/// on. A reader of events may take its time: what waits for it is bounded.
#[tokio::test]
async fn an_answer_that_nobody_takes_is_given_up() {
    let (report_end, ended) = std::sync::mpsc::channel();
    let report_end = std::sync::Mutex::new(report_end);
    let exporter: Exporter = Arc::new(move |_, out, _| {
        let error = loop {
            if let Err(error) = out.write_all(&[0; 4096]) {
                break error;
            }
        };
        report_end.lock().unwrap().send(error.kind()).unwrap();
        Err(error)
    });
    let options = ServeOptions {
        exporter: Some(exporter),
        patience: Duration::from_millis(500),
        requests: Limits {
            of_root: 2,
            of_others: 2,
            of_a_user: 2,
        },
        ..as_user(ADA)
    };
    let server = Server::start(of_ada_and_bob(), options);
    let mut client = server.client().await;
    let request = v1::EventsRequest::default();
    let mut events = client.events(request).await.unwrap().into_inner();
    let publish = |number| {
        let forked = Body::Forked { child: 13 };
        server
            .daemon
            .hub
            .publish(&fake::event(11, ADA, number, forked));
    };
    // More than the transport takes for a client that does not read.
    for number in 0..20_000 {
        publish(number);
        if number % 1000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let request = v1::ExportRequest {
        pid: 11,
        format: v1::ExportFormat::MemoryViz.into(),
        ..Default::default()
    };
    let mut chunks = client.export(request).await.unwrap().into_inner();
    let kind = tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(60)))
        .await
        .unwrap();
    assert_eq!(kind, Ok(std::io::ErrorKind::BrokenPipe));
    // What the transport still has of the answer counts until it is read.
    let refused = client.list(v1::ListRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let error = loop {
        match chunks.message().await {
            Ok(chunk) => assert!(chunk.is_some(), "it must not look whole"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.message().contains("nothing of the answer"), "{error}");
    let again = async { while client.list(v1::ListRequest {}).await.is_err() {} };
    let in_time = tokio::time::timeout(Duration::from_secs(60), again).await;
    assert!(in_time.is_ok());
    // What waited for the reader of events is all there.
    for _ in 0..4000 {
        assert!(events.message().await.unwrap().is_some());
    }
    Met {
        what: "time in which a piece of an answer is taken",
        most: constant("crates/rpc/src/options.rs", "PATIENCE"),
        beyond: "the answer ends",
        told: "error `not_taken`",
        test: "an_answer_that_nobody_takes_is_given_up",
    }
    .is_told();
}

#[tokio::test]
async fn an_unknown_format_is_refused() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    for format in [0, 77] {
        let request = v1::ExportRequest {
            pid: 11,
            format,
            ..Default::default()
        };
        let error = server.client().await.export(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn an_unknown_kind_of_event_is_refused() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let request = v1::EventsRequest {
        kinds: vec!["finding".into(), "findings".into()],
        ..Default::default()
    };
    let error = server.client().await.events(request).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("findings"), "{error}");
}

#[tokio::test]
async fn events_reach_their_reader_and_end_with_the_server() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    let mut events = client
        .events(v1::EventsRequest::default())
        .await
        .unwrap()
        .into_inner();
    server
        .daemon
        .hub
        .publish(&fake::event(12, BOB, 1, Body::Exited));
    server
        .daemon
        .hub
        .publish(&fake::event(11, ADA, 2, Body::Forked { child: 13 }));
    let event = events.message().await.unwrap().unwrap();
    assert_eq!((event.pid, event.id.unwrap().sequence), (Some(11), 2));
    assert_eq!(
        event.body,
        Some(v1::event::Body::Forked(v1::Forked { child_pid: 13 }))
    );

    let path = server.folder.path().join("s.sock");
    assert!(path.exists());
    server.stop.send(()).unwrap();
    assert_eq!(events.message().await.unwrap(), None);
    drop((client, events));
    tokio::time::timeout(Duration::from_secs(10), server.task)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(server.folder.path().read_dir().unwrap().count(), 0);
}
