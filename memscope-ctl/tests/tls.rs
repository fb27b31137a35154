//! Daemons asked over TLS: both sides show certificates.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Server, command, run};
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Door, Doors, ListenOptions, Listener, ServeOptions, Tls, TlsFiles, serve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An authority, and the files of a client's certificate from it.
struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let authority = Authority {
            folder,
            issuer: Issuer::new(params, key),
        };
        let (client, key) = authority.issue("ada");
        let write = |name: &str, text: String| std::fs::write(authority.file(name), text).unwrap();
        write("client.pem", client.pem());
        write("client.key", key.serialize_pem());
        authority
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A door to the daemon, with a certificate of this name. Clients must have one of the authority, and may ask anything.
fn door(authority: &Authority, name: &str, daemon: Arc<FakeDaemon>) -> u16 {
    let (certificate, key) = authority.issue(name);
    std::fs::write(authority.file("server.pem"), certificate.pem()).unwrap();
    std::fs::write(authority.file("server.key"), key.serialize_pem()).unwrap();
    let files = TlsFiles {
        certificate: authority.file("server.pem"),
        key: authority.file("server.key"),
        client_ca: authority.file("ca.pem"),
        client_crl: None,
    };
    let socket = authority.file("door.sock");
    let (tell, told) = std::sync::mpsc::channel();
    // The thread ends with the process of the test.
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let tls = Tls::load(files, "admin".parse().unwrap(), Arc::new(|_| {})).unwrap();
            let port = Door::open("127.0.0.1:0", &tls).unwrap();
            tell.send(port.address().port()).unwrap();
            let doors = Doors {
                socket: Listener::bind(&ListenOptions::private(socket)).unwrap(),
                ports: vec![port],
            };
            let options = ServeOptions {
                exporter: Some(common::exporter()),
                ..ServeOptions::default()
            };
            serve(doors, daemon, options, std::future::pending())
                .await
                .unwrap();
        });
    });
    told.recv().unwrap()
}

struct Case {
    daemon: Server,
    authority: Authority,
    port: u16,
}

impl Case {
    fn new() -> Case {
        let daemon = Server::start(FakeDaemon::with([fake::process(7, 0)]));
        let authority = Authority::new();
        let port = door(&authority, "localhost", Arc::clone(&daemon.daemon));
        Case {
            daemon,
            authority,
            port,
        }
    }

    /// Runs the program with the certificates of this authority.
    fn ctl(&self, of: &Authority, ca: &Authority, args: &[&str]) -> Answer {
        let mut command = command(&self.daemon.folder.path().join("none"), args);
        command
            .env("MEMSCOPE_TLS_CERT", of.file("client.pem"))
            .env("MEMSCOPE_TLS_KEY", of.file("client.key"))
            .env("MEMSCOPE_TLS_CA", ca.file("ca.pem"));
        run(command)
    }
}

#[test]
fn one_node_can_be_asked_anything() {
    let case = Case::new();
    let address = format!("localhost:{}", case.port);
    let own = &case.authority;
    for args in [
        &["--connect", &address, "ps"][..],
        &["--connect", &address, "stats"],
        &["--connect", &address, "marks"],
        &["--connect", &address, "ranks"],
    ] {
        let answer = case.ctl(own, own, args);
        assert_eq!(answer.code, 0, "{args:?}: {}", answer.err);
    }
    let words = ["--connect", &address, "snapshot", "--format", "json"];
    assert_eq!(case.ctl(own, own, &words).code, 0);
    let socket = format!("unix:{}", case.daemon.socket().display());
    let by_socket = case.ctl(own, own, &["--connect", &socket, "ps"]);
    assert_eq!(by_socket.code, 0, "{}", by_socket.err);
    let by_host = case.ctl(own, own, &["--connect", &address, "ps"]);
    assert_eq!(by_host.out, by_socket.out);
}

#[test]
fn a_fleet_of_sockets_hosts_and_names() {
    let case = Case::new();
    let own = &case.authority;
    let list = case.daemon.folder.path().join("list");
    let lines = format!(
        "socket unix:{}\nhost localhost:{}\n",
        case.daemon.socket().display(),
        case.port
    );
    std::fs::write(&list, lines).unwrap();
    let answer = case.ctl(own, own, &["--fleet", list.to_str().unwrap(), "ps"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.out.contains(" socket") && answer.out.contains(" host"));
    // The name may have more addresses than the one at which the door is.
    let name = format!("dns:localhost:{}", case.port);
    let answer = case.ctl(own, own, &["--fleet", &name, "ps"]);
    assert!(matches!(answer.code, 0 | 7), "{}{}", answer.out, answer.err);
    let row = format!(" 127.0.0.1:{}", case.port);
    assert!(answer.out.contains(&row), "{}", answer.out);
}

/// Makes a program that does this, and gives the search path on which it comes first.
fn stand_in(folder: &Path, program: &str, script: &str) -> String {
    let file = folder.join(program);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// Asks the nodes of this fleet which processes they trace.
fn asked(own: &Authority, path: &str, fleet: &str) -> Answer {
    let mut command = command(&own.file("none"), &["--fleet", fleet, "ps"]);
    command
        .env("PATH", path)
        .env("MEMSCOPE_TLS_CERT", own.file("client.pem"))
        .env("MEMSCOPE_TLS_KEY", own.file("client.key"))
        .env("MEMSCOPE_TLS_CA", own.file("ca.pem"));
    run(command)
}

/// The nodes of a job are those that Slurm's programs name.
#[test]
fn the_nodes_of_a_job() {
    let case = Case::new();
    let folder = tempfile::tempdir().unwrap();
    stand_in(
        folder.path(),
        "squeue",
        "[ \"$3\" = 42 ] || exit 1\necho 'localhost'",
    );
    let path = stand_in(
        folder.path(),
        "scontrol",
        "[ \"$2\" = hostnames ] && echo \"$3\"",
    );
    let ask = |nodes: &str| asked(&case.authority, &path, nodes);
    let answer = ask(&format!("slurm:42:{}", case.port));
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.out.contains(" localhost"), "{}", answer.out);
    // Parts of a job that share a node: each is a line of squeue's.
    let shared = tempfile::tempdir().unwrap();
    stand_in(shared.path(), "squeue", "printf 'localhost\\nlocalhost\\n'");
    let shared = stand_in(
        shared.path(),
        "scontrol",
        "[ \"$2\" = hostnames ] && echo \"$3\" | tr , '\\n'",
    );
    let answer = asked(
        &case.authority,
        &shared,
        &format!("slurm:42_1:{}", case.port),
    );
    assert_eq!(answer.code, 0, "{}", answer.err);
    let rows = answer.out.lines();
    let rows = rows.filter(|line| line.contains(" localhost")).count();
    assert_eq!(rows, 1, "{}", answer.out);
    let answer = ask(&format!("slurm:43:{}", case.port));
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(answer.err.contains("squeue did not say"), "{}", answer.err);
    for bad in ["slurm:42", "slurm:x:1", "slurm:42:0", "slurm:-a:1"] {
        assert_eq!(ask(bad).code, 2, "{bad}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let case = Case::new();
    let address = format!("localhost:{}", case.port);
    let none = command(&case.daemon.socket(), &["--connect", &address, "ps"]);
    let answer = run(none);
    assert_eq!(answer.code, 2);
    assert!(
        answer.err.contains("no certificates are given")
            && answer
                .err
                .contains("--tls-cert FILE, --tls-key FILE and --tls-ca FILE"),
        "{}",
        answer.err
    );
    let mut half = command(&case.daemon.socket(), &["--connect", &address, "ps"]);
    half.env("MEMSCOPE_TLS_CA", case.authority.file("ca.pem"));
    assert!(run(half).err.contains("belong together"));
    // A list is refused before any node is asked.
    let list = case.daemon.folder.path().join("list");
    std::fs::write(&list, format!("{address}\n")).unwrap();
    let fleet = command(
        &case.daemon.socket(),
        &["--fleet", list.to_str().unwrap(), "ps"],
    );
    assert_eq!(run(fleet).code, 2);
    let mut other = command(&case.daemon.socket(), &["--connect", &address, "ps"]);
    other
        .env("MEMSCOPE_TLS_CERT", case.authority.file("client.pem"))
        .env("MEMSCOPE_TLS_KEY", case.authority.file("client.pem"))
        .env("MEMSCOPE_TLS_CA", case.authority.file("ca.pem"));
    let answer = run(other);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains("the key in "), "{}", answer.err);
}

#[test]
fn who_is_not_trusted_learns_nothing() {
    let case = Case::new();
    let (own, foreign) = (&case.authority, &Authority::new());
    let address = format!("localhost:{}", case.port);
    // A daemon of another authority.
    let answer = case.ctl(own, foreign, &["--connect", &address, "ps"]);
    assert_eq!(answer.code, 5, "{}", answer.err);
    assert!(
        answer.err.contains("do not trust each other"),
        "{}",
        answer.err
    );
    // A daemon with another name.
    let wrong = ["--tls-name", "elsewhere", "--connect", &address, "ps"];
    let answer = case.ctl(own, own, &wrong);
    assert_eq!(answer.code, 5, "{}", answer.err);
    let right = format!("127.0.0.1:{}", case.port);
    let named = ["--tls-name", "localhost", "--connect", &right, "ps"];
    assert_eq!(case.ctl(own, own, &named).code, 0);
    // A client of another authority: the daemon ends the connection, and nothing is shown.
    let answer = case.ctl(
        foreign,
        own,
        &["--timeout", "20s", "--connect", &address, "ps"],
    );
    // Where the alert comes before the question was handed over, only that the connection broke is known.
    let says = match answer.code {
        5 => "do not trust each other",
        3 => "does it refuse --tls-cert?",
        code => panic!("{code}: {}", answer.err),
    };
    assert!(answer.err.contains(says), "{}", answer.err);
    assert_eq!(answer.out, "");
}

/// A slice as `kubectl get endpointslices -o json` prints it, of one endpoint of this machine.
fn slice(node: &str, port: u16, ready: bool) -> serde_json::Value {
    serde_json::json!({
        "addressType": "IPv4",
        "apiVersion": "discovery.k8s.io/v1",
        "endpoints": [{
            "addresses": ["127.0.0.1"],
            "conditions": {"ready": ready, "serving": ready, "terminating": false},
            "nodeName": node,
            "targetRef": {"kind": "Pod", "name": format!("memscoped-{node}"), "namespace": "memscope", "uid": format!("uid-{node}")},
            "zone": "rack-4"
        }],
        "kind": "EndpointSlice",
        "metadata": {
            "creationTimestamp": "2026-01-05T10:00:00Z",
            "generation": 3,
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": "memscoped",
                "service.kubernetes.io/headless": ""
            },
            "name": format!("memscoped-{port}"),
            "namespace": "memscope",
            "ownerReferences": [{"apiVersion": "v1", "controller": true, "kind": "Service", "name": "memscoped", "uid": "u"}],
            "resourceVersion": "4242"
        },
        "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}]
    })
}

#[test]
fn a_fleet_of_a_service_of_kubernetes() {
    let daemon = Server::start(FakeDaemon::with([fake::process(7, 0)]));
    let own = Authority::new();
    let port = door(&own, "memscoped.memscope.svc", Arc::clone(&daemon.daemon));
    // Nobody listens there any more.
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let folder = daemon.folder.path();
    let items = [
        slice("gpu-1", port, true),
        slice("gpu-2\u{1b}[31m", closed, false),
    ];
    let list = serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}});
    std::fs::write(folder.join("list.json"), list.to_string()).unwrap();
    // It notes how it was called.
    let words = folder.join("words");
    let kubectl = |script: &str| {
        let note = format!("printf '%s\\n' \"$@\" > '{}'", words.display());
        stand_in(folder, "kubectl", &format!("{note}\n{script}"))
    };
    let path = kubectl(&format!("cat '{}'", folder.join("list.json").display()));
    let ask = |path: &str, fleet: &str| asked(&own, path, fleet);
    let answer = ask(&path, "k8s:memscope/memscoped");
    assert_eq!(answer.code, 7, "{}{}", answer.out, answer.err);
    assert!(answer.out.contains(" gpu-1"), "{}", answer.out);
    // Who is not ready is told of, and what its name has in it does nothing to the terminal.
    let all = format!("{}{}", answer.out, answer.err);
    assert!(
        all.contains("1 node of 2 did not answer") && all.contains("gpu-2"),
        "{all}"
    );
    assert!(!all.contains('\u{1b}'), "{all:?}");
    let called = std::fs::read_to_string(&words).unwrap();
    let called: Vec<&str> = called.lines().collect();
    let expected = [
        "get",
        "endpointslices.discovery.k8s.io",
        "--selector",
        "kubernetes.io/service-name=memscoped",
        "--output",
        "json",
        "--request-timeout",
        "20s",
        "--namespace",
        "memscope",
    ];
    assert_eq!(called, expected);
    // By the port's name.
    assert_eq!(ask(&path, "k8s:memscoped:grpc").code, 7);

    // What kubectl says of an error is there as it is.
    let path = kubectl("echo 'Error from server (Forbidden): no' >&2; exit 1");
    let answer = ask(&path, "k8s:memscoped");
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer.err.contains("Error from server (Forbidden): no"),
        "{}",
        answer.err
    );
    assert!(
        answer
            .err
            .contains("kubectl did not say where the nodes are: exit status: 1"),
        "{}",
        answer.err
    );
    // It prints without an end.
    let path = kubectl("exec cat /dev/zero");
    let answer = ask(&path, "k8s:memscoped");
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer.err.contains("it printed more than 16777216 bytes"),
        "{}",
        answer.err
    );
    // It is not there.
    let answer = ask("/nowhere", "k8s:memscoped");
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer.err.contains("it has to be installed here"),
        "{}",
        answer.err
    );
    // What is no service is no word for kubectl.
    std::fs::remove_file(&words).unwrap();
    let path = kubectl("exit 0");
    for wrong in ["k8s:--all-namespaces", "k8s:a/b,c=d:1", "k8s:"] {
        let answer = ask(&path, wrong);
        assert_eq!(answer.code, 2, "{wrong}: {}", answer.err);
        assert!(
            answer.err.contains("write k8s:NAMESPACE/SERVICE:PORT"),
            "{}",
            answer.err
        );
    }
    assert!(!words.exists());
}
