//! The TCP door: who gets in, what they may do there, and what strangers can do to it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::port::{Server, call, until};
use common::tls::{Client, PATIENCE};
use common::{ADA, as_user, of_ada_and_bob};
use http_body::Frame;
use http_body_util::StreamBody;
use memscope_ledger::event::{Body as EventBody, ContainerNames};
use memscope_proto::{ERROR_CODE, v1};
use memscope_rpc::fake::{self, FakeDaemon, FakeProcess};
use memscope_rpc::{Limits, Right, ServeOptions, Tls, TlsFiles, rights};
use memscope_service::memscope_client::MemscopeClient;
use memscope_service::triggers_client::TriggersClient;
use memscope_tests::certificates::{Authority, ServerFiles, Time, replace};
use memscope_tests::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::{Code, Status};
use tower::ServiceExt as _;

#[tokio::test]
async fn a_good_certificate_is_answered_and_others_get_nothing() {
    let server = Server::start(of_ada_and_bob(), "see");
    let good = server.with_roles(&[]);
    assert!(good.first_bytes().await.unwrap() > 0);
    assert_eq!(
        good.list().await.unwrap(),
        2,
        "see shows the processes of all"
    );

    let stranger = Authority::new("clients");
    let issue = |time| server.clients.client("eve", &["memscope:admin"], time);
    let revoked = issue(Time::Now);
    let crl = server.clients.revoked(&[revoked.serial]);
    assert!(server.client(Some(&revoked)).first_bytes().await.is_ok());
    replace(&server.files.client_crl, &crl);
    let of_revoked = server.client(Some(&revoked));
    until("the revocation list is loaded", async || {
        of_revoked.first_bytes().await.err()
    })
    .await;

    let (past, future) = (issue(Time::Past), issue(Time::Future));
    let foreign = stranger.client("eve", &["memscope:admin"], Time::Now);
    for (what, issued, word) in [
        ("no certificate", None, "CertificateRequired"),
        ("a foreign one", Some(&foreign), "DecryptError|UnknownCA"),
        ("an expired one", Some(&past), "CertificateExpired"),
        (
            "a future one",
            Some(&future),
            "CertificateExpired|BadCertificate",
        ),
        ("a revoked one", Some(&revoked), "CertificateRevoked"),
    ] {
        let said = server.client(issued).first_bytes().await.unwrap_err();
        assert!(
            word.split('|').any(|word| said.contains(word)),
            "{what}: {said}"
        );
    }
    // The certificate of a server that this client does not trust is not accepted either.
    let wrong = Client::new(server.address, &stranger, Some(&issue(Time::Now)));
    assert!(wrong.first_bytes().await.is_err());
    assert!(good.list().await.is_ok());
    assert_eq!(*server.told.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn at_an_ipv6_address() {
    let server = Server::start_with(of_ada_and_bob(), "see", as_user(ADA), "[::1]:0");
    assert!(server.address.is_ipv6());
    assert_eq!(server.with_roles(&[]).list().await.unwrap(), 2);
}

fn word(status: &Status) -> &str {
    let word = status.metadata().get(ERROR_CODE);
    word.map_or("", |word| word.to_str().unwrap())
}

/// Every role against every method of the table, and local users beside them.
#[tokio::test]
async fn each_role_may_do_what_it_says_and_no_more() {
    let server = Server::start(of_ada_and_bob(), "none");
    let mut tried = 0;
    for (units, has) in [
        (&[][..], None),
        (&["memscope:see=ml"], Some(Right::See)),
        (&["memscope:see"], Some(Right::See)),
        (
            &["memscope:see=ml", "memscope:control"],
            Some(Right::Control),
        ),
        (&["memscope:control"], Some(Right::Control)),
        (&["memscope:admin"], Some(Right::Admin)),
        (&["memscope:root"], None),
        (&["unit", "memscope:control"], Some(Right::Control)),
    ] {
        let channel = server.with_roles(units).channel().await;
        for (path, needs, _) in rights::all() {
            tried += 1;
            let status = call(&channel, path).await;
            let at = format!("{units:?} {path}: {status:?}");
            match has {
                None => {
                    let status = status.expect(&at);
                    assert_eq!(status.code(), Code::PermissionDenied, "{at}");
                    assert_eq!(word(&status), "no_role", "{at}");
                    assert!(status.message().contains("memscope:"), "{at}");
                }
                Some(has) if has < needs => {
                    let status = status.expect(&at);
                    assert_eq!(status.code(), Code::PermissionDenied, "{at}");
                    let role = format!("OU memscope:{}", needs.role());
                    assert!(status.message().contains(&role), "{at}");
                }
                Some(_) => {
                    let code = status.as_ref().map(Status::code);
                    let is_refused = matches!(
                        code,
                        Some(Code::PermissionDenied | Code::Unimplemented | Code::Unauthenticated)
                    );
                    assert!(!is_refused, "{at}");
                }
            }
        }
        let missing = call(&channel, "/memscope.v1.Memscope/Reboot")
            .await
            .unwrap();
        let expected = [Code::Unimplemented, Code::PermissionDenied];
        assert_eq!(missing.code(), expected[usize::from(has.is_none())]);
    }
    assert!(tried >= 8 * 29, "{tried}");
}

/// A process of this Kubernetes namespace, as the machine knows it.
fn in_namespace(pid: u32, namespace: &str) -> FakeProcess {
    let mut process = fake::process(pid, ADA);
    process.process.facts.container = Some(ContainerNames {
        namespace: Some(namespace.to_owned()),
        ..ContainerNames::default()
    });
    process
}

/// A certificate for some namespaces is shown what is in them, and told nothing of the rest: of other namespaces, and of
/// processes that are in none.
#[tokio::test]
async fn a_namespace_does_not_show_what_is_outside_of_it() {
    let mut claims = fake::process(14, ADA);
    // What a process says of itself gives nobody a right.
    let own_words = ("KUBERNETES_NAMESPACE", "POD_NAMESPACE");
    for name in [own_words.0, own_words.1] {
        let environment = &mut claims.process.facts.environment;
        environment.push((name.into(), "ml".into()));
    }
    let processes = [
        in_namespace(11, "ml"),
        in_namespace(12, "web"),
        fake::process(13, ADA),
        claims,
    ];
    let daemon = FakeDaemon::with(processes);
    let server = Server::start(daemon, "none");
    let hub = &server.daemon.hub;
    let both = server.with_roles(&["memscope:see=ml", "memscope:see=web"]);
    assert_eq!(both.list().await.unwrap(), 2);
    let client = server.with_roles(&["memscope:see=ml"]);
    let mut memscope = client.memscope().await;
    let list = memscope.list(v1::ListRequest::default()).await.unwrap();
    let list: Vec<u32> = list
        .into_inner()
        .processes
        .iter()
        .map(|one| one.facts.as_ref().unwrap().pid)
        .collect();
    assert_eq!(list, [11]);
    assert!(memscope.stats(v1::StatsRequest { pid: 11 }).await.is_ok());
    for pid in [12, 13, 14] {
        let stats = memscope.stats(v1::StatsRequest { pid }).await;
        assert_eq!(word(&stats.unwrap_err()), "not_traced");
        let wanted = v1::SnapshotRequest {
            pid,
            ..v1::SnapshotRequest::default()
        };
        let snapshot = memscope.snapshot(wanted).await;
        assert_eq!(word(&snapshot.unwrap_err()), "not_traced");
    }
    let status = memscope.status(v1::StatusRequest::default()).await.unwrap();
    let status = status.into_inner();
    assert!(
        status.totals_left_out && status.messages.is_empty(),
        "{status:?}"
    );

    let events = memscope.events(v1::EventsRequest::default()).await.unwrap();
    let mut events = events.into_inner();
    until("the reader is there", async || {
        (hub.readers() > 0).then_some(())
    })
    .await;
    for (pid, namespace) in [(12, Some("web")), (13, None), (11, Some("ml"))] {
        let mut item = fake::event(pid, ADA, u64::from(pid), EventBody::Exited);
        item.namespace = namespace.map(Into::into);
        hub.publish(&item);
    }
    let event = tokio::time::timeout(PATIENCE, events.message())
        .await
        .unwrap();
    assert_eq!(event.unwrap().unwrap().pid, Some(11));
}

/// Whoever is not shown everything is shown the rules of their own name and no others; a user id in them is nobody's. A trigger bears the
/// name as well.
#[tokio::test]
async fn what_a_certificate_made_bears_its_name() {
    let daemon = FakeDaemon::with([in_namespace(11, "ml")]);
    {
        let made = |number, uid, certificate: Option<&str>| v1::Rule {
            rule: number,
            uid,
            certificate: certificate.map(str::to_owned),
            ..v1::Rule::default()
        };
        let mut rules = daemon.rules.lock().unwrap();
        rules.push(made(1, u32::MAX, Some("ops")));
        rules.push(made(2, u32::MAX, Some("other")));
        rules.push(made(3, ADA, None));
    }
    let server = Server::start(daemon, "none");
    let mut memscope = server.with_roles(&["memscope:see=ml"]).memscope().await;
    let status = memscope.status(v1::StatusRequest::default()).await.unwrap();
    let rules = status.into_inner().rules;
    assert_eq!(
        rules.iter().map(|rule| rule.rule).collect::<Vec<_>>(),
        [1],
        "{rules:#?}"
    );
    let control = server.with_roles(&["memscope:control"]);
    let mut triggers = TriggersClient::new(control.channel().await);
    let added = triggers
        .add_trigger(v1::AddTriggerRequest {
            when: "oom".to_owned(),
            pid: Some(11),
        })
        .await
        .unwrap();
    let added = added.into_inner().trigger.unwrap();
    assert_eq!(
        (added.certificate.as_deref(), added.uid),
        (Some("ops"), u32::MAX)
    );
    let listed = triggers.list_triggers(v1::ListTriggersRequest {}).await;
    assert_eq!(listed.unwrap().into_inner().triggers, [added]);
}

/// Bytes that are no TLS, and bytes that are no HTTP/2 behind a good handshake.
#[tokio::test]
async fn garbage_is_closed_and_others_are_answered() {
    let server = Server::start(of_ada_and_bob(), "see");
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0xff; 4096],
        &[0x16, 0x03, 0x01, 0xff, 0xff, 0x01],
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        // The server may close it with a reset.
        let _ = stream.read_to_end(&mut said).await;
        // At most a TLS alert, which says nothing but that.
        assert!(said.len() <= 7, "{said:?}");
    }
    let good = server.with_roles(&[]);
    let mut begun = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut oversize = begun.clone();
    oversize.extend([0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
    begun.extend([0xee; 512]);
    for garbage in [&[0xee; 512][..], &begun, &oversize] {
        let mut stream = good.connect().await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut said = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said));
        let _ = end.await.expect("it is closed");
        assert!(
            said.len() < 1024,
            "settings, and why it is closed: {said:?}"
        );
    }
    assert_eq!(good.list().await.unwrap(), 2);
}

/// Headers that are too large are refused, and so is a message, through this door as through the other one.
#[tokio::test]
async fn what_is_too_large_is_refused() {
    let server = Server::start(of_ada_and_bob(), "see");
    let good = server.with_roles(&[]);
    let mut memscope = good.memscope().await;
    let mut request = tonic::Request::new(v1::ListRequest::default());
    let large = "x".repeat(20_000).parse().unwrap();
    request.metadata_mut().insert("large", large);
    assert!(memscope.list(request).await.is_err());
    let mut memscope = good.memscope().await;
    let large = v1::MarkRequest {
        pid: 11,
        name: "x".repeat(100_000),
        ..v1::MarkRequest::default()
    };
    let control = server.with_roles(&["memscope:control"]);
    let refused = control.memscope().await.mark(large).await.unwrap_err();
    assert_eq!(word(&refused), "too_large");
    assert!(memscope.list(v1::ListRequest::default()).await.is_ok());
}

/// Clients that stop in the middle: a handshake that never ends, a connection on which nothing is ever asked, and a
/// request that never comes whole.
#[tokio::test]
async fn whoever_stops_in_the_middle_is_closed() {
    let options = ServeOptions {
        sent_within: Duration::from_millis(100),
        ..as_user(ADA)
    };
    let server = Server::start_with(of_ada_and_bob(), "see", options, "127.0.0.1:0");
    let good = server.with_roles(&[]);
    let half_open = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        assert!(said.is_empty(), "{said:?}");
    };
    let silent = async {
        let mut stream = good.connect().await.unwrap();
        let mut said = Vec::new();
        // The server's settings, and the end.
        let _ = stream.read_to_end(&mut said).await;
        assert!(said.len() < 256, "{said:?}");
    };
    let slow = async {
        let (sender, body) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Status>>(1);
        // The first half of a message of two bytes.
        sender
            .send(Ok(Frame::data(Bytes::from_static(&[0, 0, 0, 0, 2, 8]))))
            .await
            .unwrap();
        let body = tokio_stream::wrappers::ReceiverStream::new(body);
        let request = http::Request::post("http://localhost/memscope.v1.Memscope/Stats")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(StreamBody::new(body)))
            .unwrap();
        let mut channel = good.channel().await;
        let answer = channel.ready().await.unwrap().call(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(word(&status), "too_slow", "{status:?}");
        drop(sender);
    };
    let all = async { tokio::join!(half_open, silent, slow) };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("all are closed");
    assert_eq!(good.list().await.unwrap(), 2);
}

/// File descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connections that do nothing hold nothing for long, and nobody waits for them. All of them come from one address, that
/// of the good client, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_neither_stop_others_nor_pile_up() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    let raised = Rlimit {
        current: Some(most.min(20_000)),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let idle = usize::try_from(most.min(20_000)).unwrap();
    let idle = idle.saturating_sub(1_000).min(10_000);
    assert!(
        idle >= 2_000,
        "the limit of open files is {most}, too low for this test"
    );
    let server = Server::start(of_ada_and_bob(), "see");
    let good = server.with_roles(&[]);
    let mut long = good.memscope().await;
    let before = descriptors();
    let mut held = Vec::new();
    for number in 0..idle {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if number % 2 == 0 {
            // Half of them begin a handshake. The server may have closed it already.
            let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x02]).await;
        }
        held.push(stream);
        if number % 500 == 0 {
            assert_eq!(good.list().await.unwrap(), 2, "after {number}");
        }
    }
    assert_eq!(good.list().await.unwrap(), 2);
    assert!(long.list(v1::ListRequest::default()).await.is_ok());
    // What the server holds of them: at most as many handshakes as one address may have, and what has just been
    // accepted.
    let of_server = until("the server has closed the rest", async || {
        let of_server = descriptors() - before - held.len();
        (of_server <= 64 + 16).then_some(of_server)
    })
    .await;
    println!("{idle} idle connections, of which the server holds {of_server}");
    drop(held);
    assert_eq!(good.list().await.unwrap(), 2);
}

/// New files are taken without a restart, and who is connected stays connected. Files that cannot be used are not taken.
#[tokio::test]
async fn certificates_are_replaced_while_a_client_stays() {
    let server = Server::start(of_ada_and_bob(), "see");
    let old = server.with_roles(&[]);
    let mut stays = old.memscope().await;
    assert!(stays.list(v1::ListRequest::default()).await.is_ok());
    assert_eq!(old.connected.load(Ordering::SeqCst), 1);

    // Broken, and a key that is of another certificate: the old ones stay.
    let key = std::fs::read_to_string(&server.files.key).unwrap();
    for (count, wrong) in ["no key at all", &server.own.server().key]
        .iter()
        .enumerate()
    {
        replace(&server.files.key, wrong);
        until("what is wrong is said", async || {
            (server.told.lock().unwrap().len() > count).then_some(())
        })
        .await;
        assert!(
            server
                .client(Some(&server.clients.client("a", &[], Time::Now)))
                .list()
                .await
                .is_ok()
        );
    }
    let told = server.told.lock().unwrap().join("\n");
    assert!(
        told.contains("server.key") && told.contains("stay in force"),
        "{told}"
    );
    let secret: Vec<&str> = key.lines().filter(|line| line.len() > 40).collect();
    assert!(
        !secret.is_empty() && secret.iter().all(|line| !told.contains(line)),
        "{told}"
    );

    // A server's certificate of another authority.
    let own = Authority::new("other servers");
    let new = own.server();
    replace(&server.files.certificate, &new.certificate);
    replace(&server.files.key, &new.key);
    let issued = server.clients.client("new", &[], Time::Now);
    let trusting = Client::new(server.address, &own, Some(&issued));
    until("the new certificate is served", async || {
        trusting.first_bytes().await.ok()
    })
    .await;
    assert_eq!(trusting.list().await.unwrap(), 2);
    assert!(old.first_bytes().await.is_err(), "its authority is gone");

    // Clients of another authority.
    let clients = Authority::new("other clients");
    // Together with its revocation list: without one its certificates are not accepted.
    replace(&server.files.client_crl, &clients.revoked(&[]));
    replace(&server.files.client_ca, &clients.certificate());
    let issued = clients.client("new", &[], Time::Now);
    let newest = Client::new(server.address, &own, Some(&issued));
    until("the new authority is accepted", async || {
        newest.first_bytes().await.ok()
    })
    .await;
    assert_eq!(newest.list().await.unwrap(), 2);
    assert!(
        trusting.first_bytes().await.is_err(),
        "its authority is gone"
    );

    let connected = old.connected.load(Ordering::SeqCst);
    assert!(stays.list(v1::ListRequest::default()).await.is_ok());
    assert_eq!(
        old.connected.load(Ordering::SeqCst),
        connected,
        "the same connection"
    );
}

/// Certificates have a share of their own, by their names.
#[tokio::test]
async fn a_certificate_with_too_many_connections_keeps_nobody_else_out() {
    let options = ServeOptions {
        connections: Limits {
            of_root: 1,
            of_others: 3,
            of_a_user: 2,
        },
        ..as_user(ADA)
    };
    let server = Server::start_with(of_ada_and_bob(), "see", options, "127.0.0.1:0");
    let client = |name| server.client(Some(&server.clients.client(name, &[], Time::Now)));
    let (one, other) = (client("one"), client("other"));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut memscope = one.memscope().await;
        memscope.list(v1::ListRequest::default()).await.unwrap();
        held.push(memscope);
    }
    let refused = one.list().await.unwrap_err();
    assert_eq!(word(&refused), "too_many");
    assert!(
        refused
            .message()
            .contains("certificate \"one\" has 2 connections"),
        "{refused:?}"
    );
    assert_eq!(other.list().await.unwrap(), 2);
    let local = common::connect(&server.folder.path().join("s.sock")).await;
    let local = MemscopeClient::new(local)
        .list(v1::ListRequest::default())
        .await;
    assert_eq!(local.unwrap().into_inner().processes.len(), 1);
    drop(held);
    until("there is room again", async || one.list().await.ok()).await;
}

/// What is done through both doors, and what is refused, is written down once each, in order.
#[tokio::test]
async fn the_audit_log_has_everything_that_changed_or_was_to_change() {
    let server = Server::start(of_ada_and_bob(), "see");
    let ops = server
        .clients
        .client("ops", &["memscope:control"], Time::Now);
    let eve = server.clients.client("eve", &["memscope:see"], Time::Now);
    let serial = format!("{:x}", ops.serial);
    let local = common::connect(&server.folder.path().join("s.sock")).await;
    let mut ada = MemscopeClient::new(local.clone());
    let mut ada_triggers = TriggersClient::new(local);
    let channel = server.client(Some(&ops)).channel().await;
    let (mut ops, mut ops_triggers) = (
        MemscopeClient::new(channel.clone()),
        TriggersClient::new(channel),
    );
    let mut eve = server.client(Some(&eve)).memscope().await;
    let attach = |pid| v1::AttachRequest {
        scope: Some(v1::attach_request::Scope::Pid(v1::PidScope {
            pid,
            children: false,
            wait: false,
        })),
        level: v1::Level::Trace.into(),
        ..v1::AttachRequest::default()
    };
    let detach = |pid| v1::DetachRequest {
        scope: Some(v1::detach_request::Scope::Pid(pid)),
    };
    let mark = |pid| v1::MarkRequest {
        pid,
        name: "here".to_owned(),
        ..v1::MarkRequest::default()
    };
    let export = |pid| v1::ExportRequest {
        pid,
        format: v1::ExportFormat::MemoryViz.into(),
        ..v1::ExportRequest::default()
    };
    let trigger = |when: &str| v1::AddTriggerRequest {
        when: when.to_owned(),
        pid: Some(11),
    };
    let snapshot = v1::SnapshotRequest {
        pid: 11,
        ..v1::SnapshotRequest::default()
    };

    // Questions are not written down.
    assert!(ada.list(v1::ListRequest::default()).await.is_ok());
    assert!(eve.stats(v1::StatsRequest { pid: 11 }).await.is_ok());
    let mut expected = Vec::new();
    let mut note = |who: &str, action: &str, target: &str, code: Option<&str>| {
        expected.push(json!([who, action, target, code]));
    };
    ada.attach(attach(11)).await.unwrap();
    note("1000", "attach", "pid=11", None);
    ada.attach(attach(12)).await.unwrap_err();
    note("1000", "attach", "pid=12", Some("no_such_process"));
    ops.attach(attach(12)).await.unwrap();
    note("ops", "attach", "pid=12", None);
    eve.attach(attach(12)).await.unwrap_err();
    note("eve", "attach", "pid=12", Some("not_permitted"));
    ops.mark(mark(11)).await.unwrap();
    note("ops", "mark", "pid=11 name=\"here\"", None);
    eve.mark(mark(12)).await.unwrap_err();
    note("eve", "mark", "pid=12 name=\"here\"", Some("not_permitted"));
    eve.snapshot(snapshot).await.unwrap();
    note("eve", "snapshot", "pid=11", None);
    eve.export(export(11)).await.unwrap_err();
    note(
        "eve",
        "export",
        "pid=11 format=memory-viz",
        Some("not_permitted"),
    );
    ops.export(export(11)).await.unwrap();
    note("ops", "export", "pid=11 format=memory-viz", None);
    ops.record(v1::RecordRequest::default()).await.unwrap_err();
    note("ops", "record", "journal", Some("not_permitted"));
    let added = ops_triggers.add_trigger(trigger("oom")).await.unwrap();
    note("ops", "trigger_add", "pid=11 when=\"oom\"", None);
    let number = added.into_inner().trigger.unwrap().trigger;
    let number = v1::RemoveTriggerRequest { trigger: number };
    ada_triggers.remove_trigger(number).await.unwrap_err();
    note(
        "1000",
        "trigger_remove",
        "trigger=1",
        Some("no_such_trigger"),
    );
    ops_triggers.remove_trigger(number).await.unwrap();
    note("ops", "trigger_remove", "trigger=1", None);
    ops_triggers
        .add_trigger(trigger("nonsense\n"))
        .await
        .unwrap_err();
    note(
        "ops",
        "trigger_add",
        "pid=11 when=\"nonsense\\n\"",
        Some("invalid"),
    );
    ops.detach(detach(12)).await.unwrap();
    note("ops", "detach", "pid=12", None);
    ops_triggers
        .get_kept(v1::GetKeptRequest { snapshot: 9 })
        .await
        .unwrap_err();
    note("ops", "export_kept", "snapshot=9", Some("no_such_snapshot"));

    // An entry is written before its answer is given.
    let audit = server.audit();
    let told = |entry: &Value| {
        let who = &entry["who"];
        let who = match who["uid"].as_u64() {
            Some(uid) => uid.to_string(),
            None => who["certificate"].as_str().unwrap().to_owned(),
        };
        let is_ok = entry["outcome"] == "ok";
        assert_eq!(is_ok, entry["code"].is_null(), "{entry}");
        assert!(entry["time_unix_ns"].as_u64().unwrap() > 1_700_000_000_000_000_000);
        json!([who, entry["action"], entry["target"], entry["code"]])
    };
    assert_eq!(audit.iter().map(told).collect::<Vec<_>>(), expected);
    let of_ops = audit
        .iter()
        .find(|entry| entry["who"]["certificate"] == "ops");
    let who = &of_ops.unwrap()["who"];
    assert_eq!(
        who["serial"].as_str().unwrap().trim_start_matches('0'),
        serial
    );
    assert_eq!(who["roles"], "control");
    let address: SocketAddr = who["address"].as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(server.folder.path().join("audit.jsonl"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

/// Refusals before a handler sees the request are written down as well: too large, and no role at all.
#[tokio::test]
async fn the_audit_log_has_what_no_handler_saw() {
    let server = Server::start(of_ada_and_bob(), "none");
    let mut nobody = server.with_roles(&[]).memscope().await;
    nobody
        .detach(v1::DetachRequest::default())
        .await
        .unwrap_err();
    let mut ops = server.with_roles(&["memscope:control"]).memscope().await;
    let large = v1::MarkRequest {
        name: "x".repeat(100_000),
        ..v1::MarkRequest::default()
    };
    ops.mark(large).await.unwrap_err();
    let audit = server.audit();
    let told = |entry: &Value| (entry["action"].clone(), entry["code"].clone());
    assert_eq!(
        audit.iter().map(told).collect::<Vec<_>>(),
        [
            (json!("detach"), json!("no_role")),
            (json!("mark"), json!("too_large"))
        ]
    );
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (own, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = ServerFiles::write(folder.path(), &own, &clients);
    let all = TlsFiles {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        client_ca: files.client_ca.clone(),
        client_crl: Some(files.client_crl.clone()),
    };
    let tell: memscope_rpc::Tell = Arc::new(|text| panic!("{text}"));
    let load = |files| Tls::load(files, "see".parse().unwrap(), Arc::clone(&tell));
    load(all.clone()).unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let missing: PathBuf = folder.path().join("missing");
    type Change = fn(&mut TlsFiles, PathBuf);
    let changes: [(&str, Change); 4] = [
        ("certificate", |files, path| files.certificate = path),
        ("key", |files, path| files.key = path),
        ("client_ca", |files, path| files.client_ca = path),
        ("client_crl", |files, path| files.client_crl = Some(path)),
    ];
    for (what, change) in changes {
        for path in [&empty, &missing, &PathBuf::from("/dev/zero")] {
            let mut files = all.clone();
            change(&mut files, path.clone());
            let said = load(files).unwrap_err().to_string();
            assert!(said.contains(path.to_str().unwrap()), "{what}: {said}");
        }
    }
}

/// The server ends although clients are connected and handshakes run, and its port is free then.
#[tokio::test]
async fn it_ends_with_clients_at_the_door() {
    let server = Server::start(of_ada_and_bob(), "see");
    let mut connected = server.with_roles(&[]).memscope().await;
    let events = connected
        .events(v1::EventsRequest::default())
        .await
        .unwrap();
    let _half_open = TcpStream::connect(server.address).await.unwrap();
    server.stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, server.task)
        .await
        .unwrap()
        .unwrap();
    drop(events);
    until("the port is closed", async || {
        TcpStream::connect(server.address).await.err()
    })
    .await;
}
