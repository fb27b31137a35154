//! Questions in JSON and in gRPC-Web, at the TCP port.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::port::{Server, post, until};
use common::tls::{Client, PATIENCE};
use common::{ADA, BOB, as_user, of_ada_and_bob};
use http_body_util::BodyExt as _;
use memscope_proto::v1;
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Limits, Right, ServeOptions, rights};
use memscope_tests::certificates::Time;
use memscope_tests::{Value, json};
use prost::Message as _;
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service as _, http};
use tower::ServiceExt as _;

/// What came back: the status of HTTP, the headers, and the body.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A request of HTTP/1.1, as curl sends it.
async fn http1(client: &Client, method: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
    let head = format!("{method} {path}");
    let stream = begin(client, &head, kind, body, body.len()).await;
    answer(stream).await
}

/// Sends a request of which this is the body, or the beginning of one that says that it is so long.
async fn begin(
    client: &Client,
    line: &str,
    kind: &str,
    body: &[u8],
    length: usize,
) -> TlsStream<TcpStream> {
    let mut client = client.clone();
    let mut config = (*client.config).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    client.config = config.into();
    let all = async {
        let mut stream = client.connect().await.unwrap();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may answer before it has read all.
        let _ = stream.write_all(body).await;
        stream
    };
    let sent = tokio::time::timeout(PATIENCE, all);
    sent.await.expect("a connection")
}

async fn answer(mut stream: TlsStream<TcpStream>) -> Answer {
    let mut bytes = Vec::new();
    let all = stream.read_to_end(&mut bytes);
    let _ = tokio::time::timeout(PATIENCE, all)
        .await
        .expect("an answer");
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let split = split.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = bytes[split + 4..].to_vec();
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        body = unchunked(&body);
    }
    Answer { status, head, body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}

async fn ask(client: &Client, method: &str, question: &Value) -> Answer {
    let path = format!("/memscope.v1.Memscope/{method}");
    let body = question.to_string();
    http1(client, "POST", &path, "application/json", body.as_bytes()).await
}

#[tokio::test]
async fn questions_in_json_are_answered_as_in_grpc() {
    let server = Server::start(of_ada_and_bob(), "see");
    let client = server.with_roles(&[]);
    let mut memscope = client.memscope().await;
    let stats = memscope.stats(v1::StatsRequest { pid: 11 }).await.unwrap();
    let answer = ask(&client, "Stats", &json!({"pid": 11})).await;
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.head.contains("application/json"), "{}", answer.head);
    assert_eq!(
        answer.json(),
        serde_json::to_value(stats.into_inner()).unwrap()
    );

    let list = memscope.list(v1::ListRequest::default()).await.unwrap();
    let list = serde_json::to_value(list.into_inner()).unwrap();
    assert_eq!(ask(&client, "List", &json!({})).await.json(), list);
    // No text at all is a request without fields.
    let empty = http1(
        &client,
        "POST",
        "/memscope.v1.Memscope/List",
        "application/json; charset=utf-8",
        b"",
    );
    assert_eq!(empty.await.json(), list);

    let leaks = v1::LeaksRequest {
        pid: 12,
        ..v1::LeaksRequest::default()
    };
    let leaks = memscope.leaks(leaks).await.unwrap().into_inner();
    let answer = ask(&client, "Leaks", &json!({"pid": 12})).await;
    assert_eq!(answer.json(), serde_json::to_value(leaks).unwrap());

    let triggers = http1(
        &client,
        "POST",
        "/memscope.v1.Triggers/ListTriggers",
        "application/json",
        b"{}",
    );
    assert!(triggers.await.json()["triggers"].is_array());
}

/// Each question that is answered whole has a form in JSON, and nothing else has: what changes something cannot be sent
/// so, whatever the roles are.
#[tokio::test]
async fn only_questions_have_a_form_in_json() {
    let server = Server::start(of_ada_and_bob(), "see");
    let admin = server.with_roles(&["memscope:admin"]);
    let (mut questions, mut others) = (0, 0);
    for (path, needs, _) in rights::all() {
        let answer = http1(&admin, "POST", path, "application/json", br#"{}"#).await;
        let told = answer.json();
        let is_stream = ["Snapshot", "Events"].iter().any(|one| path.ends_with(one));
        if needs > Right::See || is_stream || path.starts_with("/grpc.") {
            others += 1;
            assert_eq!(answer.status, 404, "{path}: {told}");
            assert_eq!(told["error"]["code"], "invalid", "{path}");
        } else {
            questions += 1;
            // Without a process most of them are refused, but by who answers them.
            let message = told["error"]["message"].as_str().unwrap_or_default();
            assert!(!message.contains("answered in JSON"), "{path}: {told}");
            assert!(answer.status < 500, "{path}: {told}");
        }
    }
    assert!(questions >= 15 && others >= 9, "{questions} {others}");
    assert_eq!(server.daemon.processes.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn errors_are_json_with_a_fitting_status() {
    let server = Server::start(of_ada_and_bob(), "none");
    let client = server.with_roles(&["memscope:see"]);
    let stats = "/memscope.v1.Memscope/Stats";
    let json = "application/json";
    let large = format!("{{\"pid\": {}1}}", " ".repeat(70_000));
    let deep = "[".repeat(10_000);
    for (method, path, kind, body, status, code) in [
        ("POST", stats, json, r#"{"pid": 99}"#, 404, "not_traced"),
        // Without a pid it is no question about a process.
        ("POST", stats, json, "{}", 400, "invalid"),
        ("POST", stats, json, r#"{"pid": 0}"#, 400, "invalid"),
        ("POST", stats, json, r#"{"pid": 11"#, 400, "invalid"),
        ("POST", stats, json, r#"{"pid": -1}"#, 400, "invalid"),
        ("POST", stats, json, r#"{"pit": 11}"#, 400, "invalid"),
        ("POST", stats, json, r#"{"pid": 11} x"#, 400, "invalid"),
        ("POST", stats, json, &deep, 400, "invalid"),
        ("POST", stats, json, &large, 413, "too_large"),
        ("GET", stats, json, "", 405, "invalid"),
        ("POST", "/", json, "{}", 404, "invalid"),
        ("POST", stats, "text/plain", "{}", 415, "invalid"),
        (
            "POST",
            stats,
            "application/x-www-form-urlencoded",
            "{}",
            415,
            "invalid",
        ),
        ("OPTIONS", stats, "", "", 415, "invalid"),
    ] {
        let answer = http1(&client, method, path, kind, body.as_bytes()).await;
        let told = answer.json();
        let what: String = body.chars().take(40).collect();
        assert_eq!(answer.status, status, "{method} {path} {what}: {told}");
        assert_eq!(told["error"]["code"], code, "{told}");
        assert!(told["error"]["hint"].is_string(), "{told}");
        // No page of another site may read answers, or be asked whether it may.
        let head = answer.head.to_ascii_lowercase();
        assert!(!head.contains("access-control"), "{head}");
    }
    let nobody = server.with_roles(&[]);
    let answer = ask(&nobody, "Stats", &json!({"pid": 11})).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (403, Some("no_role"))
    );
    let of_namespace = server.with_roles(&["memscope:see=ml"]);
    let answer = ask(&of_namespace, "Stats", &json!({"pid": 11})).await;
    assert_eq!(answer.status, 404);
}

/// A body of which one piece after the other is sent, as this test wants it.
struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| Ok(http_body::Frame::data(piece))))
    }
}

/// Over HTTP/2 an answer before the end of a request breaks the stream off, and curl then shows no answer.
#[tokio::test]
async fn what_is_refused_is_read_first() {
    let server = Server::start(of_ada_and_bob(), "see");
    let channel = server.with_roles(&[]).channel().await;
    let stats = "/memscope.v1.Memscope/Stats";
    for (method, path, kind, status) in [
        ("POST", stats, "text/plain", 415),
        ("PUT", stats, "application/json", 405),
        (
            "POST",
            "/memscope.v1.Memscope/Snapshot",
            "application/json",
            404,
        ),
    ] {
        let (pieces, body) = mpsc::unbounded_channel();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("http://localhost{path}"))
            .header("content-type", kind)
            .body(Body::new(Pieces(body)))
            .unwrap();
        pieces.send(Bytes::from_static(b"{\"pid\":")).unwrap();
        let mut sender = channel.clone();
        let mut answer = Box::pin(sender.ready().await.unwrap().call(request));
        // What is asked after it in the same connection is answered, and it is not.
        let list = "/memscope.v1.Memscope/List";
        let later = post(&channel, list, "application/json", b"{}").await;
        assert_eq!(later.status(), 200);
        later.into_body().collect().await.unwrap();
        let early = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context).is_ready()));
        assert!(!early.await, "{kind} {path}");
        pieces.send(Bytes::from_static(b" 11}")).unwrap();
        drop(pieces);
        let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap();
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status, "{kind} {path}");
        let told = answer.into_body().collect().await.unwrap().to_bytes();
        let told: Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(told["error"]["code"], "invalid");
    }
}

/// A client that is not answered in JSON at the Unix socket, where gRPC is spoken and nothing else.
#[tokio::test]
async fn the_unix_socket_speaks_grpc_only() {
    let server = Server::start(of_ada_and_bob(), "see");
    let channel = common::connect(&server.folder.path().join("s.sock")).await;
    for kind in ["application/json", "application/grpc-web+proto"] {
        let answer = common::port::post(&channel, "/memscope.v1.Memscope/List", kind, b"{}").await;
        assert_eq!(answer.status(), 415, "{kind}");
    }
}

/// gRPC-Web over HTTP/1.1: the message and the trailers come in the body.
#[tokio::test]
async fn grpc_web_is_answered() {
    let processes = [fake::process(11, ADA), fake::process(12, BOB)];
    let server = Server::start(FakeDaemon::with(processes), "see");
    let client = server.with_roles(&[]);
    let request = v1::StatsRequest { pid: 11 }.encode_to_vec();
    let mut framed = vec![0, 0, 0, 0, request.len() as u8];
    framed.extend(request);
    let kind = "application/grpc-web+proto";
    let answer = http1(
        &client,
        "POST",
        "/memscope.v1.Memscope/Stats",
        kind,
        &framed,
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.head);
    let length = u32::from_be_bytes(answer.body[1..5].try_into().unwrap()) as usize;
    let stats = v1::StatsResponse::decode(&answer.body[5..5 + length]).unwrap();
    assert_eq!(stats.pid, 11);
    let trailers = &answer.body[5 + length..];
    assert_eq!(trailers[0], 0x80);
    assert!(String::from_utf8_lossy(trailers).contains("grpc-status:0"));
    // What changes something needs its role here as everywhere.
    let attach = http1(
        &client,
        "POST",
        "/memscope.v1.Memscope/Attach",
        kind,
        &[0; 5],
    )
    .await;
    let told = format!("{}{}", attach.head, String::from_utf8_lossy(&attach.body));
    assert!(
        told.contains("grpc-status: 7") || told.contains("grpc-status:7"),
        "{told}"
    );
    let audit = server.audit();
    assert_eq!(
        (audit.len(), audit[0]["code"].as_str()),
        (1, Some("not_permitted"))
    );
}

/// Requests that never come whole count as their sender's while they are read, and for no longer than they may take.
#[tokio::test]
async fn a_request_that_never_comes_whole_is_bounded() {
    let options = ServeOptions {
        sent_within: Duration::from_secs(10),
        requests: Limits {
            of_root: 1,
            of_others: 4,
            of_a_user: 2,
        },
        ..as_user(ADA)
    };
    let server = Server::start_with(of_ada_and_bob(), "see", options, "127.0.0.1:0");
    let client = |name| server.client(Some(&server.clients.client(name, &[], Time::Now)));
    let (slow, other) = (client("slow"), client("other"));
    let mut halves = Vec::new();
    for _ in 0..2 {
        let head = "POST /memscope.v1.Memscope/Stats";
        let kind = "application/json\r\nExpect: 100-continue";
        let mut half = begin(&slow, head, kind, b"{\"pid\": 1", 100).await;
        // The server says so when it begins to read the message: from then on the request has its place.
        let mut goes_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        let read = tokio::time::timeout(PATIENCE, half.read_exact(&mut goes_on));
        read.await.expect("an answer").unwrap();
        assert!(goes_on.starts_with(b"HTTP/1.1 100 "));
        halves.push(half);
    }
    let refused = ask(&slow, "List", &json!({})).await;
    assert_eq!(refused.status, 429);
    let refused = refused.json();
    assert_eq!(refused["error"]["code"], "too_many");
    assert_eq!(ask(&other, "List", &json!({})).await.status, 200);
    for half in halves {
        let answer = answer(half).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (504, Some("too_slow"))
        );
    }
    assert_eq!(ask(&slow, "List", &json!({})).await.status, 200);
}

/// An answer that its client does not take counts as its request, which counts once, and breaks off.
#[tokio::test]
async fn an_answer_in_json_that_nobody_takes_counts_and_is_given_up() {
    let options = ServeOptions {
        patience: Duration::from_millis(1),
        requests: Limits {
            of_root: 1,
            of_others: 4,
            of_a_user: 2,
        },
        ..as_user(ADA)
    };
    // Their list is longer than what the transport is handed at a time.
    let processes = (1..=500).map(|pid| fake::process(pid, ADA));
    let server = Server::start_with(FakeDaemon::with(processes), "see", options, "127.0.0.1:0");
    let client = |name| server.client(Some(&server.clients.client(name, &[], Time::Now)));
    let (slow, other) = (client("slow"), client("other"));
    let channel = slow.channel_with_window(1024).await;
    let list = async || {
        let path = "/memscope.v1.Memscope/List";
        post(&channel, path, "application/json", b"{}").await
    };
    let (first, second) = (list().await, list().await);
    assert_eq!(first.status(), 200);
    assert_eq!(second.status(), 200);
    let refused = list().await;
    assert_eq!(refused.status(), 429);
    let refused = refused.into_body().collect().await.unwrap().to_bytes();
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(refused["error"]["code"], "too_many");
    assert_eq!(ask(&other, "List", &json!({})).await.status, 200);
    drop((first, second));
    // The rest of an answer is gone when its time is over, however much of it the client asks for then.
    until("an answer breaks off", async || {
        let answer = list().await;
        let collected = answer.into_body().collect().await;
        collected.err()
    })
    .await;
    let whole = until("the client is answered again", async || {
        let answer = ask(&slow, "List", &json!({})).await;
        let listed: Option<Value> = serde_json::from_slice(&answer.body).ok();
        listed.filter(|_| answer.status == 200)
    });
    assert_eq!(whole.await["processes"].as_array().unwrap().len(), 500);
}
