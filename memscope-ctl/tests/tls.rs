//! Daemons asked over TLS: both sides show certificates.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Server, command, run};
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Door, Doors, ListenOptions, Listener, ServeOptions, Tls, TlsFiles, serve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::PathBuf;
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
    assert_eq!(case.ctl(own, own, &["--connect", &socket, "ps"]).code, 0);
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

/// The nodes of a job are those that Slurm's programs name.
#[test]
fn the_nodes_of_a_job() {
    use std::os::unix::fs::PermissionsExt;
    let case = Case::new();
    let folder = tempfile::tempdir().unwrap();
    for (program, script) in [
        ("squeue", "[ \"$3\" = 42 ] || exit 1\necho 'localhost'\n"),
        ("scontrol", "[ \"$2\" = hostnames ] && echo \"$3\"\n"),
    ] {
        let path = folder.path().join(program);
        std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let ask = |nodes: &str| {
        let mut command = command(&case.daemon.socket(), &["--fleet", nodes, "ps"]);
        command
            .env("PATH", &path)
            .env("MEMSCOPE_TLS_CERT", case.authority.file("client.pem"))
            .env("MEMSCOPE_TLS_KEY", case.authority.file("client.key"))
            .env("MEMSCOPE_TLS_CA", case.authority.file("ca.pem"));
        run(command)
    };
    let answer = ask(&format!("slurm:42:{}", case.port));
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(answer.out.contains(" localhost"), "{}", answer.out);
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
    assert!(matches!(answer.code, 3 | 5), "{}", answer.err);
    assert_eq!(answer.out, "");
}
