//! The server over a real Unix socket, with a daemon that makes its answers up.

#![allow(clippy::unwrap_used)]

use hyper_util::rt::TokioIo;
use memscope_ledger::event::Body;
use memscope_proto::v1::memscope_client::MemscopeClient;
use memscope_proto::v1::{self, snapshot_part::Part};
use memscope_proto::{ERROR_CODE, split_message};
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{
    Access, Caller, Export, Identify, ListenOptions, Listener, Refusal, ServeOptions, serve,
};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};

const ADA: u32 = 1000;
const BOB: u32 = 1001;

struct Server {
    daemon: Arc<FakeDaemon>,
    folder: tempfile::TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(daemon: FakeDaemon, options: ServeOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener =
            Listener::bind(&ListenOptions::private(folder.path().join("s.sock"))).unwrap();
        let daemon = Arc::new(daemon);
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&daemon);
        let task = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            serve(listener, served, options, stopped).await.unwrap();
        });
        Server {
            daemon,
            folder,
            stop,
            task,
        }
    }

    async fn channel(&self) -> Channel {
        connect(&self.folder.path().join("s.sock")).await
    }

    async fn client(&self) -> MemscopeClient<Channel> {
        MemscopeClient::new(self.channel().await)
    }
}

async fn connect(path: &Path) -> Channel {
    let path = path.to_owned();
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
        .await
        .unwrap()
}

/// A server that takes every caller for this user.
fn as_user(uid: u32) -> ServeOptions {
    let identify: Identify = Arc::new(move |_| {
        Some(Caller {
            uid,
            gid: uid,
            pid: None,
        })
    });
    ServeOptions {
        identify,
        ..ServeOptions::default()
    }
}

fn of_ada_and_bob() -> FakeDaemon {
    FakeDaemon::with([fake::process(11, ADA), fake::process(12, BOB)])
}

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
    let snapshot = v1::SnapshotRequest { pid: 12 };
    assert_eq!(
        client.snapshot(snapshot).await.unwrap_err().code(),
        Code::NotFound
    );
    let events = v1::EventsRequest { pid: Some(12) };
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
async fn one_foreign_uid_of_three_hides_a_process() {
    let mut process = fake::process(11, ADA);
    process.stats.process.facts.uids = [ADA, ADA, 0];
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
    }
}

#[tokio::test]
async fn the_kernel_says_who_asks() {
    // No injected caller: the real peer is this test's own user.
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
    assert_eq!(status.journal.unwrap().state, "writing");
}

#[tokio::test]
async fn a_large_snapshot_comes_in_parts() {
    let mut process = fake::process(11, ADA);
    process.snapshot = (3, 50_000, 200_000);
    let server = Server::start(FakeDaemon::with([process]), as_user(ADA));
    let mut client = server.client().await;
    let mut parts = client
        .snapshot(v1::SnapshotRequest { pid: 11 })
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
            Part::End(_) => ended = true,
        }
    }
    assert!(ended && count > 80);
    assert_eq!(blocks, 150_000);
    assert!(entries.into_iter().eq(0..200_000));
}

#[tokio::test]
async fn an_export_is_whole_or_says_that_it_is_not() {
    let export = |fails: bool| Export {
        memory_viz: Some(Arc::new(move |report, out: &mut dyn Write| {
            for entry in &report.trace {
                writeln!(out, "{:>99}", entry.time_ns)?;
            }
            if fails {
                return Err(std::io::Error::other("no more words"));
            }
            Ok(())
        })),
    };
    for fails in [false, true] {
        let mut process = fake::process(11, ADA);
        process.snapshot = (0, 0, 20_000);
        let options = ServeOptions {
            export: export(fails),
            ..as_user(ADA)
        };
        let server = Server::start(FakeDaemon::with([process]), options);
        let request = v1::ExportRequest {
            pid: 11,
            format: v1::ExportFormat::MemoryViz.into(),
        };
        let mut chunks = server
            .client()
            .await
            .export(request)
            .await
            .unwrap()
            .into_inner();
        let (mut bytes, mut whole) = (0, false);
        let end = loop {
            match chunks.message().await {
                Ok(Some(chunk)) => {
                    whole = chunk.content.is_empty();
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
    let memory_viz: memscope_rpc::Exporter = Arc::new(move |_, out| {
        let error = loop {
            if let Err(error) = out.write_all(&[0; 4096]) {
                break error;
            }
        };
        report_end.lock().unwrap().send(error.kind()).unwrap();
        Err(error)
    });
    let options = ServeOptions {
        export: Export {
            memory_viz: Some(memory_viz),
        },
        ..as_user(ADA)
    };
    let server = Server::start(of_ada_and_bob(), options);
    let request = v1::ExportRequest {
        pid: 11,
        format: v1::ExportFormat::MemoryViz.into(),
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

#[tokio::test]
async fn an_unknown_format_is_refused() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    for format in [0, 1, 77] {
        let request = v1::ExportRequest { pid: 11, format };
        let error = server.client().await.export(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn refusals_keep_their_words() {
    use v1::attach_request::Scope;
    let server = Server::start(FakeDaemon::default(), as_user(ADA));
    let mut client = server.client().await;
    let pid = |pid| {
        Some(Scope::Pid(v1::PidScope {
            pid,
            children: false,
        }))
    };
    let io = || std::io::Error::from_raw_os_error(28);
    let cases = [
        (
            Refusal::NoSuchProcess { pid: 7 },
            Code::NotFound,
            "no_such_process",
        ),
        (
            Refusal::DiedDuringAttach { pid: 7 },
            Code::Aborted,
            "died_during_attach",
        ),
        (
            Refusal::StrippedLibrary {
                pid: 7,
                path: "/x/libtorch.so".into(),
                missing: "record_trace".into(),
            },
            Code::FailedPrecondition,
            "stripped_library",
        ),
        (
            Refusal::NotPermitted {
                what: "trace everything".into(),
            },
            Code::PermissionDenied,
            "not_permitted",
        ),
        (
            Refusal::JournalFull {
                path: "/var/lib/memscope".into(),
            },
            Code::ResourceExhausted,
            "journal_full",
        ),
        (
            Refusal::Internal {
                what: "x".into(),
                source: Box::new(io()),
            },
            Code::Internal,
            "internal",
        ),
    ];
    for (refusal, code, word) in cases {
        let text = refusal.message();
        *server.daemon.refuse.lock().unwrap() = Some(refusal);
        let request = v1::AttachRequest {
            scope: pid(7),
            level: 0,
        };
        let error = client.attach(request).await.unwrap_err();
        assert_eq!(error.code(), code);
        assert_eq!(error.metadata().get(ERROR_CODE).unwrap(), word);
        assert_eq!(error.message(), text);
        assert!(split_message(error.message()).1.is_some());
    }
}

#[tokio::test]
async fn requests_without_sense_are_refused() {
    use v1::attach_request::Scope;
    let server = Server::start(FakeDaemon::default(), as_user(ADA));
    let mut client = server.client().await;
    let pid = |pid| {
        Some(Scope::Pid(v1::PidScope {
            pid,
            children: false,
        }))
    };
    for (scope, level) in [
        (None, 0),
        (pid(0), 0),
        (pid(5), 99),
        (Some(Scope::All(false)), 0),
        (Some(Scope::Comm(String::new())), 0),
        (Some(Scope::Comm("sixteen_bytes_xx".into())), 0),
        (Some(Scope::Cgroup("relative".into())), 0),
        (Some(Scope::Cgroup("/a/../b".into())), 0),
    ] {
        let request = v1::AttachRequest { scope, level };
        let error = client.attach(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(split_message(error.message()).1.is_some(), "{error}");
    }
    let fluctuation = v1::FluctuationRequest {
        pid: 1,
        window_ns: 0,
        intervals: 1_000_000,
    };
    let error = client.fluctuation(fluctuation).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn events_reach_their_reader_and_end_with_the_server() {
    let server = Server::start(of_ada_and_bob(), as_user(ADA));
    let mut client = server.client().await;
    let mut events = client
        .events(v1::EventsRequest { pid: None })
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

#[tokio::test]
async fn a_server_ends_in_time_though_a_client_holds_on() {
    let server = Server::start(FakeDaemon::hanging(), as_user(0));
    let mut client = server.client().await;
    let question = tokio::spawn(async move { client.stats(v1::StatsRequest { pid: 11 }).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(10), server.task)
        .await
        .unwrap()
        .unwrap();
    question.abort();
}

#[tokio::test]
async fn a_hanging_daemon_does_not_hold_a_client_with_a_deadline() {
    let server = Server::start(FakeDaemon::hanging(), as_user(0));
    let mut request = tonic::Request::new(v1::StatsRequest { pid: 11 });
    request.set_timeout(Duration::from_millis(200));
    let begin = Instant::now();
    let error = server.client().await.stats(request).await.unwrap_err();
    assert!(
        matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{error}"
    );
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn health_answers() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let server = Server::start(FakeDaemon::default(), as_user(ADA));
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "memscope.v1.Memscope"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
}

#[tokio::test]
async fn reflection_names_the_services() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = Server::start(FakeDaemon::default(), as_user(ADA));
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer = ServerReflectionClient::new(server.channel().await)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<_> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    assert!(names.contains(&"memscope.v1.Memscope"), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}
