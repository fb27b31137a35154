//! The server on a real Unix socket, with a fake daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, Server, as_user};
use memscope_proto::v1;
use memscope_proto::{ERROR_CODE, split_message};
use memscope_rpc::Refusal;
use memscope_rpc::fake::FakeDaemon;
use std::time::{Duration, Instant};
use tonic::Code;

#[tokio::test]
async fn refusals_keep_their_words() {
    use v1::attach_request::Scope;
    let server = Server::start(FakeDaemon::default(), as_user(ADA));
    let mut client = server.client().await;
    let pid = |pid| {
        Some(Scope::Pid(v1::PidScope {
            pid,
            children: false,
            wait: false,
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
            Refusal::Busy {
                what: "too many snapshots at once".into(),
            },
            Code::ResourceExhausted,
            "busy",
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
            ..v1::AttachRequest::default()
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
            wait: false,
        }))
    };
    let second = Some(1_000_000_000);
    for (scope, level, read_every_ns) in [
        (None, 0, None),
        (pid(0), 0, None),
        (pid(5), 99, None),
        (pid(5), v1::Level::Trace.into(), second),
        (pid(5), 0, second),
        (pid(5), v1::Level::Read.into(), Some(1)),
        (Some(Scope::All(false)), 0, None),
        (Some(Scope::Comm(String::new())), 0, None),
        (Some(Scope::Comm("sixteen_bytes_xx".into())), 0, None),
        (Some(Scope::Cgroup("relative".into())), 0, None),
        (Some(Scope::Cgroup("/a/../b".into())), 0, None),
    ] {
        let request = v1::AttachRequest {
            scope,
            level,
            read_every_ns,
            ..v1::AttachRequest::default()
        };
        let error = client.attach(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(split_message(error.message()).1.is_some(), "{error}");
    }
    let fluctuation = v1::FluctuationRequest {
        pid: 1,
        intervals: 1_000_000,
        ..v1::FluctuationRequest::default()
    };
    let error = client.fluctuation(fluctuation).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
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
